"""The likelihood of units on a tree, its slope and top, against dense matrices and statsmodels."""

from __future__ import annotations

import warnings
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import statsmodels.api as sm
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import minimize

from corsage.core.arrays import Floats, Ints
from corsage.datasets.hierarchical import Hierarchical, draw
from corsage.solvers.known_clusters.absorbed import Level
from corsage.solvers.known_clusters.blocks import Sums
from corsage.solvers.known_clusters.standard import Standard
from corsage.solvers.known_clusters.tree import Tree, levels_of
from corsage.solvers.known_clusters.variances import shape_choice
from corsage.solvers.known_clusters.variances.scoring import BLIND, Fitted, Scoring
from corsage.solvers.known_clusters.variances.shape_choice import (
    CHOICE_FOLDS,
    apart,
    bounded,
    chosen,
    dealt,
    equal_shapes,
    grouped,
    judged,
    part,
)
from corsage.solvers.known_clusters.variances.shapes import DIAGONAL, FULL, ONE, Shape
from corsage.solvers.known_clusters.variances.turning import searched
from tests.support.mixed_models import Records, records

DATA = records(1, slopes=0.5)
ALL = np.arange(3)


def tree_of(data: Records, *, standard: bool = False) -> Tree:
    """Users in clusters, in the data's units or in standard ones."""
    a, b, yy, counts = data.sums()
    sums = Sums.of(a, b, yy)
    if standard:
        sums = Standard.of(a.sum(0), b.sum(0), counts.sum(), True).sums(a, b, yy)
    return Tree(sums, levels_of(data.own, 8), counts * 1.0)


def covariance(x: Floats, levels: list[tuple[Ints, Floats]], sigma2: float) -> Floats:
    """Of all records: each level says which unit a record is of, and that unit's D over sigma^2."""
    found = np.eye(len(x))
    for unit, d in levels:
        found = found + np.equal.outer(unit, unit) * (x @ d @ x.T)
    return sigma2 * found


def dense(x: Floats, y: Floats, v: Floats) -> float:
    """-2 log restricted likelihood."""
    inverse = np.linalg.inv(v)
    fisher = x.T @ inverse @ x
    rest = y - x @ np.linalg.solve(fisher, x.T @ inverse @ y)
    logs = np.linalg.slogdet(v)[1] + np.linalg.slogdet(fisher)[1]
    return float((len(y) - x.shape[1]) * np.log(2 * np.pi) + logs + rest @ inverse @ rest)


def spread(seed: int, d: int = 3) -> Floats:
    """A root."""
    return 0.7 * np.tril(np.random.default_rng(seed).standard_normal((d, d)))


def test_the_deviance_is_that_of_all_records_on_three_levels() -> None:
    """Pupils in schools in authorities in regions; and what is known of all, and of wbar."""
    data, region = DATA, np.arange(8) // 3
    levels = (*levels_of(data.own, 8)[:1], Level.plain(region, 3), Level.plain(region[:3] * 0, 1))
    a, b, yy, counts = data.sums()
    roots = [spread(seed) for seed in (1, 2, 3)]
    found = Tree(Sums.of(a, b, yy), levels, counts * 1.0).integrated([r[None] for r in roots])
    units = [data.user, data.cluster, region[data.cluster]]
    pairs = [(unit, root @ root.T) for unit, root in zip(units, roots, strict=True)]
    v = covariance(data.x, pairs, found.middle.sigma2)
    assert found.middle.deviance == pytest.approx(dense(data.x, data.y, v), rel=1e-11)
    inverse = np.linalg.inv(v)
    fisher = np.linalg.inv(data.x.T @ inverse @ data.x)
    middle = fisher @ data.x.T @ inverse @ data.y
    assert found.known()[-1].mean[0] == pytest.approx(middle, rel=1e-9)
    assert found.known()[-1].covariance[0] * found.middle.sigma2 == pytest.approx(fisher, rel=1e-8)
    weights = inverse @ (data.y - data.x @ middle)
    for place, known in enumerate(found.known()[:-1]):
        unit = units[place] == 1  # of unit 1 of this level: all deviations from there up
        own = sum(
            d @ (data.x[u == u[unit][0]].T @ weights[u == u[unit][0]]) for u, d in pairs[place:]
        )
        assert known.mean[1] == pytest.approx(middle + found.middle.sigma2 * own, rel=1e-8)


