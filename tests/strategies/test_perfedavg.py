"""Per-FedAvg on quadratics in closed form, and against a loop with exact Hessian products."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn import functional as F

from corsage.clients.perfedavg import meta_steps
from corsage.core.configuration.key_groups import ModelKeys, TrainKeys
from corsage.core.errors import ModelError
from corsage.networks.batches import Examples
from corsage.networks.build import build_network
from corsage.networks.gradients import AutogradLosses, hessian_product, second_derivatives, training
from corsage.networks.network import Network
from corsage.networks.together import stacked
from corsage.networks.together.stacked_gradients import StackedLosses
from corsage.networks.training_objective import Objective
from corsage.strategies.perfedavg import PerFedAvgKeys
from tests.support.plain_steps import EPOCHS, perfedavg, played
from tests.support.quadratic import Quadratics
from tests.support.reference import final, run, users_data
from tests.support.together import MODELS, network_of
from tests.support.together import examples as attended


@pytest.mark.parametrize("variant", ["exact", "fo", "hf"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_steps_on_quadratics_are_the_closed_form(variant: str, dtype: torch.dtype) -> None:
    """w <- w - beta (I - alpha A'') (A' (w - alpha (A w - b)) - b'), without A'' in FO."""
    users, size, alpha, beta = 3, 5, 0.2, 0.3
    g = torch.Generator().manual_seed(0)
    root = torch.randn(3, users, size, size, generator=g, dtype=dtype) / size**0.5
    a, b = root @ root.mT, torch.randn(3, users, size, generator=g, dtype=dtype)
    start = torch.randn(users, size, generator=g, dtype=dtype)
    keys = PerFedAvgKeys(perfedavg_variant=variant, perfedavg_alpha=alpha)
    train = TrainKeys(lr=beta, momentum=0.0, weight_decay=0.0)
    w = start.clone()
    meta_steps(Quadratics(a, b, [3, 2]), w, torch.ones(size), keys, train)
    for u in range(users):
        wanted, eye = start[u].clone(), torch.eye(size, dtype=dtype)
        for _ in range(2 if u < 2 else 1):
            near = wanted - alpha * (a[0, u] @ wanted - b[0, u])
            meta = a[1, u] @ near - b[1, u]
            wanted -= beta * (meta if variant == "fo" else (eye - alpha * a[2, u]) @ meta)
        assert torch.allclose(w[u], wanted, atol=1e-4 if dtype == torch.float32 else 1e-10)


@pytest.mark.parametrize(("variant", "how"), [("fo", "none"), ("hf", "exact"), ("exact", "exact")])
def test_the_hessian_product_of_a_smooth_loss_is_exact(variant: str, how: str) -> None:
    """Softmax regression; FO is further from the exact product than the tolerance."""
    own = {"model": "linear", "num_rounds": 2, "local_epochs": EPOCHS}
    plain, data = perfedavg(variant, how=how), users_data()
    keys = {name: plain.keys[name] for name in ("perfedavg_variant", "perfedavg_alpha")}
    strategy, result = run("perfedavg", **keys, **own)
    start, there = strategy.job.network.initial, final(result)
    loops = {}
    for kind in (how, "exact"):
        loop = replace(perfedavg(variant, how=kind), first=lambda: start)
        loops[kind], _ = played(loop, strategy, data, 2)
    assert np.allclose(there, loops[how], atol=2e-5)
    assert (np.abs(there - loops["exact"]).max() > 1e-3) == (variant == "fo")


@pytest.mark.parametrize("model", ["mlp", "lenet", "tanh"])
@pytest.mark.parametrize("objective", [None, Objective(0.1, torch.tensor([[1.0, 2.0, 0.5]] * 3))])
def test_products_are_autograds_alone_and_together(model: str, objective: Any) -> None:
    """Of ReLU networks, too, of which a difference of gradients is mostly noise."""
    shape = (1, 12, 12) if model == "lenet" else (6,)
    if model == "tanh":
        module = nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.BatchNorm1d(8), nn.Linear(8, 3))
        net = Network(module, "", torch.rand(3, 6))
    else:
        net = build_network(ModelKeys(model=model, hidden="9,7"), shape, 3, 0)
    g, sizes = torch.Generator().manual_seed(0), np.array([9, 3, 6])
    x, y = torch.randn((18, *shape), generator=g), torch.randint(3, (18,), generator=g)
    data = Examples(x, y, sizes, objective=objective)
    orders = [[np.arange(n)[i : i + 4] for i in range(0, n, 4)] for n in sizes]
    theta = torch.from_numpy(np.tile(net.initial, (3, 1)))
    v = torch.randn(theta.shape, generator=g)
    ready = data.over(stacked.data_for(net, x)) if net.stackable else data
    every = range(3)
    losses = [StackedLosses(net, ready, [orders], every)] if net.stackable else []
    losses += [AutogradLosses(net, data, [orders], [u]) for u in every]
    trained = torch.zeros(theta.shape[1], dtype=torch.bool)
    for b in net.blocks:
        trained[b.where] = b.trained
    for one in losses:
        out = torch.ones(len(one.users), theta.shape[1])
        with training(net):
            one.product(theta[one.users], v[one.users], 0, out, -2.0)
        for row, u in enumerate(one.users):
            mine, mean = data.user(u), data.mean_of(u, F.cross_entropy)
            wanted = hvp(net, theta[u], v[u], mine[0][orders[u][0]], mine[1][orders[u][0]], mean)
            assert torch.allclose((out[row] - 1)[trained], -2.0 * wanted[trained], atol=1e-4)
            assert (out[row] == 1)[~trained].all() and wanted.abs().max() > 1e-2


@pytest.mark.parametrize(
    "name", ["attention", "torch's attention", "cross attention", "transformer"]
)
def test_products_of_attention_are_differences_of_gradients(name: str) -> None:
    """In double precision, so that a difference has digits enough to be compared."""
    net = network_of(name, "loop")
    data = attended([5], MODELS[name][0])
    with training(net):
        losses = AutogradLosses(net, data, [[[np.arange(5)]]], [0])
        theta = torch.from_numpy(net.initial)[None]
        v = torch.randn(theta.shape, generator=torch.Generator().manual_seed(0))
        found = torch.zeros_like(theta)
        losses.product(theta, v, 0, found, 1.0)
    wanted = difference(net, theta[0].double(), v[0].double(), data)
    assert torch.allclose(found[0].double(), wanted, atol=1e-5) and wanted.abs().max() > 1e-2


def difference(net: Network, theta: Tensor, v: Tensor, data: Examples) -> Tensor:
    """(nabla f(theta + h v) - nabla f(theta - h v)) / 2h."""
    sides, h, module = [], 1e-5, net.module.double()
    at = [b.tensor for b in net.blocks]
    for sign in (1.0, -1.0):
        nn.utils.vector_to_parameters(theta + sign * h * v, at)
        loss = F.cross_entropy(module(data.x.double()), data.y)
        grads = torch.autograd.grad(loss, at)
        sides.append(torch.cat([g.flatten() for g in grads]))
    return (sides[0] - sides[1]) / (2 * h)


def hvp(net: Network, theta: Tensor, v: Tensor, x: Tensor, y: Tensor, mean: Any) -> Tensor:
    """By torch.autograd.functional, on the module as a function of all its parameters."""
    names, module = [b.name for b in net.blocks], net.module.train()

    def loss(flat_values: Tensor) -> Tensor:
        pieces = torch.split(flat_values, [b.where.stop - b.where.start for b in net.blocks])
        named = {b.name: p.view(b.shape) for b, p in zip(net.blocks, pieces, strict=True)}
        own = {b.name: b.dtype for b in net.blocks if not b.trained}
        buffers = {n: named[n].detach().to(kind, copy=True) for n, kind in own.items()}
        return mean(functional_call(module, {**named, **buffers}, (x,)), y)

    assert names
    return torch.autograd.functional.hvp(loss, theta, v)[1]


def test_a_model_without_second_derivatives_is_named() -> None:
    x = torch.ones(3, requires_grad=True)
    said = r"Hessian-vector product: .* take perfedavg-variant=hf or fo"
    for power in (NoSecond.apply(x), NoSecond.apply(x) ** 2):
        with pytest.raises(ModelError, match=said), second_derivatives():
            hessian_product(power.sum(), [x], [torch.ones(3)])


class NoSecond(torch.autograd.Function):
    """x^2, once differentiable."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.save_for_backward(x)
        return x * x

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, g: Tensor) -> Tensor:  # type: ignore[override]
        return 2 * ctx.saved_tensors[0] * g
