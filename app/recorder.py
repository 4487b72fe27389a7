"""What a run writes down while it goes on: metrics, checkpoints and results."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from safetensors.numpy import save

from corsage.app.checkpoint import read_checkpoint, write_checkpoint
from corsage.core.config import Config
from corsage.core.files import append_line, guarded, write_atomically
from corsage.core.wire import decode
from corsage.strategies.rounds.base import Strategy
from corsage.strategies.rounds.callbacks import Callback
from corsage.strategies.rounds.results import Summary


class Recorder(Callback):
    """Writes metrics, checkpoints and results; a resumed run goes on where its checkpoint is."""

    def __init__(self, folder: Path, identity: dict[str, Any], config: Config) -> None:
        self.folder, self.identity, self.config = folder, identity, config

    def on_start(self, strategy: Strategy[Any, Any]) -> None:
        """Take over the checkpoint, if there is one, and the metrics up to it."""
        guarded(self.folder.mkdir, parents=True, exist_ok=True)
        checkpoint = self.folder / "checkpoint"
        if checkpoint.exists():
            strategy.restore(*read_checkpoint(checkpoint, self.identity, type(strategy.state)))
        progress = strategy.progress
        strategy.federation.checkpointed()
        kept = [row for row in read_rows(self.folder) if row["round"] <= progress.round]
        text = "".join(json.dumps(row) + "\n" for row in kept)
        guarded(write_atomically, self.folder / "metrics.jsonl", text)

    def on_round_end(self, strategy: Strategy[Any, Any], row: dict[str, Any]) -> None:
        """One line of metrics, and a checkpoint when it is due."""
        guarded(append_line, self.folder / "metrics.jsonl", json.dumps(row))
        last = strategy.is_over(self.config.run.num_rounds)
        if last or row["round"] % self.config.run.checkpoint_every == 0:
            path, progress = self.folder / "checkpoint", strategy.progress
            guarded(write_checkpoint, path, progress, strategy.state, self.identity)
            strategy.federation.checkpointed()

    def on_end(self, strategy: Strategy[Any, Any], results: Sequence[Summary]) -> None:
        """The result, and the shared arrays under their names in the model."""
        arrays = decode(strategy.named_arrays())
        if arrays:
            guarded(write_atomically, self.folder / "model.safetensors", save(arrays))
        text = json.dumps([summary.json() for summary in results], indent=2)
        guarded(write_atomically, self.folder / "result.json", text)


def read_rows(folder: Path) -> list[dict[str, Any]]:
    """The rounds in a strategy's metrics; a line that a crash cut short is not one."""
    path = folder / "metrics.jsonl"
    lines = path.read_text(encoding="utf-8").split("\n")[:-1] if path.exists() else []
    return [json.loads(line) for line in lines]