@pytest.mark.parametrize("sigma2", [None, 1.3])
@pytest.mark.parametrize("kinds", [(ONE, FULL), (DIAGONAL, ONE), (FULL, DIAGONAL)])
@pytest.mark.parametrize("groups", [1, 8])
def test_the_slope_is_that_of_the_deviance(
    kinds: tuple[str, str], groups: int, sigma2: float | None
) -> None:
    whole = tree_of(DATA)
    shapes = (Shape(kinds[0], ALL, 3, groups), Shape(kinds[1], ALL[1:], 3))
    tree = Tree(whole.users, grouped(whole, shapes).levels, whole.counts, sigma2)
    search, rng = Scoring(tree, shapes), np.random.default_rng(0)
    x = np.concatenate([shape.numbers(np.eye(3)) for shape in shapes])
    x = x + 0.2 * rng.standard_normal(len(x))

    def at(x: Floats) -> float:
        return search.at(search.apart(x)).deviance

    slope, _ = search.local(search.at(search.apart(x)))
    steps = 1e-6 * np.eye(len(x))
    numbers = [(at(x + step) - at(x - step)) / 2e-6 for step in steps]
    assert slope == pytest.approx(np.array(numbers), abs=1e-5)


@pytest.mark.parametrize("kind", [ONE, DIAGONAL, FULL])
def test_nothing_is_more_likely(kind: str) -> None:
    """Than what the search ends at, for a search that knows no curvature; a variance may be 0."""
    search = Scoring(tree_of(DATA), equal_shapes(tree_of(DATA), kind, ALL))
    found = search.fitted()
    start = np.concatenate(search.started().x)
    plain = minimize(
        lambda x: search.at(search.apart(x)).deviance,
        start,
        jac=lambda x: search.local(search.at(search.apart(x)))[0],
        tol=1e-10,
    )
    assert found.converged and found.gain < 1e-10
    assert found.deviance < plain.fun + 1e-7


def test_a_full_covariance_is_statsmodels_own() -> None:
    data = DATA
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        theirs = sm.MixedLM(data.y, data.x, data.user, data.x).fit(reml=True, gtol=1e-9)
    a, b, yy, counts = data.sums()
    users = levels_of(data.own * 0, 1)
    tree = Tree(Sums.of(a, b, yy), users, counts * 1.0)
    found = Scoring(tree, equal_shapes(tree, FULL, ALL)).fitted()
    assert -found.deviance / 2 > theirs.llf - 1e-4
    ours = found.covariances[0][0] * found.found.middle.sigma2
    assert ours == pytest.approx(theirs.cov_re, rel=2e-3, abs=2e-3)
    assert found.found.middle.sigma2 == pytest.approx(theirs.scale, rel=1e-3)


@settings(max_examples=20, deadline=None)
@given(
    st.sampled_from([ONE, DIAGONAL, FULL]),
    st.lists(st.floats(-8, 8), min_size=3, max_size=3),
    st.lists(st.floats(-30, 30), min_size=2, max_size=2),
)
def test_units_change_nothing(kind: str, sizes: list[float], shifts: list[float]) -> None:
    """Features and labels times anything, and features shifted: the same predictions."""
    scale, predicted = 2.0 ** np.array(sizes), []
    x = DATA.x.copy()
    x[:, :2] = scale[:2] * (x[:, :2] + shifts)
    for data in (DATA, DATA._replace(x=x, y=DATA.y * scale[2])):
        a, b, yy, counts = data.sums()
        units = Standard.of(a.sum(0), b.sum(0), counts.sum(), True)
        tree = Tree(units.sums(a, b, yy), levels_of(data.own, 8), counts * 1.0)
        found = Scoring(tree, equal_shapes(tree, kind, ALL)).fitted()
        theta = units.models(found.found.known()[0].mean)
        predicted.append((data.x * theta[data.user]).sum(1))
    assert predicted[1] == pytest.approx(scale[2] * predicted[0], rel=1e-6, abs=1e-6 * scale[2])


