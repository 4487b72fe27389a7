"""Members of a run: nodes and their users, who takes part, and messages to them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from flwr.app import ConfigRecord
from flwr.serverapp import Grid

from corsage.core.configuration.config import Config
from corsage.core.errors import CheckpointError, StorageError
from corsage.core.known_devices import KnownDevices
from corsage.core.messages.replies import Replies
from corsage.core.messages.wire import ENDS_THE_RUN, ENDS_THE_STRATEGY
from corsage.core.registry import attached
from corsage.core.seeding import generator, some_of
from corsage.strategies.rounds.agreed import Agreed
from corsage.strategies.rounds.reception import Reception
from corsage.strategies.rounds.roster import Member, Roster
from corsage.strategies.rounds.turns import Done, Line, Turn, is_at_home, is_closed

if TYPE_CHECKING:
    from corsage.strategies.devices.devices import Devices
    from corsage.strategies.rounds.sizes import Scales

A_DAY = 86_400.0
"""Seconds that nodes on Ray have to start: on a busy machine that takes long, and an engine that
fails says so."""


@dataclass
class Parts:
    """Parts that the users take, of all that are there.

    Parameters
    ----------
    of, out : the list that it was found from, who rests and who was left out.
    users, new : who trains, and who comes only after.
    sample : who is evaluated after a round; empty until somebody asks.
    """

    of: list[str]
    out: tuple[frozenset[str], frozenset[str]]
    users: list[str]
    new: list[str]
    sample: list[str] = field(default_factory=list)


class Members:
    """Nodes and the users that they host.

    Parameters
    ----------
    config : which of them are asked, how many must be there, and how long one waits for them.
    agreed : what the data of all must be like.
    note : is told who comes, goes, or is set aside.

    Attributes
    ----------
    known : what the run remembers of devices.
    grid : what leads to the nodes, once a run has begun.
    devices : what is known of them, where the nodes are devices.
    scales : weigh messages, where something carries them that may not take them.
    timeout : seconds after which a message has no reply.
    simulated : whether the server's own files hold the users' states.
    least : users that must be left to ask, whoever is set aside.
    left_out : who did not answer a question that is for all.
    """

    def __init__(self, config: Config, agreed: Agreed, note: Callable[[str], None]) -> None:
        self.config, self.note, self.known = config, note, KnownDevices()
        self.grid: Grid | None = None
        self.devices: Devices | None = None
        self.scales: Scales | None = None
        self.timeout, self.simulated, self.least = config.federation.round_timeout, False, 1
        self.left_out: set[str] = set()
        self.roster = Roster(note=note)
        self.reception = Reception(self.roster, agreed)
        self._parts: Parts | None = None

    # Who comes and goes.

    def join(self, grid: Grid, task: Callable[[], ConfigRecord]) -> None:
        """Wait until as many nodes are there as the config says; another grid has others.

        `task` is what a node is told of the run when it is asked who it is.
        """
        if grid is not self.grid:
            self._enter(grid)
        if not self.roster.members:
            keys = self.config.federation
            patience = keys.node_timeout if self.devices else A_DAY
            self.reception.wait(grid, max(keys.num_nodes, 1), patience, task=task)

    def _enter(self, grid: Grid) -> None:
        """Another grid: nobody is there yet."""
        self.grid, self.devices, self.scales = grid, None, None
        self.reception.clear()
        if not is_closed(grid):
            keys, known = self.config.federation, self.known
            self.devices = attached("devices").Devices(grid, keys, self.roster, known, self.note)
        carrier = getattr(grid, "carrier", None)
        if carrier is not None or not is_at_home(grid):
            sizes = attached("sizes")
            self.scales = sizes.Scales(self.note, carrier or sizes.wire)
        self.reception.devices = self.devices
        self.roster.owners = self.devices.owners if self.devices else None

    def refresh(self, number: int, task: Callable[[], ConfigRecord]) -> None:
        """Before a round on devices: learn who came and went; if none is left, wait for one."""
        assert self.devices is not None
        patience, self.devices.number = self.config.federation.node_timeout, number
        self.reception.refresh(self.devices.grid, patience, number, task)
        if not self.roster.members:
            self.reception.wait(self.devices.grid, 1, patience, number, task)
        self.rest()

    @property
    def at_home(self) -> bool:
        """True if all users' data are the server's own anyway."""
        return self.grid is not None and is_at_home(self.grid)

    @property
    def resting(self) -> frozenset[str]:
        """The users that are set aside."""
        return self.devices.resting if self.devices else frozenset()

    def rest(self) -> None:
        """Do not ask whose pause is not over."""
        if self.devices:
            self.devices.rest(self.least)

    def go_on(self, task: Callable[[], ConfigRecord]) -> str:
        """Do without silent nodes, or wait for them; in words, none if neither helps."""
        if self.devices is None:
            return ""
        if self.devices.go_without():
            return "It is played again without those that are silent."
        if not self.devices.absent:
            return ""
        self.devices.outlast(self.reception, task)
        self.rest()
        return "It is played again: nodes are back."

    def set_aside(self) -> list[tuple[str, str]]:
        """Lines on nodes that were set aside or not let in, and why."""
        refused = self.reception.refused.items()
        rows = [(f"node {node}", f"not let in: {refusal.why}") for node, refusal in refused]
        return (self.devices.conduct.table() if self.devices else []) + rows

    # Who takes part.

    @property
    def everybody(self) -> dict[str, Member]:
        """All users that are there, each with its node, its samples and its cluster."""
        return self.roster.members

    @property
    def users(self) -> list[str]:
        """The users that take part in training; nobody is to change the list."""
        return self._sorted_out().users

    @property
    def new_users(self) -> list[str]:
        """The users that come only after training: a share by seed, a known cluster, or both."""
        return self._sorted_out().new

    @property
    def sample(self) -> list[str]:
        """The users who are evaluated after a round: all of them, or so many drawn by the seed."""
        parts = self._sorted_out()
        if not parts.sample:
            count, users = self.config.run.evaluate_users, parts.users
            rng = generator(self.config.run.seed, "evaluated users")
            few = count and len(users) > count
            parts.sample = (
                [users[i] for i in some_of(rng, len(users), count)] if few else parts.users
            )
        return parts.sample

    def few_rows(self, coefficients: int, how: str) -> list[tuple[str, str]]:
        """The users with fewer training rows than coefficients, and the effect of that."""
        few = sum(self.everybody[user].train < coefficients for user in self.users)
        line = f"{few:,} of {len(self.users):,} users; {how}"
        return [("fewer rows than coefficients", line)] if few else []

    def judged(self, options: Mapping[str, Any]) -> list[str]:
        """Users whom an evaluation is about: those that train, or those that come only after."""
        return self.new_users if options.get("adapt") else self.users

    def _sorted_out(self) -> Parts:
        """Users sorted by their parts, again when somebody came, left or rests."""
        everybody, out = self.roster.users, (self.resting, frozenset(self.left_out))
        if self._parts is None or self._parts.of is not everybody or self._parts.out != out:
            there = [u for u in everybody if u not in out[0]] if out[0] else everybody
            new = [user for user in there if self._is_new(user)] if self.config.new.wanted else []
            others = {*new, *out[1]}
            users = [user for user in there if user not in others] if others else there
            self._parts = Parts(everybody, out, users, new)
        return self._parts

    def _is_new(self, user: str) -> bool:
        """True if a user comes only after training."""
        keys, own = self.config.new, self.everybody[user]
        drawn = generator(self.config.run.seed, "new user", user).random() < keys.new_users
        return own.cluster == (keys.new_cluster or None) or bool(drawn)

    # Messages out and replies in.

    def exchange(self, turn: Turn) -> Replies:
        """Send and wait until a turn is over; note how devices behaved."""
        replies = self.exchanged(turn)
        if self.devices:
            self.devices.judge(replies)
        return replies

    def exchanged(self, turn: Turn) -> Replies:
        """The same, of which nothing is noted yet."""
        assert self.grid is not None
        line = self.devices.line(self.timeout) if self.devices else Line(self.grid, self.timeout)
        line.push(turn.messages())
        while done := line.pull():
            if self.simulated:
                heed(done)
            turn.answered(done)
            line.push(turn.messages())
        return turn.replies()


def heed(done: Done) -> None:
    """Stop if a simulated node says that it cannot keep its users' states, or read them."""
    for _, reply in done:
        if reply is None or not reply.has_error():
            continue
        if reply.error.code == ENDS_THE_RUN:
            raise StorageError(reply.error.reason)
        if reply.error.code == ENDS_THE_STRATEGY:
            raise CheckpointError(reply.error.reason)
