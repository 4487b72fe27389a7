"""What makes wide tables cheap says the same as the plain formulas."""

from dataclasses import replace

import numpy as np
import pytest
from scipy.optimize import minimize_scalar

from corsage.solvers.known_clusters.absorbed import Level
from corsage.solvers.known_clusters.blocks import InLanes, OneByOne, Sums
from corsage.solvers.known_clusters.columns import Columns
from corsage.solvers.known_clusters.likelihood import Level as Said
from corsage.solvers.known_clusters.mixed_model import shrunk
from corsage.solvers.known_clusters.spectra import Partial
from corsage.solvers.known_clusters.tree import Tree, levels_of
from corsage.solvers.known_clusters.variances.ratios import RATIOS, Close, Profile
from corsage.solvers.known_clusters.variances.scoring import Scoring, local_full, local_lines
from corsage.solvers.known_clusters.variances.shapes import DIAGONAL, FULL, ONE, Shape

N, K, D, ROWS = 12, 3, 16, 5


def drawn(rows: int = ROWS, seed: int = 0) -> Sums:
    """Users with so many records, and their noise."""
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(N, rows, D))
    y = (x @ rng.normal(size=(N, D, 1)))[..., 0] + rng.normal(size=(N, rows))
    return Sums.of(x.mT @ x, (x.mT @ y[..., None])[..., 0], np.square(y).sum(1))


def tree_of(sums: Sums, rows: int = ROWS) -> Tree:
    """In clusters that are mixed up."""
    return Tree(sums, levels_of(np.arange(N) % K, K), np.full(N, float(rows)))


def shapes(kind: str, varies: np.ndarray, groups: int = 1) -> list[Shape]:
    return [Shape(kind, varies, D, groups), Shape(kind, varies, D)]


@pytest.mark.parametrize("groups", [1, K])
@pytest.mark.parametrize("kind", [ONE, DIAGONAL, FULL])
def test_thin_users_say_what_all_their_coefficients_do(kind: str, groups: int) -> None:
    tree = tree_of(drawn())
    if groups > 1:
        users = replace(tree.levels[0], group=tree.levels[0].parent)
        tree = replace(tree, levels=(users, tree.levels[1]))
    thin, all_ = tree.thinned(), shapes(kind, np.arange(D), groups)
    assert thin.thin is not None and thin.thin.f.shape == (N, D, ROWS)
    rng = np.random.default_rng(1)
    x = [rng.normal(size=shape.size) for shape in all_]
    ours, theirs = Scoring(thin, all_), Scoring(tree, all_)
    one, other = ours.at(x), theirs.at(x)
    assert one.deviance == pytest.approx(other.deviance, rel=1e-12)
    for a, b in zip(ours.parts(one), theirs.parts(other), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-8, atol=1e-9 * np.abs(b).max())
    for a, b in zip(one.found.known(), other.found.known(), strict=True):
        np.testing.assert_allclose(a.mean, b.mean, rtol=1e-8, atol=1e-9)
        np.testing.assert_allclose(a.covariance, b.covariance, rtol=1e-8, atol=1e-9)


def test_who_has_records_enough_or_slopes_of_no_records_is_not_thin() -> None:
    sums = drawn()
    assert tree_of(drawn(rows=D)).thinned().thin is None
    assert tree_of(sums._replace(b=sums.b + 1e-6)).thinned().thin is None


@pytest.mark.parametrize("kind", [ONE, DIAGONAL])
@pytest.mark.parametrize("groups", [1, K])
def test_diagonal_directions_are_those_of_whole_matrices(kind: str, groups: int) -> None:
    """Also where some coefficients do not vary."""
    varies = np.array([0, 2, 3, 7, 15])
    tree, shape = tree_of(drawn()), Shape(kind, varies, D, groups)
    group = tree.levels[0].parent % groups
    tree = replace(tree, levels=(replace(tree.levels[0], group=group), tree.levels[1]))
    x = np.random.default_rng(2).normal(size=shape.size)
    found = tree.integrated([shape.roots(x), Shape(ONE, varies, D).roots(np.ones(1))])
    derivative = found.derivatives()[0]
    ours = local_lines(shape, x, derivative)
    for a, b in zip(ours, local_full(shape, x, derivative), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-9, atol=1e-10 * np.abs(b).max())


