"""Where a node keeps its users' states."""

from __future__ import annotations

from functools import partial
from pathlib import Path

from flwr.app import Context

from corsage.app.nodes.node import Node
from corsage.app.states.behind import Behind, behind
from corsage.app.states.database import Database
from corsage.app.states.files import Files
from corsage.app.states.memory import OTHERS, InContext
from corsage.app.states.models import FOLDER, PieceFolder, PiecesInContext
from corsage.app.states.state_dir import clear
from corsage.app.states.store import PersonalStore, database_of
from corsage.core.messages.wire import Task

OPEN = 4
"""A strategy may have users that keep other states beside their own, in a file of their own."""


class Places:
    """Finds the store that a message needs; databases stay open, as long as they are in use."""

    def __init__(self) -> None:
        self._databases: dict[Path, Database | Behind] = {}

    def __reduce__(self) -> tuple[type[Places], tuple[()]]:
        """Another process, such as a worker of Ray's, opens its own."""
        return Places, ()

    def of(self, context: Context, node: Node, task: Task) -> PersonalStore:
        """A device keeps states where it says itself; a simulated node where the server says.

        Ray copies a context to a worker and back with every message, so simulated users on one
        machine keep theirs in a database alone. Those on many machines have them in the context,
        too, and in files: SQLite does not work over a network.
        """
        if not node.simulated:
            return self._device(context, node, task.experiment)
        if not task.state_dir:
            shelf = InContext(context, task.experiment, OTHERS)
            return PersonalStore([shelf], simulated=True, models=PiecesInContext(context))
        pieces = PieceFolder(Path(task.state_dir).with_name(FOLDER))
        memory = InContext(context, task.experiment)
        folder = Path(task.state_dir)
        if task.many_machines:
            files = Files(folder, task.experiment, durable=False)
            return PersonalStore([memory, files], simulated=True, models=pieces)
        database = self._database(database_of(folder, task.experiment))
        return PersonalStore([database], simulated=True, models=pieces)

    def _device(self, context: Context, node: Node, experiment: str) -> PersonalStore:
        if node.state_dir is None:
            return PersonalStore([InContext(context, experiment, OTHERS)])
        files = Files(node.state_dir, experiment)
        files.on_new = partial(clear, node.state_dir, node.keep_runs, files.folder)
        return PersonalStore([InContext(context, experiment), files], models=files)

    def _database(self, path: Path) -> Database | Behind:
        """The open one, if there is one; the one that was not needed for longest is closed."""
        found = behind(path) or self._databases.get(path) or Database(path)
        self._databases.pop(path, None)
        self._databases[path] = found
        while len(self._databases) > OPEN:
            self._databases.pop(next(iter(self._databases))).close()
        return found
