"""Pooling, shapes and axes, for several users at once.

Axes that a function names are those of one user's tensor. NotImplemented: let torch.vmap do it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from corsage.networks.together.users import Rule, Users, lifted, moved, of_users, padded, users_in


def of_image(axes: int) -> Callable[[Any], Rule]:
    """A function of each channel's image by itself, given as torch has it."""

    def rule(function: Any) -> Rule:
        def pool(x: Users, *args: Any, **kwargs: Any) -> Any:
            if x.ndim != axes + 2 or kwargs.get("return_indices"):
                return NotImplemented
            return Users(function(x.wide(), *args, **kwargs), x.n, True)

        return pool

    return rule


def flatten(x: Users, start_dim: int = 0, end_dim: int = -1) -> Users:
    """Tensor.flatten."""
    return Users(x.rows().flatten(moved(start_dim), moved(end_dim)), x.n)


def reshape(x: Users, *shape: Any) -> Users:
    """Tensor.view and reshape."""
    form = shape[0] if isinstance(shape[0], list | tuple) else shape
    return Users(x.rows().reshape(x.n, *form), x.n)


def reshaped_as(x: Users, like: Any) -> Users:
    """Tensor.view_as and reshape_as."""
    return reshape(x, *like.shape)


def with_axis(function: Any, places: int = 1) -> Rule:
    """A function whose first arguments are axes."""

    def rule(x: Users, *args: Any, **kwargs: Any) -> Any:
        if len(args) < places and "dim" not in kwargs:
            return NotImplemented
        args = (*map(axis_of, args[:places]), *args[places:])
        kwargs = {k: axis_of(v) if k == "dim" else v for k, v in kwargs.items()}
        return of_users(function(x.rows(), *args, **kwargs), x.n)

    return rule


def axis_of(axis: Any) -> Any:
    """One axis, or several, of one user's tensor as those of (n, ...)."""
    return [moved(a) for a in axis] if isinstance(axis, list | tuple) else moved(axis)


def split(function: Any) -> Rule:
    """Tensor.chunk, split: (x, how, axis)."""

    def rule(x: Users, how: Any, dim: int = 0) -> Any:
        return of_users(function(x.rows(), how, moved(dim)), x.n)

    return rule


def mean(function: Any) -> Rule:
    """A mean or sum over axes; over a whole image in the image's own layout."""
    usual = with_axis(function)

    def rule(x: Users, *args: Any, **kwargs: Any) -> Any:
        if not args and "dim" not in kwargs:
            return Users(function(x.rows().flatten(1), 1), x.n)
        axes = kwargs.get("dim", args[0] if args else None)
        last = isinstance(axes, list | tuple) and {a % x.ndim for a in axes} == {2, 3}
        if not x.image or not last or len(args) > 1 or set(kwargs) - {"dim"}:
            return usual(x, *args, **kwargs)
        return Users(function(x.t, [2, 3]).view(len(x.t), x.n, -1).transpose(0, 1), x.n)

    return rule


def permute(x: Users, *axes: Any) -> Users:
    """Tensor.permute."""
    order = axes[0] if isinstance(axes[0], list | tuple) else axes
    return Users(x.rows().permute(0, *(a % x.ndim + 1 for a in order)), x.n)


def expand(x: Users, *shape: Any) -> Users:
    """Tensor.expand."""
    form = shape[0] if isinstance(shape[0], list | tuple) else shape
    return Users(padded(x, len(form)).expand(x.n, *form), x.n)


def unflatten(x: Users, dim: int, sizes: Any) -> Users:
    """Tensor.unflatten."""
    return Users(torch.unflatten(x.rows(), moved(dim), sizes), x.n)


def getitem(x: Users, where: Any) -> Any:
    """Tensor[...] with numbers, slices, None and `...`."""
    own = where if isinstance(where, tuple) else (where,)
    if not all(isinstance(w, int | slice) or w is None or w is ... for w in own):
        return NotImplemented
    return Users(x.rows()[(slice(None), *own)], x.n)


def joined(function: Any) -> Rule:
    """torch.cat and torch.stack."""

    def rule(values: Sequence[Any], dim: int = 0) -> Any:
        n = users_in(values)
        own = [lifted(v, n) for v in values]
        if function is torch.cat and dim in (1, -3) and all(v.image for v in own):
            apart = [v.t.unflatten(1, (n, -1)) for v in own]
            return Users(torch.cat(apart, 2).flatten(1, 2), n, True)
        return Users(function([v.rows() for v in own], moved(dim)), n)

    return rule


def matmul(a: Any, b: Any) -> Any:
    """Matrix products."""
    n = users_in((a, b))
    a, b = lifted(a, n), lifted(b, n)
    axes = max(a.ndim, b.ndim)
    if min(a.ndim, b.ndim) < 2:
        return NotImplemented
    return Users(torch.matmul(padded(a, axes), padded(b, axes)), n)


def clone(x: Users, *args: Any, **kwargs: Any) -> Users:
    """Tensor.clone: what is written into one is not in the other."""
    return Users(x.t, x.n, x.image)


def same(x: Users, *args: Any, **kwargs: Any) -> Users:
    """A function that changes nothing but the layout in memory, or nothing."""
    return x
