"""Layers of several users at once, with forward, backward and the step of SGD.

Forward and backward are written out for the few layers that the built-in models have: a batched
matrix product (or a grouped convolution) does one step of all users, and momentum takes the
gradient in within the same product. `stacked` puts them together.
"""

from __future__ import annotations

from typing import Any, Protocol

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from corsage.core.configuration.key_groups import TrainKeys
from corsage.networks.proximal import Drift


class Layer(Protocol):
    """One layer of all users. `forward` keeps what `backward` needs."""

    trained: bool

    def forward(self, h: Tensor) -> Tensor:
        """The layer's output for the first users, as many as `h` has."""

    def backward(self, d: Tensor, onward: bool) -> Tensor:
        """Take an SGD step with the output's gradient `d`; the input's gradient if `onward`."""

    def follow(self, users: int) -> None:
        """Move the centres of the first users' pulls, if it is pulled."""


class Untrained:
    """A layer without parameters."""

    trained = False

    def follow(self, users: int) -> None:
        """Nothing is pulled."""


class Trained:
    """Weights W (users, ...), bias b (users, out) or None, and their momentum.

    `pull` is what a `Pull` adds to the gradients of W, weight decay included, and of b; where
    neither is set, nothing is added.
    """

    def __init__(
        self,
        w: Tensor,
        b: Tensor | None,
        keys: TrainKeys,
        trained: bool,
        pull: tuple[Drift, Drift] | None = None,
    ) -> None:
        self.w, self.b, self.keys, self.trained = w, b, keys, trained
        self.dw: Drift | None = Drift(keys.decay) if keys.decay else None
        self.db: Drift | None = None
        if pull is not None:
            self.dw, self.db = pull
        self.mw = torch.zeros_like(w) if trained and keys.momentum else None
        self.mb = torch.zeros_like(b) if trained and keys.momentum and b is not None else None
        self.h = w

    def step_bias(self, g: Tensor) -> None:
        """Momentum and step of the biases of the first users."""
        if self.b is None:
            return
        b = self.b[: len(g)]
        if self.db is not None:
            self.db.add(g, b)
        if self.mb is None:
            b.add_(g, alpha=-self.keys.lr)
        else:
            b.add_(self.mb[: len(g)].mul_(self.keys.momentum).add_(g), alpha=-self.keys.lr)

    def follow(self, users: int) -> None:
        """Move the centres of the first users' pulls; momentum begins anew."""
        if not self.trained:
            return
        for p, drift, m in ((self.w, self.dw, self.mw), (self.b, self.db, self.mb)):
            if p is not None and drift is not None:
                drift.follow(p[:users])
            if m is not None:
                m.zero_()


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
            if self.mw is not None:
                m = self.mw[: len(d)]
                m.baddbmm_(d.transpose(1, 2), self.h, beta=keys.momentum)
                if self.dw is not None:
                    self.dw.add(m, w)
                w.add_(m, alpha=-keys.lr)
            elif self.dw is None:
                w.baddbmm_(d.transpose(1, 2), self.h, alpha=-keys.lr)
            elif isinstance(self.dw.rate, Tensor):
                g = torch.bmm(d.transpose(1, 2), self.h)
                self.dw.add(g, w)
                w.add_(g, alpha=-keys.lr)
            else:
                shrink = 1.0 - keys.lr * self.dw.rate
                w.baddbmm_(d.transpose(1, 2), self.h, beta=shrink, alpha=-keys.lr)
                if self.dw.constant is not None:
                    w.add_(self.dw.constant[: len(d)], alpha=-keys.lr)
            self.step_bias(d.sum(1))
        return back


class Conv(Trained):
    """A convolution for activations (batch, users * channels, h, w): one group a user."""

    def __init__(
        self,
        w: Tensor,
        b: Tensor | None,
        keys: TrainKeys,
        trained: bool,
        pull: tuple[Drift, Drift] | None,
        like: nn.Conv2d,
    ) -> None:
        super().__init__(w, b, keys, trained, pull)
        self.stride, self.padding, self.dilation = like.stride, like.padding, like.dilation

    def forward(self, h: Tensor) -> Tensor:
        """One grouped convolution for all users."""
        self.h = h
        users = h.shape[1] // self.w.shape[2]
        w = self.w[:users].flatten(0, 1)
        b = None if self.b is None else self.b[:users].flatten()
        return F.conv2d(h, w, b, self.stride, self.padding, self.dilation, users)

    def gradients(self, d: Tensor, onward: bool) -> tuple[Tensor, Tensor, Tensor]:
        """Those of the input, if `onward`, of the weights and of the biases: torch's own kernel."""
        users = d.shape[1] // self.w.shape[1]
        found: tuple[Tensor, Tensor, Tensor] = torch.ops.aten.convolution_backward(
            d,
            self.h,
            self.w[:users].flatten(0, 1),
            [d.shape[1]],
            self.stride,
            self.padding,
            self.dilation,
            False,
            [0, 0],
            users,
            [onward, self.trained, self.trained and self.b is not None],
        )
        return found

    def backward(self, d: Tensor, onward: bool) -> Tensor:
        """Take the step of SGD."""
        users = d.shape[1] // self.w.shape[1]
        w = self.w[:users]
        back, gw, gb = self.gradients(d, onward)
        if self.trained:
            g = gw.view_as(w) if gw.is_contiguous() else gw.reshape(w.shape)
            if self.dw is not None:
                self.dw.add(g, w)
            if self.mw is not None:
                g = self.mw[:users].mul_(self.keys.momentum).add_(g)
            w.add_(g, alpha=-self.keys.lr)
            if self.b is not None:
                self.step_bias(gb.view(users, -1))
        return back if onward else d


class Relu(Untrained):
    """max(h, 0), in place."""

    def forward(self, h: Tensor) -> Tensor:
        """max(h, 0), remembered for `backward`."""
        self.h = h.relu_()
        return self.h

    def backward(self, d: Tensor, onward: bool) -> Tensor:
        """The gradient passes where the output is positive."""
        back: Tensor = torch.ops.aten.threshold_backward(d, self.h, 0)
        return back


class MaxPool(Untrained):
    """Maxima of windows, per channel: users need no care."""

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


class Flatten(Untrained):
    """(batch, users * channels, h, w) to (users, batch, channels * h * w), if not so already."""

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
