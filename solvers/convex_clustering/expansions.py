"""Answers of users about their losses at several points at once, and quadratic models of them.

A probe is a point x_i and a slope v_i for every user. A user answers with the value, the gradient
and the Hessian of its f_i at the proximal point

    y_i = argmin f_i(y) + <v_i, y> + kappa_i/2 |y - x_i|^2,    kappa_i = share L_i,

with f_i(x_i), with min over y of f_i(y) + <v_i, y>, which is its part of a duality gap, and with
the loss of x_i on samples that are held out. Where v_i is the optimum's, y_i is the optimum, so
that the models that are made of the answer are best where the solution will be.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from corsage.core.arrays import Bools, Floats, Ints
from corsage.solvers.losses.convex import Losses, SmoothLosses
from corsage.solvers.losses.held_out import Fold
from corsage.solvers.losses.quadratic import Quadratic

HERE = np.inf
"""The share of a probe that is expanded at x_i itself."""
WEAK_KAPPA = 1e-3
"""kappa as a share of L of users without a minimiser, where it is asked for."""
BOUNDED_BY = 1e-11
"""kappa as a share of L by which a minimum is bounded where there is none."""


@dataclass(frozen=True)
class Probe:
    """A point of all users.

    Parameters
    ----------
    x, v : points and slopes, (N, d).
    share : kappa_i as a share of L_i; 0: y_i is the minimiser itself, where there is one.
    fold : samples that are left out of f_i, or None.
    bound : whether the minimum is asked for; without it nothing is certified, and less is computed.
    """

    x: Floats
    v: Floats
    share: float
    fold: Fold | None = None
    bound: bool = True


@dataclass(frozen=True)
class Expansion:
    """The users' answers to a probe, one row each.

    Parameters
    ----------
    y, value, gradient, hessian : of f_i at y_i.
    at_x : f_i(x_i).
    least : min over y of f_i(y) + <v_i, y>; where there is none, of that
        + BOUNDED_BY L_i/2 |y - x_i|^2; 0 where it is not asked for.
    found : whether there is one.
    held : the mean loss of x_i on the samples that are left out; NaN where there are none.
    curvature : L_i.
    coercive : whether f_i is known to grow in all directions; said with share 0 only.
    """

    y: Floats
    value: Floats
    gradient: Floats
    hessian: Floats
    at_x: Floats
    least: Floats
    found: Bools
    held: Floats
    curvature: Floats
    coercive: Bools


Oracle = Callable[[Sequence[Probe]], list[Expansion]]
"""One exchange: all probes, and the answers of all users."""


def answer(losses: Losses, probe: Probe, held: Floats) -> Expansion:
    """The users' answers to a probe; `held` are the losses of their x_i on samples left out."""
    x, v = (
        torch.from_numpy(np.ascontiguousarray(a)).to(losses.device, losses.dtype)
        for a in (probe.x, probe.v)
    )
    bound = curvature(losses)
    best = losses.minimise(v, x) if probe.bound or not probe.share else torch.full_like(x, np.nan)
    least, found = lowest(losses, probe, x, v, best, bound)
    y = expanded_at(losses, probe, x, v, best, bound)
    parts = losses.value(y), losses.gradient(y), losses.hessian(y)
    value, gradient, hessian = map(array, parts)
    own = array(losses.value(x)), array(least), np.asarray(found.cpu().numpy())
    held_in = losses.coercive() if not probe.share else torch.zeros_like(found)
    coercive = np.asarray(held_in.cpu().numpy())
    return Expansion(array(y), value, gradient, hessian, *own, held, array(bound), coercive)


def lowest(
    losses: Losses, probe: Probe, x: Tensor, v: Tensor, best: Tensor, bound: Tensor
) -> tuple[Tensor, Tensor]:
    """The minima, or what is known where there are none; and who has one."""
    least = losses.value(best) + (v * best).sum(1)
    found = best.isfinite().all(1) & least.isfinite()
    if not probe.bound or bool(found.all()):
        return torch.where(found, least, 0.0), found
    kappa = BOUNDED_BY * bound
    near = losses.prox(x - v / kappa[:, None], kappa, start=x)
    value = losses.value(near) + (v * near).sum(1) + kappa / 2 * (near - x).square().sum(1)
    return torch.where(found, least, value), found


def expanded_at(
    losses: Losses, probe: Probe, x: Tensor, v: Tensor, best: Tensor, bound: Tensor
) -> Tensor:
    """y_i."""
    if probe.share == HERE:
        return x
    if probe.share == 0 and bool(best.isfinite().all()):
        return best
    kappa = (probe.share or WEAK_KAPPA) * bound
    y = losses.prox(x - v / kappa[:, None], kappa, start=x)
    return torch.where(best.isfinite(), best, y) if probe.share == 0 else y


def curvature(losses: Losses) -> Tensor:
    """L_i; of losses that do not know it the trace of the Hessian at 0."""
    if not isinstance(losses, SmoothLosses):
        return losses.smoothness().clamp(min=torch.finfo(losses.dtype).tiny)
    zero = torch.zeros(losses.n, losses.d, dtype=losses.dtype, device=losses.device)
    return losses.hessian(zero).diagonal(dim1=1, dim2=2).sum(1).clamp(min=1e-12)


def models(found: Expansion, centre: Floats, damping: float) -> Quadratic:
    """f_i(y) + <g, x - y> + 1/2 (x - y)' H (x - y) + damping L_i/2 |x - centre_i|^2."""
    d = centre.shape[1]
    weight = damping * found.curvature
    bent = np.einsum("nij,nj->ni", found.hessian, found.y)
    a = found.hessian + weight[:, None, None] * np.eye(d)
    b = bent - found.gradient + weight[:, None] * centre
    c = found.value - (found.gradient * found.y).sum(1) + (found.y * bent).sum(1) / 2
    c = c + weight / 2 * np.square(centre).sum(1)
    return Quadratic(torch.from_numpy(a), torch.from_numpy(b), torch.from_numpy(c))


def nearest(known: Sequence[Expansion], x: Floats) -> Ints:
    """Of each user which expansion has the y_i that is the nearest to x_i."""
    apart = np.stack([np.linalg.norm(each.y - x, axis=1) for each in known])
    return np.asarray(apart.argmin(0))


def picked(known: Sequence[Expansion], picks: Ints) -> Expansion:
    """An expansion of each user's own choice; what is at x_i, and bounds, are the first one's."""
    news: dict[str, Any] = {}
    for name in ("y", "value", "gradient", "hessian"):
        news[name] = getattr(known[0], name).copy()
        for k in np.unique(picks):
            news[name][picks == k] = getattr(known[k], name)[picks == k]
    return replace(known[0], **news)


def array(tensor: Tensor) -> Floats:
    """A tensor as an array of float64."""
    return np.asarray(tensor.detach().double().cpu().numpy())
