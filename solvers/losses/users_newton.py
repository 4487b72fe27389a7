"""Minimises one convex function a user for all users at once: damped semismooth Newton steps.

The functions have Lipschitz gradients g; H is an element of the generalised Hessian (of Huber's
function or the squared hinge it jumps). The direction is p = -(H + damping I)^-1 g. Along it a
length is sought at which the derivative <g, p> is still not positive, but at most half as steep as
at the outset; or at which |g| is half of the smallest so far, which can happen only finitely often.
So the method converges from anywhere, with full steps near a solution. Only gradients are used:
there function values are too coarse.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from math import inf

import torch
from torch import Tensor

from corsage.core.errors import ModelError

Map = Callable[[Tensor], Tensor]
Solve = Callable[[Tensor, Tensor, Tensor], Tensor]
"""(x, damping (n,), right) -> (H(x) + damping I)^-1 right, exactly or nearly."""

MOST_NEWTON_STEPS = 100
TRIALS = 45
FADING = 0.1  # damping, as a part of the curvature's bound, while the gradient has not shrunk
TOLERANCE = {torch.float64: 1e-12, torch.float32: 1e-5}
SINGULAR_SHARE = {torch.float64: 1e-10, torch.float32: 1e-5}
RUNAWAY = {torch.float64: 1e6, torch.float32: 1e3}


def thin(dtype: torch.dtype) -> float:
    """Curvature, as a part of the largest one, below which a direction counts as flat."""
    return SINGULAR_SHARE[dtype]


def lengths(rows: Tensor) -> Tensor:
    """|row| of each row."""
    norms: Tensor = torch.linalg.vector_norm(rows, dim=1)
    return norms


@dataclass(frozen=True)
class Functions:
    """The functions of n users, and what their numbers are to be compared with.

    Parameters
    ----------
    gradient : g (n, d) at x (n, d).
    solve : a system with H, which a matrix (`by_matrix`) or products stand for.
    curvature : (n,) upper bound of H.
    force : (n,) sum of the sizes of all terms that g has at 0.
    coercive : a minimiser exists. If not, damping fades out with the gradient, and a user is given
        up who is RUNAWAY times as far away as the start and as where that curvature would stop him.
    """

    gradient: Map
    solve: Solve
    curvature: Tensor
    force: Tensor
    coercive: bool

    def scale(self, x: Tensor) -> Tensor:
        """The size that the rounding errors of g are proportional to."""
        return self.force + self.curvature * lengths(x)

    def start(self, x: Tensor) -> State:
        """The state of users who are at x."""
        g = self.gradient(x)
        norm = lengths(g)
        return State(x, g, norm, norm)


@dataclass(frozen=True)
class State:
    """The users' places: x, g = g(x), |g|, and the smallest |g| so far."""

    x: Tensor
    g: Tensor
    norm: Tensor
    best: Tensor


def minimise(functions: Functions, start: Tensor) -> tuple[Tensor, Tensor]:
    """The minimisers, and who has one: the gradient is as small as rounding lets it be.

    If it is not known that there is one, a last Newton step must not lead far away, too: a small
    gradient that no curvature stops is that of a function that falls for ever. If it is known, and
    the gradient is still not small, the data are to blame: that is an error.
    """
    tolerance, eps = TOLERANCE[start.dtype], torch.finfo(start.dtype).eps
    # the start counts a little, so that a minimiser at 0 of a function without force is reached
    first = functions.curvature * lengths(start)
    functions = replace(functions, force=functions.force + thin(start.dtype) * first)
    reach = RUNAWAY[start.dtype] * (functions.force + first)
    now = functions.start(start)
    over = lost = torch.zeros_like(now.norm, dtype=torch.bool)
    for _ in range(MOST_NEWTON_STEPS):
        scale = functions.scale(now.x)
        if not functions.coercive:
            lost = ~(scale <= reach)
        over = over | lost | (now.norm <= tolerance * scale)
        if over.all():
            break
        damping = 8 * eps + (0 if functions.coercive else FADING * now.norm / scale)
        step = torch.where(over[:, None], 0, direction(functions, now, damping))
        now, moved = _search(functions, now, step, over)
        over = over | ~moved
    scale = functions.scale(now.x)
    found = now.norm <= tolerance * scale
    if functions.coercive:
        if bool((bad := ~(now.norm <= tolerance**0.5 * scale)).any()):
            raise ModelError(
                f"Newton's method did not converge for {int(bad.sum())} of {len(bad)} users: are "
                "the data finite, and features of like sizes? Scale them."
            )
        return now.x, found
    step = direction(functions, now, 8 * eps)
    return now.x, found & ~lost & (functions.curvature * lengths(step) <= scale)


def direction(functions: Functions, now: State, damping: Tensor | float) -> Tensor:
    """-(H + damping I)^-1 g, the damping as a part of the curvature's bound."""
    return functions.solve(now.x, damping * functions.curvature, -now.g)


def by_matrix(hessian: Map) -> Solve:
    """Systems with H (n, d, d)."""

    def solve(x: Tensor, damping: Tensor, right: Tensor) -> Tensor:
        h = hessian(x)
        h.diagonal(dim1=1, dim2=2).add_(damping[:, None])
        step: Tensor = torch.linalg.solve_ex(h, right)[0]
        return step

    return solve


def _search(functions: Functions, now: State, step: Tensor, over: Tensor) -> tuple[State, Tensor]:
    """The state after as much of the step as the rule above wants, and for whom it was found."""
    outset = (now.g * step).sum(1)
    length, low, high = torch.ones_like(outset), torch.zeros_like(outset), outset.new_tensor(inf)
    for _ in range(TRIALS):
        x = now.x + length[:, None] * step
        g = functions.gradient(x)
        norm, along = lengths(g), (g * step).sum(1)
        good = over | (norm <= now.best / 2) | ((along <= 0) & (along >= outset / 2))
        if good.all():
            break
        short = along < outset / 2
        low, high = torch.where(short, length, low), torch.where(short, high, length)
        between = torch.where(high == inf, 2 * length, (low + high) / 2)
        length = torch.where(good, length, between)
    return State(x, g, norm, torch.minimum(norm, now.best)), good
