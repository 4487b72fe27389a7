"""Cost of an engine beyond the users' own work, a message in process and a round on Ray.

Each reply says how long its client's `fit` or `evaluate` took. What a round takes on top of that
is the engine, the strategy, the client app, and the keeping of personal states. In process, CPU
time is counted and clients' times add up; beside it, on the same grid, is a message of the same
size of Flower's own FedAvg to a client that does nothing, so that a busy machine slows both. On
Ray it is time on the clock beyond the slower node.

    python -m corsage.benchmarks engines
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field, replace
from functools import partial, wraps
from itertools import pairwise
from pathlib import Path
from statistics import median
from typing import Any
from unittest import mock

import numpy as np
from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.clientapp.typing import ClientAppCallable
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg as FlowerFedAvg
from numpy.typing import NDArray

from corsage.app import engines
from corsage.app.client_app import make_client_app
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

ALGORITHM, USERS, WORKERS, ROUNDS = "fedrep", 50, 2, 30
SMALL, LARGE = "200", "3850"  # hidden units: messages of 52 kB and of 1 MB
CLOCKS: dict[str, Callable[[], float]] = {"cpu": time.process_time, "wall": time.perf_counter}
SPENT = dict.fromkeys(CLOCKS, 0.0)
DOORS = {"train": "respond", "evaluate": "judge"}
"""What a client does on a message of each kind."""


@dataclass
class Laps(Callback):
    """How long each round took by one clock, and what of that was the clients' own work.

    `share` says what a round's clients have cost together: `sum` one after the other, `max` at
    the same time. Rounds are told apart by whether they were evaluated.
    """

    clock: str
    share: Callable[[Iterable[float]], float]
    begin: float = 0.0
    works: dict[str, list[float]] = field(default_factory=dict)
    beyond: dict[bool, list[float]] = field(default_factory=lambda: {False: [], True: []})

    def on_round_start(self, strategy: Strategy[Any, Any], number: int) -> None:
        """Start the clock."""
        self.works.clear()
        self.begin = CLOCKS[self.clock]()

    def on_round_end(self, strategy: Strategy[Any, Any], row: dict[str, Any]) -> None:
        """Stop it; the first round warms up."""
        took = CLOCKS[self.clock]() - self.begin
        if row["round"] > 1:
            self.beyond["accuracy" in row].append(took - self.own)

    def listen(self, grid: Grid) -> None:
        """Hear what the replies say of their clients' work, on their way to the strategy."""
        plain = grid.pull_messages

        def heard(ids: Iterable[str]) -> Iterable[Message]:
            replies = list(plain(ids))
            for reply in replies:
                self.note(reply)
            return replies

        grid.pull_messages = heard  # type: ignore[method-assign, assignment]

    def note(self, reply: Message) -> None:
        """The seconds of one client's work, beside those of the same kind in this round."""
        kind = reply.metadata.message_type
        if reply.has_content() and kind in ("train", "evaluate"):
            record: Any = reply.content["metrics"]
            self.works.setdefault(kind, []).append(float(record[self.clock]))

    @property
    def own(self) -> float:
        """The clients' own work in this round, all its exchanges together."""
        return sum(self.share(seconds) for seconds in self.works.values())


def settings(engine: str, nodes: int, hidden: str) -> Config:
    """Rounds of little work on the digits; the last ten are evaluated, the others are not."""
    return Config.parse(
        {
            "strategy": ALGORITHM,
            "engine": engine,
            "num-users": USERS,
            "num-nodes": nodes,
            "fraction-train": 1.0,
            "num-rounds": ROUNDS,
            "evaluate-every": ROUNDS,
            "hidden": hidden,
            "head-epochs": 1,
        }
    )


def timed_app() -> ClientApp:
    """Corsage's client app, whose replies say how long its clients worked."""
    return make_client_app(mods=[timed])


def timed(message: Message, context: Context, answer: ClientAppCallable) -> Message:
    """The answer to a message, and in its metrics the seconds by each clock."""
    watch(client_class(ALGORITHM))
    SPENT.update(dict.fromkeys(CLOCKS, 0.0))
    reply = answer(message, context)
    if reply.has_content() and message.metadata.message_type in DOORS:
        reply.content["metrics"].update(SPENT)  # type: ignore[arg-type]
    return reply


def watch(cls: type[Any]) -> None:
    """Count the time in a client's own methods, once a process."""
    for name in DOORS.values():
        plain = getattr(cls, name)
        if not hasattr(plain, "__wrapped__"):
            setattr(cls, name, counted(plain))


