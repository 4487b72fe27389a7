"""What an algorithm is to the server: a state, and a few hooks with a default each.

Most algorithms override `initial` (what the server holds before round 1), `send` (what users get)
and `merge` (the step of the server). All that they remember is in `self.state`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from flwr.serverapp import Grid

from corsage.core.arrays import Arrays
from corsage.core.config import Config
from corsage.core.replies import Outcome
from corsage.core.seeding import generator
from corsage.networks.network import Network
from corsage.strategies.rounds.state import State


class Hooks:
    """The hooks of an algorithm, and what they may use: its config, its keys, its state."""

    name: ClassVar[str] = ""

    def __init__(self, config: Config | Mapping[str, Any] | None) -> None:
        self.config = config if isinstance(config, Config) else Config.parse(config)
        self.keys = self.config.algorithm.get(self.name)
        self.state = State()

    def initial(self, network: Network) -> Arrays:
        """What the server holds before the first round."""
        raise NotImplementedError

    def send(self, users: list[str]) -> tuple[Arrays, Arrays]:
        """Arrays that all users get, and arrays with one row for each of `users`."""
        return self.state.arrays, {}

    def show(self, users: list[str], options: Mapping[str, Any]) -> tuple[Arrays, Arrays]:
        """What users get for an evaluation under some options; by default the same."""
        return self.send(users)

    def template(self) -> Arrays:
        """Arrays of the shape and dtype that one user sends back."""
        return self.state.arrays

    def merge(self, outcome: Outcome) -> Arrays:
        """What the server holds after a round: by default the mean over the round's users."""
        return {**self.state.arrays, **outcome.mean}

    def choose(self, number: int, users: list[str]) -> list[str]:
        """The users of a round: max(r n, 1), uniform, without replacement."""
        count = max(int(self.config.federation.fraction_train * len(users)), 1)
        drawn = generator(self.config.run.seed, "users", number).permutation(len(users))[:count]
        return [users[i] for i in sorted(drawn)]

    def open(self, grid: Grid) -> None:
        """What must be known before the first round is asked here; a resumed run knows it."""

    def length(self, rounds: int) -> int:
        """How many rounds there will be, where `rounds` are wanted; asked after `open`."""
        return rounds

    def finished(self) -> bool:
        """Whether no round is left to do, though `num-rounds` has more: asked after each.

        It is told from the state alone, so that a resumed run knows it too.
        """
        return False

    def is_over(self, rounds: int) -> bool:
        """Whether all rounds are done, or none is left to do."""
        return self.state.round >= rounds or (self.state.round > 0 and self.finished())

    def findings(self) -> list[dict[str, Any]]:
        """What there is to say at the end: {"title": ..., "rows": [[label, text], ...]}, ..."""
        return []

    def extra_evaluations(self) -> dict[str, dict[str, Any]]:
        """Evaluations after the last round under other options, by the name of their result."""
        return {}
