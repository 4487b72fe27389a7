"""Records of a run while it goes on: metrics, checkpoints and results."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from safetensors.numpy import save

from corsage.app.results.metrics import readable_rows
from corsage.app.run.checkpoint import Checkpoints
from corsage.app.run.endings import write_result
from corsage.app.run.model_files import write_models
from corsage.app.run.status import note
from corsage.app.states.store import secure
from corsage.core.configuration.config import Config
from corsage.core.files import append_line, guarded, write_atomically
from corsage.core.messages.encoding import decode
from corsage.core.training_paths import CHOICES
from corsage.strategies.rounds.base import Strategy
from corsage.strategies.rounds.callbacks import Callback
from corsage.strategies.rounds.ledger import Ledger
from corsage.strategies.rounds.loop import is_over
from corsage.strategies.rounds.results import Summary

TRAINING_PATH = "training-path.json"


class Recorder(Callback):
    """Writes metrics, checkpoints and results; a resumed run goes on where its checkpoint is.

    Parameters
    ----------
    folder : the strategy's.
    identity : which run and strategy it is, and under which keys.
    goes_on : is told when a round begins.
    """

    def __init__(
        self,
        folder: Path,
        identity: dict[str, Any],
        config: Config,
        goes_on: Callable[[], None] = lambda: None,
    ) -> None:
        self.folder, self.config, self.goes_on = folder, config, goes_on
        self.checkpoints = Checkpoints(folder, identity, config.flat(), config.run.keep_checkpoints)
        self.versions: dict[int, Ledger] = {}  # of users' states, as each kept checkpoint has them

    def on_start(self, strategy: Strategy[Any, Any]) -> None:
        """Take over the newest sane checkpoint, if there is one, and the metrics up to it."""
        guarded(self.folder.mkdir, parents=True, exist_ok=True)
        self.checkpoints.note = strategy.job.note.warn
        kinds = {name: type(part) for name, part in strategy.parts.items()}
        self.versions = {}
        for number, parts in self.checkpoints.sane(kinds):
            if not self.versions:
                strategy.restore(parts)
            self.versions = {number: parts["progress"].versions.copy(), **self.versions}
        strategy.job.hold([*self.versions.values()])
        kept, damaged = readable_rows(self.folder)
        if damaged:
            strategy.job.note(f"metrics.jsonl: {damaged} damaged lines are left out")
        keep_path(self.folder.parent, strategy.job.built.training_path)
        rows = [row for row in kept if row["round"] <= strategy.progress.round]
        text = "".join(json.dumps(row) + "\n" for row in rows)
        guarded(write_atomically, self.folder / "metrics.jsonl", text)

    def on_round_start(self, strategy: Strategy[Any, Any], number: int) -> None:
        """The data fit, and all is asked that comes before."""
        self.goes_on()

    def on_round_end(self, strategy: Strategy[Any, Any], row: dict[str, Any]) -> None:
        """One line of metrics, and a checkpoint when it is due."""
        last = is_over(strategy, strategy.length(self.config.run.num_rounds))
        due = last or row["round"] % self.config.run.checkpoint_every == 0
        guarded(append_line, self.folder / "metrics.jsonl", json.dumps(row), durable=due)
        if due:
            # What it names must be there whatever happens: first the states, then the checkpoint.
            secure_states(strategy, last)
            guarded(self.checkpoints.write, row["round"], strategy.parts)
            self.versions[row["round"]] = strategy.progress.versions.copy()
            self.versions = {number: self.versions[number] for number in self.checkpoints.kept}
            strategy.job.hold([*self.versions.values()])

    def on_note(self, text: str) -> None:
        """The last note stands in the run's status."""
        note(self.folder.parent, text)

    def on_end(self, strategy: Strategy[Any, Any], results: Sequence[Summary]) -> None:
        """The models, the result, and the shared arrays under their names in the model."""
        secure_states(strategy, last=True)  # users may have kept something after the last round
        guarded(write_models, strategy, self.folder)
        arrays = decode(strategy.named_arrays())
        found = [summary.json() for summary in results]
        rounds = self.config.run.num_rounds
        write_result(self.folder, found, rounds, save(arrays) if arrays else b"")


def secure_states(strategy: Strategy[Any, Any], last: bool) -> None:
    """Wait until what simulated users keep is on the disk itself."""
    if folder := strategy.job.state_dir:
        secure(Path(folder), last)


def keep_path(run: Path, name: str) -> None:
    """Note the path on which a run's models are trained, for the strategies that come later."""
    if name != path_of(run):
        guarded(write_atomically, run / TRAINING_PATH, json.dumps(name), durable=True)


def path_of(run: Path) -> str:
    """The path that a run has chosen; empty if there is none yet."""
    with suppress(OSError, ValueError):
        name = json.loads((run / TRAINING_PATH).read_text(encoding="utf-8"))
        return name if name in CHOICES else ""
    return ""
