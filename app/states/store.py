"""Personal state, which a user keeps between rounds and never sends.

Each is kept in one place. A device has files, if it has a `state-dir`: they survive a restart of
the node. Simulated users have a database in the run folder, or files where they are on many
machines. Who has no folder keeps it in Flower's `context.state`. Every version carries the round
that made it, so a round that the server never finished can be forgotten.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path

from flwr.app import ArrayRecord, Context

from corsage.app.states import behind
from corsage.app.states.database import Database
from corsage.app.states.pieces import FOLDER
from corsage.app.states.shelf import Kept, Shelf, whole
from corsage.app.states.state_files import safe_name
from corsage.core.arrays import Arrays
from corsage.core.errors import StateLost, StorageError
from corsage.core.messages.encoding import decode, encode


class PersonalStore:
    """The personal states of a node's users in one experiment.

    Parameters
    ----------
    shelf : where the states are kept.
    simulated : users are simulated: a state that cannot be kept ends the run, since to drop users
        for want of space would give other numbers. A device's user is dropped, and named.
    """

    def __init__(self, shelf: Shelf, simulated: bool = False) -> None:
        self._shelf, self._simulated = shelf, simulated

    def load(self, user: str, version: int) -> Arrays:
        """A user's state of that version; version 0 is empty. StateLost if it is gone."""
        if whole(version) == 0:
            return {}
        try:
            state = self._shelf.load(user, version)
        except OSError as error:
            raise self._unreadable(error) from error
        if state is None:
            raise StateLost(
                user, "restore", f"its state of round {version} is gone; it starts anew"
            )
        return state

    def save(self, version: int, states: Iterable[Kept]) -> dict[str, str]:
        """Keep a new version of some users' states; returns whose could not be kept, and why."""
        whole(version)
        causes: dict[str, str] = {}
        several = list(states)
        for group in [several] if self._simulated else [[state] for state in several]:
            try:
                self._shelf.save(version, group)
            except OSError as error:
                if self._simulated:
                    raise StorageError(f"personal states cannot be kept: {error}") from error
                causes |= {state.user: error.strerror or str(error) for state in group}
        return causes

    def users(self) -> list[str]:
        """The users that have a state."""
        return sorted(self._shelf.users())

    def versions(self, user: str) -> list[int]:
        """The versions that a user has, in order."""
        return self._shelf.versions(user)

    def _unreadable(self, error: OSError) -> Exception:
        """Of a device's user it is not known that its state is gone: it is only dropped."""
        if self._simulated:
            return StorageError(f"personal states cannot be read: {error}")
        return error


def database_of(folder: Path, experiment: str) -> Path:
    """The file of an experiment's simulated users."""
    return folder / f"{safe_name(experiment)}.sqlite"


def secure(folder: Path, last: bool = False) -> None:
    """Wait until what simulated users keep in a folder is on the disk itself.

    To be done before a checkpoint that names it; the `last` time the files' logs are made empty.
    """
    behind.write(folder)
    for path in sorted(folder.glob("*.sqlite")):
        database = Database(path)
        if last:
            database.settle()
            database.close()
        database.secure()


def states_of(folder: Path, strategy: str, run: str) -> PersonalStore:
    """The states of the simulated users of a run folder, to be read only.

    Parameters
    ----------
    folder : the run folder.
    strategy : which of its strategies.
    run : the run, as the folder's config.json names it.
    """
    file = database_of(folder / strategy / "users", f"{strategy}-{run}")
    return PersonalStore(Database(file, readonly=True))


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
