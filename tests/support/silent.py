"""Devices that work, or are silent, by a clock that passes only when the server waits.

A device takes 15 s for training, 8 s for an evaluation, 5 s to introduce itself, as docs/devices.md
has it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from flwr.app import Message
from flwr.clientapp import ClientApp
from flwr.proto.node_pb2 import NodeInfo

from corsage.app.client_app import app as client_app
from corsage.app.local_grid import LocalGrid
from corsage.core.configuration.config import Config
from corsage.strategies import strategy_class
from corsage.strategies.rounds.base import Strategy
from corsage.strategies.rounds.results import Result
from tests.support import clock
from tests.support.clock import Clock

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


@contextmanager
def stopped() -> Iterator[Clock]:
    """The clock by which the server waits, as long as it lasts."""
    with pytest.MonkeyPatch.context() as patch:
        yield clock.stopped(patch)


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


def usual(number: int, kind: str, before: int) -> float | None:
    """An honest device; none is quite as fast as the next."""
    return SECONDS[kind] * (1.0 + 0.02 * number)


def mute(number: int, kind: str, before: int) -> float | None:
    """The first three say who they are, and nothing more."""
    return None if number < SILENT and kind != "query" else usual(number, kind, before)


def falling_silent(number: int, kind: str, before: int) -> float | None:
    """The first three say nothing more from the fourth round on."""
    return None if number < SILENT and before >= 3 else usual(number, kind, before)


def played(
    seconds: Speed, name: str = "fedavg", **keys: Any
) -> tuple[float, Strategy[Any, Any], Result, Devices]:
    """A run of such devices: how many seconds it took by their clock, and what came of it."""
    config = Config.parse({**KEYS, **{k.replace("_", "-"): v for k, v in keys.items()}})
    with stopped() as ticking:
        grid = Devices(ticking, NODES, seconds)
        strategy = strategy_class(name)(config)
        result = strategy.start(grid)
    return ticking.now, strategy, result, grid
