"""Multinomial losses: derivatives by autograd, minimisers by what is left of the gradient."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from corsage.core.errors import DataError
from corsage.solvers.losses import softmax_block, users_newton
from corsage.solvers.losses.softmax import SoftmaxLosses
from tests.support.linear_users import derivatives
from tests.support.points import picked

SIZES = (3, 40, 7, 12)


def softmax(classes=4, p=5, scale="sum", ridge=0.3, intercept=True, sizes=SIZES, seed=0):
    rng = np.random.default_rng(seed)
    x = torch.from_numpy(rng.normal(size=(sum(sizes), p)))
    y = torch.from_numpy(rng.integers(0, classes, sum(sizes)))
    return SoftmaxLosses(
        x, y, sizes, classes=classes, scale=scale, ridge=ridge, intercept=intercept
    )


def easily_told_apart():
    """20 records a user of 3 of 10 classes, told apart by 20 features that fall off by 200."""
    x = torch.from_numpy(np.random.default_rng(0).normal(size=(80, 20))) * 5
    x *= 0.75 ** torch.arange(20)
    return SoftmaxLosses(x, x[:, :3].argmax(1), [20] * 4, classes=10, scale="mean")


def drawn(losses, seed=1):
    return torch.from_numpy(np.random.default_rng(seed).normal(size=(losses.n, losses.d)))


@pytest.mark.parametrize(
    "losses",
    [softmax(), softmax(2, 9, "mean", 0.0), softmax(intercept=False), softmax(3, 60)],
    ids=["sum", "mean", "no intercept", "wide"],
)
def test_derivatives_are_those_of_the_value(losses):
    x = drawn(losses)
    gradient, hessian = derivatives(losses, x)
    torch.testing.assert_close(losses.gradient(x), gradient)
    torch.testing.assert_close(losses.hessian(x), hessian)
    torch.testing.assert_close(losses.trace(x), hessian.diagonal(dim1=1, dim2=2).sum(1))
    above = torch.linalg.eigvalsh(losses.above(x) - hessian)
    assert above.min() > -1e-10
    top = torch.linalg.eigvalsh(losses.above(x))[:, -1]
    torch.testing.assert_close(losses.smoothness(), top)
    torch.testing.assert_close(picked(losses, [2, 0]).value(x[[2, 0]]), losses.value(x)[[2, 0]])
    step = losses.descend(x, 2, 0.01)
    once = x - 0.01 * losses.gradient(x)
    torch.testing.assert_close(step, once - 0.01 * losses.gradient(once))


def test_the_value_is_torchs_and_far_out_it_is_exact():
    losses = softmax(ridge=0.0)
    x = drawn(losses)
    scores = losses.predict(x).split(SIZES)
    each = zip(scores, losses.labels.split(SIZES), strict=True)
    wanted = [torch.nn.functional.cross_entropy(s, y, reduction="sum") for s, y in each]
    torch.testing.assert_close(losses.value(x), torch.stack(wanted))
    one = SoftmaxLosses(torch.ones(1, 1).double(), torch.zeros(1), [1], classes=3, scale="sum")
    far = torch.tensor([[50.0, 0, 0, 0, 0, 0]]).double()
    assert float(one.value(far)) == pytest.approx(2 * np.exp(-50), rel=1e-12)
    assert float(one.gradient(far)[0, 0]) == pytest.approx(-2 * np.exp(-50), rel=1e-12)


@pytest.mark.parametrize("losses", [softmax(ridge=0.0), softmax(5, 30, "mean", 0.01)])
@pytest.mark.parametrize("kappa", [1e-3, 1.0, 1e3])
def test_a_proximal_step_leaves_no_gradient(losses, kappa):
    centre = 3 * drawn(losses)
    for start in (None, drawn(losses, 2)):
        x = losses.prox(centre, kappa, start)
        left = losses.gradient(x) + kappa * (x - centre)
        size = losses.gradient(torch.zeros_like(x)).norm(dim=1) + kappa * centre.norm(dim=1)
        assert (left.norm(dim=1) <= 1e-10 * size).all()


def test_conjugate_gradients_leave_no_gradient_in_what_classes_have_in_common(monkeypatch):
    """A weak pull leaves rounding room to grow; users would seem to contradict themselves."""
    losses = easily_told_apart()
    monkeypatch.setattr(softmax_block, "MOST_WITH_MATRICES", 0)
    monkeypatch.setattr(softmax_block, "MOST_WITH_ONE_MATRIX", 0)
    centre = 3 * drawn(losses)
    x = losses.prox(centre, 1e-3)
    slope = 1e-3 * (centre - x)
    assert ((losses.gradient(x) - slope).norm(dim=1) <= 1e-7 * slope.norm(dim=1)).all()


def test_units_that_are_far_apart_are_no_obstacle(monkeypatch, caplog):
    """Where conjugate gradients do not come to their end matrices do; else a line says it."""
    rng = np.random.default_rng(0)
    x = torch.from_numpy(rng.normal(size=(120, 6)) * 10.0 ** np.arange(-3, 3))
    y = torch.from_numpy(rng.integers(0, 4, 120))
    losses = SoftmaxLosses(x, y, [60, 60], classes=4, scale="sum")
    centre = torch.zeros(2, losses.d).double()
    softmax_block.say_unsettled.cache_clear()
    monkeypatch.setattr(softmax_block, "MOST_WITH_MATRICES", 0)
    monkeypatch.setattr(softmax_block, "MOST_PRODUCTS", 2)
    monkeypatch.setattr(users_newton, "MOST_NEWTON_STEPS", 10)
    found = losses.prox(centre, 1e-4)
    left = losses.gradient(found) + 1e-4 * found
    assert (left.norm(dim=1) <= 1e-9 * losses.gradient(centre).norm(dim=1)).all()
    assert not caplog.records
    monkeypatch.setattr(softmax_block, "MOST_WITH_ONE_MATRIX", 0)
    losses.prox(centre, 1e-4)
    assert "scale them" in caplog.text


def test_a_minimiser_is_found_where_there_is_one():
    """Of forty rows in five directions; not of few, which planes tell apart."""
    losses = softmax(ridge=0.0)
    best = losses.minimise()
    assert best.isfinite().all(1).tolist() == [False, True, False, False]
    assert losses.coercive().tolist() == [False, True, False, False]
    assert losses.gradient(best)[1].abs().max() < 1e-9
    tied = softmax(ridge=0.1)
    slope = drawn(tied)
    assert (tied.gradient(tied.minimise(slope)) + slope).abs().max() < 1e-8
    assert tied.coercive().all()
    common = torch.ones_like(best)  # what all classes have in common falls for ever
    assert losses.minimise(common).isnan().all()


@pytest.mark.parametrize("scale", ["sum", "mean"])
def test_samples_gradients_have_the_gradient_as_their_mean(scale):
    losses = softmax(scale=scale, sizes=(6, 6))
    x = drawn(losses)
    mean = sum(losses.sample_gradient(x, np.array([j, j])) for j in range(6)) / 6
    torch.testing.assert_close(mean, losses.gradient(x))
    assert losses.sample_smoothness() >= float(losses.smoothness().max()) - 1e-12


def test_labels_that_are_no_classes_are_refused():
    with pytest.raises(DataError, match="classes from 0 to 2"):
        SoftmaxLosses(torch.ones(2, 1), torch.tensor([0, 3]), [2], classes=3, scale="sum")
