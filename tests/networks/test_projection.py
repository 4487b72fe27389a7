"""Principal components from a sketch, against those of all second moments."""

from __future__ import annotations

import numpy as np
import pytest

from corsage.core.errors import ModelError
from corsage.networks.exact.projection import components, probes, sketched


def inputs(rank: int, p: int = 60) -> np.ndarray:
    """Rows that vary in so many directions, around a mean."""
    rng = np.random.default_rng(0)
    return (
        rng.normal(size=(300, rank)) * np.geomspace(1, 0.1, rank) @ rng.normal(size=(rank, p)) + 2.0
    )


@pytest.mark.parametrize(("rank", "wanted"), [(12, 12), (60, 50)])
def test_a_sketch_has_the_components(rank: int, wanted: int) -> None:
    """Exact where the inputs vary in fewer directions than it has columns, or it has them all."""
    x = inputs(rank)
    mean, p = x.mean(0), x.shape[1]
    assert sketched(12, p) == 32 and sketched(50, p) == 60
    variance, directions = components(mean, x.T @ (x @ probes(p, wanted)) / len(x), wanted)
    values, vectors = np.linalg.eigh(np.cov(x.T, bias=True))
    values, vectors = values[::-1][:wanted], vectors[:, ::-1][:, :wanted]
    assert np.allclose(variance, values, rtol=1e-3, atol=1e-4 * values[0])
    leading = slice(0, 5)
    assert np.allclose(np.abs(np.sum(directions * vectors, 0))[leading], 1, atol=1e-4)


def test_inputs_that_do_not_vary_are_refused() -> None:
    mean = np.ones(8)
    sketch = np.outer(mean, mean) @ probes(8, 4)
    with pytest.raises(ModelError, match="do not vary"):
        components(mean, 0 * sketch + np.outer(mean, mean @ probes(8, 4)), 4)
