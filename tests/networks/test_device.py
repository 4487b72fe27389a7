"""What would cost on a GPU, seen without one: transfers in the loop over steps, and how data go."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.overrides import TorchFunctionMode

from corsage.core.configuration.key_groups import ModelKeys, TrainKeys
from corsage.networks import local_training as doors
from corsage.networks.augment import Views
from corsage.networks.batches import Examples, Plan, on_device
from corsage.networks.build import build_network
from corsage.networks.gradients import in_groups
from corsage.networks.network import Network
from corsage.networks.training import batches, to_tensors
from corsage.networks.training_objective import Objective

WAITS = {
    *("cpu", "numpy", "item", "tolist", "__bool__", "__float__", "__int__", "__index__"),
    *("pin_memory", "from_numpy", "as_tensor", "nonzero"),
}


class Watched(TorchFunctionMode):
    """Counts what makes host and device wait for each other, and copies between them.

    A device cuda is this machine's memory under another name: copies there are only counted.
    """

    def __init__(self) -> None:
        super().__init__()
        self.found: Counter[str] = Counter()
        self.sent: list[tuple[torch.dtype, bool]] = []

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs, name = dict(kwargs or {}), func.__name__
        if name in WAITS:
            self.found[name] += 1
        if name == "pin_memory":
            return args[0]
        if name == "to":
            given = [a for a in (*args[1:], *kwargs.values()) if isinstance(a, str | torch.device)]
            self.found["to a device"] += bool(given)
            if given and torch.device(given[0]).type == "cuda":
                self.sent.append((args[0].dtype, bool(kwargs.get("non_blocking"))))
                return args[0]
        return func(*args, **kwargs)


def waits(model: str, epochs: int, keys: TrainKeys, alone: bool = False) -> Counter[str]:
    """What happens in the training of three users for some epochs."""
    shape = {"mlp": (6,), "lenet": (1, 12, 12)}[model]
    net = build_network(ModelKeys(model=model, hidden="9"), shape, 3, 0)
    x, y = torch.randn(33, *shape), torch.randint(3, (33,))
    views = Views(keys.augment, 2, 0, 1, ("a", "b", "c"), torch.zeros(1))
    weights = torch.tensor([[1.0, 2.0, 3.0]] * 3)
    data = Examples(x, y, np.array([11, 11, 11]), objective=Objective(0.1, weights))
    data = replace(data, views=views if keys.augment else None)
    orders = [batches(np.random.default_rng(u), 11, epochs, 4) for u in range(3)]
    with Watched() as watched:
        if alone:
            losses: Any = [lambda f, o, t: torch.nn.functional.cross_entropy(o, t)] * 3
            doors.train_models(net, net.initial, Examples(x, y, data.sizes, losses), orders, keys)
        else:
            doors.train_models(net, net.initial, data, orders, keys)
    return watched.found


@pytest.mark.parametrize("model", ["mlp", "lenet"])
@pytest.mark.parametrize("optimizer", ["sgd", "adam"])
@pytest.mark.parametrize("alone", [False, True])
def test_no_step_waits_for_the_host(model: str, optimizer: str, alone: bool) -> None:
    """However many steps, as many transfers: before the first and after the last one."""
    keys = TrainKeys(lr=0.1, momentum=0.5, weight_decay=0.1, clip_gradient=0.5, optimizer=optimizer)
    few, many = (waits(model, epochs, keys, alone) for epochs in (1, 4))
    assert few == many and few["numpy"]


def test_data_go_as_bytes_out_of_pinned_memory_and_nobody_waits() -> None:
    x, y = np.zeros((4, 1, 2, 2), np.uint8), np.zeros(4, np.int64)
    with Watched() as watched:
        inputs, labels = to_tensors(x, y, 0.0, 1.0, "cuda")
    assert watched.sent == [(torch.uint8, True), (torch.int64, True)]
    assert watched.found["pin_memory"] == 2 and inputs.dtype == torch.float32 and len(labels) == 4
    with Watched() as watched:
        assert on_device(torch.ones(2), "cpu").sum() == 2
    assert not watched.sent and not watched.found["pin_memory"]


def test_a_plan_goes_at_once() -> None:
    orders = [batches(np.random.default_rng(0), n, 3, 4) for n in (11, 8)]
    plan = Plan.build(orders, np.array([0, 11]), [0, 1])
    with Watched() as watched:
        plan.to(torch.device("cuda"))
    short = sum(w is not None for w in plan.weights)
    assert len(watched.sent) == 1 + short and all(quick for _, quick in watched.sent)


def test_devices_that_are_not_there_are_refused() -> None:
    if not torch.cuda.is_available():
        with pytest.raises(Exception, match="device=cuda: this machine has no such device"):
            build_network(ModelKeys(), (6,), 3, 0, "cuda")


@pytest.mark.parametrize("kind", [nn.ReLU, nn.Tanh])
def test_no_gradient_waits_for_the_host(kind: type[nn.Module]) -> None:
    """Neither of users together nor of one alone, as APFL and Per-FedAvg take them."""
    torch.manual_seed(0)
    net = Network(nn.Sequential(nn.Linear(6, 8), kind(), nn.Linear(8, 3)), "", torch.rand(3, 6))
    x, y = torch.randn(22, 6), torch.randint(3, (22,))
    found = []
    for epochs in (1, 4):
        orders = [batches(np.random.default_rng(u), 11, epochs, 4) for u in range(2)]

        def work(losses: Any) -> Any:
            theta = losses.rows(net.initial)
            out = torch.zeros_like(theta)
            for t in range(len(losses.active)):
                losses.gradient(theta, t, out)
                losses.product(theta, theta, t, out, 0.5)
            return (out,)

        with Watched() as watched:
            in_groups(net, Examples(x, y, np.array([11, 11])), [orders], 3, work)
        found.append(watched.found)
    assert found[0] == found[1]
