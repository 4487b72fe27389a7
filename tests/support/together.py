"""Models of every kind of layer, for users that are trained together."""

from __future__ import annotations

from collections.abc import Callable
from copy import deepcopy
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from corsage.core.configuration.key_groups import TrainKeys
from corsage.networks.batches import Examples
from corsage.networks.network import Network
from corsage.networks.parameter_groups import Words

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
