"""pFedMe against a plain loop, and its local step against the Moreau envelope's gradient."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch.nn import functional as F

from tests.support.reference import (
    DECAY,
    chosen,
    examples,
    final,
    flat,
    fresh,
    near,
    plain_sgd,
    right,
    run,
    user_batches,
    users_data,
)


@pytest.mark.parametrize(("momentum", "beta", "epochs"), [(0, 1, 1), (0, 1.5, 1), (0.5, 1, 2)])
def test_pfedme_is_algorithm_1(momentum: float, beta: float, epochs: int) -> None:
    data, lam, eta = users_data(), 3.0, 0.05
    how = {"pfedme_lambda": lam, "pfedme_steps": 3, "pfedme_personal_lr": 0.1, "pfedme_beta": beta}
    strategy, result = run("pfedme", momentum=momentum, local_epochs=epochs, **how)
    model = flat(fresh())
    theta = dict.fromkeys(data.users, model)
    keys = {"lr": 0.1, "momentum": momentum}
    for number in range(1, 5):
        models = []
        for user in chosen(strategy, number):
            mine, w, theta[user] = examples(data, user), model, model
            for batch in user_batches(data, user, "model", number, epochs):
                theta[user] = plain_sgd(theta[user], mine, [batch] * 3, keys, near(lam, w))
                w = w - eta * lam * (w - theta[user])
            models.append(w)
        model = (1 - beta) * model + beta * np.mean(models, axis=0)
    assert np.allclose(final(result), model, atol=1e-5)
    for user, accuracy in result.json()[0]["per_user"].items():
        assert accuracy == pytest.approx(right(theta[user], data, user))


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


def test_without_beta_the_global_model_stays() -> None:
    _, result = run("pfedme", pfedme_beta=0.0)
    assert np.array_equal(final(result), flat(fresh()))


def test_it_sends_what_fedavg_sends() -> None:
    _, one = run("pfedme")
    _, other = run("fedavg")
    for key in ("bytes_up", "bytes_down", "messages"):
        assert one.json()[0][key] == other.json()[0][key]