@pytest.mark.parametrize("diagonal", [True, False])
def test_columns_with_one_entry_are_no_other_product(diagonal: bool) -> None:
    rng, one = np.random.default_rng(3), np.zeros(N, np.int64)
    root = np.eye(D)[:, :9] * rng.normal(size=9) if diagonal else rng.normal(size=(D, 9))
    turn = np.linalg.qr(rng.normal(size=(9, 9)))[0]  # the same covariance
    ours, theirs = (OneByOne.of(drawn(), r[None], one).said for r in (root, root @ turn))
    for a, b in zip(ours, theirs, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-8, atol=1e-9)


def test_roots_beyond_rounding_have_the_factor_of_what_they_are_of() -> None:
    """A that is not definite, by rounding, times a large root has none."""
    sums, one, root = drawn(), np.zeros(N, np.int64), 1e4 * np.eye(D)[None]
    bad = sums._replace(a=sums.a - 1e-6 * np.eye(D))
    assert InLanes.of(bad, root, one) is None
    ours, theirs = (OneByOne.of(one_, root, one).said for one_ in (bad, sums))
    assert all(np.isfinite(part).all() for part in ours)
    np.testing.assert_allclose(ours.ld, theirs.ld, rtol=1e-5)


@pytest.mark.parametrize("rows", [ROWS, 40])
@pytest.mark.parametrize("part", [False, True])
@pytest.mark.parametrize("rho", [0.0, 0.3, 50.0])
def test_columns_add_up_to_each_ones_sums(rows: int, part: bool, rho: float) -> None:
    sums = drawn(rows)
    varies = (np.arange(D) % 2).astype(np.float64) if part else None
    columns = Columns.of(sums.a, sums.b, sums.yy, varies)
    if varies is None:
        with np.errstate(divide="ignore"):
            p, q = shrunk(sums.a, sums.b, 1 / np.float64(rho))
    else:
        p, q = Partial.of(sums.a, sums.b, varies * np.sqrt(rho)).shrunk()
    reach = np.eye(D) if varies is None else np.diag(varies)
    said = OneByOne.of(sums, np.sqrt(rho) * reach[None], np.zeros(N, np.int64)).said
    wanted = Said(p.sum(0), q.sum(0), said.yy.sum(), said.ld.sum())
    for found in (columns.total(rho), columns.told().total(rho)):
        for a, b in zip(found, wanted, strict=True):
            np.testing.assert_allclose(a, b, rtol=1e-9, atol=1e-9)
    assert columns.told().values.size == (columns.values > 0).sum()


@pytest.mark.parametrize("seed", range(4))
def test_the_best_place_is_that_of_a_search_of_all(seed: int) -> None:
    """Places that cannot be the best are left out, and no other."""
    rng = np.random.default_rng(seed)
    sums, cluster = drawn(seed=seed), np.arange(N) % K
    grid, levels = np.geomspace(1e-3, 10, 9), []
    sums = sums._replace(b=sums.b + rng.normal(size=D) @ sums.a)
    for j in range(K):
        own = cluster == j
        columns = Columns.of(sums.a[own], sums.b[own], sums.yy[own] + 1e3, None)
        levels.append([columns.total(rho) for rho in grid])
    level = Said(*(np.array([[getattr(g, name) for g in row] for row in levels])
                   for name in Said._fields))  # fmt: skip
    profile = Profile.of(level, float(N * ROWS))

    def search(place: int) -> tuple[float, float]:
        value, at = profile.place(place).value, RATIOS[profile.tried[:, place].argmin()]
        ends = np.log(np.clip(at, RATIOS[1], RATIOS[-1])) + np.array([-1.6, 1.6])
        found = minimize_scalar(lambda log: value(np.exp(log)), bounds=ends, method="bounded")
        return min((float(found.fun), float(np.exp(found.x))), (value(0.0), 0.0))

    least, taus = np.transpose([search(place) for place in range(len(grid))])
    picks, near = profile.common()
    assert (picks == least.argmin()).all()
    best = float(taus[picks[0]])
    assert near == pytest.approx(best, rel=1e-2)
    places = Close(level, float(N * ROWS), None)
    again, _ = places.common(np.clip(picks + 1, 0, len(grid) - 1), near)
    assert (again == picks).all()
    found = profile.place(int(picks[0])).near(1.3 * best if best else RATIOS[2])
    assert found[1] == pytest.approx(least.min(), abs=1e-5)


def test_levels_of_a_tree_above_are_not_thin() -> None:
    tree = tree_of(drawn()).thinned()
    found = tree.integrated([np.eye(D)[None], np.eye(D)[None]])
    above = tree.above(found)
    assert above.thin is None and isinstance(above.levels[0], Level)
    again = above.integrated([np.eye(D)[None]])
    assert again.middle.deviance == pytest.approx(found.middle.deviance, rel=1e-12)
