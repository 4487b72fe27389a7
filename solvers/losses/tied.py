"""Users tied to a centre by a covariance D = L L', given by its root: theta = w + L u, and |u|^2/2.

D may be singular: what does not vary is the centre's.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor

from corsage.solvers.losses import users_newton
from corsage.solvers.losses.users_newton import Functions, State, by_matrix, lengths

if TYPE_CHECKING:
    from corsage.solvers.losses.linear_block import Block


def rooted(root: Tensor, block: Block, centre: Tensor, start: Tensor) -> Tensor:
    """argmin f_i(w_i + L u) + |u|^2/2 for every user, as w_i + L u; L is (d, r).

    Sought over z = u/unit, in which no coordinate curves by more than 1 on the diagonal.
    """
    far = root.abs() / block.unit()[:, :, None]
    unit = (1 + far.square().sum(1)).rsqrt()

    def model(z: Tensor) -> Tensor:
        return centre + (unit * z) @ root.T

    def gradient(z: Tensor) -> Tensor:
        return unit * (block.gradient(model(z)) @ root + unit * z)

    def hessian(z: Tensor) -> Tensor:
        h = root.T @ block.hessian(model(z)) @ root
        h.diagonal(dim1=1, dim2=2).add_(1)
        return h * unit[:, :, None] * unit[:, None]

    d = root.shape[0]
    wide = lengths((far * unit[:, None]).flatten(1))  # |L'| from units of theta to those of u
    force = wide * (block.force + d * lengths(centre / block.unit()))
    functions = Functions(gradient, by_matrix(hessian), 1 + d * wide.square(), force, coercive=True)
    z, _ = users_newton.minimise(functions, begun(block, root, centre, start) / unit)
    return model(ended(functions, z))


def begun(block: Block, root: Tensor, centre: Tensor, start: Tensor) -> Tensor:
    """u where the search begins: the start's, or 0 where the function is less there.

    Where the root has become small the start's u is huge, and its rounding with it.
    """
    u = (start - centre) @ torch.linalg.pinv(root).T
    there = block.value(centre + u @ root.T) + u.square().sum(1) / 2
    return torch.where((there < block.value(centre))[:, None], u, 0)


def ended(functions: Functions, z: Tensor) -> Tensor:
    """Newton's steps as long as they halve somebody's gradient: what is left is rounding.

    A float32 user who ends where its tolerance lets it would be off in the third digit.
    """
    now = functions.start(z)
    for _ in range(users_newton.MOST_NEWTON_STEPS):
        after = functions.start(now.x + users_newton.direction(functions, now, 0.0))
        less = after.norm < now.norm / 2
        if not less.any():
            break
        some = less[:, None]
        x, g = torch.where(some, after.x, now.x), torch.where(some, after.g, now.g)
        now = State(x, g, lengths(g), lengths(g))
    return now.x
