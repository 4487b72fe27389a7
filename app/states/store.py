"""Personal state: what a user keeps between rounds, and never sends.

Where it is kept depends on the node. A device has it in Flower's `context.state`, and in files if
it has a `state-dir`, where it survives the restart of the node. Simulated users have theirs in one
database in the run folder. Every version carries the round that made it, so a round that the server
never finished can be forgotten.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path

from corsage.app.states import behind
from corsage.app.states.database import Database
from corsage.app.states.files import safe_name
from corsage.app.states.models import ModelShelf
from corsage.app.states.shelf import Kept, Shelf, whole
from corsage.core.arrays import Arrays
from corsage.core.errors import StateLost, StorageError


class PersonalStore:
    """The personal states of a node's users in one experiment.

    Parameters
    ----------
    shelves : where the states are kept: in each of them, and read from the first that has them.
    simulated : users are simulated: a state that cannot be kept ends the run, since to drop users
        for want of space would give other numbers. A device's user is dropped, and named.
    models : where the models that were judged go, if anywhere.
    """

    def __init__(
        self,
        shelves: Sequence[Shelf],
        simulated: bool = False,
        models: ModelShelf | None = None,
    ) -> None:
        self._shelves, self._simulated, self.models = shelves, simulated, models

    def load(self, user: str, version: int) -> Arrays:
        """A user's state of that version; version 0 is empty. StateLost if it is gone."""
        if whole(version) == 0:
            return {}
        for shelf in self._shelves:
            try:
                found = shelf.load(user, version)
            except OSError as error:
                raise self._unreadable(error) from error
            if found is not None:
                return found
        raise StateLost(user, "restore", f"its state of round {version} is gone; it starts anew")

    def save(self, version: int, states: Iterable[Kept]) -> dict[str, str]:
        """Keep a new version of some users' states; returns whose could not be kept, and why."""
        whole(version)
        causes: dict[str, str] = {}
        several = list(states)
        for group in [several] if self._simulated else [[state] for state in several]:
            try:
                for shelf in reversed(self._shelves):
                    shelf.save(version, group)
            except OSError as error:
                if self._simulated:
                    raise StorageError(f"personal states cannot be kept: {error}") from error
                causes |= {state.user: error.strerror or str(error) for state in group}
        return causes

    def users(self) -> list[str]:
        """Who has a state."""
        return sorted({user for shelf in self._shelves for user in shelf.users()})

    def versions(self, user: str) -> list[int]:
        """Which versions a user has, in order."""
        return sorted({v for shelf in self._shelves for v in shelf.versions(user)})

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
    """What the simulated users of a run folder keep, to be read only.

    Parameters
    ----------
    folder : the run folder.
    strategy : which of its strategies.
    run : the run, as the folder's config.json names it.
    """
    file = database_of(folder / strategy / "users", f"{strategy}-{run}")
    return PersonalStore([Database(file, readonly=True)])