def test_the_likelihood_of_users_that_are_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    """log p(fold | rest), from all records as one normal vector, wbar flat; steps are few."""
    tree, fold = tree_of(DATA), dealt(DATA.own, np.random.default_rng(3).random(48))
    assert (np.bincount(fold) >= 9).all() and len(np.bincount(fold)) == CHOICE_FOLDS
    shapes = equal_shapes(tree, DIAGONAL, ALL)
    near = judged(tree, fold, shapes)
    for name in ("CLOSE", "OUT"):
        monkeypatch.setattr(shape_choice, name, BLIND)
    found = judged(tree, fold, shapes)
    assert near.folds == pytest.approx(found.folds, abs=0.1 * found.folds.std())
    for number in range(CHOICE_FOLDS):
        rest = part(tree, np.flatnonzero(fold != number))
        assert found.fitted is not None
        own = Scoring(rest, shapes).fitted(found.fitted.x, enough=BLIND)
        pairs = [
            (unit, one[0])
            for unit, one in zip((DATA.user, DATA.cluster), own.covariances, strict=True)
        ]
        v = covariance(DATA.x, pairs, own.found.middle.sigma2)
        rows = fold[DATA.user] != number
        whole, less = (dense(DATA.x[r], DATA.y[r], v[np.ix_(r, r)]) for r in (rows | True, rows))
        assert found.folds[number] == pytest.approx((less - whole) / 2, rel=1e-6)


def drawn(x: Floats, theta: Floats, rng: np.random.Generator, k: int = 1) -> Tree:
    """Users with x (n, m, d) and models theta (n, d), noise of 1, dealt to k clusters in turn."""
    n, m, _ = x.shape
    y = np.einsum("umd,ud->um", x, theta) + rng.standard_normal((n, m))
    a, b = np.einsum("umd,ume->ude", x, x), np.einsum("umd,um->ud", x, y)
    users = Sums.of(a, b, np.square(y).sum(1))
    return Tree(users, levels_of(np.arange(n) % k, k), np.full(n, float(m)))


MIXED = np.array([[1.0, 0, 0, 0], [0.8, 0.5, 0, 0], [-0.6, 0.3, 0.7, 0], [0.5, 0, 0.4, 0.8]])
TRUE = {ONE: 0.7 * np.eye(4), DIAGONAL: np.diag([0.1, 0.3, 1.0, 2.0]), FULL: MIXED}


@pytest.mark.parametrize("true", [ONE, DIAGONAL, FULL])
def test_the_true_shape_is_chosen(true: str) -> None:
    """Of 300 users with 15 records, in 7 draws of 10 or more: one is by chance ahead in 2 of 10."""
    right = 0
    for seed in range(10):
        rng = np.random.default_rng(seed)
        x = np.concatenate([rng.standard_normal((300, 15, 3)), np.ones((300, 15, 1))], axis=2)
        tree = drawn(x, rng.standard_normal((300, 4)) @ TRUE[true].T, rng)
        found, tried = chosen(tree, rng.random(300), np.arange(4))
        right += found.shapes[0].kind == true
        assert len(tried) == 3
    assert right >= 7


def test_a_full_covariance_is_found_with_fewer_records_than_coefficients() -> None:
    """Of 400 users with 3 records for 4 coefficients each."""
    rng = np.random.default_rng(21)
    x = np.concatenate([rng.standard_normal((400, 3, 3)), np.ones((400, 3, 1))], axis=2)
    tree = drawn(x, rng.standard_normal((400, 4)) @ MIXED.T * 1.5, rng)
    found, _ = chosen(tree, rng.random(400), np.arange(4))
    assert found.shapes[0].kind == FULL and found.converged


def test_a_full_covariance_ends_where_few_coefficients_differ() -> None:
    """The first ten of twelve are the same for all; no place in a triangle makes searches creep."""
    for seed in range(3):
        rng = np.random.default_rng(seed)
        x = np.concatenate([rng.standard_normal((200, 25, 11)), np.ones((200, 25, 1))], axis=2)
        root = np.zeros((12, 12))
        root[10:, 10:] = [[0.5, 0.0], [0.8, 1.0]]
        tree = drawn(x, rng.standard_normal((200, 12)) @ root.T, rng)
        shapes = equal_shapes(tree, FULL, np.arange(12))
        found = searched(tree, shapes, most=40)
        assert found.gain < 1e-10
        assert np.linalg.matrix_rank(found.roots[0][0], 1e-4) < 10
        again = Scoring(tree, shapes).fitted(found.x, steps=10)
        assert again.deviance == pytest.approx(found.deviance, abs=1e-6)


