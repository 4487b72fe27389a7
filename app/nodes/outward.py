"""What an error of a device says to the server: never what is in its files, nor where they are.

The whole error is in the device's own log. What may leave it is what Corsage itself said of the
message and of the model; of all else only its type and the line of code where it was raised.
"""

from __future__ import annotations

from logging import WARNING
from pathlib import Path

from flwr.supercore import log

from corsage.core.errors import ONE_SAMPLE, ModelError, Refused, StateLost, UserError, escaped, line

REMEDY = (
    "a batch has one sample, too few for BatchNorm: set another batch-size, or batch-norm=frozen "
    "for users who have no more"
)
EMBEDDING = "index out of range in self"
WORDS = (
    "an embedding got a number that is no index of its table; set scale=none where whole numbers "
    "are words, or they are standardised as columns of a table are"
)
LOG = "the device's own log says more"


def outward(phase: str, error: BaseException) -> str:
    """An error as it goes to the server, in one line; the device's log gets all of it."""
    log(WARNING, "%s: %s", phase, escaped(describe(error)))
    return line(told(phase, error))


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
    return f"{phase}: {type(cause).__name__}{raised_at(error)}; {LOG}"


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
