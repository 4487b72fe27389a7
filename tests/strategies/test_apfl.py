"""APFL against a plain loop with autograd's own gradients of the mixture, and by hand."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.func import functional_call
from torch.nn import functional as F

from corsage.clients.apfl import Mixture
from corsage.core.configuration.key_groups import TrainKeys
from tests.support.federations import same_arrays
from tests.support.quadratic import Quadratics
from tests.support.reference import (
    DECAY,
    KEYS,
    Vector,
    agrees,
    chosen,
    examples,
    final,
    flat,
    fresh,
    run,
    user_batches,
    users_data,
)

Params = list[nn.Parameter]


def torch_sgd(params: Params, keys: dict[str, Any]) -> torch.optim.SGD:
    groups: list[dict[str, Any]] = [
        {"params": [p for p in params if p.dim() > 1], "weight_decay": DECAY},
        {"params": [p for p in params if p.dim() == 1]},
    ]
    return torch.optim.SGD(groups, lr=keys["lr"], momentum=keys["momentum"])


def plain_apfl(
    w: Vector, v: Vector, alpha: float, data: Any, steps: Any, adaptive: bool, keys: dict[str, Any]
) -> tuple[Vector, Vector, float]:
    """Autograd differentiates f(alpha v + (1 - alpha) w) by v and by alpha."""
    left, right = fresh(w), fresh(v)
    names = [name for name, _ in left.named_parameters()]
    mine, own = list(left.parameters()), list(right.parameters())
    share = torch.tensor(float(alpha), requires_grad=True)
    optimisers = [torch_sgd(mine, keys), torch_sgd(own, keys)]
    for t, batch in enumerate(steps):
        for optimiser in optimisers:
            optimiser.zero_grad()
        share.grad = None
        mixed = [share * p + (1 - share) * q.detach() for p, q in zip(own, mine, strict=True)]
        x, y = data[0][batch], data[1][batch]
        out = functional_call(right, dict(zip(names, mixed, strict=True)), (x,))
        F.cross_entropy(out, y).backward()
        F.cross_entropy(left(x), y).backward()
        for optimiser in optimisers:
            optimiser.step()
        if adaptive and t == 0:
            share.data = (share.data - keys["lr"] * share.grad).clamp(0, 1)
    return flat(left), flat(right), float(share.detach())


@pytest.mark.parametrize("adaptive", [False, True])
@pytest.mark.parametrize("momentum", [0.0, 0.5])
def test_apfl_is_algorithm_1(adaptive: bool, momentum: float) -> None:
    data, keys = users_data(size_sigma=0.8), {**KEYS, "lr": 0.1, "momentum": momentum}
    more = {"apfl_alpha": 0.3, "apfl_adaptive_alpha": adaptive, "size_sigma": 0.8}
    strategy, result = run("apfl", **{**more, **keys}, local_epochs=2, num_rounds=6)
    w = flat(fresh())
    own, alphas = dict.fromkeys(data.users, w), dict.fromkeys(data.users, 0.3)
    for number in range(1, 7):
        models = []
        for user in chosen(strategy, number):
            steps = user_batches(data, user, "model", number, 2)
            model, own[user], alphas[user] = plain_apfl(
                w, own[user], alphas[user], examples(data, user), steps, adaptive, keys
            )
            models.append(model)
        w = np.mean(models, axis=0)
    assert np.allclose(final(result), w, atol=1e-5)
    mixtures = {u: alphas[u] * own[u] + (1 - alphas[u]) * w for u in data.users}
    assert agrees(result, mixtures, data)
    moved = [abs(a - 0.3) for a in alphas.values()]
    assert (max(moved) > 1e-3) == adaptive


def test_with_alpha_1_it_is_local_training_and_with_0_fedavg() -> None:
    _, one = run("apfl", apfl_alpha=1.0, num_rounds=6)
    _, zero = run("apfl", apfl_alpha=0.0, num_rounds=6)
    _, local = run("local", num_rounds=6)
    _, fedavg = run("fedavg", num_rounds=6)
    for apfl, other in ((one, local), (zero, fedavg)):
        assert apfl.json()[0]["per_user"] == pytest.approx(other.json()[0]["per_user"])
        assert apfl.json()[0]["loss"] == pytest.approx(other.json()[0]["loss"], abs=1e-5)
        assert same_arrays(apfl.arrays, fedavg.arrays)
    assert one.json()[0]["bytes_up"] == fedavg.json()[0]["bytes_up"]


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
