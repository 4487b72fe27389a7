"""Users trained together through a module's own forward, against plain autograd user by user."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from corsage.core.configuration.key_groups import TrainKeys
from corsage.networks import local_training as doors
from corsage.networks.augment import Views
from corsage.networks.batches import Examples
from corsage.networks.gradients import AutogradLosses, in_groups, training
from corsage.networks.network import Network
from corsage.networks.proximal import Pull
from corsage.networks.together import parts
from corsage.networks.together import path_choice as choice
from corsage.networks.together.parts import losses_of
from corsage.networks.together.traced import TracedLosses
from corsage.networks.training_objective import Objective
from tests.networks.test_gradients import plain_work
from tests.networks.test_training import loop, orders_for, rows_for
from tests.support.together import IMAGES, KEYS, MODELS, VECTORS, examples, network_of


@pytest.mark.parametrize("name", list(MODELS))
def test_gradients_of_every_kind_of_layer_are_autograds(name: str) -> None:
    net = network_of(name)
    data = examples([7, 4, 3], MODELS[name][0])
    assert choice.differing(net, Examples(data.x[:11], data.y[:11], data.sizes[:2])) == ""
    assert not choice.untraceable(net, MODELS[name][0], 3)


@pytest.mark.parametrize("name", ["unused", "frozen", "used twice", "embedding", "lstm"])
def test_a_gradient_is_added_to_what_is_there(name: str) -> None:
    net, data = network_of(name), examples([4, 3], MODELS[name][0])
    losses = losses_of(net, data, [[[np.arange(n)] for n in (4, 3)]], [0, 1])
    theta, scale = losses.rows(net.initial), torch.tensor([2.0, -1.0])
    plain, mixed = torch.full_like(theta, torch.nan), torch.ones_like(theta)
    with training(net):
        losses.gradient(theta, 0, plain)
        losses.gradient(theta, 0, mixed, 0.5, scale)
    assert plain.isfinite().all() and plain.abs().max() > 1e-3
    torch.testing.assert_close(mixed, 0.5 + scale[:, None] * plain)


@pytest.mark.parametrize("name", ["group norm", "transformer", "concatenation", "lstm", "frozen"])
@pytest.mark.parametrize("part", ["whole", "body", "head"])
@pytest.mark.parametrize("momentum", [0.0, 0.5])
def test_users_with_different_numbers_of_steps_are_the_loop(
    name: str, part: str, momentum: float
) -> None:
    net, keys = network_of(name), TrainKeys(lr=0.1, momentum=momentum, weight_decay=1e-2)
    sizes = [9, 1, 4, 14, 3]
    data, orders = examples(sizes, MODELS[name][0]), orders_for(sizes, [2, 1, 0, 3, 1], 4)
    rows, where = rows_for(net, 5), getattr(net, part)
    assert parts.users_together(net, where) == 4
    got = doors.train_part(doors.Job(net, where, data, orders, keys, None), rows)
    np.testing.assert_allclose(got, loop(net, rows, where, data, orders, keys), atol=2e-5)
    assert (np.abs(got - rows[:, where]).max(initial=0.0) > 1e-3) == (
        part != "body" or name != "frozen"
    )
    assert (got[2] == rows[2, where]).all()


@pytest.mark.parametrize("name", ["group norm", "concatenation"])
@pytest.mark.parametrize("follow", [None, 0, 2])
def test_large_bodies_are_trained_without_rows_of_all_models(
    name: str, follow: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Bit by bit what rows of whole models give, which are nowhere made."""
    net, sizes, found = network_of(name, "loop"), [9, 1, 4], []
    data, orders = examples(sizes, MODELS[name][0]), orders_for(sizes, 2, 4)
    rows = rows_for(net, 3)
    for large in (10**6, 0):
        centre = 1.1 * rows[:, net.body]
        pull = None if follow is None else Pull(0.3, centre, every=follow, follow=0.5)
        monkeypatch.setattr(doors, "LARGE_MODEL", large)
        if not large:
            monkeypatch.setattr(doors, "train_part", lambda *_: pytest.fail("rows were made"))
        got = doors.train_bodies(
            net, rows[0, net.body], rows[:, net.head], data, orders, KEYS, pull
        )
        found.append((got, centre))
    assert np.array_equal(found[0][0], found[1][0]) and np.array_equal(found[0][1], found[1][1])
    assert not np.array_equal(found[0][0][0], found[0][0][2])


