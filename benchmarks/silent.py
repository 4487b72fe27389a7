"""Cost of silent devices: rounds of six devices of which three never reply, in round times.

The devices work for real, at the same time as each other, by a clock that passes only when the
server waits: a device takes 15 s for training, 8 s for an evaluation, 5 s to introduce itself, as
docs/devices.md has it. So the figures are the same on every machine and take seconds to have.

    python -m corsage.benchmarks silent
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any
from unittest import mock

from flwr.app import Message
from flwr.clientapp import ClientApp
from flwr.proto.node_pb2 import NodeInfo

from corsage.app.client_app import app as client_app
from corsage.app.local_grid import LocalGrid
from corsage.benchmarks.measure import Measure
from corsage.core.configuration.config import Config
from corsage.strategies import strategy_class
from corsage.strategies.devices import devices, exchange
from corsage.strategies.rounds import reception
from corsage.strategies.rounds.base import Strategy
from corsage.strategies.rounds.results import Result

SECONDS = {"query": 5.0, "train": 15.0, "evaluate": 8.0}
NODES, SILENT, ROUNDS = 6, 3, 20
KEYS: dict[str, Any] = {
    "num-users": NODES,
    "num-nodes": NODES,
    "num-rounds": ROUNDS,
    "fraction-train": 1.0,
    "evaluate-every": 1,
    "partition": "iid",
    "hidden": "16",
    "head-epochs": 1,
    "fine-tune-epochs": 0,
}
Speed = Callable[[int, str, int], float | None]
"""The seconds that a device takes for a message: its number, the kind, how many it had before."""


class Clock:
    """Stands in for the module `time`: it passes only when somebody sleeps."""

    def __init__(self) -> None:
        self.now = 0.0

    def monotonic(self) -> float:
        """Seconds since the beginning."""
        return self.now

    def sleep(self, seconds: float) -> None:
        """Let time pass."""
        self.now += seconds


@contextmanager
def stopped() -> Iterator[Clock]:
    """The clock by which the server waits for replies and for nodes."""
    clock = Clock()
    with ExitStack() as stack:
        for module in (exchange, devices, reception):
            stack.enter_context(mock.patch.object(module, "time", clock))
        yield clock


class Devices(LocalGrid):
    """Devices that work at the same time, each one message after the other; some are silent.

    Parameters
    ----------
    clock : by which they work.
    num_nodes : how many there are.
    seconds : what they take for a message; None: it is never answered.
    keyed : whether the server sees a key of each, as Flower's has it.
    """

    closed = False

    def __init__(
        self,
        clock: Clock,
        num_nodes: int,
        seconds: Speed,
        keyed: bool = True,
        app: ClientApp = client_app,
    ) -> None:
        super().__init__(app, num_nodes)
        self.clock, self.seconds, self.keyed = clock, seconds, keyed
        self.numbers = {node: place for place, node in enumerate(self._contexts)}
        self.asked: list[tuple[int, str]] = []
        self._free: dict[int, float] = {}
        self._due: dict[str, tuple[float, Message]] = {}

    def get_nodes(self) -> Iterable[NodeInfo]:
        """All devices, each with its key."""
        for node in self.get_node_ids():
            key = f"key {self.numbers[node]}".encode() if self.keyed else b""
            yield NodeInfo(node_id=node, public_key=key)

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
        """Each device begins when it is free."""
        messages = list(messages)
        ids = list(super().push_messages(messages))
        self._queue.clear()
        for identity, message in zip(ids, messages, strict=True):
            number, kind = self.numbers[message.metadata.dst_node_id], message.metadata.message_type
            before = self.asked.count((number, kind))
            self.asked.append((number, kind))
            seconds = self.seconds(number, kind, before)
            if seconds is not None:
                begin = max(self.clock.now, self._free.get(number, 0.0))
                self._free[number] = begin + seconds
                self._due[identity] = (self._free[number], message)
        return ids

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
        """The replies that are ready."""
        wanted = set(message_ids)
        ready = [i for i, (due, _) in self._due.items() if i in wanted and due <= self.clock.now]
        return [self._work(self._due.pop(identity)[1]) for identity in ready]


@dataclass(frozen=True)
class Case:
    """Devices, keys, and the most round times that they may cost beyond a run of honest ones."""

    name: str
    seconds: Speed
    target: float
    keys: dict[str, Any]


def usual(number: int, kind: str, before: int) -> float | None:
    """An honest device; none is quite as fast as the next."""
    return SECONDS[kind] * (1.0 + 0.02 * number)


def mute(number: int, kind: str, before: int) -> float | None:
    """The first three say who they are, and nothing more."""
    return None if number < SILENT and kind != "query" else usual(number, kind, before)


def falling_silent(number: int, kind: str, before: int) -> float | None:
    """The first three say nothing more from the fourth round on."""
    return None if number < SILENT and before >= 3 else usual(number, kind, before)


def every_other(number: int, kind: str, before: int) -> float | None:
    """The first three reply to every other message."""
    return None if number < SILENT and before % 2 else usual(number, kind, before)


CASES = [
    Case("3 of 6 never reply", mute, 2.0, {}),
    Case("the same, 0.7 of the users drawn", mute, 2.0, {"fraction-train": 0.7}),
    Case("they fall silent after 3 rounds", falling_silent, 2.0, {}),
    Case("they reply to every other message", every_other, 12.0, {}),
    Case("quorum=0.5, they never reply", mute, 2.0, {"quorum": 0.5}),
]


def played(
    seconds: Speed, name: str = "fedavg", **keys: Any
) -> tuple[float, Strategy[Any, Any], Result, Devices]:
    """A run of such devices: how many seconds it took by their clock, and what came of it."""
    config = Config.parse({**KEYS, **{k.replace("_", "-"): v for k, v in keys.items()}})
    with stopped() as clock:
        grid = Devices(clock, NODES, seconds)
        strategy = strategy_class(name)(config)
        result = strategy.start(grid)
    return clock.now, strategy, result, grid


def run() -> Iterator[Measure]:
    """Every case beside the same run of six honest devices."""
    for case in CASES:
        keys = {key.replace("-", "_"): value for key, value in case.keys.items()}
        honest = played(usual, **keys)[0]
        seconds = played(case.seconds, **keys)[0]
        cost, one = seconds - honest, honest / ROUNDS
        told = f"{ROUNDS} rounds: honest {honest:.0f} s, so {seconds:.0f} s; a round {one:.0f} s"
        yield Measure(case.name, cost / one, case.target, "round times", told)
