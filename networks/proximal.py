"""The one proximal term of the house: a pull towards a centre, and a constant shift.

FedProx, Ditto and pFedMe pull the parameters towards a model, SCAFFOLD shifts every gradient by
c - c_i; each is a `Pull`. `Drift` is what a pull and weight decay come to for a step of SGD.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from corsage.core.arrays import Floats32


@dataclass(frozen=True)
class Pull:
    """A pull, added to the gradient: strength * (theta - centre) + shift.

    Weight decay is added too, and momentum takes in the sum. Vectors are those of the part that is
    trained (P: the whole model, the body or the head).

    Parameters
    ----------
    strength : one number, or one for each user (users,).
    centre : (P,), or each user's own (users, P).
    shift : nothing, (P,) or (users, P).
    every, follow : with `every`, the centre follows: after every so many steps
        centre += follow * (theta - centre), in the rows of `centre` (users, P) themselves, and
        momentum begins anew. What is left over of a user's steps moves nothing.
    """

    strength: float | Floats32
    centre: Floats32
    shift: Floats32 | None = None
    every: int = 0
    follow: float = 0.0

    def __post_init__(self) -> None:
        if self.every and (self.centre.ndim != 2 or not self.centre.flags.writeable):
            raise ValueError("a centre that follows needs rows (users, P) of its own.")

    @property
    def idle(self) -> bool:
        """Tell whether it adds nothing to any gradient."""
        return not np.any(self.strength) and self.shift is None and not self.every

    @property
    def own_rows(self) -> int:
        """The rows of P floats that each user needs besides the model: 0, 1 or 2."""
        vectors = (self.centre, self.shift)
        own = np.ndim(self.strength) or any(v is not None and v.ndim == 2 for v in vectors)
        return int(bool(own)) + int(self.every > 0)

    def pick(self, users: Sequence[int]) -> Pull:
        """The pull on some of the users, in this order; rows are copied."""
        rows, strength, shift = list(users), self.strength, self.shift
        return replace(
            self,
            strength=np.asarray(strength)[rows] if np.ndim(strength) else strength,
            centre=self.centre[rows] if self.centre.ndim == 2 else self.centre,
            shift=shift[rows] if shift is not None and shift.ndim == 2 else shift,
        )

    def drift(
        self, where: slice, shape: Sequence[int], users: int, decay: float, like: Tensor
    ) -> Drift:
        """The drift of all users' copies (users, *shape) of one parameter, at `where` in P."""

        def rows(vector: Floats32) -> Tensor:
            values = torch.from_numpy(np.array(vector[..., where], np.float32)).to(like.device)
            return values.view(-1, *shape)

        strength: float | Tensor
        if np.ndim(self.strength):
            each = torch.from_numpy(np.array(self.strength, np.float32)).to(like.device)
            strength = each.view(-1, *[1] * len(shape))
        else:
            strength = float(self.strength)
        centre = rows(self.centre)
        constant = centre * -strength
        if self.shift is not None:
            constant = constant + rows(self.shift)
        constant = constant.expand(users, *shape)
        return Drift(strength + decay, constant, strength, centre, self.follow)


@dataclass
class Drift:
    """rate * p + constant, added to the gradient of all users' copies p of one parameter.

    `rate` is strength + weight decay, `constant` is shift - strength * centre.
    """

    rate: float | Tensor = 0.0
    constant: Tensor | None = None
    strength: float | Tensor = 0.0
    centre: Tensor | None = None
    speed: float = 0.0

    def add(self, g: Tensor, p: Tensor) -> None:
        """Add it to the gradients g of the first users, in place."""
        if isinstance(self.rate, Tensor):
            g.addcmul_(p, self.rate[: len(g)])
        elif self.rate:
            g.add_(p, alpha=self.rate)
        if self.constant is not None:
            g.add_(self.constant[: len(g)])

    def follow(self, p: Tensor) -> None:
        """Move the centres of the first users towards p."""
        assert self.centre is not None and self.constant is not None
        n = len(p)
        step = (p - self.centre[:n]).mul_(self.speed)
        self.centre[:n] += step
        strength = self.strength[:n] if isinstance(self.strength, Tensor) else self.strength
        self.constant[:n] -= step.mul_(strength)
