"""Values of several users at once, as a model's `forward` sees them: those of one user.

A `Users` stands where a tensor would: it says the shape that one user's tensor has, and every torch
function and method that it is given to is done for all users, by `operations`. So a module of any
class is run as it is; nothing of its code is read.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor

Rule = Callable[..., Any]


class Untraceable(Exception):
    """What stands against training the users of a model together."""


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
        """Whether these are floats."""
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
        from corsage.networks.operations import apply

        return apply(function, function.__name__, args, kwargs or {})

    def __getattr__(self, name: str) -> Any:
        if name in PLAIN:
            return getattr(self.joint, name)
        if name in ("T", "mT"):
            return self.transpose(-2, -1) if self.ndim > 1 else self
        function = getattr(Tensor, name, None)
        if name.startswith("__") or not callable(function):
            raise AttributeError(name)
        from corsage.networks.operations import apply

        return lambda *args, **kwargs: apply(function, name, (self, *args), kwargs)


PLAIN = ("dtype", "device", "is_cuda", "is_nested", "is_sparse", "is_quantized", "requires_grad")
"""What a tensor says of itself that does not depend on whose it is."""
OPERATORS = (
    *("add", "sub", "mul", "truediv", "pow", "matmul", "radd", "rsub", "rmul", "rtruediv", "rpow"),
    *("neg", "abs", "eq", "ne", "lt", "le", "gt", "ge", "and", "or", "invert"),
    *("iadd", "isub", "imul", "itruediv"),
)


def _applied(name: str, *args: Any) -> Any:
    """An operator of tensors."""
    from corsage.networks.operations import apply

    plain = name[1:] if name.startswith("i") and name != "invert" else name
    return apply(getattr(Tensor, f"__{plain}__"), plain, args, {})


def _operator(name: str) -> Callable[..., Any]:
    return lambda *args: _applied(name, *args)


for _name in OPERATORS:
    setattr(Users, f"__{_name}__", _operator(_name))
