"""Reports of a node's work, and errors in words that may leave a device.

They say nothing of its files, nor of where they are: the whole error is in the device's own log.
What may leave it is what Corsage itself said of the message and of the model; of all else only its
type and the line of code where it was raised.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from logging import DEBUG, WARNING
from pathlib import Path
from typing import Any

import numpy as np
from flwr.supercore import log
from numpy.typing import NDArray

from corsage.core.arrays import Bools
from corsage.core.errors import ONE_SAMPLE, ModelError, Refused, StateLost, UserError, escaped, line
from corsage.core.messages.replies import Reply

REMEDY = (
    "a batch has one sample, too few for BatchNorm: set batch-norm=frozen, leave out users who "
    "have no more (min-samples), or set batch-size above 1"
)
EMBEDDING = "index out of range in self"
EMBEDDING_REMEDY = (
    "an embedding got a number that is no index of its table; set scale=none where whole numbers "
    "are words, or they are standardised as columns of a table are"
)
DEVICE_LOG = "the device's own log says more"
Numbers = Mapping[str, NDArray[Any]]


@dataclass
class Report(Reply):
    """The results of a node's participants.

    `mean` is what a single user returned. Of several it is their weighted sum, high and low, so
    that the server's mean does not depend on how users are dealt to nodes; their mean if no other
    node is asked, and on a device, in double precision.
    """

    device: bool = False  # what its errors say leaves somebody's machine

    def add_numbers(self, users: list[str], good: Bools, metrics: Numbers) -> None:
        """Add users and their numbers."""
        chosen = np.flatnonzero(good)
        self.users += [users[i] for i in chosen]
        for name, values in metrics.items():
            column = np.asarray(values, dtype=np.float64)[chosen]
            self.metrics.setdefault(name, []).extend(column.tolist())

    def name_failure(self, user: str, phase: str, error: Exception) -> None:
        """Note why a participant has no result."""
        log(DEBUG, "user %s failed", user, exc_info=error)
        if isinstance(error, StateLost):
            self.lost.append(user)
        if self.device:
            self.failed[user] = outward(phase, error)
            return
        if isinstance(error, UserError):
            self.failed[user] = f"{error.phase}: {error.cause}"
            return
        text = " ".join(str(error).split())
        if text.startswith(ONE_SAMPLE):
            text += f"; {REMEDY}"
        elif isinstance(error, IndexError) and text == EMBEDDING:
            text += f"; {EMBEDDING_REMEDY}"
        self.failed[user] = f"{phase}: {type(error).__name__}: {text}{raised_at(error)}"


def outward(phase: str, error: BaseException) -> str:
    """An error as it goes to the server, in one line; the device's log gets all of it."""
    log(WARNING, "%s: %s", phase, escaped(describe(error)))
    return line(told(phase, error))


def not_kept(user: str, cause: str) -> str:
    """Why a user of a device is dropped whose state cannot be written; its own log says it, too."""
    log(WARNING, "user %s: its state cannot be kept in state-dir: %s", user, cause)
    return f"keep: {cause}"


def told(phase: str, error: BaseException) -> str:
    """An error in words that may leave the device."""
    if isinstance(error, StateLost):
        return f"{error.phase}: its state is gone or damaged; it starts anew"
    if isinstance(error, UserError) and error.__cause__ is None:
        return f"{error.phase}: {error.cause}"
    if isinstance(error, Refused) or (isinstance(error, ModelError) and error.__cause__ is None):
        return f"{phase}: {error}"
    if str(error).startswith(ONE_SAMPLE):
        return f"{phase}: {REMEDY}"
    cause = error.__cause__ if isinstance(error, UserError) and error.__cause__ else error
    return f"{phase}: {type(cause).__name__}{raised_at(error)}; {DEVICE_LOG}"


def describe(error: BaseException) -> str:
    """An exception in one line: its type, what it says, and where it was raised."""
    text = " ".join(str(error).split())
    return f"{type(error).__name__}: {text}{raised_at(error)}"


def raised_at(error: BaseException) -> str:
    """The file and line of code where an error was raised; no file is opened for it."""
    frame = error.__traceback__
    while frame is not None and frame.tb_next is not None:
        frame = frame.tb_next
    if frame is None:
        return ""
    return f" ({Path(frame.tb_frame.f_code.co_filename).name}:{frame.tb_lineno})"
