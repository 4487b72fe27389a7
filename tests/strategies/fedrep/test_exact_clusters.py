"""Exact heads with clusters that appear: new users, few users, users that are all alike."""

from __future__ import annotations

from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest
import torch
from scipy.stats import multivariate_normal
from torch import nn

from corsage.networks import exact_heads, softmax_heads
from corsage.networks.exact_heads import Designs
from corsage.strategies.fedrep.fedrep_exact import FedRepExact
from tests.support.federations import federate

KEYS: dict[str, Any] = {
    "dataset": "npz",
    "partition": "natural",
    "num_users": 0,
    "num_rounds": 1,
    "evaluate_every": 1,
    "fedrep_exact_centre": "clusters",
}
NAMES = np.array([[0, 1, 2, 3], [1, 2, 3, 0]])
"""What users of each kind call the classes."""


def file(folder: Path, users: int = 16, each: int = 60, kinds: int = 2) -> dict[str, Any]:
    """Users of two kinds, who call the same classes by other names."""
    rng = np.random.default_rng(0)
    means, user = rng.normal(size=(4, 12)), np.repeat(np.arange(users), each)
    kind = rng.integers(0, 4, len(user))
    x = (means[kind] + 0.5 * rng.normal(size=(len(user), 12))).astype(np.float32)
    path = folder / "own.npz"
    np.savez(path, x=x, label=NAMES[user % kinds, kind], user=user.astype(str))
    return {**KEYS, "data_file": str(path)}


def run(**more: Any) -> tuple[FedRepExact, Any, Any]:
    strategy, result, notes = federate("fedrep-exact", **more)
    return cast(FedRepExact, strategy), result, notes


def designs(seed: int, *sizes: int) -> Designs:
    rng = np.random.default_rng(seed)
    z = torch.from_numpy(rng.normal(size=(sum(sizes), 3)))
    labels = torch.from_numpy(rng.integers(0, 2, sum(sizes)))
    return Designs(z, torch.eye(2, dtype=z.dtype)[labels], labels, list(sizes))


def test_a_centre_is_the_mean_by_how_likely_the_rows_are() -> None:
    """Against the density of the labels, for users with more rows than features and with fewer."""
    rng = np.random.default_rng(0)
    of, centres = designs(1, 5, 2), rng.normal(size=(3, 3, 2))
    shares, rho, sigma2 = np.array([[0.5, 0.3, 0.2], [0.2, 0.0, 0.8]]), 0.7, 0.4

    def least(*args: Any) -> float:
        return exact_heads.least(*args, gamma=1 / rho, sigma2=sigma2)

    found = exact_heads.expected(of, centres, shares, least)
    for (z, y, _), share, one in zip(of.users(), shares, found, strict=True):
        spread = sigma2 * (np.eye(len(z)) + rho * (z @ z.t()).numpy())
        density = [
            np.prod([multivariate_normal.pdf(y[:, c], z @ w[:, c], spread) for c in range(2)])
            for w in centres
        ]
        chance = share * density / np.sum(share * density)
        assert np.allclose(one, np.tensordot(chance, centres, 1))


def test_who_is_in_a_cluster_is_drawn_to_that_one() -> None:
    """Nothing is computed for it, and what its rows say makes no difference."""
    of, centres = designs(1, 5), np.random.default_rng(0).normal(size=(2, 3, 2))

    def never(*_: Any) -> float:
        raise AssertionError

    found = exact_heads.expected(of, centres, np.array([[0.0, 1.0]]), never)
    assert np.array_equal(found[0], centres[1])


def test_the_multinomial_loss_s_least_value() -> None:
    """No other head has a smaller one by more than the fit leaves."""
    of, w = designs(2, 9), torch.from_numpy(np.random.default_rng(0).normal(size=(3, 2)))
    ((z, y, labels),) = of.users()
    found = softmax_heads.least(z, y, labels, w, gamma=0.5)
    start = w.clone().requires_grad_()
    steps = torch.optim.LBFGS([start], max_iter=500, tolerance_grad=1e-10)

    def value() -> torch.Tensor:
        steps.zero_grad()
        loss = nn.functional.cross_entropy(z @ start, labels, reduction="sum")
        loss = loss + 0.25 * (start - w).square().sum()
        loss.backward()  # type: ignore[no-untyped-call]
        return loss

    steps.step(value)  # type: ignore[no-untyped-call]
    assert -1e-5 <= found - float(value().detach()) <= softmax_heads.CLOSE * 9


@pytest.mark.parametrize("loss", ["squared", "multinomial"])
def test_new_users_find_their_cluster(tmp_path: Path, loss: str) -> None:
    """Four records say which names a user has; drawn to the middle, half of them go wrong."""
    keys = {**file(tmp_path, users=24), "new_users": 0.25, "fedrep_exact_loss": loss}
    rows = {}
    for centre in ("clusters", "one"):
        keys |= {"fedrep_exact_centre": centre, "adapt_samples": "4"}
        _, result, _ = run(**keys)
        rows[centre] = result["fedrep-exact+new"].score.mean
    assert rows["clusters"] > 0.9 > rows["one"] + 0.1
