"""Values, gradients and Hessians of functions that have something minimised out of them.

Let u(psi) be where h(psi, u) is largest in u, and Q(psi, u) any function. With lambda =
-h_uu^-1 Q_u the function Phi = Q + lambda . h_u has, along u(psi),

    dQ/dpsi = Phi_psi,    d^2Q/dpsi^2 = T' Phi'' T,    T = [I; -h_uu^-1 h_u,psi],

with lambda held fast: no derivative of u but the first is needed. A Laplace approximation so has
its exact derivatives, those of the log determinant among them. All is done for many units at once;
each has a row of psi and one of u of its own.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor


class Jet(NamedTuple):
    """Functions of psi near a place: values (n, J), gradients (n, J, m), Hessians (n, J, m, m)."""

    value: Tensor
    slope: Tensor
    bend: Tensor

    def summed(self) -> Jet:
        """The sum over the first axis."""
        return Jet(*(part.sum(0) for part in self))


def derivatives(values: Tensor, at: Tensor) -> Tensor:
    """Gradient of each unit's number (n,), in its own row of `at` (n, m); itself differentiable."""
    return torch.autograd.grad(values.sum(), at, create_graph=True)[0]


def hessian(slopes: Tensor, at: Tensor) -> Tensor:
    """The derivatives of slopes (n, k) in `at` (n, m): (n, k, m)."""
    n, k = slopes.shape
    each = torch.eye(k, dtype=at.dtype)[:, None].expand(k, n, k)
    rows = torch.autograd.grad(slopes, at, each, retain_graph=True, is_grads_batched=True)[0]
    return rows.transpose(0, 1)


def profiled(functions: Sequence[Tensor], joint: Tensor, at: Tensor, inner: int) -> Jet:
    """The jets of `functions`, each (n,), in psi, where the last `inner` of `at` follow `joint`.

    `at` (n, m + inner) is a leaf from which all are computed; there `joint` is largest in u.
    """
    outer = at.shape[1] - inner
    pull = derivatives(joint, at)[:, outer:]
    second = hessian(pull, at).detach()
    back = torch.linalg.solve(-second[..., outer:], second[..., :outer])
    eye = torch.eye(outer, dtype=at.dtype).expand(len(at), -1, -1)
    along = torch.cat([eye, back], 1)
    slopes = []
    for one in functions:
        slope = derivatives(one, at)
        if one is not joint:
            held = torch.linalg.solve(-second[..., outer:], slope[:, outer:].detach()[..., None])
            slope = derivatives(one + (held[..., 0] * pull).sum(1), at)
        slopes.append(slope)
    whole = torch.stack(slopes, 1)
    bend = hessian(whole.flatten(1), at).detach().reshape(*whole.shape, at.shape[1])
    values = torch.stack([one.detach() for one in functions], 1)
    return Jet(values, whole.detach()[..., :outer], along.mT[:, None] @ bend @ along[:, None])
