"""Exchanges: each turn is sent, waited for and judged."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, cast

from flwr.app import Message

from corsage.core.errors import CheckpointError, StorageError
from corsage.core.replies import Replies
from corsage.core.wire import ENDS_THE_RUN, ENDS_THE_STRATEGY
from corsage.strategies.rounds.exchange import Exchange
from corsage.strategies.rounds.turns import OpenTurn, Turn

if TYPE_CHECKING:
    from corsage.strategies.rounds.federation import Federation


class Player:
    """Speaks with a federation's nodes.

    Parameters
    ----------
    federation : who is asked, and how long they are waited for.
    """

    def __init__(self, federation: Federation) -> None:
        self.federation = federation

    def complete(self, turn: Turn) -> Replies:
        """Send and wait until a turn is over; note how the nodes behaved."""
        replies = self.exchanged(turn)
        self.federation.turnout.judge(replies)
        return replies

    def exchanged(self, turn: Turn) -> Replies:
        """The same, of which nothing is noted yet."""
        if hasattr(turn, "until"):
            return self._open(cast(OpenTurn, turn))
        federation, roster = self.federation, self.federation.roster
        assert federation.grid is not None
        doubtful = roster.by_node(federation.conduct.doubtful(roster.members))
        patience = federation.patience
        line = Exchange(federation.grid, federation.timeout, patience, doubtful, self._work)
        line.push(turn.messages())
        while done := line.pull():
            self._heed(done)
            turn.answered(done)
            line.push(turn.messages())
        return turn.replies()

    def _open(self, turn: OpenTurn) -> Replies:
        """The same where messages may be under way when the turn is over."""
        grid, timeout = self.federation.grid, self.federation.timeout
        assert grid is not None
        if turn.line is None:
            turn.line = Exchange(grid, timeout, turn.patience, size=self._work)
        turn.line.push(turn.messages())
        while (until := turn.until()) is not None:
            done = turn.line.pull(until)
            self._heed(done)
            turn.answered(done)
            turn.line.push(turn.messages())
        return turn.replies()

    def _heed(self, done: Sequence[tuple[Message, Message | None]]) -> None:
        """Stop if a simulated node says that it cannot keep its users' states, or read them."""
        for _, reply in done if self.federation.simulated else ():
            if reply is None or not reply.has_error():
                continue
            if reply.error.code == ENDS_THE_RUN:
                raise StorageError(reply.error.reason)
            if reply.error.code == ENDS_THE_STRATEGY:
                raise CheckpointError(reply.error.reason)

    def _work(self, message: Message) -> float:
        """How many samples a message is about, as far as the roster tells."""
        roster = self.federation.roster
        task: Any = message.content.get("config", {})
        named = [u for u in task.get("users", []) if u in roster.members]
        if not named:
            return float(roster.load(message.metadata.dst_node_id))
        return float(sum(roster.members[user].train for user in named))
