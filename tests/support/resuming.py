"""Runs that are stopped after a checkpoint and resumed from it, as a run folder does it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from corsage.app.run.checkpoint import read_checkpoint, write_checkpoint
from corsage.strategies.rounds.base import Strategy
from corsage.strategies.rounds.callbacks import Callback

IDENTITY = {"run": 1}


class Stop(Callback):
    """Checkpoints after every round and stops the run in one of them, before its checkpoint."""

    def __init__(self, path: Path, after: int) -> None:
        self.path, self.after = path, after

    def on_round_end(self, strategy: Strategy[Any, Any], row: dict[str, Any]) -> None:
        if row["round"] == self.after:
            raise KeyboardInterrupt  # before the checkpoint: the round is lost
        write_checkpoint(self.path, strategy.parts, IDENTITY)
        strategy.job.hold([dict(strategy.progress.versions)])


class Resume(Callback):
    """Takes over a checkpoint; `round` is the one that it must be of."""

    def __init__(self, path: Path, round: int) -> None:
        self.path, self.round = path, round

    def on_start(self, strategy: Strategy[Any, Any]) -> None:
        kinds = {name: type(part) for name, part in strategy.parts.items()}
        strategy.restore(read_checkpoint(self.path, IDENTITY, kinds))
        strategy.job.hold([dict(strategy.progress.versions)])
        assert strategy.progress.round == self.round
