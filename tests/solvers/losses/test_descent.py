"""Many gradient steps at once: fused by llvmlite, or block by block, against a plain loop."""

from __future__ import annotations

import logging

import numpy as np
import pytest
import torch

from corsage.core.losses import LOGISTIC, SQUARED_HINGE, SQUARED_LOSS, huber
from corsage.solvers.losses import local_descent
from corsage.solvers.losses.linear_losses import LinearLosses
from tests.support.points import picked

LOSSES = [LOGISTIC, SQUARED_HINGE, SQUARED_LOSS, huber(0.7)]
ALIKE = {torch.float64: 1e-12, torch.float32: 2e-5}
K, STEP = 7, 0.05


def problem(loss, dtype=torch.float64, d=2, seed=0, **keys):
    """300 users of 1 to 90 samples."""
    rng = np.random.default_rng(seed)
    sizes = np.append(rng.integers(1, 30, 299), 90)
    a = torch.from_numpy(rng.normal(size=(sizes.sum(), d))).to(dtype)
    y = torch.from_numpy(rng.integers(0, 2, len(a)) if loss.classes else rng.normal(size=len(a)))
    keys = {"scale": "mean", "ridge": 0.1, **keys}
    losses = LinearLosses(a, y, sizes, loss=loss, **keys)
    start = torch.from_numpy(rng.normal(size=(300, losses.d))).to(dtype)
    return losses, start


def plain(losses, theta):
    for _ in range(K):
        theta = theta - STEP * losses.gradient(theta)
    return theta


@pytest.mark.parametrize("dtype", ALIKE)
@pytest.mark.parametrize("loss", LOSSES, ids=lambda loss: loss.name)
@pytest.mark.parametrize("fused", [True, False])
def test_steps_are_those_of_a_plain_loop(loss, dtype, fused, monkeypatch):
    if fused:
        pytest.importorskip("llvmlite")
    monkeypatch.setattr(local_descent, "WORTH", 0 if fused else np.inf)
    losses, theta = problem(loss, dtype)
    assert local_descent.fits(losses.features, losses.d, loss) == fused
    before = theta.clone()
    found = losses.descend(theta, K, STEP)
    assert found.dtype == dtype and torch.equal(theta, before)
    torch.testing.assert_close(found, plain(losses, theta), atol=ALIKE[dtype], rtol=ALIKE[dtype])
    assert torch.equal(losses.descend(theta, 0, STEP), theta)


@pytest.mark.parametrize("keys", [{"intercept": False}, {"scale": "sum"}, {"d": 6, "ridge": 0.0}])
def test_other_losses_are_fused_too(keys, monkeypatch):
    pytest.importorskip("llvmlite")
    monkeypatch.setattr(local_descent, "WORTH", 0)
    losses, theta = problem(SQUARED_HINGE, **keys)
    torch.testing.assert_close(losses.descend(theta, K, STEP), plain(losses, theta))


def test_users_step_alike_whoever_is_beside_them(monkeypatch):
    """Nodes host different users, and must come to the same numbers: to the last bit."""
    pytest.importorskip("llvmlite")
    monkeypatch.setattr(local_descent, "WORTH", 0)
    losses, theta = problem(LOGISTIC, torch.float32)
    some = [5, 299, 17, 130]
    alone = picked(losses, some).descend(theta[some], K, STEP)
    assert torch.equal(losses.descend(theta, K, STEP)[some], alone)


@pytest.fixture
def anew():
    """What is known of the extra is asked again, before and after."""
    for known in (local_descent.library, local_descent.kernel):
        known.cache_clear()
    yield
    for known in (local_descent.library, local_descent.kernel):
        known.cache_clear()


@pytest.mark.parametrize("error", [ModuleNotFoundError, ImportError, SystemError])
def test_without_an_llvmlite_that_works_steps_are_torchs(error, anew, monkeypatch, caplog):
    """It may be there, and be of no use."""

    def missing(name):
        raise error(f"no LLVM here: {name}")

    monkeypatch.setattr(local_descent, "WORTH", 0)
    monkeypatch.setattr(local_descent, "import_module", missing)
    losses, theta = problem(LOGISTIC)
    with caplog.at_level(logging.INFO, "corsage"):
        torch.testing.assert_close(losses.descend(theta, K, STEP), plain(losses, theta))
    assert "by torch" in caplog.text


def test_a_kernel_that_cannot_be_compiled_is_torchs_work(anew, monkeypatch, caplog):
    fused = pytest.importorskip("corsage.solvers.losses.fused")

    def broken(loss, d, single):
        raise RuntimeError("this processor is not known")

    monkeypatch.setattr(local_descent, "WORTH", 0)
    monkeypatch.setattr(fused, "Kernel", broken)
    losses, theta = problem(LOGISTIC)
    torch.testing.assert_close(losses.descend(theta, K, STEP), plain(losses, theta))
    assert "by torch, as llvmlite cannot compile them: this processor" in caplog.text


@pytest.mark.parametrize("dtype", ALIKE)
def test_small_slopes_are_as_exact_as_large_ones(dtype, monkeypatch):
    """One sample and one step a user, long enough that the model moves by much."""
    pytest.importorskip("llvmlite")
    monkeypatch.setattr(local_descent, "WORTH", 0)
    u = torch.linspace(-80, 80, 4001, dtype=dtype)
    keys = {"loss": LOGISTIC, "scale": "sum", "intercept": False}
    ones = torch.ones(4001, 1, dtype=dtype)
    losses = LinearLosses(ones, torch.zeros(4001), np.ones(4001, int), **keys)
    near = 3 * torch.finfo(dtype).eps
    for step in (1.0, 1e20, 1e35):
        moved = losses.descend(u[:, None], 1, step)[:, 0]
        wanted = (u.double() - step * torch.sigmoid(u.double())).to(dtype)
        torch.testing.assert_close(moved, wanted, rtol=near, atol=near)


def test_which_way_is_taken_is_said_once(anew, monkeypatch, caplog):
    monkeypatch.setattr(local_descent, "import_module", lambda name: name)
    with caplog.at_level(logging.INFO, "corsage"):
        assert local_descent.library() and local_descent.library()
    (line,) = caplog.messages
    assert "llvmlite" in line


def test_small_problems_and_many_columns_are_left_to_torch():
    losses, _ = problem(LOGISTIC)
    assert not local_descent.fits(losses.features, losses.d, LOGISTIC)
    assert not local_descent.fits(torch.zeros(10**5, 9), 10, LOGISTIC)
