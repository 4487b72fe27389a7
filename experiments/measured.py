"""One run as a figure needs it: accuracy along the way, exchanges, bytes and CPU seconds.

What was measured is kept as a file a run, under a name that its keys, its data's file and Corsage's
version make: a command that was interrupted goes on with what is missing.
"""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from flwr.app import Message

from corsage.app.client_app import app
from corsage.app.engines import number_of_nodes
from corsage.app.local_grid import LocalGrid
from corsage.app.output.progress import Watcher
from corsage.core.configuration.config import Config
from corsage.core.files import write_atomically
from corsage.core.keys import kebab
from corsage.core.version import VERSION
from corsage.strategies import strategy_class
from corsage.strategies.rounds.base import Strategy
from corsage.strategies.rounds.callbacks import Callback

Point = tuple[float, float]
"""Bytes up to there, and accuracy."""


@dataclass(frozen=True)
class Measured:
    """What one run came to.

    Parameters
    ----------
    accuracy : of each row of the results, by its name: the mean over users and over the last ten
        rounds that were evaluated.
    points : (bytes up and down, accuracy) of every evaluation; bytes as devices would send them.
    exchanges : messages out, replies in, without those of evaluations.
    bytes_up, bytes_down, cpu : bytes of all users, and CPU seconds with evaluations.
    clusters : each user's cluster, where the method has clusters.
    """

    accuracy: dict[str, float]
    points: list[Point]
    exchanges: int
    bytes_up: int
    bytes_down: int
    cpu: float
    clusters: dict[str, str] = field(default_factory=dict)

    @property
    def sent(self) -> int:
        """Bytes up and down."""
        return self.bytes_up + self.bytes_down


class Counting(LocalGrid):
    """This process's grid, which counts what is asked besides evaluations."""

    exchanges = 0

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
        """Pass them on; messages that go out together are one exchange."""
        sent = list(messages)
        self.exchanges += any(m.metadata.message_type.startswith("train") for m in sent)
        return super().push_messages(sent)


class Points(Callback):
    """Remembers what every evaluation costs and says."""

    def __init__(self) -> None:
        self.found: list[Point] = []

    def on_round_end(self, strategy: Strategy[Any, Any], row: dict[str, Any]) -> None:
        """A point, if the round was evaluated."""
        if "accuracy" in row:
            sent = row["bytes_up"] + row["bytes_down"]
            self.found.append((float(sent), float(row["accuracy"]["mean"])))


def measured(strategy: str, keys: Mapping[str, Any], kept: Path) -> Measured:
    """One strategy under some keys (`num_users=100`): run, or read from the folder `kept`."""
    values = {"work": "as-set", **{kebab(name): value for name, value in keys.items()}}
    config = Config.parse({**values, "strategy": [strategy]})
    path = kept / f"{strategy}-{fingerprint(config)}.json"
    if path.is_file():
        found = json.loads(path.read_text())
        return Measured(**{**found, "points": [tuple(point) for point in found["points"]]})
    made = once(strategy, config)
    kept.mkdir(parents=True, exist_ok=True)
    write_atomically(path, json.dumps(asdict(made)))
    return made


def once(name: str, config: Config) -> Measured:
    """Run it in this process."""
    grid, points = Counting(app, number_of_nodes(config)), Points()
    strategy = strategy_class(name)(config, [Watcher(config.run.num_rounds), points])
    start = time.process_time()
    result = strategy.start(grid)
    cpu = time.process_time() - start
    own = result[name]
    return Measured(
        accuracy={row.strategy: row.last10 for row in result.summaries},
        points=points.found,
        exchanges=grid.exchanges,
        bytes_up=own.traffic.bytes_up,
        bytes_down=own.traffic.bytes_down,
        cpu=round(cpu, 3),
        clusters=own.clusters,
    )


def fingerprint(config: Config) -> str:
    """A short name of all keys, the data's file as it is now, and the version."""
    keys = config.flat()
    path = Path(str(keys.get("data-dir") or "")) / str(keys.get("data-file") or "")
    file = [path.stat().st_size, path.stat().st_mtime_ns] if path.is_file() else []
    content = json.dumps([VERSION, file, keys], sort_keys=True, default=str)
    return hashlib.sha256(content.encode()).hexdigest()[:16]


def percent(runs: Sequence[Measured], name: str) -> tuple[float, ...]:
    """The accuracy of a row in percent, one a seed."""
    return tuple(100 * run.accuracy[name] for run in runs)
