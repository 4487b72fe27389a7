"""Minimisers of linear losses with a slope: that they are, and that there are none where not.

A direction along which f falls for ever is looked for by linear programming, and by bisection.
"""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import brentq, linprog

from corsage.core.errors import ModelError
from corsage.core.losses import LOGISTIC, SQUARED_HINGE, huber
from corsage.solvers.losses.linear_losses import LinearLosses
from tests.support.linear_users import DELTA, LOSSES, build, models, users
from tests.support.points import picked

EVERY = pytest.mark.parametrize("name", list(LOSSES))


@EVERY
def test_minimisers_with_a_slope(name):
    """Slopes that are minus a gradient have a minimiser; the prox with little kappa is near it."""
    losses = build(name, sizes=[9, 14, 30, 11], seed=5)
    slope = -losses.gradient(models(losses, size=0.3))
    x = losses.minimise(slope)
    assert (losses.gradient(x) + slope).abs().max() < 1e-8

    def total(x):
        return losses.value(x) + (slope * x).sum(1)

    kappa = 1e-6
    near = losses.prox(-slope / kappa, kappa)
    assert (total(near) >= total(x) - 1e-9).all()
    assert (total(near) <= total(x) + kappa / 2 * (x.square() - near.square()).sum(1) + 1e-9).all()
    for seed in range(5):
        assert (total(x + models(losses, seed, 0.1)) >= total(x)).all()
    steep = 100 * losses.smoothness()[:, None] * torch.ones_like(x)
    bounded = name in ("squared", "squared-hinge")  # these grow like squares, on one side at least
    assert losses.minimise(steep).isfinite().all(1).tolist() == [bounded] * 4


@settings(max_examples=40, deadline=None)
@given(
    st.integers(0, 2**32 - 1), st.integers(1, 9), st.sampled_from([torch.float64, torch.float32])
)
def test_logistic_losses_have_a_minimiser_unless_a_linear_programme_separates(seed, m, dtype):
    """Of d with <-l a, d> <= 0 for all samples, one with a sample below 0: f falls along it."""
    losses = build("logistic", seed, sizes=[m] * 5, dtype=dtype)
    x, coercive = losses.minimise(), losses.coercive()
    for i, (a, y) in enumerate(users(losses)):
        sides = (1 - 2 * y[:, None]) * a
        furthest = linprog(sides.sum(0), A_ub=sides, b_ub=np.zeros(m), bounds=(-1, 1)).fun
        assert not (coercive[i] and furthest < -1e-5)
        if dtype == torch.float64 and abs(furthest) < 1e-9:
            assert x[i].isfinite().all()
            assert coercive[i] == (np.linalg.matrix_rank(a) == 3)
        elif dtype == torch.float64 and furthest < -1e-5:
            assert x[i].isnan().all()


def test_who_is_coercive():
    """One class, separable classes, and classes that overlap."""
    features = torch.tensor([1.0, 2, 3, -1, -2, 1, 1, -1, 2, -2], dtype=torch.float64)[:, None]
    labels, sizes = torch.tensor([1, 1, 1, 0, 0, 1, 1, 1, 0, 0]), [3, 3, 4]

    def known(loss, **options):
        losses = LinearLosses(features, labels, sizes, loss=loss, scale="mean", **options)
        x = losses.minimise()
        return losses.coercive().tolist(), x.isfinite().all(1).tolist(), losses.value(x).tolist()

    assert known(LOGISTIC)[:2] == ([False, False, True],) * 2
    assert known(LOGISTIC, ridge=0.1)[:2] == ([False, True, True],) * 2
    assert known(LOGISTIC, ridge=0.1, intercept=False)[0] == [True] * 3
    coercive, found, least = known(SQUARED_HINGE)
    assert (coercive, found, least[:2]) == ([False, False, True], [True] * 3, [0, 0])
    assert known(SQUARED_HINGE, ridge=0.1)[:2] == ([False, True, True], [True] * 3)
    assert known(huber(0.1))[:2] == ([True] * 3,) * 2


