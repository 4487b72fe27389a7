"""The run folder: one folder a run, with all that it leaves behind and all it needs to go on.

config.json              the resolved configuration
summary.json             the results, as `--json` writes them
report.html, *.png       what to look at
STRATEGY/metrics.jsonl   one line a round
STRATEGY/checkpoint      the whole state of the server after the last round
STRATEGY/model.safetensors  the shared arrays at the end
STRATEGY/users/          what simulated users keep for themselves (on devices: their state-dir)
"""

from __future__ import annotations

import json
import sys
import time
import uuid
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Any

from corsage.app.conclusion import conclude
from corsage.app.progress import Watcher
from corsage.app.recorder import Recorder
from corsage.app.remarks import Remarks
from corsage.core.config import Config
from corsage.core.errors import UNUSABLE, CheckpointError, CorsageError
from corsage.core.files import guarded, write_atomically
from corsage.core.keys import Value
from corsage.core.version import VERSION, warn_if_untested
from corsage.strategies.rounds.callbacks import Callback

# Keys that may change when a run is resumed: they do not change its numbers.
FREE = {
    "engine",
    "num-nodes",
    "run-dir",
    "resume",
    "cache-dir",
    "ray-address",
    "node-timeout",
    "round-timeout",
    "node-cpus",
    "node-gpus",
    "device",
    "torch-threads",
    "checkpoint-every",
}


class RunFolder:
    """One run on disk; a context manager that writes the summary when all went well."""

    def __init__(self, folder: Path, config: Config, identity: dict[str, Any]) -> None:
        self.folder, self.config, self.identity = folder, config, identity

    @classmethod
    def open(cls, config: Config) -> RunFolder:
        """A new folder, or with `resume` the one of an interrupted run."""
        if config.run.resume:
            folder = Path(config.run.resume).expanduser()
            stored = read_config(folder)
            check_same(folder, stored["config"], config.flat())
            return cls(folder, config, {"run": stored["run"], **fixed(config.flat())})
        run = uuid.uuid4().hex[:12]
        folder = new_folder(Path(config.run.run_dir).expanduser(), config.run.strategy)
        content = {"corsage": VERSION, "run": run, "config": config.flat()}
        guarded(write_atomically, folder / "config.json", json.dumps(content, indent=2))
        return cls(folder, config, {"run": run, **fixed(config.flat())})

    def __enter__(self) -> RunFolder:
        warn_if_untested()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if kind is None:
            conclude(self.folder, self.config)
        elif not isinstance(error, UNUSABLE):
            print(f"The run can be finished: --resume {self.folder}", file=sys.stderr)

    def unfinished(self) -> list[str]:
        """The strategies that have no result yet."""
        return [
            n for n in self.config.run.strategy if not (self.folder / n / "result.json").exists()
        ]

    def experiment(self, name: str) -> str:
        """The name under which users keep their personal state."""
        return f"{name}-{self.identity['run']}"

    def state_dir(self, name: str) -> str:
        """Where simulated users keep their personal state."""
        return str((self.folder / name / "users").resolve())

    def callbacks(self, name: str) -> list[Callback]:
        """Checkpoints and metrics, a progress line, and remarks."""
        recorder = Recorder(self.folder / name, {**self.identity, "strategy": name}, self.config)
        return [recorder, Watcher(self.config.run.num_rounds), Remarks()]


def new_folder(parent: Path, strategies: tuple[str, ...]) -> Path:
    """A folder that nobody else has, named by time and strategies."""
    stem = f"{time.strftime('%Y-%m-%d_%H-%M-%S')}_{'+'.join(strategies)[:80]}"
    for number in range(1, 1000):
        folder = parent / (stem if number == 1 else f"{stem}_{number}")
        try:
            guarded(folder.mkdir, parents=True)
        except FileExistsError:
            continue
        return folder
    raise CorsageError(f"{parent}: no free name for a run folder.")


def read_config(folder: Path) -> dict[str, Any]:
    """What a run folder says about its run."""
    try:
        stored: dict[str, Any] = json.loads((folder / "config.json").read_text(encoding="utf-8"))
        if {"run", "config"} <= set(stored):
            return stored
    except (OSError, ValueError):
        pass
    raise CheckpointError(f"{folder}: not a run folder of Corsage (no readable config.json in it).")


def resumed(values: Mapping[str, Value]) -> dict[str, Any]:
    """With `resume`, the keys of the run to be finished, unless they are given anew.

    Flower passes all keys, the defaults among them: a key counts as given if it is not the default.
    """
    if not values.get("resume"):
        return dict(values)
    defaults = Config.parse().flat()
    given = {k: v for k, v in values.items() if v != defaults.get(k)}
    stored: dict[str, Any] = read_config(Path(str(values["resume"])).expanduser())["config"]
    return {**stored, **given}


def check_same(folder: Path, stored: dict[str, Any], now: dict[str, Value]) -> None:
    """Refuse to resume under settings that would change the numbers."""
    differ = [k for k in sorted(fixed(now)) if k not in stored or stored[k] != now[k]]
    if differ:
        changes = ", ".join(f"{k} was {stored.get(k)!r}, now {now[k]!r}" for k in differ[:3])
        raise CheckpointError(f"{folder}: cannot be resumed with another config: {changes}.")


def fixed(flat: dict[str, Any]) -> dict[str, Any]:
    """The keys that make a run what it is."""
    return {key: value for key, value in flat.items() if key not in FREE}
