"""Small matrices of many units against the library's, one by one."""

from __future__ import annotations

import numpy as np
import pytest

from corsage.solvers.known_clusters import tree
from corsage.solvers.known_clusters.lanes import back, dots, factor, lanes, solved
from corsage.solvers.known_clusters.tree import Absorbed, Sums


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
    assert back(dots(lanes(right), lanes(k))) == pytest.approx(right.mT @ k, rel=1e-12)


@pytest.mark.parametrize(("n", "d", "r"), [(23, 4, 4), (23, 3, 2), (23, 14, 14)])
def test_many_units_are_integrated_out_as_few_are(
    n: int, d: int, r: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    rng = np.random.default_rng(n)
    below = Sums(definite(rng, n, d), *(rng.normal(size=s) for s in ((n, d), (n,), (n,))))
    root = rng.normal(size=(n, d, r))
    few = Absorbed.of(below, root)
    monkeypatch.setattr(tree, "AT_ONCE", 5)
    many = Absorbed.of(below, root)
    assert many.spread == pytest.approx(few.spread, rel=1e-8, abs=1e-12)
    for one, other in zip(many.said, few.said, strict=True):
        assert one == pytest.approx(other, rel=1e-8, abs=1e-12)