@EVERY
def test_rank_deficient_data(name):
    """Equal columns: the minimiser leaves the flat direction alone; slopes along it have none."""
    losses = build(name, sizes=[30, 25], p=1, seed=3, intercept=False)
    twice = LinearLosses(
        losses.features.repeat(1, 2), losses.labels, losses.counts, loss=losses.loss,
        scale="sum", intercept=False,
    )  # fmt: skip
    single = losses.minimise()
    torch.testing.assert_close(twice.minimise(), single.repeat(1, 2) / 2, rtol=1e-7, atol=1e-7)
    slope = torch.tensor([[1e-3, -1e-3], [1e-3, 1e-3]], dtype=torch.float64)
    assert twice.minimise(slope).isnan().all(1).tolist() == [True, False]
    assert not twice.coercive().any()
    assert losses.coercive().all()


@pytest.mark.parametrize("place", [0.0, 1e3, -1e5])
def test_huber_minimiser_far_away(place):
    """The location of numbers that all lie in the linear part of the start."""
    y = np.random.default_rng(0).normal(size=11) + place
    losses = LinearLosses(
        torch.ones(11, 1, dtype=torch.float64), torch.from_numpy(y), [11],
        loss=huber(DELTA), scale="mean", intercept=False,
    )  # fmt: skip
    for share in (0.0, 0.9, -0.9, 0.999, -0.999):
        root = brentq(
            lambda x, s=share: np.clip(x - y, -DELTA, DELTA).mean() + DELTA * s,
            y.min() - 1, y.max() + 1, xtol=1e-12,
        )  # fmt: skip
        slope = torch.tensor([[DELTA * share]], dtype=torch.float64)
        np.testing.assert_allclose(losses.minimise(slope).item(), root, rtol=1e-8, atol=1e-8)
    for share in (1.001, -1.001):
        assert losses.minimise(torch.tensor([[DELTA * share]], dtype=torch.float64)).isnan()


@pytest.mark.parametrize(("excess", "found"), [(1e-10, False), (1e-6, False), (-1e-8, True)])
def test_slopes_at_the_edge_of_what_gradients_there_are(excess, found):
    """Far out Huber's losses are linear: a slope as steep, and a little more or less."""
    for seed in range(6):
        losses = build("huber", seed, sizes=[5, 9, 14, 30])
        slope = -losses.gradient(1e7 * models(losses, seed + 100)) * (1 + excess)
        assert (losses.minimise(slope).isfinite().all(1) == found).all()


@EVERY
def test_units_of_the_features_do_not_matter(name):
    """Features a million times as large: weights a millionth, the same intercept."""
    losses = build(name, sizes=[9, 14, 30, 11], seed=5)
    unit = torch.tensor([1e6, 1e-6, 1.0], dtype=torch.float64)
    other = LinearLosses(
        losses.features * unit[:2], losses.labels, losses.counts, loss=losses.loss, scale="sum"
    )
    slope = -losses.gradient(models(losses, size=0.3))
    torch.testing.assert_close(
        unit * other.minimise(unit * slope), losses.minimise(slope), rtol=1e-6, atol=1e-6
    )
    centre = models(losses)
    left = other.gradient(x := other.prox(centre, 1e-3)) + 1e-3 * (x - centre)
    assert (left / unit).abs().max() < 1e-8


def test_minimiser_that_is_0_from_anywhere():
    losses = build("huber", sizes=[9, 14])
    losses = LinearLosses(
        losses.features, 0 * losses.labels, losses.counts, loss=losses.loss, scale="sum"
    )
    start = models(losses, size=5.0)
    assert losses.minimise(start=start).abs().max() < 1e-9
    assert losses.prox(0 * start, 1e-3, start).abs().max() < 1e-9


@pytest.mark.parametrize("name", ["logistic", "squared-hinge", "huber"])
def test_prox_with_a_far_centre_and_little_kappa(name):
    losses = build(name)
    centre, kappa = models(losses, size=1e9), 1e-9
    x = losses.prox(centre, kappa)
    left = losses.gradient(x) + kappa * (x - centre)
    assert (left.norm(dim=1) < 1e-10 * losses.smoothness() * (1 + x.norm(dim=1))).all()


def test_prox_of_data_that_are_not_finite():
    losses = build("logistic")
    losses.features[3, 1] = torch.nan
    with pytest.raises(ModelError, match="1 of 8 users"):
        picked(losses, range(8)).prox(models(losses), 1.0)
