"""Linear losses of ragged users: against loops over users, cvxpy and closed forms."""

from __future__ import annotations

import cvxpy as cp
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from corsage.core.errors import DataError, ModelError
from corsage.core.losses import LOGISTIC
from corsage.solvers.losses import padded
from corsage.solvers.losses.linear_losses import LinearLosses
from tests.support.linear_users import DELTA, LOSSES, SIZES, build, derivatives, models, users
from tests.support.points import picked

SEEDS = st.integers(0, 2**32 - 1)
EVERY = pytest.mark.parametrize("name", list(LOSSES))
LAYOUTS = pytest.mark.parametrize("layout", ["wide", "narrow", "blocks"], indirect=True)


@pytest.fixture
def layout(request, monkeypatch):
    """Thresholds that make these few numbers one block of either kind, or many blocks."""
    monkeypatch.setattr(padded, "MANY", 10**9 if request.param == "wide" else 0)
    if request.param == "blocks":
        monkeypatch.setattr(padded, "SMALL", 0)
        monkeypatch.setattr(padded, "LARGE", 50)


def phi(name, u, y):
    """The four losses as the textbooks have them."""
    side = (2 * y - 1) * u
    size = np.abs(u - y)
    return {
        "logistic": lambda: np.logaddexp(0, -side),
        "squared-hinge": lambda: np.maximum(1 - side, 0) ** 2,
        "squared": lambda: size**2 / 2,
        "huber": lambda: np.where(size <= DELTA, size**2 / 2, DELTA * size - DELTA**2 / 2),
    }[name]()


def convex_phi(name, u, y):
    """Their sum over the samples, for cvxpy."""
    if name == "logistic":
        return cp.sum(cp.logistic(cp.multiply(1 - 2 * y, u)))
    if name == "squared-hinge":
        return cp.sum_squares(cp.pos(1 - cp.multiply(2 * y - 1, u)))
    return cp.sum_squares(u - y) / 2 if name == "squared" else cp.sum(cp.huber(u - y, DELTA)) / 2


@EVERY
@LAYOUTS
@pytest.mark.parametrize("scale", ["sum", "mean"])
def test_all_users_at_once_are_each_by_itself(name, scale, layout):
    losses = build(name, scale=scale, ridge=0.3)
    x = models(losses)
    assert (len(losses._blocks) > 3) == (padded.LARGE == 50)
    gradient, hessian = derivatives(losses, x)
    for i, (a, y) in enumerate(users(losses)):
        total = phi(name, a @ x[i].numpy(), y)
        value = total.sum() if scale == "sum" else total.mean()
        own = picked(losses, [i])
        np.testing.assert_allclose(
            losses.value(x)[i], value + 0.15 * (x[i, :-1] ** 2).sum(), rtol=1e-12
        )
        torch.testing.assert_close(own.gradient(x[i : i + 1])[0], gradient[i])
        torch.testing.assert_close(own.prox(x[i : i + 1], 2.0)[0], losses.prox(x, 2.0)[i])
    torch.testing.assert_close(losses.gradient(x), gradient)
    torch.testing.assert_close(losses.hessian(x), hessian)
    scores = np.concatenate([a @ x[i].numpy() for i, (a, _) in enumerate(users(losses))])
    np.testing.assert_allclose(losses.predict(x).numpy(), scores)
    assert losses.counts.tolist() == SIZES.tolist()


@EVERY
@pytest.mark.parametrize("scale", ["sum", "mean"])
@pytest.mark.parametrize("intercept", [True, False])
def test_gradients_of_samples_have_the_gradient_as_their_mean(name, scale, intercept):
    """User i's sample l is drawn as often as any other; L of the most curved one bounds all."""
    losses = build(name, sizes=[2, 6, 3], scale=scale, ridge=0.3, intercept=intercept)
    x, y = models(losses), models(losses, seed=2)
    drawn = [losses.sample_gradient(x, place % losses.counts) for place in range(6)]
    torch.testing.assert_close(torch.stack(drawn).mean(0), losses.gradient(x))
    moved = [losses.sample_gradient(y, place % losses.counts) for place in range(6)]
    steep = [(m - d).norm(dim=1) for m, d in zip(moved, drawn, strict=True)]
    assert (torch.stack(steep) <= losses.sample_smoothness() * (y - x).norm(dim=1)).all()
    assert losses.sample_smoothness() >= losses.smoothness().max() - 1e-9


@EVERY
@LAYOUTS
def test_prox_is_that_of_a_general_solver(name, layout):
    losses = build(name, seed=4, ridge=0.2)
    centre = models(losses, size=3.0)
    kappa = torch.linspace(0.05, 4, losses.n, dtype=torch.float64)
    x = losses.prox(centre, kappa)
    for i, (a, y) in enumerate(users(losses)):
        v = cp.Variable(3)
        pull = float(kappa[i]) / 2 * cp.sum_squares(v - centre[i].numpy())
        f = convex_phi(name, a @ v, y) + 0.1 * cp.sum_squares(v[:2])
        cp.Problem(cp.Minimize(f + pull)).solve(solver=cp.CLARABEL)
        np.testing.assert_allclose(x[i].numpy(), v.value, atol=2e-4)
    left = losses.gradient(x) + kappa[:, None] * (x - centre)
    assert left.abs().max() < 1e-9
    again = losses.prox(centre, kappa, models(losses, seed=9, size=10.0))
    torch.testing.assert_close(again, x, rtol=0, atol=1e-8)


