"""Users trained together through a module's own forward, against plain autograd user by user."""

from __future__ import annotations

from collections.abc import Callable
from copy import deepcopy
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.nn import functional as F

from corsage.core.groups import TrainKeys
from corsage.networks import choice, parts
from corsage.networks.augment import Views
from corsage.networks.batches import Examples
from corsage.networks.gradients import AutogradLosses, training
from corsage.networks.groups import Words
from corsage.networks.network import Network
from corsage.networks.objective import Objective
from corsage.networks.pull import Pull
from corsage.networks.steps import in_groups
from corsage.networks.together import losses_of
from corsage.networks.traced import TracedLosses
from corsage.networks.training import batches
from tests.networks.test_gradients import plain_work
from tests.networks.test_training import loop, orders_for, rows_for

KEYS = TrainKeys(lr=0.1, momentum=0.5, weight_decay=1e-2, batch_size=4)
VECTORS, WORDS, IMAGES = (6,), (5, 4), (2, 8, 8)


class Own(nn.Module):
    """A body in a function of its own, and a head."""

    def __init__(self, body: Callable[..., Tensor], width: int, **layers: Any) -> None:
        super().__init__()
        self.body, self.head = body, nn.Linear(width, 3)
        for name, layer in layers.items():
            setattr(self, name, deepcopy(layer))  # each network has its own

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.body(self, x))


def function(f: Callable[[Tensor], Tensor]) -> Callable[[], nn.Module]:
    """A function of each entry between two linear layers."""
    return lambda: Own(lambda m, x: f(m.a(x)), 5, a=nn.Linear(6, 5))


def image(f: Callable[..., Tensor], width: int, **layers: Any) -> Callable[[], nn.Module]:
    """A function of the four channels that a convolution puts out."""
    return lambda: Own(
        lambda m, x: f(m, m.conv(x)).flatten(1), width, conv=nn.Conv2d(2, 4, 3), **layers
    )


def words(f: Callable[..., Tensor], width: int, **layers: Any) -> Callable[[], nn.Module]:
    """A function of a sequence of vectors."""
    return lambda: Own(f, width, **layers)


