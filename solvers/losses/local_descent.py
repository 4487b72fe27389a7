"""Many gradient steps of linear models, without a word from others in between.

With the optional extra `fast` (llvmlite) samples of few columns are laid out for one fused pass a
step (`fused`). Without it, or with more columns, each block of users takes all its steps in torch
before the next one does. Both are equal to rounding, and one line of the log says which is taken.
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
"""Numbers from which on it pays to compile a kernel."""
LINE = 64
"""Bytes that the processor reads at once: vectors begin where such a line does."""
log = getLogger("corsage")


@dataclass(frozen=True)
class Lanes:
    """Users side by side, as the kernel takes them: one in each lane of a block's vectors.

    Parameters
    ----------
    kernel : takes the steps.
    into : of each number of the blocks' models, the place in the users' models; the first one in
        lanes that nobody has.
    back : of each number of the users' models (n, d), the place in the blocks'.
    starts : where each block's rows begin, and their end.
    rows, y, share, ridge, delta : the losses.
    """

    kernel: Any
    into: Ints
    back: Ints
    starts: Ints
    rows: NDArray[Any]
    y: NDArray[Any]
    share: NDArray[Any]
    ridge: NDArray[Any]
    delta: float

    def descend(self, x: Tensor, k: int, step: float) -> Tensor:
        """x (n, d) after k steps."""
        theta = empty(len(self.into), self.rows.dtype)
        np.take(x.numpy(), self.into, out=theta, mode="clip")
        arrays = self.rows, self.y, self.starts, theta, self.share, self.ridge
        self.kernel(arrays, len(self.starts) - 1, k, step, self.delta)
        return torch.from_numpy(theta.take(self.back))


def fits(features: Tensor, columns: int, loss: ScalarLoss) -> bool:
    """True if a fused pass is the one to take."""
    large = len(features) * columns >= WORTH
    known = columns <= NARROW and features.device.type == "cpu"
    return large and known and kernel(loss.name, columns, features.dtype) is not None


@cache
def kernel(loss: str, columns: int, dtype: torch.dtype) -> Any:
    """A fused pass over losses of such a name, if there is one: with llvmlite, if it is of use."""
    if (fused := library()) is None or loss not in (*fused.CLASS_LOSSES, *fused.RESIDUAL_LOSSES):
        return None
    try:
        return fused.Kernel(loss, columns, dtype == torch.float32)
    except Exception as error:  # whatever is wrong with an extra, torch is there
        log.warning("local steps: by torch, as llvmlite cannot compile them: %s", error)
        return None


@cache
def library() -> Any:
    """The compiler of kernels, None if it is not installed, or of no use; said once."""
    try:
        found = import_module("corsage.solvers.losses.fused")
    except ModuleNotFoundError:
        log.info("local steps: by torch; pip install 'corsage[fast]' makes them faster.")
        return None
    except Exception as error:
        log.warning("local steps: by torch, as llvmlite cannot be loaded: %s", error)
        return None
    log.info("local steps: one fused pass each, by llvmlite.")
    return found


def in_lanes(
    rows: Tensor, labels: Tensor, sizes: Ints, loss: ScalarLoss, share: Tensor, ridge: Tensor
) -> Lanes:
    """The layout of samples `rows` (N, d), one user after the other; of classes they are -l a."""
    n, d = len(sizes), rows.shape[1]
    dtype, fused = rows.numpy().dtype, library()
    wide = fused.lanes(dtype)
    order = np.argsort(-sizes, kind="stable")
    starts = np.append(0, np.cumsum(sizes[order][::wide]))  # of a block the first has most rows
    block, lane = np.divmod(np.argsort(order), wide)
    back = (block[:, None] * d + np.arange(d)) * wide + lane[:, None]
    blocks = len(starts) - 1
    into = np.zeros(blocks * d * wide, np.int64)
    into[back.ravel()] = np.arange(n * d)
    own = empty(blocks * wide, dtype)
    own[block * wide + lane] = share.numpy()
    of, number = cells(sizes)
    at = starts[block[of]] + number
    laid = empty(d * wide * starts[-1], dtype)
    for q in range(d):
        laid[(at * d + q) * wide + lane[of]] = rows[:, q].numpy()
    y = empty(0 if loss.classes else wide * starts[-1], dtype)
    if not loss.classes:
        y[at * wide + lane[of]] = labels.numpy()
    delta = float(loss.slope(rows.new_tensor(np.inf), rows.new_zeros(())))  # the largest slope
    known = kernel(loss.name, d, rows.dtype)
    return Lanes(known, into, back, starts, laid, y, own, ridge.numpy(), delta)


def empty(count: int, dtype: np.dtype[Any]) -> NDArray[Any]:
    """Zeros that begin where a line of the processor's cache does."""
    room = np.zeros(count * dtype.itemsize + LINE, np.uint8)
    begin = -room.ctypes.data % LINE
    return room[begin : begin + count * dtype.itemsize].view(dtype)
