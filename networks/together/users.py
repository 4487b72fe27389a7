"""Values of several users at once, as a model's `forward` sees them: those of one user.

A `Users` stands where a tensor would: it says the shape that one user's tensor has, and every torch
function and method that it is given to is done for all users, by `operations`. So a module of any
class is run as it is; nothing of its code is read.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_flatten, tree_unflatten

Rule = Callable[..., Any]


class Untraceable(Exception):
    """An obstacle to training the users of a model together."""


class Users:
    """One tensor of each of `n` users.

    Parameters
    ----------
    joint : with the users in front, (n, *shape); or if `image`, (batch, n * channels, *image): so a
        convolution, a pooling or a group norm of all users is one of torch's own.
    """

    def __init__(self, joint: Tensor, n: int, image: bool = False) -> None:
        self.joint, self.n, self.image = joint, n, image

    # What one user's tensor is like.

    @property
    def shape(self) -> torch.Size:
        """Of one user's tensor."""
        if not self.image:
            return self.joint.shape[1:]
        batch, wide, *rest = self.joint.shape
        return torch.Size((batch, wide // self.n, *rest))

    @property
    def ndim(self) -> int:
        """Axes of one user's tensor."""
        return self.joint.dim() - (not self.image)

    def dim(self) -> int:
        """Axes of one user's tensor."""
        return self.ndim

    def size(self, axis: int | None = None) -> Any:
        """Of one user's tensor, or of one of its axes."""
        return self.shape if axis is None else self.shape[axis]

    def numel(self) -> int:
        """Entries of one user's tensor."""
        return self.shape.numel()

    def is_floating_point(self) -> bool:
        """Tell whether these are floats."""
        return self.joint.is_floating_point()

    def __len__(self) -> int:
        return self.shape[0]

    def __iter__(self) -> Iterator[Users]:
        return (self.__getitem__(i) for i in range(len(self)))

    def __bool__(self) -> bool:
        raise Untraceable("its forward asks for the value of a tensor")

    def __float__(self) -> float:
        raise Untraceable("its forward asks for the value of a tensor")

    def __int__(self) -> int:
        raise Untraceable("its forward asks for the value of a tensor")

    __index__ = __int__

    def __setitem__(self, where: Any, value: Any) -> None:
        raise Untraceable("its forward writes into a part of a tensor")

    def __getitem__(self, where: Any) -> Any:
        return _applied("getitem", self, where)

    # The layouts.

    def rows(self) -> Tensor:
        """(n, *shape)."""
        if not self.image:
            return self.joint
        batch, wide, *rest = self.joint.shape
        return self.joint.reshape(batch, self.n, wide // self.n, *rest).transpose(0, 1)

    def wide(self) -> Tensor:
        """(batch, n * channels, *image)."""
        if self.image:
            return self.joint
        _, batch, channels, *rest = self.joint.shape
        return self.joint.transpose(0, 1).reshape(batch, self.n * channels, *rest)

    # The doors through which torch comes.

    @classmethod
    def __torch_function__(
        cls, function: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        """A function of torch's on values of which at least one is of several users."""
        from corsage.networks.together.operations import apply

        return apply(function, function.__name__, args, kwargs or {})

    def __getattr__(self, name: str) -> Any:
        if name in PLAIN_ATTRIBUTES:
            return getattr(self.joint, name)
        if name in ("T", "mT"):
            return self.transpose(-2, -1) if self.ndim > 1 else self
        function = getattr(Tensor, name, None)
        if name.startswith("__") or not callable(function):
            raise AttributeError(name)
        from corsage.networks.together.operations import apply

        return lambda *args, **kwargs: apply(function, name, (self, *args), kwargs)


PLAIN_ATTRIBUTES = (
    "dtype",
    "device",
    "is_cuda",
    "is_nested",
    "is_sparse",
    "is_quantized",
    "requires_grad",
)
"""Attributes of a tensor that do not depend on whose it is."""
OPERATORS = (
    *("add", "sub", "mul", "truediv", "pow", "matmul", "radd", "rsub", "rmul", "rtruediv", "rpow"),
    *("neg", "abs", "eq", "ne", "lt", "le", "gt", "ge", "and", "or", "invert"),
    *("iadd", "isub", "imul", "itruediv"),
)


def _applied(name: str, *args: Any) -> Any:
    """An operator of tensors."""
    from corsage.networks.together.operations import apply

    plain = name[1:] if name.startswith("i") and name != "invert" else name
    return apply(getattr(Tensor, f"__{plain}__"), plain, args, {})


def _operator(name: str) -> Callable[..., Any]:
    return lambda *args: _applied(name, *args)


for _name in OPERATORS:
    setattr(Users, f"__{_name}__", _operator(_name))


# Values of several users brought to one layout, and functions that need no more than that.


def users_in(values: Sequence[Any]) -> int:
    """The number of users that some values are of."""
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
    """Tell whether all have as many channels: users' channels side by side cannot be stretched."""
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
