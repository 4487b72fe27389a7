"""Values of several users brought to one layout, and functions that need no more than that."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_flatten, tree_unflatten

from corsage.networks.users import Users


def users_in(values: Sequence[Any]) -> int:
    """How many users some values are of."""
    return next(v.n for v in values if isinstance(v, Users))


def lifted(value: Any, n: int) -> Any:
    """A tensor that all users have in common, as one of each; anything else as it is."""
    if isinstance(value, Tensor) and value.dim():
        return Users(value.unsqueeze(0).expand(n, *value.shape), n)
    return value


def padded(value: Users, axes: int) -> Tensor:
    """(n, 1, ..., *shape) with so many axes after the first, for sums by torch's rules."""
    t = value.rows()
    return t if t.dim() > axes else t.reshape(value.n, *[1] * (axes + 1 - t.dim()), *t.shape[1:])


def elementwise(function: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> Users:
    """A function of entries, in whatever layout its values have in common."""
    if len(args) == 1 and isinstance(args[0], Users):
        return Users(function(args[0].joint, **kwargs), args[0].n, args[0].image)
    n = users_in((*args, *kwargs.values()))
    every = [lifted(a, n) for a in args]
    named = {k: lifted(a, n) for k, a in kwargs.items()}
    own = [a for a in (*every, *named.values()) if isinstance(a, Users)]
    axes = max(a.ndim for a in own)
    image = any(a.image for a in own) and all(a.ndim == axes for a in own)

    def ready(value: Any) -> Any:
        if not isinstance(value, Users):
            return value
        return value.wide() if image else padded(value, axes)

    if image and not wide_fits(own):
        image = False
    found = function(*map(ready, every), **{k: ready(a) for k, a in named.items()})
    return Users(found, n, image)


def wide_fits(values: Sequence[Users]) -> bool:
    """Whether all have as many channels: users' channels side by side cannot be stretched."""
    return len({v.shape[1] for v in values}) == 1


def mapped(function: Any, args: Any, kwargs: Any) -> Any:
    """Any other function, by torch.vmap."""
    flat, form = tree_flatten((list(args), kwargs))
    n = users_in(flat)
    places = [i for i, v in enumerate(flat) if isinstance(v, Users)]

    def one(*own: Tensor) -> Any:
        whole = list(flat)
        for i, t in zip(places, own, strict=True):
            whole[i] = t
        a, k = tree_unflatten(whole, form)
        return function(*a, **k)

    return of_users(torch.vmap(one)(*(flat[i].rows() for i in places)), n)


def of_users(found: Any, n: int) -> Any:
    """Tensors (n, ...), one or several, as values."""
    flat, form = tree_flatten(found)
    return tree_unflatten([Users(t, n) if isinstance(t, Tensor) else t for t in flat], form)


def moved(axis: int) -> int:
    """An axis of one user's tensor as one of (n, ...)."""
    return axis + 1 if axis >= 0 else axis
