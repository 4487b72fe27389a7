"""Users tied to their centre by a covariance: what they come to, and in how many passes."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from scipy.optimize import minimize

from corsage.core.losses import LOGISTIC
from corsage.solvers.losses.linear_losses import LinearLosses
from tests.support.linear_users import LOSSES, build, counted_passes, models, users

EVERY = pytest.mark.parametrize("name", list(LOSSES))
ROOT = np.array([[0.7, 0.0, 0.0], [-0.4, 0.3, 0.0], [1.1, 0.2, 0.9]])


@pytest.fixture
def passes(monkeypatch):
    return counted_passes(monkeypatch)


def single(losses):
    """The same in float32."""
    return LinearLosses(
        losses.features.float(), losses.labels, losses.counts, loss=losses.loss, scale=losses.scale
    )


@EVERY
@pytest.mark.parametrize("rank", [0, 1, 2, 3])
def test_each_user_is_at_its_own_minimum(name, rank):
    """Against one minimisation a user of the sum as it is written, with roots of any rank."""
    losses = build(name, ridge=0.1)
    phi = LOSSES[name].value
    root, w = ROOT[:, :rank], models(losses, 3).numpy()
    found = losses.rooted(torch.from_numpy(root), torch.from_numpy(w), models(losses)).numpy()
    for i, (a, y) in enumerate(users(losses)):

        def cost(u, i=i, a=a, y=y):
            theta = w[i] + root @ u
            own = phi(torch.from_numpy(a @ theta), torch.from_numpy(y)).sum().item()
            return own + 0.05 * np.square(theta[:-1]).sum() + np.square(u).sum() / 2

        best = minimize(cost, np.zeros(rank), tol=1e-12).x if rank else np.zeros(0)
        assert found[i] == pytest.approx(w[i] + root @ best, abs=2e-6)


@EVERY
def test_only_the_covariance_counts(name):
    """Not which root it is, nor the start; of sizes that are equal it is the prox."""
    losses, generator = build(name), np.random.default_rng(0)
    turned = ROOT @ np.linalg.qr(generator.normal(size=(3, 3)))[0]
    w = models(losses, 3)
    roots = [torch.from_numpy(root) for root in (ROOT, turned)]
    one, other = losses.rooted(roots[0], w, w), losses.rooted(roots[1], w, models(losses, 4, 9.0))
    assert (one - other).abs().max() < 1e-10
    even = torch.eye(3, dtype=torch.float64) / 2.5**0.5
    assert (losses.rooted(even, w, w) - losses.prox(w, 2.5)).abs().max() < 1e-10


@pytest.mark.parametrize("size", [1e-6, 1e-3, 1.0, 1e2, 1e4])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_a_search_ends_in_some_steps_and_goes_on_in_a_few(size, dtype, passes):
    """Not at its cap: float32 users never come to stand still, and a value tells them little."""
    sizes = np.random.default_rng(1).integers(1, 40, 300)
    losses = build("logistic", sizes=sizes, dtype=dtype)
    root, w = torch.from_numpy(size * ROOT).to(dtype), models(losses, 3)
    found = losses.rooted(root, w, w)
    blocks = len(losses._blocks)
    assert passes["hessian"] <= (25 if size <= 1 else 60) * blocks
    assert passes["gradient"] <= (50 if size <= 1 else 200) * blocks
    passes.clear()
    again = losses.rooted(root, w, found)
    assert passes["hessian"] <= 6 * blocks
    assert passes["gradient"] <= 12 * blocks
    assert passes["value"] == 2 * blocks
    assert (again - found).abs().max() <= (1e-4 if dtype == torch.float32 else 1e-10) * max(1, size)


def test_features_far_from_0_do_not_keep_float32_going(passes):
    losses = build("logistic", sizes=[20] * 50)
    far = LinearLosses(
        (losses.features + 300).float(), losses.labels, losses.counts, loss=LOGISTIC, scale="sum"
    )
    root = torch.from_numpy(ROOT).float()
    far.rooted(root, torch.zeros(50, 3), torch.zeros(50, 3))
    assert passes["hessian"] <= 60 * len(far._blocks)


@EVERY
def test_float32_is_as_good_as_its_rounding(name):
    losses = build(name, sizes=[20] * 60)
    root, w = torch.from_numpy(ROOT), models(losses, 3)
    exact = losses.rooted(root, w, w)
    rounded = single(losses).rooted(root.float(), w.float(), w.float())
    assert (rounded - exact).abs().max() < 1e-5