@pytest.mark.parametrize("follow", [0, 2])
def test_users_together_are_pulled_as_in_the_loop(follow: int) -> None:
    nets = {path: network_of("frozen", path) for path in ("together-4", "loop")}
    sizes, found = [9, 5, 12], {}
    data, orders = examples(sizes, VECTORS), orders_for(sizes, 2, 4)
    for path, net in nets.items():
        centre = 1.1 * rows_for(net, 3, seed=1)
        shift = np.full(len(net.initial), 0.01, np.float32)
        pull = Pull(0.3, centre, shift, every=follow, follow=0.5)
        found[path] = (
            doors.train_models(net, rows_for(net, 3), data, orders, KEYS, pull),
            centre,
        )
    for a, b in zip(*found.values(), strict=True):
        np.testing.assert_allclose(a, b, atol=1e-5)


@pytest.mark.parametrize("name", ["group norm", "transformer", "lstm"])
def test_one_users_nan_stays_its_own(name: str) -> None:
    net, sizes = network_of(name), [8, 9, 10]
    data, orders = examples(sizes, MODELS[name][0]), orders_for(sizes, 1, 4)
    clean = doors.train_models(net, net.initial, data, orders, KEYS)
    data.x[9] = torch.nan
    found = doors.train_models(net, net.initial, data, orders, KEYS)
    np.testing.assert_allclose(found[[0, 2]], clean[[0, 2]], atol=1e-5)
    assert np.isnan(found[1]).any()
    (again,) = in_groups(net, data, [orders], 2, plain_work(net, KEYS))
    np.testing.assert_allclose(again[[0, 2]], clean[[0, 2]], atol=1e-5)


