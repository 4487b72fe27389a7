"""Personal states in a node's Flower context, which last as long as the node: without a folder."""

from __future__ import annotations

from collections.abc import Sequence

from flwr.app import ArrayRecord, Context

from corsage.app.states.pieces import FOLDER
from corsage.app.states.shelf import Kept
from corsage.app.states.state_files import safe_name
from corsage.core.arrays import Arrays
from corsage.core.messages.encoding import decode, encode

OTHER_EXPERIMENTS = 3
"""Other experiments whose states stay: those that take turns on one grid. The oldest go first."""


class InContext:
    """States in a context.

    Parameters
    ----------
    context : the node's, whose `state` is used.
    experiment : whose states they are.
    """

    def __init__(self, context: Context, experiment: str) -> None:
        self._records = context.state
        self._prefix = f"{safe_name(experiment)}/"
        self._versions: dict[str, set[int]] = {}
        known = dict.fromkeys(name.partition("/")[0] for name in reversed(list(self._records)))
        others = [name for name in known if name not in (safe_name(experiment), FOLDER)]
        gone = set(others[OTHER_EXPERIMENTS:])
        for name in list(self._records):
            if name.startswith(self._prefix):
                user, version = name.removeprefix(self._prefix).split("/")
                self._versions.setdefault(user, set()).add(int(version))
            elif name.partition("/")[0] in gone:
                del self._records[name]

    def load(self, user: str, version: int) -> Arrays | None:
        """That version, None if it is not there."""
        record = self._records.get(self._key(safe_name(user), version))
        return decode(record) if isinstance(record, ArrayRecord) else None

    def save(self, version: int, states: Sequence[Kept]) -> None:
        """Keep a version of some users' states."""
        for state in states:
            name = safe_name(state.user)
            self._records[self._key(name, version)] = encode(state.arrays)
            versions = self._versions.setdefault(name, set())
            for old in versions - state.others - {version}:
                del self._records[self._key(name, old)]
            versions &= state.others
            versions.add(version)

    def users(self) -> list[str]:
        """The users that have a state here, by names that are safe."""
        return sorted(self._versions)

    def versions(self, user: str) -> list[int]:
        """The versions that a user has here."""
        return sorted(self._versions.get(safe_name(user), ()))

    def _key(self, name: str, version: int) -> str:
        return f"{self._prefix}{name}/{version}"
