"""Numbers for Weights & Biases: a run of its own for each strategy.

Where they go to is as W&B has it: `WANDB_PROJECT` (or `corsage`), `WANDB_ENTITY`, `WANDB_MODE`.
Offline, W&B keeps what it was told in memory for a while, and a killed process loses it: a run that
is resumed is told there from its first round, in a new folder that takes the place of the old one.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from corsage.app.tracking.tracker import Numbers, Part, Tracker, group_of
from corsage.core.errors import ConfigError

FINISH_SECONDS = 60.0
"""How long the end of a run waits for a server that is away."""


def check_login() -> None:
    """Refuse to begin where W&B would ask for a key, in the middle of a run."""
    import wandb

    if wandb.setup().settings.mode == "online" and not wandb.login(prompt=False):
        raise ConfigError("nobody is logged in: wandb login, or WANDB_MODE=offline.")


def forget_earlier(folder: Path, now: Path) -> None:
    """Delete what earlier attempts left: this one is told all of it."""
    for earlier in folder.glob("wandb/offline-run-*"):
        if not earlier.samefile(now):
            shutil.rmtree(earlier, ignore_errors=True)


class WandB(Tracker):
    """Tells Weights & Biases; a run that is resumed goes on after what the server has of it."""

    name = "wandb"

    def begin(self, part: Part) -> int:
        """The run there; its name at W&B is that at our nodes, which stays."""
        import wandb

        folder = None if "WANDB_DIR" in os.environ or part.folder is None else part.folder
        if folder:
            folder.mkdir(parents=True, exist_ok=True)
        self.strategy = part.strategy
        self.run: Any = wandb.init(
            project=os.environ.get("WANDB_PROJECT") or "corsage",
            id=part.experiment,
            name=part.title,
            group=part.group or None,
            job_type=part.strategy,
            config=dict(part.keys),
            dir=folder,
            resume="allow",
            reinit="create_new",
            settings=wandb.Settings(console="off", silent=True, finish_timeout=FINISH_SECONDS),
        )
        if folder and self.run.offline:
            forget_earlier(folder, Path(self.run.dir).parent)
        return max(int(self.run.starting_step) - 1, 0)

    def log(self, number: int, values: Numbers) -> None:
        """A step of the run's history."""
        self.run.log({**values, "round": number}, step=number)

    def finish(self, number: int, rows: Mapping[str, Numbers]) -> None:
        """All rows in the run's summary."""
        for row, values in rows.items():
            group = group_of(row, self.strategy)
            self.run.summary.update({f"{group}/{name}": value for name, value in values.items()})

    def leave(self, report: Path | None, ended: bool) -> None:
        """The report as an artifact, and how the run ended."""
        import wandb

        if report:
            artifact = wandb.Artifact(f"report-{self.run.id}", type="report")
            artifact.add_file(str(report))
            self.run.log_artifact(artifact)
        self.run.finish(exit_code=0 if ended else 1)
