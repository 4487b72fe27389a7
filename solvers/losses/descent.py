"""Many gradient steps of linear models, without a word from others in between.

With the optional extra `fast` (numba) samples of few columns are laid out for one fused pass a step
(`fused`). Without it, or with more columns, each block of users takes all its steps in torch before
the next one does. Both are equal to rounding, and one line of the log says which is taken.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from importlib import import_module
from logging import getLogger
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from corsage.core.arrays import Ints
from corsage.core.losses import ScalarLoss
from corsage.solvers.losses.padded import NARROW, cells

WORTH = 50_000
"""Numbers from which on it pays to load numba."""
WIDTH, ALIKE, LEAST = 256, 0.85, 16
"""Users in a chunk, at most, while they have that share of its longest one's rows; at least."""
KINDS = {"logistic": 0, "squared-hinge": 1, "squared": 2, "huber": 2}
"""The losses that a fused pass knows, by their numbers there."""
log = getLogger("corsage")


@dataclass(frozen=True)
class Chunks:
    """Users side by side, as `fused.descend` takes them.

    Parameters
    ----------
    order : the users of the chunks, one chunk after the other.
    first, starts : where each chunk's users begin, and its rows times its users.
    rows, y, share, ridge, kind, delta : the losses.
    """

    order: Ints
    first: Ints
    starts: Ints
    rows: NDArray[Any]
    y: NDArray[Any]
    share: NDArray[Any]
    ridge: NDArray[Any]
    kind: int
    delta: float

    def descend(self, x: Tensor, k: int, step: float) -> Tensor:
        """x (n, d) after k steps."""
        from corsage.solvers.losses import fused

        dtype, d = self.rows.dtype, x.shape[1]
        own = x.numpy()[self.order]
        bounds = list(zip(self.first[:-1], self.first[1:], strict=True))
        theta = np.concatenate([own[a:b].T.ravel() for a, b in bounds])
        fused.descend(
            self.rows, self.y, self.starts, self.first, theta, self.share, self.ridge,
            k, dtype.type(step), self.kind, dtype.type(self.delta), (0,) * d,
        )  # fmt: skip
        for a, b in bounds:
            own[a:b] = theta[d * a : d * b].reshape(d, b - a).T
        found = np.empty_like(own)
        found[self.order] = own
        return torch.from_numpy(found)


def fits(features: Tensor, columns: int, loss: ScalarLoss) -> bool:
    """Whether a fused pass is the one to take."""
    large = len(features) * columns >= WORTH
    known = columns <= NARROW and loss.name in KINDS and features.device.type == "cpu"
    return large and known and available()


@cache
def available() -> bool:
    """Whether numba is installed, and of use; said once."""
    try:
        import_module("corsage.solvers.losses.fused")
    except ModuleNotFoundError:
        log.info("local steps: by torch; pip install 'corsage[fast]' makes them faster.")
        return False
    except Exception as error:  # whatever is wrong with an extra, torch is there
        log.warning("local steps: by torch, as numba cannot be loaded: %s", error)
        return False
    log.info("local steps: one fused pass each, by numba.")
    return True


def chunks(
    rows: Tensor, labels: Tensor, sizes: Ints, loss: ScalarLoss, share: Tensor, ridge: Tensor
) -> Chunks:
    """The layout of samples `rows` (N, d), one user after the other; of classes they are -l a."""
    order = np.argsort(-sizes, kind="stable")
    first = _cut(sizes[order])
    users, longest = np.diff(first), sizes[order][first[:-1]]
    starts = np.append(0, np.cumsum(users * longest))
    place, d = np.argsort(order), rows.shape[1]
    of, number = cells(sizes)
    chunk = np.searchsorted(first, place[of], "right") - 1
    lane, wide = place[of] - first[chunk], users[chunk]
    at = d * starts[chunk] + number * d * wide + lane
    laid = np.zeros(d * starts[-1], rows.numpy().dtype)
    for q in range(d):
        laid[at + q * wide] = rows[:, q].numpy()
    y = np.zeros(0 if loss.classes else starts[-1], laid.dtype)
    if not loss.classes:
        y[starts[chunk] + number * wide + lane] = labels.numpy()
    delta = float(loss.slope(rows.new_tensor(np.inf), rows.new_zeros(())))  # the largest slope
    own = share.numpy()[order]
    return Chunks(order, first, starts, laid, y, own, ridge.numpy(), KINDS[loss.name], delta)


def _cut(sizes: Ints) -> Ints:
    """Where chunks of users begin, and their end; sizes fall."""
    first = [0]
    while first[-1] < len(sizes):
        begin = first[-1]
        alike = int(np.searchsorted(-sizes, -ALIKE * sizes[begin], "right"))
        first.append(min(max(alike, begin + LEAST), begin + WIDTH, len(sizes)))
    return np.array(first)