def test_a_kernel_that_mixes_users_at_weight_0_spoils_nobody(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    net, sizes = network_of("gate"), [8, 9]
    data, orders = examples(sizes, IMAGES), orders_for(sizes, 1, 4)
    clean, plain = (
        doors.train_models(net, net.initial, data, orders, KEYS),
        TracedLosses.gradient,
    )

    def mixing(self: Any, theta: Tensor, step: int, out: Tensor, *rest: Any) -> None:
        plain(self, theta, step, out, *rest)
        out += 0 * out.sum()

    monkeypatch.setattr(TracedLosses, "gradient", mixing)
    data.x[0] = torch.nan
    found = doors.train_models(net, net.initial, data, orders, KEYS)
    np.testing.assert_allclose(found[1], clean[1], atol=1e-5)
    assert np.isnan(found[0]).any()


@pytest.mark.parametrize("name", ["gate", "attention"])
def test_methods_with_steps_of_their_own_take_the_path(name: str) -> None:
    net, sizes = network_of(name), [10, 2, 14]
    data, orders = examples(sizes, MODELS[name][0]), orders_for(sizes, 1, 4)
    (found,) = in_groups(net, data, [orders], 2, plain_work(net, KEYS))
    rows = np.tile(net.initial, (3, 1))
    np.testing.assert_allclose(found, loop(net, rows, net.whole, data, orders, KEYS), atol=1e-5)


LOCAL = {
    "adam": (TrainKeys(lr=0.01, optimizer="adam"), None, None),
    "clipped": (TrainKeys(lr=0.1, clip_gradient=0.1), None, None),
    "smoothed": (KEYS, Objective(0.1, torch.tensor([[1.0, 2.0, 0.5]] * 3)), None),
    "changed": (
        KEYS,
        None,
        Views(("crop", "flip"), 2, 0, 1, ("a", "b", "c"), torch.zeros(1), "model"),
    ),
}


@pytest.mark.parametrize("way", list(LOCAL))
@pytest.mark.parametrize("part", ["whole", "body"])
def test_other_local_training_takes_the_path(way: str, part: str) -> None:
    keys, objective, views = LOCAL[way]
    sizes, found = [10, 2, 14], []
    data = replace(examples(sizes, IMAGES), objective=objective, views=views)
    for path in ("together-4", "loop"):
        net = network_of("group norm", path)
        rows, where = rows_for(net, 3), getattr(net, part)
        rows[:, net.body.stop :] = rows[0, net.body.stop :]
        found.append(
            doors.train_part(doors.Job(net, where, data, orders_for(sizes, 1, 4), keys, None), rows)
        )
    np.testing.assert_allclose(*found, atol=1e-4)


def test_a_hessians_product_is_that_of_each_user_alone() -> None:
    net, data = network_of("layer norm"), examples([4, 3], VECTORS)
    orders = [[[np.arange(n)] for n in (4, 3)]]
    joint = losses_of(net, data, orders, [0, 1])
    theta = joint.rows(rows_for(net, 2))
    v, out = torch.randn_like(theta), torch.zeros_like(theta)
    with training(net):
        joint.product(theta, v, 0, out, -0.5)
        for row, u in enumerate(joint.users):
            wanted, own = torch.zeros_like(theta[:1]), slice(row, row + 1)
            alone = AutogradLosses(net, data, orders, [u])
            alone.product(theta[own], v[own], 0, wanted, -0.5)
            torch.testing.assert_close(out[own], wanted)
            assert wanted.abs().max() > 1e-4


LAYERS = {
    "conv": lambda c: (nn.Conv2d(c, 4, 3, padding=1), 4),
    "depthwise": lambda c: (nn.Conv2d(c, 2 * c, 3, padding=1, groups=c, bias=False), 2 * c),
    "norm": lambda c: (nn.GroupNorm(1, c), c),
    "gelu": lambda c: (nn.GELU(), c),
    "silu": lambda c: (nn.SiLU(inplace=True), c),
    "pool": lambda c: (nn.AvgPool2d(3, 1, 1), c),
    "max": lambda c: (nn.MaxPool2d(3, 1, 1), c),
}


class Drawn(nn.Module):
    """Layers in a row, some of them with a sum or a concatenation around them."""

    def __init__(self, kinds: list[tuple[str, str]]) -> None:
        super().__init__()
        self.layers, self.ways, width = nn.ModuleList(), [], 2
        for kind, way in kinds:
            layer, out = LAYERS[kind](width)
            self.layers.append(layer)
            self.ways.append(way if way != "sum" or out == width else "")
            width = out + width * (way == "cat")
        self.head = nn.Linear(width, 3)

    def forward(self, x: Tensor) -> Tensor:
        for layer, way in zip(self.layers, self.ways, strict=True):
            y = layer(x.clone())
            x = torch.cat([x, y], 1) if way == "cat" else x + y if way == "sum" else y
        return self.head(x.mean((2, 3)))


@settings(max_examples=20, deadline=None)
@given(
    kinds=st.lists(
        st.tuples(st.sampled_from(list(LAYERS)), st.sampled_from(["", "sum", "cat"])),
        min_size=1,
        max_size=5,
    ),
    sizes=st.lists(st.integers(1, 6), min_size=2, max_size=3),
    last=st.booleans(),
)
def test_random_architectures(kinds: list[tuple[str, str]], sizes: list[int], last: bool) -> None:
    torch.manual_seed(0)
    path = "together-4" + "-channels-last" * last
    net = Network(Drawn(kinds), "head", torch.rand(3, 2, 5, 5)).along(path)
    data, orders = examples(sizes, (2, 5, 5)), orders_for(sizes, 1, 3)
    rows = rows_for(net, len(sizes))
    got = doors.train_models(net, rows, data, orders, KEYS)
    np.testing.assert_allclose(got, loop(net, rows, net.whole, data, orders, KEYS), atol=2e-4)
