"""A model's numbers are handed over where they are, and nobody writes into them after."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from corsage.core.configuration.key_groups import ModelKeys, TrainKeys
from corsage.networks import training, vector
from corsage.networks.batches import Examples
from corsage.networks.build import build_network
from corsage.networks.local_training import train_models
from corsage.networks.network import Network, is_weight
from corsage.networks.training import sgd

KEYS = TrainKeys(lr=0.1, momentum=0.9, weight_decay=0.01)
ORDER = [np.arange(4), np.arange(4, 9), np.arange(3)]


class Normed(nn.Module):
    """Running statistics, and a counter that is no view of the vector."""

    def __init__(self) -> None:
        super().__init__()
        self.fc1, self.norm, self.head = nn.Linear(6, 5), nn.BatchNorm1d(5), nn.Linear(5, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.norm(self.fc1(x)).tanh())


def network_of(kind: str, path: str) -> Network:
    torch.manual_seed(0)
    plain = nn.Sequential(nn.Linear(6, 5), nn.ReLU(), nn.Linear(5, 3))
    module = Normed() if kind == "normed" else plain
    return Network(module, "", torch.rand(3, 6)).along(path)


def users(count: int) -> Examples:
    rng = np.random.default_rng(1)
    x = torch.from_numpy(rng.random((9 * count, 6), np.float32))
    return Examples(x, torch.from_numpy(rng.integers(0, 3, 9 * count)), np.full(count, 9))


@pytest.mark.parametrize(
    ("kind", "path"),
    [("chain", "layers"), ("chain", "loop"), ("chain", "together-4"), ("normed", "loop")],
)
def test_what_was_handed_over_is_written_by_nobody(kind: str, path: str) -> None:
    """Two users one after the other are two users at once; each of the results stays."""
    net, data = network_of(kind, path), users(2)
    both = train_models(net, net.initial, data, [ORDER, ORDER], KEYS)
    alone, kept = [], []
    for u in range(2):
        x, y = data.user(u)
        alone.append(train_models(net, net.initial, Examples(x, y, np.array([9])), [ORDER], KEYS))
        kept.append(alone[-1].copy())
    net.set(net.head, np.zeros(net.head.stop - net.head.start, np.float32))
    net.train(False)
    net(data.x)
    net.set(net.whole, np.zeros(net.whole.stop, np.float32))
    assert all(np.array_equal(a, b) for a, b in zip(alone, kept, strict=True))
    assert np.allclose(np.concatenate(alone), both, atol=1e-6)


def test_a_part_that_is_set_keeps_the_rest() -> None:
    net = network_of("normed", "loop")
    before = net.vector.give()
    net.set(net.head, np.ones(net.head.stop - net.head.start, np.float32))
    assert np.array_equal(net.get(net.body), before[net.body]) and not (before[net.head] == 1).any()
    weight = dict(net.module.named_parameters())["head.weight"]
    assert (weight == 1).all() and weight.data_ptr() != before.__array_interface__["data"][0]


def test_memory_that_nobody_holds_any_more_is_taken_again() -> None:
    """A view of what was handed over holds it; without one there is no second model in memory."""
    net = network_of("normed", "loop")
    at = net.flat.data_ptr()
    for held in (False, True):
        values = net.vector.give()
        view = values[None][0, 3:] if held else None
        del values
        before = None if view is None else view.copy()
        net.set(net.whole, net.initial + 1.0)
        assert (net.flat.data_ptr() == at) is not held
        assert view is None or np.array_equal(view, before)


@pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="not Linux")
def test_zeros_of_large_models_are_the_system_s_before_and_after() -> None:
    """Malloc would keep them, once a larger block was freed."""
    used = torch.ones(5_000_000)
    del used
    before = pages()
    zeros = [vector.untouched(1_500_000, torch.device("cpu")) for _ in range(3)]
    assert pages() - before < 500  # of 4,394
    zeros[0].add_(1.0)
    zeros[1].add_(1.0)
    assert float(zeros[0].sum()) == 1_500_000 and float(zeros[2].sum()) == 0.0
    del zeros
    assert pages() - before < 500


def pages() -> int:
    """Pages that this process has."""
    return int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1])


def test_gradients_that_rested_are_taken_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """They lie in other memory then, and the module's parameters know it."""
    net, data = network_of("normed", "loop"), users(1)
    found = []
    for limit in (10**9, 1):
        monkeypatch.setattr(vector, "FORGOTTEN_BYTES", limit)
        net.set(net.whole, net.initial)
        sgd(net, (data.x, data.y), ORDER, net.whole, KEYS)
        found.append((net.get(net.whole), net.grad))
        net.vector.rest()
    assert np.array_equal(found[0][0], found[1][0]) and (net.grad == 0).all()
    assert found[0][1] is found[1][1] and net.grad is not found[1][1]
    net.set(net.whole, net.initial)
    sgd(net, (data.x, data.y), ORDER, net.whole, KEYS)
    assert np.array_equal(net.get(net.whole), found[0][0])


def test_the_paths_of_a_model_are_one_vector() -> None:
    found = [
        build_network(ModelKeys(training_path=p), (6,), 4, 3) for p in ("auto", "loop", "layers")
    ]
    assert len({id(net.vector) for net in found}) == 1
    assert [net.stackable for net in found] == [True, False, True]


@pytest.mark.parametrize("momentum", [0.0, 0.9])
def test_a_large_model_s_steps_are_torch_s(
    momentum: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The gradient is added to momentum where it is."""
    monkeypatch.setattr(training, "LARGE_MODEL", 1)
    keys = TrainKeys(lr=0.1, momentum=momentum, weight_decay=0.01)
    net, data = network_of("normed", "loop"), users(1)
    module = Normed()
    start = net.named(net.get(net.whole))
    module.load_state_dict({name: torch.from_numpy(np.array(a)) for name, a in start.items()})
    sgd(net, (data.x, data.y), ORDER, net.whole, keys)
    named = dict(module.named_parameters())
    sides = [
        {"params": [p for n, p in named.items() if is_weight(n, p)], "weight_decay": keys.decay},
        {"params": [p for n, p in named.items() if not is_weight(n, p)]},
    ]
    optimiser = torch.optim.SGD(sides, lr=0.1, momentum=momentum)
    for rows in ORDER:
        optimiser.zero_grad()
        F.cross_entropy(module(data.x[rows]), data.y[rows]).backward()
        optimiser.step()
    found = net.named(net.get(net.whole))
    for name, wanted in module.state_dict().items():
        assert np.allclose(found[name], wanted, atol=1e-6), name
