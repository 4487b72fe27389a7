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
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any

from rich.console import Console
from safetensors.numpy import save

from corsage.app.checkpoint import read_checkpoint, write_checkpoint
from corsage.app.findings import findings_tables
from corsage.app.plots import write_plots
from corsage.app.progress import Progress
from corsage.app.report import write_report
from corsage.app.summary import summary_table
from corsage.core.config import Config
from corsage.core.errors import CheckpointError, CorsageError
from corsage.core.files import write_atomically
from corsage.core.keys import Value
from corsage.core.version import VERSION
from corsage.core.wire import decode
from corsage.strategies.rounds.base import Strategy
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
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if kind is None:
            self.finish()
        else:
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
        """Checkpoints and metrics, and a progress line."""
        recorder = Recorder(self.folder / name, {**self.identity, "strategy": name}, self.config)
        return [recorder, Watcher(self.config.run.num_rounds)]

    def results(self) -> list[dict[str, Any]]:
        """All results so far, in the order of the config."""
        found: list[dict[str, Any]] = []
        for name in self.config.run.strategy:
            path = self.folder / name / "result.json"
            if path.exists():
                found += json.loads(path.read_text(encoding="utf-8"))
        return found

    def summary(self) -> dict[str, Any]:
        """What `--json` writes."""
        return {
            "corsage": VERSION,
            "config": self.config.flat(),
            "results": self.results(),
        }

    def finish(self) -> None:
        """Write the summary and the report, print the table and the folder."""
        results = self.results()
        guarded(
            write_atomically, self.folder / "summary.json", json.dumps(self.summary(), indent=2)
        )
        rows = [row for name in self.config.run.strategy for row in read_rows(self.folder / name)]
        guarded(write_plots, self.folder, results, rows)
        guarded(write_report, self.folder, self.config.flat(), results, VERSION, rows)
        console = Console()
        console.print(summary_table(results))
        for table in findings_tables(results):
            console.print(table)
        console.print(f"Run folder: {self.folder}", soft_wrap=True, highlight=False)


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
        strategy.federation.durable = dict(progress.versions)
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
            strategy.federation.durable = dict(progress.versions)

    def on_end(self, strategy: Strategy[Any, Any], results: Sequence[dict[str, Any]]) -> None:
        """The result, and the shared arrays under their names in the model."""
        arrays = decode(strategy.named_arrays())
        if arrays:
            guarded(write_atomically, self.folder / "model.safetensors", save(arrays))
        guarded(write_atomically, self.folder / "result.json", json.dumps(results, indent=2))


class Watcher(Callback):
    """Shows a progress line."""

    shows_notes = True

    def __init__(self, num_rounds: int) -> None:
        self.num_rounds, self.progress = num_rounds, Progress()

    def on_start(self, strategy: Strategy[Any, Any]) -> None:
        """Begin the line; a resumed run begins where it stands."""
        self.progress.start(strategy.name, self.num_rounds, strategy.progress.round)

    def on_round_end(self, strategy: Strategy[Any, Any], row: dict[str, Any]) -> None:
        """Move on."""
        self.progress.update(row)

    def on_note(self, text: str) -> None:
        """A line above the progress."""
        self.progress.note(text)

    def on_end(self, strategy: Strategy[Any, Any], results: Sequence[dict[str, Any]]) -> None:
        """End the line."""
        self.progress.done()


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


def read_rows(folder: Path) -> list[dict[str, Any]]:
    """The rounds in a strategy's metrics; a line that a crash cut short is not one."""
    path = folder / "metrics.jsonl"
    lines = path.read_text(encoding="utf-8").split("\n")[:-1] if path.exists() else []
    return [json.loads(line) for line in lines]


def append_line(path: Path, line: str) -> None:
    """Add a line to a file."""
    with path.open("a", encoding="utf-8") as file:
        file.write(line + "\n")


def guarded(action: Callable[..., Any], *arguments: Any, **named: Any) -> Any:
    """Do something with files; what fails is one clear line."""
    try:
        return action(*arguments, **named)
    except FileExistsError:
        raise
    except OSError as error:
        where = error.filename or (arguments[0] if arguments else "")
        raise CorsageError(
            f"{where}: cannot be written ({error.strerror}). Free some space or choose another "
            "run-dir; what was written before is whole."
        ) from error
