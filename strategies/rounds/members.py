"""Who is there, who of them takes part, and how they are spoken to."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, cast

from flwr.app import ConfigRecord, Message
from flwr.serverapp import Grid

from corsage.core.config import Config
from corsage.core.errors import CheckpointError, StorageError
from corsage.core.replies import Replies
from corsage.core.seeding import generator, some_of
from corsage.core.wire import ENDS_THE_RUN, ENDS_THE_STRATEGY
from corsage.strategies.rounds.agreed import Agreed
from corsage.strategies.rounds.exchange import Exchange
from corsage.strategies.rounds.grids import is_at_home, is_simulation
from corsage.strategies.rounds.owners import Owners
from corsage.strategies.rounds.patience import Patience
from corsage.strategies.rounds.reception import Reception
from corsage.strategies.rounds.roster import Member, Roster
from corsage.strategies.rounds.sizes import Scales, carrier_of
from corsage.strategies.rounds.standing import Conduct
from corsage.strategies.rounds.state import Progress
from corsage.strategies.rounds.turns import OpenTurn, Turn

A_DAY = 86_400.0
"""Seconds that nodes on Ray have to start: on a busy machine that takes long, and an engine that
fails says so."""


@dataclass
class Parts:
    """Who takes which part, of all that are there.

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
    progress : what the run remembers of its users, whatever is trained.
    agreed : what the data of all must be like.
    note : is told who comes, goes, or is set aside.

    Attributes
    ----------
    grid : what leads to the nodes, once a run has begun.
    timeout : seconds after which a message has no reply.
    simulated : whether the server's own files hold the users' states.
    least : users that must be left to ask, whoever is set aside.
    number : the round that is under way, or was last.
    resting : the users that are set aside.
    missing : the users of nodes that did not reply as they had to when they were last asked.
    left_out : who did not answer a question that is for all.
    """

    def __init__(
        self, config: Config, progress: Progress, agreed: Agreed, note: Callable[[str], None]
    ) -> None:
        own = config.federation
        self.config, self.progress = config, progress
        self.grid: Grid | None = None
        self.timeout, self.simulated, self.least = own.round_timeout, False, 1
        self.number, self.resting, self.missing = 0, frozenset[str](), set[str]()
        self.left_out: set[str] = set()
        self.roster = Roster(note=note, owners=Owners(progress.owners, own.registered_keys))
        self.patience = Patience(own.patience, own.quorum)
        self.conduct, self.scales = Conduct(progress.standings, note), Scales(note)
        self.reception = Reception(
            self.roster,
            agreed,
            patience=self.patience,
            arrived=lambda node, users: self.conduct.came(users, self.reception.mark(node)),
        )
        self._parts: Parts | None = None

    # Who comes and goes.

    def join(self, grid: Grid, task: Callable[[], ConfigRecord]) -> None:
        """Wait until as many nodes are there as the config says; another grid has others.

        `task` is what a node is told of the run when it is asked who it is.
        """
        if new := grid is not self.grid:
            self.grid = grid
            self.reception.clear()
            # Nobody is silent there, and the order of work is not ours.
            if is_simulation(grid) or getattr(grid, "patient", False):
                self.patience.times = 0.0
        if not self.roster.members:
            keys = self.config.federation
            patience = A_DAY if is_simulation(grid) else keys.node_timeout
            self.reception.wait(grid, max(keys.num_nodes, 1), patience, task=task)
        if new:
            self.scales.carrier = carrier_of(grid)

    def refresh(self, number: int, task: Callable[[], ConfigRecord]) -> None:
        """Before a round: learn which nodes came and went; if none is left, wait for one."""
        assert self.grid is not None
        patience, self.number = self.config.federation.node_timeout, number
        self.reception.refresh(self.grid, patience, number, task)
        if not self.roster.members:
            self.reception.wait(self.grid, 1, patience, number, task)
        self.rest()

    @property
    def at_home(self) -> bool:
        """Whether all users' data are the server's own anyway."""
        return self.grid is not None and is_at_home(self.grid)

    def disconnected(self, replies: Replies) -> set[int]:
        """The silent nodes that are not connected any more."""
        if not replies.silent or self.grid is None:
            return set()
        return set(replies.silent) - set(self.grid.get_node_ids())

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
        found = self._sorted_out()
        if not found.sample:
            count, users = self.config.run.evaluate_users, found.users
            rng = generator(self.config.run.seed, "evaluated users")
            few = count and len(users) > count
            found.sample = (
                [users[i] for i in some_of(rng, len(users), count)] if few else found.users
            )
        return found.sample

    def _sorted_out(self) -> Parts:
        """Who takes part and who comes after, found again when somebody came, left or rests."""
        everybody, out = self.roster.users, (self.resting, frozenset(self.left_out))
        if self._parts is None or self._parts.of is not everybody or self._parts.out != out:
            there = [u for u in everybody if u not in out[0]] if out[0] else everybody
            new = [user for user in there if self._is_new(user)] if self.config.new.wanted else []
            others = {*new, *out[1]}
            users = [user for user in there if user not in others] if others else there
            self._parts = Parts(everybody, out, users, new)
        return self._parts

    def _is_new(self, user: str) -> bool:
        """Whether a user comes only after training."""
        keys, own = self.config.new, self.everybody[user]
        drawn = generator(self.config.run.seed, "new user", user).random() < keys.new_users
        return own.cluster == (keys.new_cluster or None) or bool(drawn)

    # Messages out and replies in.

    def exchange(self, turn: Turn) -> Replies:
        """Send and wait until a turn is over; note how the nodes behaved."""
        replies = self.exchanged(turn)
        self.judge(replies)
        return replies

    def exchanged(self, turn: Turn) -> Replies:
        """The same, of which nothing is noted yet."""
        if hasattr(turn, "until"):
            return self._open(cast(OpenTurn, turn))
        assert self.grid is not None
        doubtful = self.roster.by_node(self.conduct.doubtful(self.everybody))
        line = Exchange(self.grid, self.timeout, self.patience, doubtful, self._work)
        line.push(turn.messages())
        while done := line.pull():
            self._heed(done)
            turn.answered(done)
            line.push(turn.messages())
        return turn.replies()

    def _open(self, turn: OpenTurn) -> Replies:
        """The same where messages may be under way when the turn is over."""
        assert self.grid is not None
        if turn.line is None:
            turn.line = Exchange(self.grid, self.timeout, turn.patience, size=self._work)
        turn.line.push(turn.messages())
        while (until := turn.until()) is not None:
            done = turn.line.pull(until)
            self._heed(done)
            turn.answered(done)
            turn.line.push(turn.messages())
        return turn.replies()

    def _heed(self, done: Sequence[tuple[Message, Message | None]]) -> None:
        """Stop if a simulated node says that it cannot keep its users' states, or read them."""
        for _, reply in done if self.simulated else ():
            if reply is None or not reply.has_error():
                continue
            if reply.error.code == ENDS_THE_RUN:
                raise StorageError(reply.error.reason)
            if reply.error.code == ENDS_THE_STRATEGY:
                raise CheckpointError(reply.error.reason)

    def _work(self, message: Message) -> float:
        """How many samples a message is about, as far as the roster tells."""
        task: Any = message.content.get("config", {})
        named = [u for u in task.get("users", []) if u in self.everybody]
        if not named:
            return float(self.roster.load(message.metadata.dst_node_id))
        return float(sum(self.everybody[user].train for user in named))

    # Who is asked at present, by how the nodes behaved when they were asked before.

    def rest(self) -> None:
        """Do not ask those whose pause is not over, nor slow ones that are still at work."""
        hosted, working = self.roster.hosted, self.patience.working()
        for reply in self.patience.take_late(query=False):
            node = reply.metadata.src_node_id
            if not reply.has_error() and node not in working:
                self.conduct.late(hosted(node))
        busy = {user for node in working for user in hosted(node)}
        least = max(self.config.federation.min_users, self.least)
        self.resting = self.conduct.resting(self.everybody, self.number, least, busy)

    def go_without(self) -> bool:
        """For the rest of this round, do not ask whom the last turn had no reply of.

        False if that was nobody, or too few would be left.
        """
        resting, self.missing = self.resting | self.missing, set()
        left = len(self.roster.users) - sum(user in self.everybody for user in resting)
        found = resting > self.resting and left >= max(self.config.federation.min_users, 1)
        self.resting = resting if found else self.resting
        return found

    def judge(self, replies: Replies) -> None:
        """Note how the nodes behaved in a turn; where none replied, it was not theirs to do."""
        conduct, number = self.conduct, self.number
        hosted, mark = self.roster.hosted, self.reception.mark
        there = set(replies.silent) - self.disconnected(replies)
        bad = {*replies.silent, *replies.refused}
        self.missing = {user for node in bad for user in hosted(node)}
        if replies.answered or replies.refused:
            for node in there:
                conduct.silent(hosted(node), mark(node), number)
        for node in set(replies.refused) - there:
            conduct.refused(hosted(node), mark(node), number)
        if self.progress.standings:
            for node in {*replies.answered} - {*replies.refused} - there:
                conduct.alive(hosted(node))
        conduct.tell()

    def judge_others(self, replies: Replies) -> None:
        """The same of nodes that were asked something else in the turn that was judged last."""
        missing = self.missing
        self.judge(replies)
        self.missing |= missing

    def set_aside(self) -> list[tuple[str, str]]:
        """Which users' nodes were set aside, which nodes were not let in, and why."""
        refused = self.reception.refusals.causes().items()
        rows = [(f"node {node}", f"not let in: {why}") for node, why in refused]
        return self.conduct.table() + rows
