"""Cost of an engine beyond the users' own work: a message in process.

What a round takes on top of its clients' `respond` and `judge` is the engine, the strategy, the
client app, and the keeping of personal states. Beside it, on the same grid, is a message of the
same size of Flower's own FedAvg to a client that does nothing, so that a busy machine slows both.
What Ray costs is in `ray`.

    python -m corsage.benchmarks engines
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from functools import wraps
from itertools import pairwise
from pathlib import Path
from statistics import median
from typing import Any
from unittest import mock

import numpy as np
from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp.strategy import FedAvg as FlowerFedAvg
from numpy.typing import NDArray

from corsage.app.client_app import app
from corsage.app.local_grid import LocalGrid
from corsage.app.run.recorder import Recorder
from corsage.benchmarks.measure import Measure
from corsage.clients import client_class
from corsage.clients.base import Got
from corsage.core.configuration.config import Config
from corsage.core.messages.wire import Task
from corsage.datasets.dealing.federated import simulated
from corsage.networks.build import build_network
from corsage.strategies import strategy_class
from corsage.strategies.rounds.base import Strategy
from corsage.strategies.rounds.callbacks import Callback
from corsage.strategies.rounds.results import LAST_ROUNDS

ALGORITHM, USERS, ROUNDS = "fedrep", 50, 30
SMALL, LARGE = "200", "3850"  # hidden units: messages of 52 kB and of 1 MB
DOORS = ("respond", "judge")
"""What a client does on a message."""


@dataclass
class Laps(Callback):
    """CPU seconds of each round that is not evaluated, beyond the clients' own work."""

    begin: float = 0.0
    own: list[float] = field(default_factory=list)
    beyond: list[float] = field(default_factory=list)

    def on_round_start(self, strategy: Strategy[Any, Any], number: int) -> None:
        """Start the clock."""
        self.own.clear()
        self.begin = time.process_time()

    def on_round_end(self, strategy: Strategy[Any, Any], row: dict[str, Any]) -> None:
        """Stop it; the first round warms up."""
        took = time.process_time() - self.begin
        if row["round"] > 1 and "accuracy" not in row:
            self.beyond.append(took - sum(self.own))

    def counted(self, plain: Callable[..., Any]) -> Callable[..., Any]:
        """A client's method, whose seconds are its own work."""

        @wraps(plain)
        def measured(*arguments: Any) -> Any:
            begin = time.process_time()
            try:
                return plain(*arguments)
            finally:
                self.own.append(time.process_time() - begin)

        return measured


def settings(hidden: str) -> Config:
    """Rounds of little work on the digits; the last ten are evaluated, the others are not."""
    return Config.parse(
        {
            "strategy": ALGORITHM,
            "num-users": USERS,
            "num-nodes": USERS,
            "fraction-train": 1.0,
            "num-rounds": ROUNDS,
            "evaluate-every": ROUNDS,
            "hidden": hidden,
            "head-epochs": 1,
        }
    )


def rounds(config: Config, folder: str) -> list[float]:
    """Seconds of a strategy's rounds beyond the clients' work; in a run folder if one is given."""
    laps, cls = Laps(), client_class(ALGORITHM)
    callbacks: list[Callback] = [laps]
    if folder:  # the laps end after the checkpoint
        callbacks.insert(0, Recorder(Path(folder), {}, config))
    strategy = strategy_class(ALGORITHM)(config, callbacks)
    strategy.job.state_dir = str(Path(folder, "users")) if folder else ""
    watched: dict[str, Any] = {door: laps.counted(getattr(cls, door)) for door in DOORS}
    with mock.patch.multiple(cls, **watched):
        strategy.start(LocalGrid(app, USERS))
    return laps.beyond


def local(name: str, hidden: str, target: float) -> Iterator[Measure]:
    """The engine in this process, with a node for each user: training messages.

    Once as a strategy runs by itself, and once as `simulate` runs it: in a run folder, with a
    checkpoint each round and a file for what a user keeps, which may cost as much again.
    """
    config = settings(hidden)
    work = f"the client's own work {direct(config):.2f}"
    for where, most in (("", target), (", in a run folder", 2 * target)):
        with tempfile.TemporaryDirectory() as folder:
            beyond = rounds(config, folder if where else "")
        flower = flower_rounds(np.zeros((int(hidden), 65), np.float32))
        cost, theirs = (1e3 * median(each) / USERS for each in (beyond, flower))
        told = f"CPU ms a message: {cost:.2f}, Flower's {theirs:.2f}; {work}"
        yield Measure(f"local, {name}{where}", cost / theirs, most, "of Flower's", told)


def direct(config: Config) -> float:
    """Milliseconds of `client.respond` called by hand, without messages: the client's own work."""
    data = simulated(config.data, USERS, config.run.seed)
    network = build_network(config.model, data.shape, data.num_classes, config.run.seed)
    body, cls = network.initial[network.body], client_class(ALGORITHM)
    task = Task(
        algorithm=ALGORITHM,
        experiment="",
        seed=config.run.seed,
        shape=data.shape,
        num_classes=data.num_classes,
        train=config.train,
        model=config.model,
        keys=config.algorithm[ALGORITHM],
    )
    times = []
    for user in data.users:
        client = cls(replace(task, users=[user]), [user], data, network, [{}])
        begin = time.process_time()
        client.respond(Got({"body": body}))
        times.append(time.process_time() - begin)
    return 1e3 * median(times)


def empty_app() -> ClientApp:
    """A client that does nothing and says so."""
    found = ClientApp()
    found.train()(echo)
    return found


def echo(message: Message, context: Context) -> Message:
    """What came goes back."""
    metrics = MetricRecord({"num-examples": 1})
    content = RecordDict({"arrays": message.content["arrays"], "metrics": metrics})
    return Message(content, reply_to=message)


def flower_rounds(array: NDArray[np.float32]) -> list[float]:
    """CPU seconds of rounds of Flower's own FedAvg, which has one exchange each."""
    strategy = FlowerFedAvg(fraction_evaluate=0.0, min_available_nodes=USERS)
    stamps = list[float]()
    stamp = lambda number, arrays: stamps.append(time.process_time())  # noqa: E731
    grid = LocalGrid(empty_app(), USERS)
    strategy.start(grid, ArrayRecord([array]), num_rounds=LAST_ROUNDS, evaluate_fn=stamp)
    return [later - before for before, later in pairwise(stamps)]


def run() -> Iterator[Measure]:
    """Small and large messages."""
    yield from local("52 kB", SMALL, 5.5)
    yield from local("1 MB", LARGE, 8.5)
