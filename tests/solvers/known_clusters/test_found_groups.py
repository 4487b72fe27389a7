"""Groups that nobody told: against dense likelihoods, refits by rows, and what was planted."""

from __future__ import annotations

import itertools
from typing import Any, NamedTuple

import numpy as np
import pytest

from corsage.core.arrays import Floats, Ints
from corsage.solvers.known_clusters.blocks import Sums
from corsage.solvers.known_clusters.folds import sums_in
from corsage.solvers.known_clusters.variances import found_groups as groups
from corsage.solvers.known_clusters.variances.found_groups import Part, Tried, errors, found_groups
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


def test_a_gain_is_sure_if_no_few_users_make_it() -> None:
    """Ranks and trimmed means by loops; three users who gain most of all are not enough."""
    rng = np.random.default_rng(0)
    one = rng.uniform(1, 100, 40)
    other = one * (1 + rng.normal(-0.08, 0.1, 40))
    gains = one - other
    ranks = np.argsort(np.argsort(np.abs(gains / one))) + 1
    by_ranks = (ranks * np.sign(gains)).sum() / np.sqrt(np.square(ranks).sum())
    left, kept = np.sort(gains)[4:-4], np.sort(gains)
    kept[:4], kept[-4:] = left[0], left[-1]
    trimmed = left.mean() / (kept.std(ddof=1) / 0.8 / np.sqrt(40))
    wanted = min(by_ranks, trimmed, groups.by_mean(one, other))
    assert groups.sure(one, other) == pytest.approx(wanted) and wanted > 1.7
    few = one * (1 + rng.permuted(np.repeat([-0.05, 0.05], 20)))
    few[:3] = 0.0
    assert groups.errors_apart(one - few) > 1.0 > groups.sure(one, few)
    assert groups.sure(one, one) == 0.0


def test_what_one_user_alone_gains_or_loses_is_no_gain_of_all() -> None:
    gains = np.append(np.full(30, 0.1) + 0.01 * (np.arange(30) % 5), 0.0)
    one, lost = np.append(np.ones(30), 1e4), np.empty(31)
    for own in (9e3, -9e3):  # all others lose, or gain for sure
        gains[-1] = own
        lost[:] = one - (gains if own < 0 else np.append(-gains[:30], own))
        assert groups.errors_apart(one - lost) < groups.OF_ONE_USER
        assert (groups.sure(one, lost) > 1.7) == (own < 0)
    assert groups.errors_apart(np.append(np.zeros(30), 7.0)) == pytest.approx(groups.OF_ONE_USER)
    assert groups.taken([Tried(2, 0.5, 3.0, shared=False)], [lost]) is None
    assert groups.taken([Tried(2, 0.5, 3.0)], [lost]) == 0
    # of eight users 1.8 standard errors are not enough
    assert groups.taken([Tried(2, 0.5, 1.8)], [lost[:8]]) is None


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


def by_rows(
    rows: Rows, root: Floats, member: Floats, apart: float
) -> tuple[Floats, Floats, float, float]:
    """Centres, how unsure they are, and the noise, user by user (ONE's is the prior, so far apart);
    then how far apart the centres are expected to be.
    """
    tie, k = np.linalg.inv(ONE.root @ ONE.root.T) / apart**2, member.shape[1]
    p, q = np.array([tie] * k), np.array([tie @ ONE.centre] * k)
    users = range(len(member))
    for user in users:
        x, y, v = of_user(rows, user, root)
        p += member[user, :, None, None] * (x.T @ v @ x)
        q += np.outer(member[user], x.T @ v @ y)
    w, unsure = np.linalg.solve(p, q[..., None])[..., 0], np.linalg.inv(p)
    square = sum((own - ONE.centre) @ tie @ (own - ONE.centre) for own in w)
    for user in users:
        x, y, v = of_user(rows, user, root)
        square += sum(member[user, j] * (y - x @ w[j]) @ v @ (y - x @ w[j]) for j in range(k))
    sigma2 = square / len(rows.y)
    size = [(own - ONE.centre) @ tie @ (own - ONE.centre) / sigma2 for own in w]
    wide = np.mean(size) + np.mean([np.trace(tie @ own) for own in unsure])
    return w, unsure, sigma2, apart * float(np.sqrt(wide / 3))


def of_user(rows: Rows, user: int, root: Floats) -> tuple[Floats, Floats, Floats]:
    """Its rows, and the inverse covariance of its labels over sigma^2."""
    x, y = rows.x[rows.user == user], rows.y[rows.user == user]
    return x, y, np.linalg.inv(np.eye(len(y)) + x @ root @ root.T @ x.T)


def members_by_rows(rows: Rows, before: Any, root: Floats) -> Floats:
    """Memberships under the centres of before, and users' new covariance."""
    logs = np.zeros((9, 3))
    for user in range(9):
        x, y, v = of_user(rows, user, root)
        for j in range(3):
            away = y - x @ before.centres[j]
            logs[user, j] = np.log(before.shares[j]) - away @ v @ away / before.sigma2 / 2
            logs[user, j] -= np.trace(x.T @ v @ x @ before.unsure[j]) / 2
    found = np.exp(logs - logs.max(1, keepdims=True))
    return found / found.sum(1, keepdims=True)


def test_steps_are_those_of_a_plain_loop_over_rows() -> None:
    """Each root is EM's, or EM's 2^t times as far; all else follows from it, user by user."""
    rows = drawn(6, n=9)
    found = list(steps(rows.sums(...), len(rows.y), ONE, rows.group, "one"))
    member = np.full((9, 3), 0.05)
    member[range(9), rows.group], apart = 0.9, 1.0
    for before, after in itertools.pairwise(found):
        w, unsure, sigma2, apart = by_rows(rows, before.root, member, apart)
        assert before.centres == pytest.approx(w) and before.sigma2 == pytest.approx(sigma2)
        assert before.shares == pytest.approx(member.mean(0))
        size, tie = before.root[0, 0], np.linalg.inv(before.root @ before.root.T)
        squares = 0.0
        for user in range(9):
            x, y, _ = of_user(rows, user, before.root)
            v = np.linalg.inv(x.T @ x + tie)
            for j in range(3):
                mean, gain = v @ x.T @ (y - x @ w[j]), v @ x.T @ x
                second = mean @ mean / sigma2 + np.trace(v + gain @ unsure[j] @ gain.T)
                squares += member[user, j] * second / 27
        further = np.log(after.root[0, 0] / size) / np.log(np.sqrt(squares) / size) - 1
        assert further == pytest.approx(0, abs=1e-8) or np.log2(further) == pytest.approx(
            round(np.log2(further)), abs=1e-6
        )
        member = members_by_rows(rows, before, after.root)
    assert len(found) > 4
