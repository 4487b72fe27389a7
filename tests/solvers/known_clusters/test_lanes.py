"""Small matrices of many units against the library's, one by one."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest

from corsage.core.arrays import Floats
from corsage.solvers.known_clusters import absorbed as absorbed_file
from corsage.solvers.known_clusters.absorbed import Absorbed, Known, Level, known, rooted_models
from corsage.solvers.known_clusters.blocks import InLanes, OneByOne, Sums
from corsage.solvers.known_clusters.lanes import back, dots, factor, lanes, solved, solved_back
from corsage.solvers.known_clusters.mixed_model import pack
from corsage.solvers.known_clusters.standard import Standard
from corsage.solvers.known_clusters.tree import Tree
from corsage.solvers.known_clusters.variances import users_sums
from corsage.solvers.known_clusters.variances.scoring import Scoring
from corsage.solvers.known_clusters.variances.shapes import DIAGONAL, FULL, ONE, Shape
from corsage.solvers.known_clusters.variances.users_sums import Users
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


@pytest.mark.parametrize("kind", [InLanes, OneByOne])
@pytest.mark.parametrize(("d", "r"), [(4, 4), (3, 2), (14, 14)])
@pytest.mark.parametrize("groups", [1, 3])
def test_units_are_integrated_out_as_the_formulas_say(
    kind: type[InLanes | OneByOne], d: int, r: int, groups: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In blocks, of which some lack some of the groups, or at once; in either layout."""
    monkeypatch.setattr(absorbed_file, "integrated", kind.of)
    rng, n = np.random.default_rng(d), 23
    parent = np.sort(rng.integers(3, size=n))
    level = Level(parent, 4, parent if groups > 1 else parent * 0)
    below = Sums(definite(rng, n, d), *(rng.normal(size=s) for s in ((n, d), (n,), (n,))))
    root, above = (
        rng.normal(size=(groups, d, r)),
        Known(rng.normal(size=(4, d)), definite(rng, 4, d)),
    )
    units, varies = Absorbed(below, level, root), np.arange(d)[1:]
    for at_once in (4096, 5):
        monkeypatch.setattr(absorbed_file, "AT_ONCE", at_once)
        assert alike(units.summed(), plain_sums(below, level, root))
        for pairs in (False, True):
            ours = Absorbed(below, level, root).derivative(above, 1.7).sums(varies, pairs=pairs)
            assert alike(ours, plain_slopes(below, level, root, above, varies, pairs))


def plain(below: Sums, root: Floats) -> tuple[Floats, ...]:
    """P, q, yy and ld of each unit, by inverses."""
    v = root @ np.linalg.inv(np.eye(root.shape[-1]) + root.mT @ below.a @ root) @ root.mT
    b = below.b[..., None]
    p, q = below.a - below.a @ v @ below.a, below.b - (below.a @ v @ b)[..., 0]
    ld = np.linalg.slogdet(np.eye(root.shape[-1]) + root.mT @ below.a @ root)[1]
    return p, q, below.yy - (b.mT @ v @ b)[:, 0, 0], below.ld + ld


def plain_sums(below: Sums, level: Level, root: Floats) -> list[Floats]:
    """Their sums over the units above."""
    member = (level.parent == np.arange(level.above)[:, None]) * 1.0
    return [np.tensordot(member, part, 1) for part in plain(below, root[level.group])]


def plain_slopes(
    below: Sums, level: Level, root: Floats, above: Known, varies: np.ndarray, pairs: bool
) -> list[Floats]:
    """The sums of `Derivative.sums`."""
    p, q, *_ = plain(below, root[level.group])
    mean, covariance = above.of(level)
    own, s = p - p @ covariance @ p, q - (p @ mean[..., None])[..., 0]
    inner = own[:, varies[:, None], varies]
    products = np.einsum("nab,ncd->nabcd", inner, inner) if pairs else np.square(inner)
    member = (level.group == np.arange(len(root))[:, None]) * 1.0
    parts = own, own - s[:, :, None] * s[:, None] / 1.7, products
    return [np.tensordot(member, part, 1) for part in parts]


@pytest.mark.parametrize(("d", "r"), [(4, 4), (3, 2), (14, 14)])
def test_models_of_many_users_are_those_of_few(
    d: int, r: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """theta = w + V (b - A w)."""
    rng, n = np.random.default_rng(d), 23
    a, b, w = definite(rng, n, d), rng.normal(size=(n, d)), rng.normal(size=(n, d))
    root = rng.normal(size=(d, r))
    wanted = known(a, b, root[None], Known(w, np.zeros_like(a))).mean
    assert rooted_models(a, b, root, w) == pytest.approx(wanted, rel=1e-9)
    monkeypatch.setattr(absorbed_file, "AT_ONCE", 5)
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
    monkeypatch.setattr(absorbed_file, "AT_ONCE", 20)  # clusters and regions stay few
    many = Scoring(Tree(sums, levels, counts * 1.0), shapes).fitted()
    assert many.found.passed[0].many and not many.found.passed[1].many
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
