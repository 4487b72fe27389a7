"""Slots: a parameter of all users where it is read, and its gradient where it goes.

The kernels of linear layers and convolutions write gradients straight into the matrix of all
gradients, with its old content taken in (momentum) by the same product.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from corsage.networks.together.users import Users


class Slot(Users):
    """A parameter of all users: columns of theta (users, P), and of the gradients.

    As a value it is a leaf of autograd's graph, if it is trained. `beta` is what the gradient that
    is there is multiplied by before the first new one is added.
    """

    def __init__(self, columns: slice, shape: torch.Size) -> None:
        self.columns, self.form, self.image = columns, shape, False
        self.trained, self.beta = False, 1.0
        self.leaf: Tensor | None = None
        self.leaves: list[Tensor] = []
        self.value = self.grad = torch.empty(0)
        self.n = 0

    def use(self, theta: Tensor, out: Tensor | None, first: int, beta: float) -> None:
        """Read theta (users, P); gradients go to out <- beta * out + gradient, if there is one.

        `first` is where the columns of `out` begin in P.
        """
        self.n, self.beta, self.trained = len(theta), beta, out is not None
        self.leaf, self.leaves = None, []
        self.value = theta[:, self.columns].view(self.n, *self.form)
        if out is not None:
            columns = slice(self.columns.start - first, self.columns.stop - first)
            self.grad = out[:, columns].view(self.n, *self.form)

    @property
    def joint(self) -> Tensor:  # type: ignore[override]
        """The parameter as a value, for torch's own functions."""
        if self.leaf is None:
            self.leaf = self.value.detach().requires_grad_(self.trained)
        return self.leaf

    def each(self) -> list[Tensor]:
        """Each user's own parameter, for functions that take one user at a time."""
        if not self.leaves:
            self.leaves = [v.detach().requires_grad_(self.trained) for v in self.value]
        return self.leaves

    @property
    def token(self) -> Tensor:
        """A tensor that makes autograd call a kernel's backward pass."""
        return TRAINED if self.trained else FROZEN

    def product(self, a: Tensor, b: Tensor) -> None:
        """Add a b, a batched product."""
        self.grad.baddbmm_(a, b, beta=self.beta)
        self.beta = 1.0

    def accumulate(self, g: Tensor) -> None:
        """Add a gradient."""
        g = g.reshape(self.grad.shape)
        if self.beta == 1.0:
            self.grad.add_(g)
        elif self.beta:
            self.grad.mul_(self.beta).add_(g)
        else:
            self.grad.copy_(g)
        self.beta = 1.0

    def finish(self) -> None:
        """Take in what autograd found; a parameter without a gradient has one of 0."""
        if self.leaf is not None and self.leaf.grad is not None:
            self.accumulate(self.leaf.grad)
        if self.leaves and self.leaves[0].grad is not None:
            self.accumulate(
                torch.stack([leaf.grad for leaf in self.leaves if leaf.grad is not None])
            )
        if self.trained and self.beta != 1.0:
            self.grad.mul_(self.beta) if self.beta else self.grad.zero_()
        self.leaf, self.leaves = None, []


class State(Users):
    """A buffer of all users that training moves: columns of theta (users, P), of the buffer's type.

    A pass reads and writes a copy, which is put back after it.
    """

    def __init__(self, columns: slice, shape: torch.Size, dtype: torch.dtype) -> None:
        self.columns, self.form, self.dtype, self.image = columns, shape, dtype, False
        self.joint, self.n = torch.empty(0), 0

    def use(self, theta: Tensor) -> None:
        """Read theta; counters are whole numbers."""
        self.n, self.image = len(theta), False
        values = theta[:, self.columns].reshape(self.n, *self.form)
        values = values if self.dtype.is_floating_point else values.round()
        self.joint = values.to(self.dtype, copy=True)

    def put_back(self, theta: Tensor) -> None:
        """Put back what the pass made of it."""
        theta[:, self.columns] = self.rows().detach().reshape(self.n, -1).to(theta.dtype)


TRAINED, FROZEN = torch.zeros(1, requires_grad=True), torch.zeros(1)


class Linear(torch.autograd.Function):
    """x W' + b for x (users, rows, in)."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, token: Tensor, w: Slot, b: Slot | None) -> Tensor:
        """One batched product for all users."""
        ctx.save_for_backward(x)
        ctx.w, ctx.b = w, b
        if b is None:
            return torch.bmm(x, w.value.mT)
        return torch.baddbmm(b.value.unsqueeze(1), x, w.value.mT)

    @staticmethod
    def backward(ctx: Any, d: Tensor) -> Any:
        """The weights' gradient d'x goes straight to its place."""
        if ctx.w.trained:
            ctx.w.product(d.mT, *ctx.saved_tensors)
        if ctx.b is not None and ctx.b.trained:
            ctx.b.accumulate(d.sum(1))
        return torch.bmm(d, ctx.w.value) if ctx.needs_input_grad[0] else None, None, None, None


class Convolution(torch.autograd.Function):
    """A convolution for x (batch, users * channels, *image): the users' groups side by side."""

    @staticmethod
    def forward(
        ctx: Any, x: Tensor, token: Tensor, w: Slot, b: Slot | None, groups: int, how: Any
    ) -> Tensor:
        """One convolution for all users, in `groups` of channels each; `how` is as torch has it."""
        weights = w.value.flatten(0, 1)
        ctx.save_for_backward(x, weights)
        ctx.w, ctx.b, ctx.how = w, b, (*how, False, [0] * len(how[0]), groups * w.n)
        bias = None if b is None else b.value.flatten()
        return torch.convolution(x, weights, bias, *ctx.how)

    @staticmethod
    def backward(ctx: Any, d: Tensor) -> Any:
        """torch's own kernel for all three gradients."""
        x, weights = ctx.saved_tensors
        w, b = ctx.w, ctx.b
        wanted = [ctx.needs_input_grad[0], w.trained, b is not None and b.trained]
        back, gw, gb = torch.ops.aten.convolution_backward(
            d, x, weights, [d.shape[1]], *ctx.how, wanted
        )
        if wanted[1]:
            w.accumulate(gw)
        if wanted[2]:
            b.accumulate(gb)
        return back, None, None, None, None, None
