"""One answer a user, of all users at once: the very numbers of users one by one."""

import numpy as np
import pytest

from corsage.clients.parts.baseline import log_odds, means_of


@pytest.mark.parametrize("seed", range(5))
def test_means_are_those_of_each_user(seed: int) -> None:
    """Bit for bit, whatever the sizes; a user without labels has the mean 0."""
    rng = np.random.default_rng(seed)
    sizes = rng.integers(0, 300, size=40)
    labels = rng.normal(size=sizes.sum()) * 1e3
    each = np.split(labels, np.cumsum(sizes)[:-1])
    wanted = [[own.mean() if len(own) else 0.0] for own in each]
    assert means_of(labels, sizes).tolist() == wanted


@pytest.mark.parametrize("outputs", [1, 2, 5])
def test_odds_are_those_of_each_user(outputs: int) -> None:
    rng = np.random.default_rng(outputs)
    sizes = rng.integers(0, 9, size=30)
    labels = rng.integers(0, max(outputs, 2), size=sizes.sum())
    found = log_odds(labels, sizes, outputs)
    for own, row in zip(np.split(labels, np.cumsum(sizes)[:-1]), found, strict=True):
        counts = np.array([(own == c).sum() + 1.0 for c in range(max(outputs, 2))])
        wanted = np.log(counts) if outputs > 1 else np.log(counts[1:] / counts[:1])
        assert row.tolist() == wanted.tolist()
