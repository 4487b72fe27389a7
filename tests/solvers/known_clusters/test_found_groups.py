"""Groups that nobody told: against dense likelihoods, refits by rows, and what was planted."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import pytest

from corsage.core.arrays import Floats, Ints
from corsage.solvers.known_clusters.blocks import Sums
from corsage.solvers.known_clusters.folds import sums_in
from corsage.solvers.known_clusters.variances import found_groups as groups
from corsage.solvers.known_clusters.variances.found_groups import Part, errors, found_groups
from corsage.solvers.known_clusters.variances.mixtures import (
    OneCentre,
    Told,
    centred,
    mixture,
    steps,
)


class Rows(NamedTuple):
    x: Floats
    y: Floats
    user: Ints
    fold: Ints
    group: Ints

    def sums(self, some: Any) -> Sums:
        n = len(self.group)
        one = sums_in(self.x[some], self.y[some], self.user[some], 0 * self.user[some], n, 1)
        return Sums.of(one.a[0], one.b[0], one.yy[0])

    @property
    def folds(self) -> tuple[list[Sums], Floats]:
        counts = np.zeros((5, len(self.group)))
        np.add.at(counts, (self.fold, self.user), 1.0)
        return [self.sums(self.fold == number) for number in range(5)], counts


def drawn(seed: int, apart: float = 2.0, n: int = 45, d: int = 2) -> Rows:
    """Users in three groups, of 3 to 12 rows; not apart, they are one."""
    rng = np.random.default_rng(seed)
    sizes, group = rng.integers(3, 13, n), np.arange(n) % 3
    user = np.repeat(np.arange(n), sizes)
    x = np.column_stack([rng.standard_normal((len(user), d)), np.ones(len(user))])
    w = apart * np.array([[1.0, 0, 0], [-1, 1, 0], [0, -1, 1]])
    theta = w[group] + 0.2 * rng.standard_normal((n, d + 1))
    y = (x * theta[user]).sum(1) + rng.standard_normal(len(user))
    return Rows(x, y, user, rng.integers(5, size=len(user)), group)


ONE = OneCentre(np.array([0.3, -0.2, 0.1]), np.diag([1.0, 2.0, 0.5]), 1.3)


def test_every_step_raises_the_bound() -> None:
    rows = drawn(0)
    for kind in ("one", "diagonal", "full"):
        start = np.random.default_rng(1).integers(4, size=len(rows.group))
        start[:4] = range(4)
        found = [one.bound for one in steps(rows.sums(...), len(rows.y), ONE, start, kind)]
        assert len(found) > 4 and (np.diff(found) > -1e-9).all()


def test_of_one_group_the_bound_is_the_likelihood() -> None:
    rows, root = drawn(2, n=6), 0.3 * np.eye(3)
    users, alone = rows.sums(...), np.ones((6, 1))
    found = centred(Told.of(users, root), alone, ONE, root, len(rows.y))
    same = rows.user[:, None] == rows.user
    covariance = np.eye(len(rows.y)) + rows.x @ ONE.root @ ONE.root.T @ rows.x.T
    covariance = found.sigma2 * (covariance + same * (rows.x @ root @ root.T @ rows.x.T))
    away = rows.y - rows.x @ ONE.centre
    square = away @ np.linalg.solve(covariance, away)
    wanted = -(np.linalg.slogdet(2 * np.pi * covariance)[1] + square) / 2
    assert found.bound == pytest.approx(wanted, rel=1e-10)


def test_models_are_means_over_groups_and_users_without_rows_have_the_groups_mean() -> None:
    rows = drawn(3)
    users = rows.sums(rows.user > 0)  # the first one has none
    found = mixture(users, len(rows.y), ONE, rows.group, "one").known
    member = found.members(Told.of(users, found.root))
    assert member[0] == pytest.approx(found.shares)
    models = found.models(users)
    assert models[0] == pytest.approx(found.shares @ found.centres)
    tie = np.linalg.inv(found.root @ found.root.T)
    for user in (1, 7):
        x, y = rows.x[rows.user == user], rows.y[rows.user == user]
        each = [np.linalg.solve(x.T @ x + tie, x.T @ y + tie @ w) for w in found.centres]
        assert models[user] == pytest.approx(member[user] @ np.array(each))


def test_held_out_errors_from_folds_are_those_of_refits_by_rows(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """All is fitted without a fold to the rows that are left, and judged on those of the fold."""
    rows, seen = drawn(4), dict[tuple[int, int], Floats]()
    real = Part.grouped

    def watched(part: Part, count: int) -> Any:
        found = real(part, count)
        seen[round(part.tree.records), count] = found.models(part.tree.users)
        return found

    monkeypatch.setattr(Part, "grouped", watched)
    folds, counts = rows.folds
    found = found_groups(folds, counts, np.arange(45) / 45, True)
    units, whole, held = groups.standard(folds, counts, True)
    assert whole.a == pytest.approx(sum(own.a for own in held))
    total = np.zeros(2)
    for number, own in enumerate(counts):
        left = rows.fold != number
        models = units.models(seen[round(counts.sum() - own.sum()), 3])
        x, y, user = rows.x[~left], rows.y[~left], rows.user[~left]
        by_rows = np.square(y - (x * models[user]).sum(1)).sum()
        total += [by_rows, errors([folds[number]], [models]).sum()]
    assert total[0] == pytest.approx(total[1])
    one = total[0] / (1 - next(each.gain for each in found.tried if each.groups == 3))
    assert 1.05 * total[0] < one < np.square(rows.y).sum()


def test_groups_that_were_planted_are_found_and_of_one_cluster_none() -> None:
    for seed in (0, 1):
        rows = drawn(seed)
        found = found_groups(*rows.folds, np.arange(45) / 45, True).mixture
        assert found is not None and len(found.shares) == 3
        labels = found.members(Told.of(rows.sums(...), found.root)).argmax(1)
        right = sum(np.bincount(rows.group[labels == k]).max() for k in range(3))
        assert right >= 42
        assert found_groups(*drawn(seed, 0.0).folds, np.arange(45) / 45, True).mixture is None


def test_few_users_and_few_rows_are_not_divided() -> None:
    assert not found_groups(*drawn(0, n=5).folds, np.arange(5) / 5, True).tried
    rng = np.random.default_rng(0)  # 16 rows tell 15 coefficients, but not without a fold
    x = np.column_stack([rng.standard_normal((16, 14)), np.ones(16)])
    user = np.arange(16) // 2
    rows = Rows(x, x[:, 0], user, np.arange(16) % 5, user[:8])
    assert not found_groups(*rows.folds, np.arange(8) / 8, True).tried


def test_labels_without_noise_end_the_search() -> None:
    """Of three rows and four coefficients groups explain all: their bound has no top."""
    rng, user = np.random.default_rng(0), np.repeat(np.arange(20), 3)
    x = np.column_stack([rng.standard_normal((60, 3)), np.ones(60)])
    theta = np.array([[1.0, 2, 3, 0], [-1, 0, 2, 0]])
    rows = Rows(x, (x * theta[user % 2]).sum(1), user, np.arange(60) % 5, user[::3] % 2)
    found = found_groups(*rows.folds, np.arange(20) / 20, True)
    assert found.tried and all(np.isfinite(one.gain) for one in found.tried)
    none = rows._replace(y=np.zeros(60))
    assert not found_groups(*none.folds, np.arange(20) / 20, True).tried
