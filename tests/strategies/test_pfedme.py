"""pFedMe against a plain loop, and its local step against the Moreau envelope's gradient."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch.nn import functional as F

from tests.support.reference import (
    DECAY,
    chosen,
    examples,
    final,
    run,
    users_data,
)


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