def attend(m: Any, x: Tensor) -> Tensor:
    n, steps, width = x.shape
    q, k, v = m.qkv(x).reshape(n, steps, 3, 2, width // 2).permute(2, 0, 3, 1, 4)
    weights = ((q @ k.transpose(-2, -1)) * width**-0.5).softmax(dim=-1)
    return (weights @ v).transpose(1, 2).reshape(n, steps, width).mean(1)


def tokens(m: Any, x: Tensor) -> Tensor:
    first = m.first.expand(len(x), -1, -1)
    return (torch.cat([first, x], dim=1) + m.place)[:, 0] * m.scale


def inplace(m: Any, x: Tensor) -> Tensor:
    y = m.a(x)
    y += x[:, :5]
    y.tanh_()
    return F.relu(y.mul(2.0), inplace=True)


def encoder(**how: Any) -> nn.Module:
    return nn.TransformerEncoderLayer(4, 2, 7, dropout=0.0, batch_first=True, **how)


CELLS = {"lstm": nn.LSTM, "gru": nn.GRU, "rnn": nn.RNN}
MODELS: dict[str, tuple[tuple[int, ...], Callable[[], nn.Module]]] = {
    **{
        f.__name__: (VECTORS, function(f))
        for f in (F.gelu, F.silu, F.elu, F.softplus, F.leaky_relu, F.hardswish, torch.sigmoid)
    },
    "arithmetic": (VECTORS, function(lambda h: 1 - (h**2 + 2 / (h.abs() + 1)).clamp(0.1, 3.0))),
    "modules": (VECTORS, lambda: nn.Sequential(nn.Linear(6, 5), nn.Tanh(), nn.Linear(5, 3))),
    "prelu": (VECTORS, lambda: nn.Sequential(nn.Linear(6, 5), nn.PReLU(5), nn.Linear(5, 3))),
    "layer norm": (
        VECTORS,
        lambda: Own(lambda m, x: m.n(m.a(x)) + x[:, :5], 5, a=nn.Linear(6, 5), n=nn.LayerNorm(5)),
    ),
    "used twice": (VECTORS, lambda: Own(lambda m, x: m.a(m.a(x).tanh()), 6, a=nn.Linear(6, 6))),
    "no bias": (VECTORS, lambda: Own(lambda m, x: m.a(x), 5, a=nn.Linear(6, 5, bias=False))),
    "in place": (VECTORS, lambda: Own(inplace, 5, a=nn.Linear(6, 5))),
    "dropout of nothing": (VECTORS, function(lambda h: F.dropout(h.tanh(), 0.0))),
    "an unknown function": (VECTORS, function(lambda h: h.cumprod(1).flip(1))),
    "einsum": (
        VECTORS,
        lambda: Own(
            lambda m, x: torch.einsum("ni,io->no", x, m.w), 5, w=nn.Parameter(torch.rand(6, 5))
        ),
    ),
    "frozen": (
        VECTORS,
        lambda: Own(lambda m, x: m.a(x).sin(), 5, a=nn.Linear(6, 5).requires_grad_(False)),
    ),
    "unused": (VECTORS, lambda: Own(lambda m, x: x.sin(), 6, a=nn.Linear(6, 5))),
    "constant": (
        VECTORS,
        lambda: Own(lambda m, x: m.a(x) * torch.arange(5.0) + m.a(x), 5, a=nn.Linear(6, 5)),
    ),
    "average pool": (IMAGES, image(lambda m, h: F.avg_pool2d(h.tanh(), 2), 36)),
    "adaptive pool": (IMAGES, image(lambda m, h: F.adaptive_avg_pool2d(h, 2).relu(), 16)),
    "mean": (IMAGES, image(lambda m, h: h.relu().mean([2, 3]), 4)),
    "amax": (IMAGES, image(lambda m, h: h.amax((2, 3)), 4)),
    "group norm": (IMAGES, image(lambda m, h: m.n(h), 144, n=nn.GroupNorm(2, 4))),
    "instance norm": (IMAGES, image(lambda m, h: m.n(h), 144, n=nn.InstanceNorm2d(4))),
    "residual": (IMAGES, image(lambda m, h: h + m.c(h).relu(), 144, c=nn.Conv2d(4, 4, 3, 1, 1))),
    "same padding": (
        IMAGES,
        image(lambda m, h: m.c(h), 144, c=nn.Conv2d(4, 4, 3, padding="same")),
    ),
    "circular": (
        IMAGES,
        image(lambda m, h: m.c(h), 144, c=nn.Conv2d(4, 4, 3, padding=1, padding_mode="circular")),
    ),
    "concatenation": (
        IMAGES,
        image(lambda m, h: torch.cat([h, m.c(h)], 1), 216, c=nn.Conv2d(4, 2, 3, padding=1)),
    ),
    "depthwise": (
        IMAGES,
        image(lambda m, h: m.c(h).relu(), 64, c=nn.Conv2d(4, 4, 3, 2, 2, groups=4, bias=False)),
    ),
    "grouped": (
        IMAGES,
        image(lambda m, h: m.c(h), 128, c=nn.Conv2d(4, 8, 3, groups=2, stride=(1, 1))),
    ),
    "transposed": (
        IMAGES,
        image(lambda m, h: m.c(h), 288, c=nn.ConvTranspose2d(4, 2, 2, stride=2)),
    ),
    "gate": (
        IMAGES,
        image(
            lambda m, h: (
                h * m.g(F.adaptive_avg_pool2d(h, 1).flatten(1)).sigmoid()[:, :, None, None]
            ),
            144,
            g=nn.Linear(4, 4),
        ),
    ),
    "scale": (IMAGES, image(lambda m, h: h * m.s, 144, s=nn.Parameter(torch.rand(4, 1, 1)))),
    "embedding": (
        WORDS,
        words(
            lambda m, x: m.e((x.abs() * 3).long().clamp(max=6)).sum((1, 2)), 5, e=nn.Embedding(7, 5)
        ),
    ),
    "places": (
        WORDS,
        words(
            lambda m, x: (x + m.e(torch.arange(x.size(1)))).relu().sum(1), 4, e=nn.Embedding(5, 4)
        ),
    ),
    "convolution of a sequence": (
        WORDS,
        words(lambda m, x: m.c(x.transpose(1, 2)).relu().amax(2), 6, c=nn.Conv1d(4, 6, 3)),
    ),
    "tokens": (
        WORDS,
        words(
            tokens,
            4,
            first=nn.Parameter(torch.rand(1, 1, 4)),
            place=nn.Parameter(torch.rand(6, 4)),
            scale=nn.Parameter(torch.rand(())),
        ),
    ),
    "attention": (WORDS, words(attend, 4, qkv=nn.Linear(4, 12))),
    "torch's attention": (
        WORDS,
        words(
            lambda m, x: m.a(x, x, x)[0].mean(1), 4, a=nn.MultiheadAttention(4, 2, batch_first=True)
        ),
    ),
    "cross attention": (
        WORDS,
        words(
            lambda m, x: m.a(x[:, :2], x, x * 2, need_weights=False)[0].mean(1),
            4,
            a=nn.MultiheadAttention(4, 2, batch_first=True),
        ),
    ),
    "transformer": (WORDS, words(lambda m, x: m.e(x).mean(1), 4, e=encoder(activation="gelu"))),
    "transformer, norm first": (
        WORDS,
        words(lambda m, x: m.e(x).mean(1), 4, e=encoder(norm_first=True)),
    ),
    **{
        name: (WORDS, words(lambda m, x: m.r(x)[0][:, -1], 5, r=kind(4, 5, batch_first=True)))
        for name, kind in CELLS.items()
    },
    "lstm of two layers": (
        WORDS,
        words(
            lambda m, x: m.r(x)[1][0][-1],
            5,
            r=nn.LSTM(4, 5, 2, bidirectional=True, batch_first=True),
        ),
    ),
}


def network_of(name: str, path: str = "together-4") -> Network:
    torch.manual_seed(0)
    shape, make = MODELS[name]
    module = make()
    name = "head" if isinstance(module, Own) else ""
    return Network(module, name, torch.rand(3, *shape)).along(path)


def examples(sizes: list[int], shape: tuple[int, ...]) -> Examples:
    g = torch.Generator().manual_seed(0)
    n = sum(sizes)
    y = torch.randint(3, (n,), generator=g)
    return Examples(torch.randn((n, *shape), generator=g), y, np.array(sizes, np.int64))


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
    got = parts.train_part(net, rows, where, data, orders, keys)
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
        monkeypatch.setattr(parts, "LARGE", large)
        if not large:
            monkeypatch.setattr(parts, "train_part", lambda *_: pytest.fail("rows were made"))
        got = parts.train_bodies(
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
        found[path] = parts.train_models(net, rows_for(net, 3), data, orders, KEYS, pull), centre
    for a, b in zip(*found.values(), strict=True):
        np.testing.assert_allclose(a, b, atol=1e-5)


@pytest.mark.parametrize("name", ["group norm", "transformer", "lstm"])
def test_one_users_nan_stays_its_own(name: str) -> None:
    net, sizes = network_of(name), [8, 9, 10]
    data, orders = examples(sizes, MODELS[name][0]), orders_for(sizes, 1, 4)
    clean = parts.train_models(net, net.initial, data, orders, KEYS)
    data.x[9] = torch.nan
    found = parts.train_models(net, net.initial, data, orders, KEYS)
    np.testing.assert_allclose(found[[0, 2]], clean[[0, 2]], atol=1e-5)
    assert np.isnan(found[1]).any()
    (again,) = in_groups(net, data, [orders], 2, plain_work(net, KEYS))
    np.testing.assert_allclose(again[[0, 2]], clean[[0, 2]], atol=1e-5)


def test_a_kernel_that_mixes_users_at_weight_0_spoils_nobody(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    net, sizes = network_of("gate"), [8, 9]
    data, orders = examples(sizes, IMAGES), orders_for(sizes, 1, 4)
    clean, plain = parts.train_models(net, net.initial, data, orders, KEYS), TracedLosses.gradient

    def mixing(self: Any, theta: Tensor, step: int, out: Tensor, *rest: Any) -> None:
        plain(self, theta, step, out, *rest)
        out += 0 * out.sum()

    monkeypatch.setattr(TracedLosses, "gradient", mixing)
    data.x[0] = torch.nan
    found = parts.train_models(net, net.initial, data, orders, KEYS)
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
        found.append(parts.train_part(net, rows, where, data, orders_for(sizes, 1, 4), keys))
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
    got = parts.train_models(net, rows, data, orders, KEYS)
    np.testing.assert_allclose(got, loop(net, rows, net.whole, data, orders, KEYS), atol=2e-4)


# What cannot be, and what is chosen.


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


def normed_chain() -> list[nn.Module]:
    return [nn.Linear(6, 5), nn.BatchNorm1d(5), nn.Linear(5, 3)]


def test_the_quickest_is_chosen_but_the_loop_where_it_is_as_quick() -> None:
    assert choice.quickest({"loop": 1.0, "together-4": 0.5, "together-10": 0.4}) == "together-10"
    assert choice.quickest({"loop": 1.0, "together-4": 0.99}) == "loop"
    assert choice.quickest({"loop": 1.0, "loop-channels-last": 0.9}) == "loop-channels-last"


def test_a_choice_leaves_the_network_as_it_was() -> None:
    net = Network(MODELS["gate"][1](), "", torch.rand(3, *IMAGES))
    before = net.path, net.channels_last, net.flat.clone()
    found = choice.choose(net, IMAGES, 3, KEYS)
    assert found.name in choice.PATHS and "CPU ms a step and user" in found.why
    assert (net.path, net.channels_last) == before[:2]


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
    alone = parts.train_models(net, net.initial, data, orders, keys)
    joint = Network(make(), "", torch.rand(3, 6)).along("together-4")
    found = parts.train_models(joint, net.initial, data, orders, keys)
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


class Normed(nn.Module):
    """Layers that normalise by the batch, of images and of vectors; `again` counts its calls."""

    def __init__(self, **how: Any) -> None:
        super().__init__()
        self.conv, self.first = nn.Conv2d(2, 4, 3, bias=False), nn.BatchNorm2d(4, **how)
        self.wide, self.second = nn.Linear(144, 6, bias=False), nn.BatchNorm1d(6, **how)
        self.head = nn.Linear(6, 3)
        self.register_buffer("calls", torch.zeros((), dtype=torch.long))

    def forward(self, x: Tensor) -> Tensor:
        if self.training:
            self.calls.add_(2)
        h = F.relu(self.first(self.conv(x))).flatten(1)
        return self.head(F.relu(self.second(self.wide(h))))


def normed(path: str, words: Words | str = "head", how: Any = None) -> Network:
    torch.manual_seed(0)
    return Network(Normed(**(how or {})), words, torch.rand(3, *IMAGES)).along(path)


PERSONAL = Words(personal="first.*,second.*,head.*")


@pytest.mark.parametrize("words", ["head", PERSONAL])
@pytest.mark.parametrize("part", ["whole", "body", "head"])
@pytest.mark.parametrize("keys", [KEYS, TrainKeys(lr=0.003, optimizer="adam")])
def test_batch_norms_of_users_together_are_the_loop(
    words: Words | str, part: str, keys: TrainKeys
) -> None:
    """Running statistics and counters too; a short last batch is no part of another's."""
    joint, alone = normed("together-4", words), normed("loop", words)
    sizes, epochs, found = [9, 2, 4, 14, 9], [2, 1, 0, 3, 2], []
    data, rows = examples(sizes, IMAGES), np.tile(joint.initial, (5, 1))
    rngs = [np.random.default_rng(u) for u in range(5)]
    orders = [batches(r, n, e, 4, True) for r, n, e in zip(rngs, sizes, epochs, strict=True)]
    where = getattr(joint, part)
    for net in (joint, alone):
        net.train(False)  # as an evaluation leaves it
        found.append(parts.train_part(net, rows, where, data, orders, keys))
    np.testing.assert_allclose(*found, atol=5e-5)
    moved = np.abs(found[0] - rows[:, where]).max(axis=1)
    assert (moved[[0, 1, 3, 4]] > 1e-3).all() and not moved[2]
    if part == "whole":
        (calls,) = (b.where for b in joint.blocks if b.name == "calls")
        assert found[0][:, calls].ravel().tolist() == [2 * len(o) for o in orders]


def test_a_path_of_batch_norms_is_exact_or_says_why_not() -> None:
    assert choice.untraceable(normed("together-4"), IMAGES, 3) == ""
    cumulative = normed("together-4", how={"momentum": None})
    assert "asks for the value of a tensor" in choice.untraceable(cumulative, IMAGES, 3)


def test_a_pull_leaves_running_statistics_alone_together_too() -> None:
    sizes, found = [9, 5, 12], []
    data, orders = examples(sizes, IMAGES), orders_for(sizes, 2, 4)
    orders = [[b for b in order if len(b) > 1] for order in orders]
    for keys in (KEYS, replace(KEYS, nesterov=True)):
        for path in ("together-4", "loop"):
            net = normed(path)
            pull = Pull(0.3, np.tile(1.1 * net.initial, (3, 1)))
            found.append(parts.train_models(net, net.initial, data, orders, keys, pull))
    np.testing.assert_allclose(found[0], found[1], atol=2e-5)
    np.testing.assert_allclose(found[2], found[3], atol=2e-5)


def of_features(u: int) -> Callable[..., Tensor]:
    """A loss that is another for each user."""
    return lambda f, z, y: F.cross_entropy(z + u, y) + (u + 1) * f.square().mean()


def of_outputs(u: int) -> Callable[..., Tensor]:
    """A loss of the outputs alone, of a batch as a whole."""
    return lambda f, z, y: F.cross_entropy(z, y) * (1 + 0.1 * u * z.std(0).sum())


SPLIT = {
    "own": ("group norm", "head", "together-4"),
    "normed": ("", "head", "together-4"),
    "cut": ("prelu", Words(head="1,2"), "together-4"),
    "plain": ("plain", "", "auto"),
}


@pytest.mark.parametrize("name", list(SPLIT))
@pytest.mark.parametrize("part", ["whole", "body", "head"])
@pytest.mark.parametrize("loss", [of_features, of_outputs])
@pytest.mark.parametrize("keys", [KEYS, TrainKeys(lr=0.01, optimizer="adam")])
def test_losses_of_users_own_take_the_path(
    name: str, part: str, loss: Callable[..., Any], keys: TrainKeys, monkeypatch: pytest.MonkeyPatch
) -> None:
    kind, words, path = SPLIT[name]
    shape = MODELS[kind][0] if kind in MODELS else IMAGES
    sizes, found = [10, 2, 14, 10], []
    data = replace(examples(sizes, shape), losses=[loss(u) for u in range(4)])
    orders, seen = orders_for(sizes, 1, 4), []
    monkeypatch.setattr(parts, "train_alone", spied(seen, parts.train_alone))
    for way in (path, "loop"):
        torch.manual_seed(0)
        make = MODELS[kind][1] if kind in MODELS else {"": Normed, "plain": plain}[kind]
        net = Network(make(), words, torch.rand(3, *shape)).along(way)
        rows, where = np.tile(net.initial, (4, 1)), getattr(net, part)
        found.append(parts.train_part(net, rows, where, data, orders, keys))
        assert len(seen) == (4 if way == "loop" else 0)
    np.testing.assert_allclose(*found, rtol=1e-4, atol=1e-4)
    assert np.abs(found[0] - rows[:, where]).max() > 1e-3


def plain() -> nn.Module:
    """A chain of plain layers."""
    layers = (nn.Conv2d(2, 3, 3), nn.ReLU(), nn.Flatten(), nn.Linear(108, 5), nn.ReLU())
    return nn.Sequential(*layers, nn.Linear(5, 3))


def spied(seen: list[int], function: Callable[..., Any]) -> Callable[..., Any]:
    """A function of a job and a user that notes the user."""

    def noted(job: Any, u: int) -> Any:
        seen.append(u)
        return function(job, u)

    return noted


@pytest.mark.parametrize("words", [Words(head="1,3"), Words(head="3")])
@pytest.mark.parametrize("keys", [KEYS, TrainKeys(lr=0.01, optimizer="adam")])
@pytest.mark.parametrize("losses", [None, of_features])
def test_heads_of_several_linear_layers_are_trained_together(
    words: Words, keys: TrainKeys, losses: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    layers = nn.Linear(6, 5), nn.Linear(5, 4), nn.ReLU(), nn.Linear(4, 3)
    net = Network(nn.Sequential(*layers), words, torch.rand(3, 6))
    sizes, seen = [9, 5, 12], []
    data = examples(sizes, VECTORS)
    data = replace(data, losses=losses and [losses(u) for u in range(3)])
    orders, heads = orders_for(sizes, [2, 1, 3], 4), rows_for(net, 3)[:, net.head]
    monkeypatch.setattr(parts, "train_alone", spied(seen, parts.train_alone))
    body = net.initial[net.body]
    found = parts.train_heads(net, body, heads, data, orders, keys)
    assert len(net.head_layers) == (3 if "1" in words.head else 1) and not seen
    monkeypatch.setattr(net, "head_layers", [])
    wanted = parts.train_heads(net, body, heads, data, orders, keys)
    assert len(seen) == 3
    np.testing.assert_allclose(found, wanted, atol=2e-5)
    assert np.abs(found - heads).max() > 1e-2


def test_a_head_of_other_layers_has_none() -> None:
    torch.manual_seed(0)
    layers = nn.Linear(6, 5), nn.Linear(5, 4), nn.GELU(), nn.Linear(4, 3)
    net = Network(nn.Sequential(*layers), Words(head="1,3"), torch.rand(3, 6))
    assert net.cacheable and net.head_layers == []
