"""Places for what a node keeps: its users' states, and the models that they are judged by."""

from __future__ import annotations

from functools import partial
from pathlib import Path

from flwr.app import Context

from corsage.app.nodes.node import Node
from corsage.app.states.behind import Behind, behind
from corsage.app.states.database import Database
from corsage.app.states.pieces import FOLDER, ModelShelf, PieceFolder, PiecesInContext
from corsage.app.states.shelf import Shelf
from corsage.app.states.state_dir import clear
from corsage.app.states.state_files import Files
from corsage.app.states.store import InContext, PersonalStore, database_of
from corsage.core.messages.wire import Task

OPEN_DATABASES = 4
"""A strategy may have users that keep other states beside their own, in a file of their own."""


class Places:
    """Finds the place that a message needs; databases stay open, as long as they are in use."""

    def __init__(self) -> None:
        self._databases: dict[Path, Database | Behind] = {}

    def __reduce__(self) -> tuple[type[Places], tuple[()]]:
        """Another process, such as a worker of Ray's, opens its own."""
        return Places, ()

    def states(self, context: Context, node: Node, task: Task) -> PersonalStore:
        """A device keeps states where it says itself; a simulated node where the server says."""
        return PersonalStore(self._shelf(context, node, task), node.simulated)

    def models(self, context: Context, node: Node, task: Task) -> ModelShelf | None:
        """A place for models: pieces for the run's own process, or a device's own files."""
        if not node.simulated:
            return None if node.state_dir is None else device_files(node.state_dir, node, task)
        if task.state_dir:
            return PieceFolder(Path(task.state_dir).with_name(FOLDER))
        return PiecesInContext(context)

    def _shelf(self, context: Context, node: Node, task: Task) -> Shelf:
        """A database does not work over a network: simulated users on many machines have files."""
        if not node.simulated and node.state_dir is not None:
            return device_files(node.state_dir, node, task)
        if not node.simulated or not task.state_dir:
            return InContext(context, task.experiment)
        folder = Path(task.state_dir)
        if task.many_machines:
            return Files(folder, task.experiment, durable=False)
        return self._database(database_of(folder, task.experiment))

    def _database(self, path: Path) -> Database | Behind:
        """The open one, if there is one; the one that was not needed for longest is closed."""
        database = behind(path) or self._databases.get(path) or Database(path)
        self._databases.pop(path, None)
        self._databases[path] = database
        while len(self._databases) > OPEN_DATABASES:
            self._databases.pop(next(iter(self._databases))).close()
        return database


def device_files(folder: Path, node: Node, task: Task) -> Files:
    """A device's files of an experiment; the first of a new one makes room for it."""
    files = Files(folder, task.experiment)
    files.on_new = partial(clear, folder, node.keep_runs, files.folder)
    return files
