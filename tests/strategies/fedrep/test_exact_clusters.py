"""Exact heads with clusters that appear: new users, few users, users that are all alike."""

from __future__ import annotations

from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest
import torch
from scipy.stats import multivariate_normal
from torch import nn

from corsage import simulate
from corsage.app.client_app import app
from corsage.app.local_grid import LocalGrid
from corsage.core.errors import RoundFailed
from corsage.networks.exact import exact_heads, softmax_heads
from corsage.networks.exact.exact_heads import Designs
from corsage.solvers.convex_clustering.proposals import proposals
from corsage.solvers.known_clusters.variances.shared_groups import groups
from corsage.solvers.known_clusters.variances.shared_rows import Rows, possible
from corsage.strategies.fedrep.fedrep_exact import FedRepExact
from tests.support.federations import federate
from tests.support.resuming import Resume, Stop

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
    assert -1e-5 <= found - float(value().detach()) <= softmax_heads.CLOSE_GAP * 9


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


# Users that are few, alike or odd; models of one's own.


def users(*shapes: tuple[int, int, tuple[int, ...]]) -> dict[str, Any]:
    """Users with so many rows, of one kind, of some classes."""
    rng = np.random.default_rng(0)
    means = rng.normal(size=(4, 12))
    found = {}
    for number, (rows, kind, classes) in enumerate(shapes):
        said = rng.choice(classes, rows)
        x = (means[said] + 0.5 * rng.normal(size=(rows, 12))).astype(np.float32)
        found[str(number)] = x, NAMES[kind, said]
    return found


ALL = (0, 1, 2, 3)
TWO_KINDS = [(40, i % 2, ALL) for i in range(8)]
CASES: dict[str, tuple[dict[str, Any], int]] = {  # and how many clusters are found
    "one user": (users((40, 0, ALL)), 1),
    "two users": (users((40, 0, ALL), (40, 1, ALL)), 1),
    "all alike": (dict.fromkeys("01234567", users((40, 0, ALL))["0"]), 1),
    "one with one class, a kind of its own": (users(*TWO_KINDS, (40, 0, (2,))), 3),
    "one with one row to learn from": (users(*TWO_KINDS, (2, 0, ALL)), 2),
}


def solved(data: dict[str, Any], **keys: Any) -> Any:
    own = {"num_rounds": 1, "hidden": "16", "test_fraction": 0.3, "progress": False}
    own |= {"fedrep_exact_centre": "clusters", "fedrep_exact_loss": "multinomial", **keys}
    return simulate("fedrep-exact", data, **own)["fedrep-exact"]


@pytest.mark.parametrize("name", CASES)
def test_odd_users(name: str) -> None:
    data, clusters = CASES[name]
    found = solved(data)
    assert len(found.per_user) == len(data) and not found.dropped
    assert np.isfinite(found.loss.mean) and found.score.mean > 0.5
    assert (len(set(found.clusters.values())) or 1) == clusters


def test_fewer_records_than_a_head_has_numbers() -> None:
    with pytest.raises(RoundFailed, match=r"12 records, no more than the 17 numbers"):
        solved(users(*[(2, 0, ALL)] * 12))


class Backbone(nn.Module):
    """Two branches, joined in `forward`; perhaps batches are normalised."""

    def __init__(self, normalised: bool) -> None:
        super().__init__()
        self.left, self.right = nn.Linear(12, 8), nn.Linear(12, 8)
        self.last = nn.BatchNorm1d(16) if normalised else nn.Identity()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        both = torch.cat([torch.tanh(self.left(x)), torch.relu(self.right(x))], 1)
        return self.last(both)  # type: ignore[no-any-return]


class Own(nn.Module):
    """A backbone under a linear head."""

    def __init__(self, normalised: bool) -> None:
        super().__init__()
        self.backbone, self.head = Backbone(normalised), nn.Linear(16, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.backbone(x))  # type: ignore[no-any-return]


@pytest.mark.parametrize("normalised", [False, True])
def test_a_backbone_of_one_s_own(normalised: bool) -> None:
    """With rounds of its body, too; both kinds of users are found."""
    torch.manual_seed(0)
    own = Own(normalised)
    found = solved(users(*TWO_KINDS), model=own, num_rounds=2, fedrep_exact_body_rounds=1)
    assert found.rounds == 2 and found.score.mean > 0.8
    assert len(set(found.clusters.values())) == 2


# Engines, resume, hostile users.


def several(folder: Path) -> dict[str, Any]:
    more = {"fedrep_exact_loss": "multinomial", "fedrep_exact_body_rounds": 2, "num_rounds": 3}
    return {
        **file(folder, users=12, each=40),
        **more,
        "fraction_train": 0.5,
        "new_users": 0.2,
        "adapt_samples": "3",
    }


def test_a_killed_run_is_resumed(tmp_path: Path) -> None:
    """In its second round; clusters, pull and heads are those of a run that was not killed."""
    keys = several(tmp_path)
    whole, wanted, _ = run(**keys)
    path, grid = tmp_path / "checkpoint", LocalGrid(app, 3)
    with pytest.raises(KeyboardInterrupt):
        FedRepExact(whole.config, [Stop(path, after=2)], experiment="e").start(grid)
    resumed = FedRepExact(whole.config, [Resume(path, 1)], experiment="e")
    result = resumed.start(grid)
    assert resumed.state.own == whole.state.own
    for row, again in zip(wanted.json(), result.json(), strict=True):
        assert row["per_user"] == again["per_user"] and row["bytes_up"] == again["bytes_up"]


@pytest.mark.parametrize("size", [1e6, 1e12])
def test_who_sends_wrong_sums_does_not_move_the_others(size: float) -> None:
    """Sums that could be of data, as large as they may be: the others' clusters stay."""
    rng = np.random.default_rng(0)
    truth, kind = rng.normal(size=(2, 5, 2)), np.arange(12) % 2
    z = rng.normal(size=(12, 60, 5))
    y = np.eye(2)[np.argmax(z @ truth[kind], 2)]
    a, b = np.einsum("nmd,nme->nde", z, z), np.einsum("nmd,nmc->ndc", z, y)
    count = np.full(12, 60.0)
    a[0], b[0] = size * np.eye(5), -(size**0.5) * b[0] / np.abs(b[0]).max()
    rows = Rows(a, b, count, count)
    assert possible(rows).all()
    labels = groups(rows, proposals).labels[1:]
    assert len(set(labels[kind[1:] == 0])) == 1 == len(set(labels[kind[1:] == 1]))
    assert len(set(labels)) == 2
