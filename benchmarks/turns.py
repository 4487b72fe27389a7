"""The house and a bare loop by turns, in one process with one thread.

Whatever else the machine does then slows both alike, and the ratio stands. Seconds are CPU
seconds of this process, so that other processes' work is in none of them.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from statistics import median
from typing import Any

import torch

from corsage.app.client_app import app
from corsage.app.local_grid import LocalGrid
from corsage.core.configuration.config import Config
from corsage.datasets.dealing.federated import simulated
from corsage.networks.batches import Examples
from corsage.networks.training import to_tensors
from corsage.strategies import strategy_class
from corsage.strategies.rounds.base import Strategy
from corsage.strategies.rounds.callbacks import Callback

FAR = 10_000  # a run of so many rounds is left long before its last ten, which are evaluated


class Enough(Exception):
    """All turns are taken: the run may end here."""


@dataclass
class Turns(Callback):
    """After each round of training, the bare loop; after `number` turns the run is left.

    The first round warms up: batches, features and networks are made in it.

    Parameters
    ----------
    number : how many turns.
    bare : the loop without a house.
    clock : seconds that count for the house.
    """

    number: int
    bare: Callable[[], None]
    clock: Callable[[], float] = time.process_time
    begin: float = 0.0
    house: list[float] = field(default_factory=list)
    loop: list[float] = field(default_factory=list)

    def on_round_start(self, strategy: Strategy[Any, Any], number: int) -> None:
        """The house's turn."""
        self.begin = self.clock()

    def on_round_end(self, strategy: Strategy[Any, Any], row: dict[str, Any]) -> None:
        """The bare loop's turn."""
        took = self.clock() - self.begin
        if row["round"] == 1:
            return
        begin = time.process_time()
        self.bare()
        self.loop.append(time.process_time() - begin)
        self.house.append(took)
        if len(self.house) == self.number:
            raise Enough

    @property
    def ratio(self) -> float:
        """The house's seconds as a share of the loop's: the median of the turns."""
        return median(h / b for h, b in zip(self.house, self.loop, strict=True))

    @property
    def seconds(self) -> tuple[float, float]:
        """The house's and the loop's, each the median of the turns."""
        return median(self.house), median(self.loop)


def take(turns: Turns, config: Config) -> Turns:
    """Run a config's one strategy on one node until all turns are taken."""
    (name,) = config.run.strategy
    torch.optim.SGD([torch.zeros(1)])  # the first one imports for a second: no turn should pay it
    with one_thread(), suppress(Enough):
        strategy_class(name)(config, [turns]).start(LocalGrid(app, 1))
    return turns


def unevaluated(keys: dict[str, Any]) -> Config:
    """A config of rounds without evaluations, which would dwarf what is measured."""
    return Config.parse({**keys, "num-rounds": FAR, "evaluate-every": FAR})


def training_data(config: Config, users: int) -> Examples:
    """The training data of the first users, as the bare loop has them: tensors made beforehand."""
    data = simulated(config.data, config.federation.num_users, config.run.seed)
    own = [data[user] for user in data.users[:users]]
    return Examples.join([to_tensors(u.x_train, u.y_train, data.shift, data.scale) for u in own])


@contextmanager
def one_thread() -> Iterator[None]:
    """One torch thread, and afterwards as many as there were."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)
