"""Personal state, which a user keeps between rounds and never sends.

Each is kept in one place. A device has files, if it has a `state-dir`: they survive a restart of
the node. Simulated users have a database in the run folder, or files where they are on many
machines. Who has no folder keeps it in Flower's `context.state`. Every version carries the round
that made it, so a round that the server never finished can be forgotten.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from corsage.app.states import behind
from corsage.app.states.database import Database
from corsage.app.states.shelf import Kept, Shelf, whole
from corsage.app.states.state_files import safe_name
from corsage.core.arrays import Arrays
from corsage.core.errors import StateLost, StorageError


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
