"""Gradients of many users at any point, against torch's own for one user after the other."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from corsage.core.configuration.key_groups import ModelKeys, TrainKeys
from corsage.networks.batches import Examples
from corsage.networks.build import build_network
from corsage.networks.gradients import AutogradLosses, UserLosses, in_groups, training
from corsage.networks.local_training import train_models
from corsage.networks.network import Network
from corsage.networks.rules import Momentum
from corsage.networks.together import stacked
from corsage.networks.together.stacked_gradients import StackedLosses
from corsage.networks.training import batches

MODELS = {"linear": (6,), "mlp": (6,), "lenet": (1, 12, 12), "cnn": (2, 18, 16)}
SIZES = [9, 1, 14, 4]


def net_of(model: str) -> Network:
    return build_network(ModelKeys(model=model, hidden="9,7"), MODELS[model], 3, 0)


def own_network(kind: str) -> Network:
    torch.manual_seed(0)
    middle = {"norm": nn.BatchNorm1d(5), "dropout": nn.Dropout(0.5), "tanh": nn.Tanh()}[kind]
    return Network(nn.Sequential(nn.Linear(6, 5), middle, nn.Linear(5, 3)), "", torch.rand(3, 6))


def examples(shape: tuple[int, ...], sizes: list[int] = SIZES) -> Examples:
    g = torch.Generator().manual_seed(0)
    n = sum(sizes)
    y = torch.randint(3, (n,), generator=g)
    return Examples(torch.randn((n, *shape), generator=g), y, np.array(sizes, np.int64))


def orders(sizes: list[int], epochs: int = 2, seed: int = 0) -> list[Any]:
    rng = np.random.default_rng(seed)
    return [batches(rng, n, epochs, 4) for n in sizes]


def reference(net: Network, theta: Tensor, x: Tensor, y: Tensor) -> Tensor:
    net.flat.copy_(theta)
    net.grad.zero_()
    F.cross_entropy(net(x), y).backward()
    return net.grad.clone()


@pytest.mark.parametrize("model", list(MODELS))
def test_gradients_of_users_together_are_torchs(model: str) -> None:
    net, data = net_of(model), examples(MODELS[model])
    streams = [orders(SIZES), orders(SIZES, seed=1)]
    ready = Examples(stacked.data_for(net, data.x), data.y, data.sizes)
    losses = StackedLosses(net, ready, streams, range(4))
    assert losses.users[0] == 2 and losses.active[0] == 4 and losses.active[-1] == 1
    theta = torch.from_numpy(np.tile(net.initial, (4, 1)))
    theta += 0.05 * torch.randn(theta.shape, generator=torch.Generator().manual_seed(1))
    scale = torch.tensor([0.5, -1.0, 2.0, 0.0])
    for step, active in enumerate(losses.active):
        for stream in (0, 1):
            plain, mixed = torch.full_like(theta, torch.nan), torch.ones_like(theta)
            with training(net):
                losses.gradient(theta, step, plain, stream=stream)
                losses.gradient(theta, step, mixed, 0.5, scale, stream)
            for row, u in enumerate(losses.users[:active]):
                rows = streams[stream][u][step] + data.offsets[u]
                wanted = reference(net, theta[row], data.x[rows], data.y[rows])
                assert torch.allclose(plain[row], wanted, atol=1e-5)
                assert torch.allclose(mixed[row], 0.5 + scale[row] * wanted, atol=1e-5)
            assert plain[active:].isnan().all() and (mixed[active:] == 1).all()


@pytest.mark.parametrize("kind", ["norm", "dropout", "tanh"])
def test_other_networks_go_through_autograd(kind: str) -> None:
    net, data = own_network(kind), examples((6,), [9])
    losses = AutogradLosses(net, data, [orders([9])], [0])
    theta, out = losses.rows(net.initial), torch.ones(1, len(net.initial))
    rows = orders([9])[0][0]
    with training(net):
        torch.manual_seed(3)
        losses.gradient(theta, 0, out, 0.5, torch.tensor([2.0]))
    torch.manual_seed(3)
    wanted = reference(net, torch.from_numpy(net.initial), data.x[rows], data.y[rows])
    assert torch.allclose(out[0], 0.5 + 2 * wanted, atol=1e-6)
    assert torch.equal(theta[0], net.flat) and wanted.abs().max() > 1e-3
    assert torch.equal(theta[0], torch.from_numpy(net.initial)) == (kind != "norm")


def plain_work(net: Network, keys: TrainKeys) -> Any:
    def work(losses: UserLosses) -> tuple[Tensor]:
        theta = losses.rows(net.initial)
        sgd = Momentum(theta, net.decay, keys)
        for t, active in enumerate(losses.active):
            losses.gradient(theta, t, sgd.m, keys.momentum)
            sgd.step(active)
        return (theta,)

    return work


@pytest.mark.parametrize("model", [*MODELS, "norm", "dropout"])
@pytest.mark.parametrize("momentum", [0.0, 0.5])
def test_momentum_is_that_of_the_common_loop(model: str, momentum: float) -> None:
    sizes = [10, 2, 14, 4]  # a batch of one sample cannot be normalised
    net, shape = (net_of if model in MODELS else own_network)(model), MODELS.get(model, (6,))
    keys = TrainKeys(lr=0.1, momentum=momentum, weight_decay=1e-2)
    data, steps_of = examples(shape, sizes), orders(sizes)
    (found,) = in_groups(net, data, [steps_of], 2, plain_work(net, keys))
    wanted = train_models(net, net.initial, data, steps_of, keys)
    np.testing.assert_allclose(found, wanted, atol=1e-5)


@pytest.mark.parametrize("model", list(MODELS))
def test_one_users_nan_stays_its_own(model: str) -> None:
    net, data = net_of(model), examples(MODELS[model])
    work, keys = plain_work(net, TrainKeys()), orders(SIZES)
    (clean,) = in_groups(net, data, [keys], 2, work)
    data.x[9:10] = torch.nan
    (found,) = in_groups(net, data, [keys], 2, work)
    np.testing.assert_allclose(found[[0, 2, 3]], clean[[0, 2, 3]], atol=1e-5)
    assert np.isnan(found[1]).any()
