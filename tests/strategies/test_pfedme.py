"""pFedMe against a plain loop, and its local step against the Moreau envelope's gradient."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch.nn import functional as F

from corsage.clients.apfl import Mixture
from corsage.core.configuration.key_groups import TrainKeys
from tests.support.quadratic import Quadratics
from tests.support.reference import DECAY, chosen, examples, final, run, users_data


def test_many_steps_take_the_gradient_of_the_moreau_envelope() -> None:
    """grad F(w) = lambda (w - theta) = grad f(theta), in a local round of one user."""
    data, lam, size = users_data(), 5.0, 64 * 10
    how: dict[str, Any] = {"model": "linear", "batch_size": 1000, "num_rounds": 1}
    more = {"pfedme_lambda": lam, "pfedme_steps": 600, "fraction_train": 0.1}
    strategy, result = run("pfedme", **how, **more)
    (user,) = chosen(strategy, 1)
    w0 = strategy.job.network.initial
    gradient = (w0 - final(result)) / 0.05
    theta = torch.from_numpy(w0 - gradient / lam).requires_grad_()
    weight, bias = theta[:size].view(10, 64), theta[size:]
    x, y = examples(data, user)
    loss = F.cross_entropy(x.flatten(1) @ weight.T + bias, y) + DECAY / 2 * weight.square().sum()
    (at_theta,) = torch.autograd.grad(loss, theta)
    assert np.allclose(gradient, at_theta.numpy(), atol=1e-4)
    assert np.abs(gradient).max() > 0.05


def step_by_hand(alpha: float, lr: float) -> Mixture:
    """f(x) = (x - 1)^2 / 2 at w = 0, v = 2."""
    losses = Quadratics(torch.ones(1, 1, 1, 1), torch.ones(1, 1, 1), [1])
    keys = TrainKeys(lr=lr, momentum=0.0, weight_decay=0.0)
    w, v, share = torch.tensor([[0.0]]), torch.tensor([[2.0]]), torch.tensor([[alpha]])
    mixture = Mixture(losses, w, v, share, torch.ones(1), keys)
    mixture.step(0, adapt=True)
    return mixture


def test_a_step_by_hand() -> None:
    """vbar = .5, so the mixture's gradient is -.5, that of w is -1, and <v - w, g> = -1."""
    mixture = step_by_hand(alpha=0.25, lr=0.1)
    assert mixture.vbar.item() == pytest.approx(0.5)
    assert mixture.v.item() == pytest.approx(2 + 0.1 * 0.25 * 0.5)
    assert mixture.w.item() == pytest.approx(0.1)
    assert mixture.alpha.item() == pytest.approx(0.25 + 0.1 * 1.0)


def test_alpha_stays_in_its_interval() -> None:
    assert step_by_hand(alpha=0.25, lr=5.0).alpha.item() == 1.0
    assert step_by_hand(alpha=1.0, lr=5.0).alpha.item() == 0.0
