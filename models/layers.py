"""Layers of several users at once, with forward, backward and the step of SGD.

Forward and backward are written out for the few layers that the built-in models have: a batched
matrix product (or a grouped convolution) does one step of all users, and momentum takes the
gradient in within the same product. `models.stacked` puts them together.
"""

from __future__ import annotations

from typing import Any, Protocol

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from corsage.app.config import TrainKeys


class Layer(Protocol):
    """One layer of all users. `forward` keeps what `backward` needs."""

    trained: bool

    def forward(self, h: Tensor) -> Tensor:
        """The layer's output for the first users, as many as `h` has."""

    def backward(self, d: Tensor, onward: bool) -> Tensor:
        """Take an SGD step with the output's gradient `d`; the input's gradient if `onward`."""


class Trained:
    """Weights W (users, ...), bias b (users, out) or None, and their momentum."""

    def __init__(self, w: Tensor, b: Tensor | None, keys: TrainKeys, trained: bool) -> None:
        self.w, self.b, self.keys, self.trained = w, b, keys, trained
        self.mw = torch.zeros_like(w) if trained and keys.momentum else None
        self.mb = torch.zeros_like(b) if trained and keys.momentum and b is not None else None
        self.h = w

    def step_bias(self, g: Tensor) -> None:
        """Momentum and step of the biases of the first users."""
        if self.b is None:
            return
        b = self.b[: len(g)]
        if self.mb is None:
            b.add_(g, alpha=-self.keys.lr)
        else:
            b.add_(self.mb[: len(g)].mul_(self.keys.momentum).add_(g), alpha=-self.keys.lr)


class Dense(Trained):
    """x W' + b for activations (users, batch, in)."""

    def forward(self, h: Tensor) -> Tensor:
        """One batched product for all users."""
        self.h, w = h, self.w[: len(h)].transpose(1, 2)
        if self.b is None:
            return torch.bmm(h, w)
        return torch.baddbmm(self.b[: len(h)].unsqueeze(1), h, w)

    def backward(self, d: Tensor, onward: bool) -> Tensor:
        """The gradient d'h goes straight into the momentum, or into W if there is none."""
        keys, w = self.keys, self.w[: len(d)]
        back = torch.bmm(d, w) if onward else d
        if self.trained:
            if self.mw is None:
                shrink = 1.0 - keys.lr * keys.weight_decay
                w.baddbmm_(d.transpose(1, 2), self.h, beta=shrink, alpha=-keys.lr)
            else:
                m = self.mw[: len(d)]
                m.baddbmm_(d.transpose(1, 2), self.h, beta=keys.momentum)
                if keys.weight_decay:
                    m.add_(w, alpha=keys.weight_decay)
                w.add_(m, alpha=-keys.lr)
            self.step_bias(d.sum(1))
        return back


class Conv(Trained):
    """A convolution for activations (batch, users * channels, h, w): one group a user."""

    def __init__(
        self, w: Tensor, b: Tensor | None, keys: TrainKeys, trained: bool, like: nn.Conv2d
    ) -> None:
        super().__init__(w, b, keys, trained)
        self.stride, self.padding, self.dilation = like.stride, like.padding, like.dilation

    def forward(self, h: Tensor) -> Tensor:
        """One grouped convolution for all users."""
        self.h = h
        users = h.shape[1] // self.w.shape[2]
        w = self.w[:users].flatten(0, 1)
        b = None if self.b is None else self.b[:users].flatten()
        return F.conv2d(h, w, b, self.stride, self.padding, self.dilation, users)

    def backward(self, d: Tensor, onward: bool) -> Tensor:
        """Both gradients from torch's own kernel."""
        users = d.shape[1] // self.w.shape[1]
        w = self.w[:users]
        back, gw, gb = torch.ops.aten.convolution_backward(
            d,
            self.h,
            w.flatten(0, 1),
            [d.shape[1]],
            self.stride,
            self.padding,
            self.dilation,
            False,
            [0, 0],
            users,
            [onward, self.trained, self.trained and self.b is not None],
        )
        if self.trained:
            g = gw.view_as(w) if gw.is_contiguous() else gw.reshape(w.shape)
            if self.keys.weight_decay:
                g = g.add(w, alpha=self.keys.weight_decay)
            if self.mw is not None:
                g = self.mw[:users].mul_(self.keys.momentum).add_(g)
            w.add_(g, alpha=-self.keys.lr)
            if self.b is not None:
                self.step_bias(gb.view(users, -1))
        return back if onward else d


class Relu:
    """max(h, 0), in place."""

    trained = False

    def forward(self, h: Tensor) -> Tensor:
        """Clip."""
        self.h = h.relu_()
        return self.h

    def backward(self, d: Tensor, onward: bool) -> Tensor:
        """The gradient passes where the output is positive."""
        back: Tensor = torch.ops.aten.threshold_backward(d, self.h, 0)
        return back


class MaxPool:
    """Maxima of windows, per channel: users need no care."""

    trained = False

    def __init__(self, like: nn.MaxPool2d) -> None:
        self.like = (like.kernel_size, like.stride, like.padding, like.dilation, like.ceil_mode)
        self.arguments: list[Any] = [pair(a) for a in self.like[:4]] + [self.like[4]]

    def forward(self, h: Tensor) -> Tensor:
        """Pool and keep where the maxima were."""
        self.h = h
        out: Tensor
        out, self.where = torch.ops.aten.max_pool2d_with_indices(h, *self.arguments)
        return out

    def backward(self, d: Tensor, onward: bool) -> Tensor:
        """The gradient goes to the maxima."""
        back: Tensor = torch.ops.aten.max_pool2d_with_indices_backward(
            d, self.h, *self.arguments, self.where
        )
        return back


class Flatten:
    """(batch, users * channels, h, w) to (users, batch, channels * h * w), if not so already."""

    trained = False

    def __init__(self, channels: int) -> None:
        self.channels = channels

    def forward(self, h: Tensor) -> Tensor:
        """Bring the user axis to the front."""
        self.shape = h.shape
        if h.dim() == 3:
            return h
        batch, wide, *image = h.shape
        users = wide // self.channels
        return h.reshape(batch, users, self.channels, *image).transpose(0, 1).flatten(2)

    def backward(self, d: Tensor, onward: bool) -> Tensor:
        """The other way round."""
        if len(self.shape) == 3:
            return d
        users, batch, _ = d.shape
        back = d.reshape(users, batch, self.channels, *self.shape[2:]).transpose(0, 1)
        return back.reshape(self.shape).contiguous(memory_format=torch.channels_last)


def pair(value: int | tuple[int, ...]) -> list[int]:
    """A size of a window as [height, width]."""
    return [value, value] if isinstance(value, int) else list(value)
