"""Quadratics, points and losses by autograd: against numpy, cvxpy and each other."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.optim import lbfgs

from corsage.core.errors import ModelError
from corsage.core.losses import LOGISTIC
from corsage.solvers.losses.convex import SmoothLosses
from corsage.solvers.losses.linear_losses import LinearLosses
from corsage.solvers.losses.quadratic import Quadratic
from tests.support.linear_users import derivatives
from tests.support.points import points

SEEDS = st.integers(0, 2**32 - 1)
DOUBLE = torch.float64


def draw(*shape, seed=0):
    return torch.from_numpy(np.random.default_rng(seed).normal(size=shape))


def quadratic(n=4, d=3, rank=3, seed=0):
    half = draw(n, rank, d, seed=seed)
    return Quadratic(half.mT @ half, draw(n, d, seed=seed + 1), draw(n, seed=seed + 2))


@pytest.mark.parametrize(
    "losses",
    [quadratic(), points(draw(6, 3), 0.8)],
    ids=["quadratic", "huber"],
)
def test_derivatives_are_those_of_the_value(losses):
    x = draw(losses.n, losses.d, seed=7)
    gradient, hessian = derivatives(losses, x)
    torch.testing.assert_close(losses.gradient(x), gradient)
    torch.testing.assert_close(losses.hessian(x), hessian)
    curvature = torch.linalg.eigvalsh(hessian)
    assert (curvature[:, -1] <= losses.smoothness() + 1e-12).all()
    assert (curvature[:, 0] >= losses.convexity() - 1e-12).all()


def test_quadratic_prox_solves_the_normal_equations():
    losses, centre, kappa = quadratic(rank=2), draw(4, 3, seed=9), torch.tensor([0.1, 1, 2, 30.0])
    x = losses.prox(centre, kappa.double())
    for i in range(4):
        system = losses.a[i].numpy() + float(kappa[i]) * np.eye(3)
        right = losses.b[i].numpy() + float(kappa[i]) * centre[i].numpy()
        np.testing.assert_allclose(x[i].numpy(), np.linalg.solve(system, right), rtol=1e-9)
    tiny = losses.prox(centre, 1e-7)  # almost the minimiser next to the centre, where there is one
    left = losses.gradient(tiny) + 1e-7 * (tiny - centre)
    assert left.abs().max() < 1e-7


def test_singular_quadratic_has_the_shortest_minimiser_or_none():
    losses = quadratic(rank=2)
    slope = losses.b - (losses.a @ draw(4, 3, 1, seed=5))[:, :, 0]
    slope[1] += draw(3, seed=6)
    x = losses.minimise(slope)
    assert x.isnan().all(1).tolist() == [False, True, False, False]
    for i in (0, 2, 3):
        shortest = np.linalg.pinv(losses.a[i].numpy(), rcond=1e-9) @ (losses.b - slope)[i].numpy()
        np.testing.assert_allclose(x[i].numpy(), shortest, atol=1e-9)
    assert not losses.coercive().any()
    assert (losses.convexity() == 0).all()


def test_regular_quadratic():
    losses, slope = quadratic(rank=5), draw(4, 3, seed=4)
    x = losses.minimise(slope)
    np.testing.assert_allclose(
        x.numpy(), np.linalg.solve(losses.a, (losses.b - slope)[:, :, None])[:, :, 0]
    )
    assert losses.coercive().all()
    norms = np.linalg.norm(losses.a.numpy(), ord=2, axis=(1, 2))
    np.testing.assert_allclose(losses.smoothness().numpy(), norms)


@settings(max_examples=25, deadline=None)
@given(SEEDS, st.floats(0.1, 10.0))
def test_moreau_decomposition(seed, kappa):
    """v = prox of f/kappa at v + 1/kappa times the prox of kappa f* at kappa v."""
    losses, v = quadratic(rank=6, seed=seed % 2**31), draw(4, 3, seed=seed)
    inverse = torch.linalg.inv(losses.a)
    shift = (inverse @ losses.b[:, :, None])[:, :, 0]
    conjugate = Quadratic(inverse, -shift, (losses.b * shift).sum(1) / 2 - losses.c)
    parts = losses.prox(v, kappa) + conjugate.prox(kappa * v, 1 / kappa) / kappa
    torch.testing.assert_close(parts, v, rtol=1e-6, atol=1e-6)


def test_quadratic_that_is_none():
    with pytest.raises(ModelError, match="negative eigenvalue"):
        Quadratic(-torch.eye(2, dtype=DOUBLE)[None], draw(1, 2), draw(1)).smoothness()
    with pytest.raises(ModelError, match="not positive definite"):
        Quadratic(-torch.eye(2, dtype=DOUBLE)[None], draw(1, 2), draw(1)).prox(draw(1, 2), 0.5)
    with pytest.raises(ModelError, match="do not fit"):
        Quadratic(torch.eye(3, dtype=DOUBLE)[None], draw(1, 2), draw(1))


def test_losses_by_autograd_are_the_batched_ones():
    generator = np.random.default_rng(3)
    sizes = np.array([6, 9, 4])
    features, labels = draw(19, 2), torch.from_numpy(generator.integers(0, 2, 19))
    labels[[0, 6, 15]], labels[[1, 7, 16]] = 0, 1
    batched = LinearLosses(features, labels, sizes, loss=LOGISTIC, scale="mean", ridge=0.1)
    parts = list(zip(features.split(sizes.tolist()), labels.split(sizes.tolist()), strict=True))

    def function(i, x):
        a, y = parts[i]
        sides = (1 - 2 * y) * (a @ x[:-1] + x[-1])
        return torch.logaddexp(sides, torch.zeros_like(sides)).mean() + 0.05 * x[:-1] @ x[:-1]

    losses, x = SmoothLosses(function, 3, 3), draw(3, 3, seed=8)
    torch.testing.assert_close(losses.value(x), batched.value(x))
    torch.testing.assert_close(losses.gradient(x), batched.gradient(x))
    torch.testing.assert_close(losses.hessian(x), batched.hessian(x))
    kappa = torch.tensor([0.1, 1.0, 5.0], dtype=DOUBLE)
    for start in (None, batched.prox(x, kappa)):
        best = losses.prox(x, kappa, start)
        torch.testing.assert_close(best, batched.prox(x, kappa), rtol=0, atol=1e-6)
    slope = -batched.gradient(draw(3, 3, seed=9))
    best = batched.minimise(slope)
    torch.testing.assert_close(losses.minimise(slope), best, rtol=0, atol=1e-4)
    slope[1] *= 100  # steeper than any logistic loss is
    assert losses.minimise(slope).isnan().all(1).tolist() == [False, True, False]
    with pytest.raises(ModelError, match="step sizes"):
        losses.smoothness()


def test_an_endless_slope_has_no_minimum_however_far_its_search_goes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    found = lbfgs._cubic_interpolate

    def farthest(*points: Any, bounds: Any = None) -> Any:
        """As far as the search allows, where it goes outwards."""
        return bounds[1] if bounds else found(*points)

    monkeypatch.setattr(lbfgs, "_cubic_interpolate", farthest)
    losses = SmoothLosses(lambda i, x: torch.nn.functional.softplus(-x).sum() - 0.1 * x[0], 1, 1)
    assert losses.minimise().isnan().all()
