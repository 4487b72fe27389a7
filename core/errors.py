"""Errors that end a run: each says in one line what is wrong, where, and what to do."""

from __future__ import annotations

from pathlib import Path


class CorsageError(Exception):
    """Anything that Corsage itself refuses or cannot do; `code`: a failed run's exit code."""

    code = 1


class ConfigError(CorsageError):
    """A key, a value or a combination of them that cannot be used."""


class NotInstalled(ConfigError):
    """A part of Corsage that was taken out, named where something needs it."""


class Refused(ConfigError):
    """A word or wish of another party that is not believed or done, in words that it may hear."""


class DataError(CorsageError):
    """Data that are missing, malformed or too few."""


class OtherData(DataError):
    """Data that are not those that a run began with."""


class ModelError(CorsageError):
    """A model that cannot be built or split into a body and a head."""


class CheckpointError(CorsageError):
    """A checkpoint that is damaged, or of another run."""


class CannotResume(CheckpointError):
    """A folder that holds no run, or keys under which its run cannot go on."""


UNUSABLE = (ConfigError, DataError, ModelError, CannotResume)
"""A key, a value or a file that cannot be used: the same run would end so again."""


class NodeError(CorsageError):
    """Nodes that did not come, or left."""


class NodesSilent(NodeError):
    """Nodes that were there and reply no more: a resume later may go well (EX_TEMPFAIL)."""

    code = 75


class RoundFailed(CorsageError):
    """A round in which too few users gave a usable reply."""


class StorageError(CorsageError):
    """A disk that is full, or files that cannot be written."""


class StatesGone(CheckpointError):
    """Simulated users' states that a checkpoint names and that are damaged or deleted."""


class StrategiesFailed(CorsageError):
    """Some strategies of a comparison have no result; those of the others are in `folder`."""

    def __init__(self, text: str, folder: Path) -> None:
        super().__init__(text)
        self.folder = folder


FOR_ALL = (NodeError, StorageError, OtherData)
"""What would end every other strategy of a comparison as well."""


class UserError(CorsageError):
    """A failure at one user: who, in which phase, and why."""

    def __init__(self, user: str, phase: str, cause: str) -> None:
        super().__init__(f"user {user}: {phase}: {cause}")
        self.user, self.phase, self.cause = user, phase, cause


class StateLost(UserError):
    """A user whose personal state of the wanted version is not there any more."""


ONE_SAMPLE = "Expected more than 1 value per channel"
"""What torch's BatchNorm says, in training, of a batch of one sample: how its error begins."""


LONGEST_LINE = 300
"""Characters of a line from elsewhere."""


def escaped(text: str) -> str:
    """The text without anything that a terminal obeys: ESC, CR, LF, and marks that turn text."""
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else ascii(c)[1:-1] for c in text)


def line(text: object, most: int = LONGEST_LINE) -> str:
    """A text from another party as one line of at most so many characters."""
    words = str(text)
    found = escaped(words[: most + 1].strip())
    return found if len(found) <= most else f"{found[: most - 4]} ..."
