"""Which path a model is trained on: what cannot be trained together, and what is chosen."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from corsage.core.configuration.key_groups import TrainKeys
from corsage.networks import local_training as doors
from corsage.networks.batches import Examples
from corsage.networks.network import Network
from corsage.networks.together import path_choice as choice
from corsage.networks.together.slots import Slot, State
from tests.support.together import IMAGES, KEYS, MODELS


class Asking(nn.Module):
    """Does what depends on a value."""

    def __init__(self) -> None:
        super().__init__()
        self.a = nn.Linear(6, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.a(x) if x.sum() > 0 else -self.a(x)


class Counting(Asking):
    """Keeps count in a buffer."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("seen", torch.zeros(1, dtype=torch.int64))

    def forward(self, x: Tensor) -> Tensor:
        self.seen.add_(1)
        return self.a(x)


class Recounting(Counting):
    """Puts another count in the place of the one before."""

    def forward(self, x: Tensor) -> Tensor:
        self.seen = self.seen + 1
        return self.a(x)


class Mixing(Asking):
    """Takes the other samples of a batch into account."""

    def forward(self, x: Tensor) -> Tensor:
        return self.a(x - x.mean(0))


class Turned(nn.Module):
    """Its weights the other way round, as torch offers it."""

    def __init__(self, turned: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.w, self.head, self.turned = nn.Parameter(torch.rand(5, 6)), nn.Linear(5, 3), turned

    def forward(self, x: Tensor) -> Tensor:
        return self.head(x @ self.turned(self.w))


class Crowding(Asking):
    """The same, of a batch of more than 20."""

    def forward(self, x: Tensor) -> Tensor:
        return self.a(x - x.mean(0)) if len(x) > 20 else self.a(x)


class Peculiar(nn.Linear):
    """What is done to a tensor is none of torch's functions."""

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(torch.from_numpy(x.detach().numpy()))


OBSTACLES: dict[str, tuple[Callable[[], nn.Module], str]] = {
    "dropout": (
        lambda: nn.Sequential(nn.Linear(6, 5), nn.Dropout(0.3), nn.Linear(5, 3)),
        "random numbers",
    ),
    "batch norm": (
        lambda: nn.Sequential(nn.Linear(6, 5), nn.BatchNorm1d(5, momentum=None), nn.Linear(5, 3)),
        "asks for the value of a tensor",
    ),
    "values": (Asking, "asks for the value of a tensor"),
    "rebound counts": (Recounting, "seen would be another"),
    "samples": (Mixing, "gradient of .* would be another"),
    "numpy": (lambda: Peculiar(6, 3), "takes nothing but one user's tensors"),
}


@pytest.mark.parametrize("name", list(OBSTACLES))
def test_what_cannot_be_trained_together_goes_one_by_one_and_says_why(name: str) -> None:
    make, why = OBSTACLES[name]
    net = Network(make(), "", torch.rand(3, 6))
    before = [b.clone() for b in net.module.buffers()]
    found = choice.choose(net, (6,), 3, KEYS)
    assert found.name == "loop" and "users one by one: " in found.why
    with pytest.raises(Exception, match=why):
        raise AssertionError(found.why)
    after = net.module.buffers()
    assert all(torch.equal(a, b) for a, b in zip(before, after, strict=True))


@pytest.mark.parametrize("make", [Counting, lambda: nn.Sequential(*normed_chain())])
def test_what_counts_is_trained_together_and_a_choice_leaves_it_as_it_was(
    make: Callable[[], nn.Module],
) -> None:
    net = Network(make(), "", torch.rand(3, 6))
    before = [b.clone() for b in net.module.buffers()]
    assert "one by one" not in choice.choose(net, (6,), 3, KEYS).why
    after = net.module.buffers()
    assert all(torch.equal(a, b) for a, b in zip(before, after, strict=True))


def test_rounding_in_a_gradient_of_zero_is_no_difference() -> None:
    """That of a bias before BatchNorm: which path is taken would be another machine's luck."""
    for seed in range(60):
        torch.manual_seed(seed)
        net = Network(nn.Sequential(*normed_chain()), "", torch.rand(3, 6))
        assert choice.untraceable(net, (6,), 3, 4) == ""


@pytest.mark.parametrize(("points", "same"), [(1, True), (3, True), (99, False)])
def test_a_relu_at_zero_is_no_difference(
    points: int, same: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One that passes a gradient for users together and not alone, at the first points that are
    tried, or at all of them.
    """
    shape, make = MODELS["residual"]
    net, compare, tried = Network(make(), "", torch.rand(3, *shape)), choice.gradient, [0]

    def kinked(losses: Any, theta: Tensor) -> Tensor:
        found = compare(losses, theta)
        if isinstance(losses, choice.TracedLosses):
            tried[0] += 1
            found[1] *= 1.5 if tried[0] <= points else 1.0
        return found

    monkeypatch.setattr(choice, "gradient", kinked)
    assert (choice.untraceable(net, shape, 3) == "") == same


def normed_chain() -> list[nn.Module]:
    return [nn.Linear(6, 5), nn.BatchNorm1d(5), nn.Linear(5, 3)]


def dense(width: int, depth: int = 1) -> nn.Module:
    """Two matrices of that width a layer: no chain of plain layers."""
    layers = [part for _ in range(depth) for part in (nn.Linear(width, width), nn.Tanh())]
    return nn.Sequential(*layers, nn.Linear(width, 3))


@pytest.mark.parametrize(
    ("width", "depth", "batch", "wanted"),
    [
        (100, 1, 10, "together-10"),
        (585, 1, 10, "together-10"),
        (600, 1, 10, "together-4"),
        (930, 1, 10, "together-4"),
        (950, 1, 10, "loop"),
        (100, 2, 5_900, "together-10"),
        (100, 2, 10_000, "together-4"),
        (100, 2, 25_000, "loop"),
    ],
)
def test_as_many_as_fit_are_trained_together(
    width: int, depth: int, batch: int, wanted: str
) -> None:
    """By the numbers of parameters, and of what a step keeps: 300 a sample with two layers."""
    net = Network(dense(width, depth), "", torch.rand(3, width))
    found = choice.choose(net, (width,), 3, TrainKeys(batch_size=batch))
    assert found.name == wanted
    assert ("users one by one: the model is large" in found.why) == (wanted == "loop")


def test_few_users_gain_nothing() -> None:
    net = Network(dense(6), "", torch.rand(3, 6))
    found = [choice.choose(net, (6,), 3, KEYS, users) for users in (1, 2, 3)]
    assert [c.name for c in found] == ["loop", "loop", "together-10"]
    assert found[0].why.endswith("users one by one: they are few")


def test_a_choice_leaves_the_network_as_it_was() -> None:
    net = Network(MODELS["gate"][1](), "", torch.rand(3, *IMAGES))
    before = net.path, net.channels_last
    found = choice.choose(net, IMAGES, 3, KEYS)
    assert found.name == "together-10-channels-last"
    assert re.fullmatch(r"[\d,]+ parameters, [\d,]+ numbers kept in a step", found.why)
    assert (net.path, net.channels_last) == before


# Forwards that hide something.


class Silent(nn.Module):
    """A chain of plain layers, of which one learns nothing: torch.fx does not see that."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Linear(6, 8), nn.Linear(8, 3)

    def forward(self, x: Tensor) -> Tensor:
        with torch.no_grad():
            h = self.a(x)
        return self.b(h.relu())


class Spare(nn.Module):
    """A chain of plain layers, and a parameter that nothing uses."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.z, self.b = nn.Linear(6, 8), nn.Parameter(torch.ones(5)), nn.Linear(8, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.b(self.a(x).relu())


class Long(Asking):
    """Does something else with long batches."""

    def forward(self, x: Tensor) -> Tensor:
        return self.a(x if len(x) <= 5 else 2 * x)


class Short(nn.Module):
    """Embeddings that are shortened in place."""

    def __init__(self, bag: bool) -> None:
        super().__init__()
        self.bag = bag
        kind: Any = nn.EmbeddingBag if bag else nn.Embedding
        self.e, self.b = kind(9, 4, max_norm=0.5), nn.Linear(4, 3)

    def forward(self, x: Tensor) -> Tensor:
        h = self.e(x.long())
        return self.b(h if self.bag else h.mean(1))


@pytest.mark.parametrize("make", [Silent, Spare])
def test_a_chain_that_hides_something_is_none(make: Callable[[], nn.Module]) -> None:
    net = Network(make(), "", torch.rand(3, 6))
    assert not net.stackable
    data = Examples(torch.rand(9, 6), torch.randint(0, 3, (9,)), np.array([4, 5]))
    orders = [[np.arange(4)] * 2, [np.arange(5)] * 2]
    keys = TrainKeys(lr=0.3, weight_decay=0.1)
    alone = doors.train_models(net, net.initial, data, orders, keys)
    joint = Network(make(), "", torch.rand(3, 6)).along("together-4")
    found = doors.train_models(joint, net.initial, data, orders, keys)
    np.testing.assert_allclose(found, alone, atol=1e-6)


@pytest.mark.parametrize(
    ("make", "why"),
    [
        (Long, "gradient of .* would be another"),
        (lambda: Short(False), "max_norm"),
        (lambda: Short(True), "max_norm"),
    ],
)
def test_a_forward_that_hides_something_goes_one_by_one(
    make: Callable[[], nn.Module], why: str
) -> None:
    net = Network(make(), "", torch.rand(3, 6))
    found = choice.choose(net, (6,), 3, KEYS)
    assert found.name == "loop"
    with pytest.raises(AssertionError, match=why):
        raise AssertionError(found.why)


def test_a_norm_of_the_batch_that_keeps_no_statistics_has_no_features_to_keep() -> None:
    layers = nn.Linear(6, 8), nn.BatchNorm1d(8, track_running_stats=False), nn.Linear(8, 3)
    net = Network(nn.Sequential(*layers), "", torch.rand(3, 6))
    assert not net.cacheable and "BatchNorm1d" in net.why


def test_what_another_forward_does_with_the_run_s_batches_is_seen() -> None:
    """A short batch that is filled up to the others' length would be a long one."""
    net = Network(Crowding(), "", torch.rand(3, 6))
    assert choice.untraceable(net, (6,), 3, 10) == ""
    assert "would be another" in choice.untraceable(net, (6,), 3, 32)
    assert choice.choose(net, (6,), 3, TrainKeys(batch_size=32)).name == "loop"


TURNS: dict[str, Callable[[Tensor], Tensor]] = {
    "t()": lambda w: w.t(),
    "torch.t": torch.t,
    "T": lambda w: w.T,
    "transpose": lambda w: w.transpose(0, 1),
}


@pytest.mark.parametrize("way", list(TURNS))
def test_weights_the_other_way_round_are_trained_together(way: str) -> None:
    """`Users.t` hid `Tensor.t`."""
    net = Network(Turned(TURNS[way]), "", torch.rand(3, 6))
    assert choice.untraceable(net, (6,), 3, 10) == ""


def test_what_stands_for_a_tensor_hides_no_function_of_torchs() -> None:
    """But those that say what one user's tensor is like."""
    kept = {"dim", "size", "shape", "ndim", "numel", "is_floating_point", "dtype", "grad"}
    slot = Slot(slice(0, 6), torch.Size((2, 3)))
    state = State(slice(0, 6), torch.Size((2, 3)), torch.float32)
    for one in (slot, state):
        names = {name for name in (*dir(type(one)), *vars(one)) if not name.startswith("_")}
        assert names & set(dir(Tensor)) <= kept
