"""The run's books of what came back: versions of users' states, traffic, who was dropped."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

from corsage.core.errors import StatesGone
from corsage.core.measures import GRADIENT_STEPS
from corsage.core.replies import Replies, by_cause, name_users, reading_order
from corsage.strategies.rounds.ledger import Ledger
from corsage.strategies.rounds.turns import Question

if TYPE_CHECKING:
    from corsage.strategies.rounds.federation import Federation

HEARTBEAT = "no reply in time: its node's heartbeat was lost"


class Books:
    """Keeps a federation's books.

    Parameters
    ----------
    federation : whose they are.

    Attributes
    ----------
    durable : the versions that each kept checkpoint holds.
    before : those at the beginning of the round.
    gone : users of this round whose states turned out to be gone.
    """

    def __init__(self, federation: Federation) -> None:
        self.federation = federation
        self.durable: list[Mapping[str, int]] = []
        self.before = Ledger()
        self.gone: set[str] = set()

    def record(self, replies: Replies, version: int) -> None:
        """Note who was dropped or lost, and that the personal states of the rest moved on."""
        federation = self.federation
        progress = federation.progress
        for node in federation.disconnected(replies):
            replies.dropped.update(dict.fromkeys(replies.silent[node], HEARTBEAT))
        if replies.dropped:
            for user in replies.dropped:
                progress.dropped[user] = progress.dropped.get(user, 0) + 1
            for line in by_cause(replies.dropped):
                federation.note(line)
        self.reset(replies)
        kept = [user for user in replies.users if user in replies.kept]
        progress.versions.put(kept, version)
        if (steps := replies.metrics.get(GRADIENT_STEPS.name)) is not None:
            progress.gradient_steps = (progress.gradient_steps or 0.0) + float(steps.sum())
        progress.traffic.wire_bytes_up += replies.wire_bytes
        progress.traffic.wire_messages += replies.wire_messages

    def reset(self, replies: Replies) -> set[str]:
        """Let the users start anew whose nodes no longer have their states; who they are.

        In a simulation nobody loses them but by damage to the run's own files: StatesGone.
        """
        federation = self.federation
        versions = federation.progress.versions
        gone = {user for user in replies.lost if versions.get(user)}
        if gone and federation.simulated:
            why = next((replies.dropped[user] for user in gone if user in replies.dropped), "gone")
            who = name_users(in_order(gone))
            raise StatesGone(f"{who} without a state that the run has left there ({why}).")
        for user in gone:
            del versions[user]
        self.gone |= gone
        return gone

    def begin(self) -> Ledger:
        """A script begins: the versions that it is to go back to if it fails."""
        self.before, self.gone = self.federation.progress.versions.copy(), set()
        return self.before

    def back_to(self, versions: Ledger) -> bool:
        """What users kept since then is void; whether some have lost what they kept before."""
        for user in self.gone & versions.keys():
            del versions[user]
        self.federation.progress.versions = versions
        return bool(self.gone)

    def count(self, question: Question, replies: Replies) -> None:
        """Count a training exchange as one-user devices would have it."""
        federation = self.federation
        asked = sum(len(group) for group in question.asked.values())
        up = sum(a.nbytes for a in replies.mean.values()) * len(replies.users)
        up += sum(a.nbytes for a in replies.rows.values())
        traffic = federation.progress.traffic
        traffic.bytes_down += question.down
        traffic.bytes_up += up
        traffic.messages += (asked if question.down else 0) + (len(replies.users) if up else 0)

    def hold(self, kept: Sequence[Mapping[str, int]]) -> None:
        """Users keep the versions that the kept checkpoints hold, until others are kept."""
        self.durable = list(kept)


def in_order(users: Iterable[str]) -> list[str]:
    """Users as a reader has them."""
    return sorted(users, key=reading_order)