def hierarchical(seed: int, **sizes: int) -> tuple[Tree, Standard, Hierarchical]:
    """Users of the second paper's own generator."""
    data = draw(seed, **sizes)
    n, m = len(data.cluster), sizes["samples"]
    x = np.concatenate([data.x, np.ones((n * m, 1))], axis=1).reshape(n, m, -1)
    y = data.y.reshape(n, m)
    a, b = np.einsum("umd,ume->ude", x, x), np.einsum("umd,um->ud", x, y)
    units = Standard.of(a.sum(0), b.sum(0), float(n * m), True)
    levels = levels_of(data.cluster, sizes["clusters"])
    tree = Tree(units.sums(a, b, np.square(y).sum(1)), levels, np.full(n, float(m)))
    return tree.thinned(), units, data


def error(found: Fitted, units: Standard, data: Hierarchical) -> float:
    """Of predictions of new records."""
    away = units.models(found.found.known()[0].mean)[:, :-1] - data.theta
    return float(np.sqrt(1 + np.square(away).sum(1).mean()))


@pytest.mark.parametrize("seed", [1, 2, 3, 4, 5])
def test_no_shape_is_chosen_that_predicts_worse(seed: int) -> None:
    """Of 60 users with 10 records for 21 coefficients."""
    tree, units, data = hierarchical(seed, clusters=3, users=20, samples=10, features=20)
    found, tried = chosen(tree, np.random.default_rng(seed).random(60), np.arange(21))
    shapes = equal_shapes(tree, ONE, np.arange(21))
    one = Scoring(tree, shapes).fitted()
    assert error(found, units, data) < 1.01 * error(one, units, data)
    refused = {one.shapes[0].kind: one.refused for one in tried if one.refused}
    assert "no top" in refused[FULL]


@pytest.mark.parametrize(("users", "top"), [(10, False), (40, True)])
def test_a_likelihood_without_a_top_is_known_beforehand(users: int, top: bool) -> None:
    """Of 4 records for 7 coefficients: of few users the noise goes to 0."""
    tree, *_ = hierarchical(21, clusters=2, users=users, samples=4, features=6)
    assert bounded(tree, 7) == top
    shapes = (Shape(FULL, np.arange(7), 7), Shape(ONE, np.arange(7), 7))
    found = Scoring(tree, shapes).fitted()
    assert found.converged == top == (found.found.middle.sigma2 > 1e-3)


