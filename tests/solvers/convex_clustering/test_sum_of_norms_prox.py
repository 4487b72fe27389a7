"""The proximal operator of the sum-of-norms penalty."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from corsage.solvers.convex_clustering.exact.edges import norms
from corsage.solvers.convex_clustering.exact.sum_of_norms import Edges, prox
from tests.support.convex_problems import blobs, random, weighted

SEEDS = st.integers(0, 2**32 - 1)


@settings(max_examples=25, deadline=None)
@given(SEEDS, st.sampled_from([0.01, 0.1, 0.3, 1.0]))
def test_prox_obeys_its_invariances(seed, lam):
    rng, s = random(seed), blobs(seed)
    edges = weighted(seed, len(s), 0.8)
    y, mu = prox(s, lam, edges)
    np.testing.assert_allclose(y, s - edges.adjoint(mu), atol=1e-5)  # Moreau: s = y + B' mu
    assert np.all(norms(mu) <= lam * edges.w * (1 + 1e-12))
    penalty = lam * float(edges.w @ norms(edges.differences(y)))
    assert float((mu * edges.differences(y)).sum()) == pytest.approx(penalty, abs=1e-9)
    if edges.pieces == 1:
        np.testing.assert_allclose(y.mean(0), s.mean(0), atol=1e-9)

    moved = rng.normal(size=2)
    np.testing.assert_allclose(prox(s + moved, lam, edges)[0], y + moved, atol=1e-5)
    order = rng.permutation(len(s))
    place = np.argsort(order)
    i, j = np.sort([place[edges.i], place[edges.j]], 0)
    np.testing.assert_allclose(
        prox(s[order], lam, Edges(i, j, edges.w, edges.n))[0], y[order], atol=1e-5
    )
    near = s + 1e-3 * rng.normal(size=s.shape)
    warm, cold = prox(near, lam, edges, mu)[0], prox(near, lam, edges)[0]
    np.testing.assert_allclose(warm, cold, atol=1e-5)
    assert np.linalg.norm(cold - y) <= np.linalg.norm(near - s) * (1 + 1e-6)  # nonexpansive


def test_prox_fuses_exactly():
    s = blobs(width=0.05)
    y, _ = prox(s, 0.1, Edges.all_pairs(len(s)))
    assert len(np.unique(y, axis=0)) == 3
    for k in range(3):
        assert (y[4 * k : 4 * k + 4] == y[4 * k]).all()