def counted(plain: Callable[..., Any]) -> Callable[..., Any]:
    """A function whose time goes into `SPENT`."""

    @wraps(plain)
    def measured(*arguments: Any) -> Any:
        begin = {name: clock() for name, clock in CLOCKS.items()}
        try:
            return plain(*arguments)
        finally:
            for name, clock in CLOCKS.items():
                SPENT[name] += clock() - begin[name]

    return measured


def rounds(config: Config, laps: Laps, folder: str, grid: Grid) -> None:
    """Run the strategy on a grid, in a run folder if one is given, and take the laps."""
    callbacks: list[Callback] = [laps]
    if folder:  # the laps end after the checkpoint
        callbacks.insert(0, Recorder(Path(folder), {}, config))
    strategy = strategy_class(ALGORITHM)(config, callbacks)
    strategy.job.state_dir = str(Path(folder, "users")) if folder else ""
    laps.listen(grid)
    strategy.start(grid)


def local(name: str, hidden: str, target: float) -> Iterator[Measure]:
    """The engine in this process, with a node for each user: training messages.

    Once as a strategy runs by itself, and once as `simulate` runs it: in a run folder, with a
    checkpoint each round and a file for what a user keeps, which may cost as much again.
    """
    config, cls = settings("local", USERS, hidden), client_class(ALGORITHM)
    work = f"the client's own work {direct(config):.2f}"
    for where, most in (("", target), (", in a run folder", 2 * target)):
        laps = Laps("cpu", sum)
        try:
            with tempfile.TemporaryDirectory() as folder:
                grid = LocalGrid(timed_app(), USERS)
                rounds(config, laps, folder if where else "", grid)
        finally:
            for door in DOORS.values():  # timed ones in place of those of the base
                delattr(cls, door)
        size = np.zeros((int(hidden), 65), np.float32)
        flower = flower_rounds(LocalGrid(empty_app(), USERS), size, time.process_time)
        cost, theirs = (1e3 * median(each) / USERS for each in (laps.beyond[False], flower))
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


def on_ray() -> list[Measure]:
    """Flower's virtual client engine with two nodes; start-up is not counted."""
    config, laps = settings("ray", WORKERS, SMALL), Laps("wall", max)
    with_ray(config, partial(rounds, config, laps, ""), timed_app())
    found = list[float]()
    script = lambda grid: found.extend(  # noqa: E731
        flower_rounds(grid, np.zeros(1, np.float32), time.perf_counter)
    )
    with_ray(config, script, empty_app())
    bare = f"Flower's own FedAvg, empty client: {median(found):.2f} s"
    train, both = (median(laps.beyond[evaluated]) for evaluated in (False, True))
    name, unit = f"ray, {WORKERS} nodes", "s/round"
    return [
        Measure(f"{name}: training only", train, 0.3, unit, bare),
        Measure(f"{name}: with evaluation", both, 0.3, unit, bare),
    ]


def with_ray(config: Config, script: Callable[[Grid], None], client: ClientApp) -> None:
    """Run a server script and a client app on Ray as `engine=ray` starts it."""
    app = ServerApp()
    app.main()(lambda grid, context: script(grid))
    with mock.patch.object(engines, "client_app", client):
        engines.on_ray(config, WORKERS, app)


def empty_app() -> ClientApp:
    """A client that does nothing and says so."""
    app = ClientApp()
    app.train()(echo)
    return app


def echo(message: Message, context: Context) -> Message:
    """What came goes back."""
    metrics = MetricRecord({"num-examples": 1})
    content = RecordDict({"arrays": message.content["arrays"], "metrics": metrics})
    return Message(content, reply_to=message)


def flower_rounds(
    grid: Grid, array: NDArray[np.float32], clock: Callable[[], float]
) -> list[float]:
    """Seconds of rounds of Flower's own FedAvg, which has one exchange each."""
    strategy = FlowerFedAvg(fraction_evaluate=0.0, min_available_nodes=WORKERS)
    stamps = list[float]()
    stamp = lambda number, arrays: stamps.append(clock())  # noqa: E731
    strategy.start(grid, ArrayRecord([array]), num_rounds=LAST_ROUNDS, evaluate_fn=stamp)
    return [later - before for before, later in pairwise(stamps)]


def run() -> Iterator[Measure]:
    """Both engines."""
    yield from local("52 kB", SMALL, 5.5)
    yield from local("1 MB", LARGE, 8.5)
    yield from on_ray()