@pytest.mark.parametrize("parts", ["all users", "folds"])
def test_what_has_not_converged_is_never_chosen(
    parts: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    rng, n = np.random.default_rng(3), 100
    x = np.concatenate([rng.standard_normal((n, 15, 3)), np.ones((n, 15, 1))], axis=2)
    tree = drawn(x, rng.standard_normal((n, 4)) @ MIXED.T, rng)
    fitted = Scoring.fitted

    def stopped(search: Scoring, *args: Any, **keys: Any) -> Fitted:
        found = fitted(search, *args, **keys)
        wide = search.shapes[0].kind != ONE
        here = (len(search.tree.counts) == n) == (parts == "all users")
        return replace(found, gain=1.0) if wide and here else found

    keys = rng.random(n)
    assert chosen(tree, keys, np.arange(4))[0].shapes[0].kind == FULL
    monkeypatch.setattr(Scoring, "fitted", stopped)
    found, tried = chosen(tree, keys, np.arange(4))
    assert found.shapes[0].kind == ONE
    assert [bool(one.refused) for one in tried] == [False, True, True]


@pytest.mark.parametrize("sizes", [(10, 3, 2, 1), (6, 2, 3, 1), (3, 20, 10, 20)])
def test_searches_neither_swing_nor_creep(
    sizes: tuple[int, int, int, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A clusters' and users' variance that are nearly the same; fewer records than coefficients."""
    steps, step = list[int](), Scoring.step

    def counted(search: Scoring, *args: Any) -> Any:
        steps[-1] += 1
        return step(search, *args)

    monkeypatch.setattr(Scoring, "step", counted)
    names = ("clusters", "users", "samples", "features")
    for seed in range(61, 69):
        tree, *_ = hierarchical(seed, **dict(zip(names, sizes, strict=True)))
        steps.append(0)
        d = tree.users.b.shape[1]
        assert Scoring(tree, equal_shapes(tree, ONE, np.arange(d))).fitted().converged
    assert np.median(steps) < 16


def nested(seed: int) -> Tree:
    """A table of few rows: users in clusters of all sizes, whose slopes may differ or not."""
    rng, k = np.random.default_rng(seed), 15
    own = np.repeat(np.arange(k), rng.integers(1, 5, k))
    user = np.repeat(np.arange(len(own)), rng.integers(1, 4, len(own)))
    x = np.column_stack([rng.standard_normal((len(user), 3)), np.ones(len(user))])
    spread = rng.choice([0.0, 0.5, 2.0], (2, 4))
    theta = spread[0] * rng.standard_normal((len(own), 4))
    theta += (spread[1] * rng.standard_normal((k, 4)))[own]
    y = (x * theta[user]).sum(1) + rng.choice([0.3, 1.0, 3.0]) * rng.standard_normal(len(user))
    data = Records(x, y, user, own[user])
    a, b, yy, counts = data.sums()
    sums = Standard.of(a.sum(0), b.sum(0), counts.sum(), True).sums(a, b, yy)
    return Tree(sums, levels_of(own, k), counts * 1.0).thinned()


@pytest.mark.parametrize("seed", [5, 12, 15, 22, 24, 26, 27, 28])
def test_a_search_ends_at_the_top_though_levels_share_what_sigma2_follows(seed: int) -> None:
    """The scale of two levels at once, less what sigma^2 takes over, had no curvature."""
    tree = nested(seed)
    shapes = equal_shapes(tree, DIAGONAL, np.arange(4))
    found = Scoring(tree, shapes).fitted()
    assert found.converged and found.found.middle.sigma2 > 0
    near = [x * 1.01 for x in found.x]
    assert Scoring(tree, shapes).at(near).deviance > found.deviance - max(BLIND, found.rounding)


def test_each_cluster_may_have_a_size_of_its_own() -> None:
    """Sizes of 0.2 and 2: found, and chosen; the covariance is one but for these."""
    rng, n = np.random.default_rng(6), 120
    x, sizes = rng.standard_normal((n, 12, 2)), np.array([0.2, 2.0])[np.arange(n) % 2]
    tree = drawn(x, sizes[:, None] * rng.standard_normal((n, 2)), rng, 2)
    found, _ = chosen(tree, rng.random(n), np.arange(2))
    assert found.shapes[0].groups == 2 and found.converged
    sizes = np.sqrt(found.covariances[0][:, 0, 0] * found.found.middle.sigma2)
    assert 0.05 < sizes[0] < 0.35 and sizes[1] == pytest.approx(2.0, rel=0.25)
    assert apart(tree, found.shapes) == found.shapes


def test_users_without_spread_have_a_variance_of_0() -> None:
    rng, n, m = np.random.default_rng(7), 40, 10
    x = rng.standard_normal((n, m, 2))
    x[:, 1::2] = x[:, ::2]  # records in pairs whose errors cancel: users differ less than by chance
    errors = np.repeat(rng.standard_normal((n, m // 2)), 2, 1) * np.tile([1.0, -1.0], m // 2)
    y = x @ [1.0, -1.0] + errors
    a, b = np.einsum("umd,ume->ude", x, x), np.einsum("umd,um->ud", x, y)
    tree = Tree(
        Sums.of(a, b, np.square(y).sum(1)), levels_of(np.zeros(n, int), 1), np.full(n, 10.0)
    )
    found = Scoring(tree, equal_shapes(tree, DIAGONAL, np.arange(2))).fitted()
    slope = found.found.derivatives()[0].sums(np.arange(2), pairs=False).slopes[0]
    assert found.converged
    assert (np.diag(found.covariances[0][0]) < 1e-9).all() and (np.diag(slope) > 0).all()
