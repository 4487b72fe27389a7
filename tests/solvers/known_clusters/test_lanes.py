"""Small matrices of many units against the library's, one by one."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest

from corsage.core.arrays import Floats
from corsage.solvers.known_clusters import many_units
from corsage.solvers.known_clusters import rooted as rooted_file
from corsage.solvers.known_clusters import tree as tree_file
from corsage.solvers.known_clusters.absorbed import Absorbed, Known, Level, Sums
from corsage.solvers.known_clusters.lanes import back, dots, factor, lanes, solved, solved_back
from corsage.solvers.known_clusters.many_units import ManyAbsorbed
from corsage.solvers.known_clusters.mixed_model import pack
from corsage.solvers.known_clusters.rooted import rooted, rooted_models
from corsage.solvers.known_clusters.standard import Standard
from corsage.solvers.known_clusters.tree import Tree
from corsage.solvers.known_clusters.variances.scoring import Scoring
from corsage.solvers.known_clusters.variances.shapes import DIAGONAL, FULL, ONE, Shape
from corsage.strategies.known_clusters import users_sums
from corsage.strategies.known_clusters.users_sums import Users
from tests.support.mixed_models import records

DATA = records(1, slopes=0.5)


def definite(rng: np.random.Generator, n: int, d: int) -> np.ndarray:
    """Matrices (n, d, d) that are positive definite."""
    x = rng.normal(size=(n, d + 2, d))
    return x.mT @ x


@pytest.mark.parametrize("d", [1, 2, 5])
def test_factors_and_solutions_are_the_library_s(d: int) -> None:
    rng = np.random.default_rng(d)
    k, right = definite(rng, 7, d), rng.normal(size=(7, d, 3))
    c = factor(lanes(k))
    assert np.tril(back(c)) == pytest.approx(np.linalg.cholesky(k), rel=1e-12)
    wanted = np.linalg.solve(np.linalg.cholesky(k), right)
    assert back(solved(c, lanes(right))) == pytest.approx(wanted, rel=1e-10)
    wanted = np.linalg.solve(np.linalg.cholesky(k).mT, right)
    assert back(solved_back(c, lanes(right))) == pytest.approx(wanted, rel=1e-10)
    assert back(dots(lanes(right), lanes(k))) == pytest.approx(right.mT @ k, rel=1e-12)


@pytest.mark.parametrize(("d", "r"), [(4, 4), (3, 2), (14, 14)])
@pytest.mark.parametrize("groups", [1, 3])
def test_many_units_are_integrated_out_as_few_are(
    d: int, r: int, groups: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In blocks, of which some lack some of the groups."""
    monkeypatch.setattr(many_units, "AT_ONCE", 5)
    rng, n = np.random.default_rng(d), 23
    parent = np.sort(rng.integers(3, size=n))
    level = Level(parent, 4, parent if groups > 1 else parent * 0)
    below = Sums(definite(rng, n, d), *(rng.normal(size=s) for s in ((n, d), (n,), (n,))))
    root = rng.normal(size=(groups, d, r))
    few, many = Absorbed.of(below, root[level.group]), ManyAbsorbed(below, level, root)
    assert alike(many.summed(level), few.summed(level))
    above = Known(rng.normal(size=(4, d)), definite(rng, 4, d))
    assert alike(many.own(above.of(level)), few.own(above.of(level)))
    one, other = (own.derivative(level, above, 1.7) for own in (many, few))
    varies = np.arange(d)[1:]
    assert alike([one.weights(groups)], [other.weights(groups)])
    assert alike([one.slopes(groups)], [other.slopes(groups)])
    assert alike([one.pairs(groups, varies)], [other.pairs(groups, varies)])
    assert alike([one.squares(groups, varies)], [other.squares(groups, varies)])


@pytest.mark.parametrize(("d", "r"), [(4, 4), (3, 2), (14, 14)])
def test_models_of_many_users_are_those_of_few(
    d: int, r: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """theta = w + V (b - A w), V being what Absorbed calls the spread."""
    rng, n = np.random.default_rng(d), 23
    a, b, w = definite(rng, n, d), rng.normal(size=(n, d)), rng.normal(size=(n, d))
    root = rng.normal(size=(d, r))
    wanted = rooted(a, b, root).own(Known(w, np.zeros_like(a))).mean
    assert rooted_models(a, b, root, w) == pytest.approx(wanted, rel=1e-9)
    monkeypatch.setattr(rooted_file, "AT_ONCE", 5)
    assert rooted_models(a, b, root, w) == pytest.approx(wanted, rel=1e-9)


@pytest.mark.parametrize("kind", [ONE, DIAGONAL, FULL])
@pytest.mark.parametrize("groups", [1, 8])
def test_a_fit_to_many_users_is_that_to_few(
    kind: str, groups: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On three levels, the upper ones settled after each step, or all walked together."""
    a, b, yy, counts = DATA.sums()
    sums = Standard.of(a.sum(0), b.sum(0), counts.sum(), True).sums(a, b, yy)
    region = np.arange(8) // 3
    own = Level(DATA.own, 8, DATA.own if groups > 1 else DATA.own * 0)
    levels = (own, Level.plain(region, 3), Level.plain(region[:3] * 0, 1))
    shapes = (Shape(kind, np.arange(3), 3, groups), Shape(ONE, np.arange(3), 3))
    shapes = (*shapes, Shape(ONE, np.arange(3), 3))
    few = Scoring(Tree(sums, levels, counts * 1.0), shapes).fitted()
    monkeypatch.setattr(tree_file, "AT_ONCE", 20)  # clusters and regions stay few
    monkeypatch.setattr(many_units, "AT_ONCE", 7)
    many = Scoring(Tree(sums, levels, counts * 1.0), shapes).fitted()
    assert isinstance(many.found.passed[0], ManyAbsorbed)
    assert few.converged and many.converged
    assert many.deviance == pytest.approx(few.deviance, rel=1e-12)
    for one, other in zip(many.covariances, few.covariances, strict=True):
        assert one == pytest.approx(other, rel=1e-5, abs=1e-7)
    known = zip(many.found.known_above(), few.found.known_above(), strict=True)
    assert all(np.allclose(one.mean, other.mean, atol=1e-7) for one, other in known)


def test_sums_of_many_users_in_standard_units_are_those_of_few(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    a, b, yy, counts = DATA.sums()
    units = Standard.of(a.sum(0), b.sum(0), counts.sum(), True)
    rows = np.column_stack([pack(a), b, yy])
    names = [str(user) for user in range(len(yy))]
    users = Users(rows, counts * 1.0, DATA.own, names, [], 3)
    few = units.sums(a, b, yy)
    monkeypatch.setattr(users_sums, "AT_ONCE", 7)
    assert alike(users.sums(units), few)
    assert alike(users.total()[:2], (a.sum(0), b.sum(0)))


def alike(ours: Sequence[Floats], theirs: Sequence[Floats]) -> bool:
    """But for rounding."""
    pairs = zip(ours, theirs, strict=True)
    return all(np.allclose(a, b, rtol=1e-9, atol=1e-9 * np.abs(b).max()) for a, b in pairs)