@settings(max_examples=40, deadline=None)
@given(SEEDS, st.sampled_from(list(LOSSES)), st.floats(1e-2, 1e2), st.floats(0.1, 30.0))
def test_prox_is_firmly_nonexpansive(seed, name, kappa, size):
    losses = build(name, seed, sizes=[1, 4, 9])
    u, v = models(losses, seed, size), models(losses, seed + 1, size)
    p, q = losses.prox(u, kappa), losses.prox(v, kappa)
    inner, distance = ((p - q) * (u - v)).sum(1), (p - q).square().sum(1)
    assert (inner >= distance - 1e-8 * (1 + size**2)).all()


@EVERY
def test_single_precision_is_the_double_one_rounded(name):
    double = build(name, seed=2, ridge=0.1)
    single = build(name, seed=2, ridge=0.1, dtype=torch.float32)
    x = models(double)
    pairs = [
        (single.gradient(x.float()), double.gradient(x)),
        (single.prox(x.float(), 1.0), double.prox(x, 1.0)),
        (single.smoothness(), double.smoothness()),
    ]
    for near, exact in pairs:
        assert near.dtype == torch.float32
        torch.testing.assert_close(near.double(), exact, rtol=1e-4, atol=1e-4)


@EVERY
@pytest.mark.parametrize("factor", [1e-3, 1.0, 1e3])
@pytest.mark.parametrize("kappa", [1e-6, 1.0, 1e4])
def test_prox_of_separable_classes_and_of_bad_scales(name, factor, kappa):
    features = factor * torch.tensor([[-2.0], [-1.0], [1.0], [3.0], [2.0]], dtype=torch.float64)
    labels, sizes = torch.tensor([0, 0, 1, 1, 1]), [4, 1]
    losses = LinearLosses(features, labels, sizes, loss=LOSSES[name], scale="sum")
    centre = torch.tensor([[-50.0, 40.0], [300.0, -7.0]], dtype=torch.float64)
    x = losses.prox(centre, kappa)
    left = (losses.gradient(x) + kappa * (x - centre)).norm(dim=1)
    terms = losses.smoothness() * (1 + x.norm(dim=1)) + kappa * centre.norm(dim=1)
    assert (left <= 1e-11 * (terms + 5 * (1 + factor))).all()


@EVERY
@pytest.mark.parametrize("intercept", [True, False])
def test_bounds_of_the_curvature(name, intercept):
    losses = build(name, scale="mean", ridge=0.4, intercept=intercept)
    for i, (a, _) in enumerate(users(losses)):
        ridge = np.diag([0.4, 0.4, 0.0][: losses.d])
        bound = LOSSES[name].bound * a.T @ a / len(a) + ridge
        np.testing.assert_allclose(losses.smoothness()[i], np.linalg.norm(bound, 2))
    curvature = torch.linalg.eigvalsh(losses.hessian(models(losses, size=4.0)))
    assert (curvature[:, 0] >= losses.convexity() - 1e-12).all()
    assert (losses.convexity() >= (0 if intercept else 0.4 - 1e-12)).all()


def test_largest_curvature_of_many_columns_is_bounded():
    losses = build("logistic", sizes=[3, 2], p=510)
    for i, (a, _) in enumerate(users(losses)):
        assert losses.smoothness()[i] >= np.linalg.norm(a, 2) ** 2 / 4


def test_squared_loss_as_a_quadratic():
    losses = build("squared", scale="mean")
    x, quadratic = models(losses), losses.quadratic()
    torch.testing.assert_close(quadratic.value(x), losses.value(x))
    torch.testing.assert_close(quadratic.gradient(x), losses.gradient(x))
    torch.testing.assert_close(quadratic.hessian(x), losses.hessian(x))
    assert losses.coercive().tolist() == (SIZES >= 3).tolist()
    with pytest.raises(ModelError, match="not quadratic"):
        build("huber").quadratic()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"labels": torch.tensor([0, 2, 1])}, "classes 0 and 1"),
        ({"labels": torch.tensor([0, 1])}, "2 labels"),
        ({"sizes": [2, 2]}, "sizes for 4"),
        ({"sizes": [3, 0]}, "a sample or more"),
        ({"features": torch.ones(3, 2, dtype=torch.int64)}, "float32 or float64"),
    ],
)
def test_data_that_do_not_fit(change, message):
    data = {"features": torch.ones(3, 2), "labels": torch.tensor([0, 1, 1]), "sizes": [1, 2]}
    with pytest.raises(DataError, match=message):
        LinearLosses(**{**data, **change}, loss=LOGISTIC, scale="sum")


@pytest.mark.parametrize("seed", range(20))
def test_blocks_are_cut_as_a_loop_over_users_would(seed, monkeypatch):
    """A block ends where it is full, or where the next user has much fewer rows than its first."""
    rng = np.random.default_rng(seed)
    columns, large, small = int(rng.integers(1, 12)), int(rng.choice([50, 2000])), 60
    monkeypatch.setattr(padded, "LARGE", large)
    monkeypatch.setattr(padded, "SMALL", small)
    sizes = rng.integers(1, rng.choice([3, 60]), size=150)
    blocks = [[]]
    for user in np.argsort(-sizes, kind="stable"):
        first = sizes[blocks[-1][0]] if blocks[-1] else sizes[user]
        held = first * columns * len(blocks[-1])
        uneven = sizes[user] < padded.FILLED * first and held >= small
        if blocks[-1] and (uneven or held + first * columns > large):
            blocks.append([])
        blocks[-1].append(user)
    found = padded.cut(sizes, columns, torch.device("cpu"))
    assert [block.tolist() for block in found] == blocks
