"""Patience with nodes: three times as long as the others took, not for ever.

A reply that does not come may be slow or may never come. What tells them apart is what a node did
before, so the server remembers how long each took compared with the median of those asked with it.
A node that does not reply within three times what was to be expected of it is given up; one that
did so lately is asked, but nobody waits for it. What comes after all is dropped, but it shows that
the node lives and how slow it is, and from then on it is waited for as long as it needs.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, field
from statistics import median_low

from flwr.app import Message

QUERY = "query"
TIMES_USUAL = 3.0
"""Times the median that a node has to reply."""
BRISK = 0.5
"""Medians more than one that a node has which never replied, once such cost enough time."""


@dataclass(frozen=True)
class Pending:
    """A message under way: which one, when it was sent, and how much work it is."""

    message: Message
    at: float
    size: float = 1.0

    @property
    def node(self) -> int:
        """The node that it went to."""
        return self.message.metadata.dst_node_id


@dataclass
class Pace:
    """The pace of one exchange's replies: nobody knows a median before half of the nodes replied.

    Parameters
    ----------
    doubtful : nodes that nobody waits for, if there are others.
    kind : what they are asked to do.
    asked : how much work each node got.
    times : seconds in which each node replied.
    failed : nodes that replied with an error: how fast they do so says nothing.
    idle : medians that were waited for nodes that had never replied before.
    """

    doubtful: frozenset[int] = frozenset()
    kind: str = ""
    asked: dict[int, float] = field(default_factory=dict)
    times: dict[int, float] = field(default_factory=dict)
    failed: set[int] = field(default_factory=set)
    idle: float = 0.0

    def ask(self, sent: Pending) -> None:
        """A node is asked."""
        self.kind = sent.message.metadata.message_type
        self.asked[sent.node] = sent.size

    def work(self, sent: Pending) -> float:
        """The work of a message as times the usual, at least once."""
        usual = median_low(self.asked.values())
        return max(sent.size / usual, 1.0) if usual else 1.0

    def trusted(self) -> list[int]:
        """The nodes that are waited for: all of them, if all are doubtful."""
        return [node for node in self.asked if node not in self.doubtful] or list(self.asked)

    def median(self) -> float | None:
        """The median time of the nodes that are trusted, once half of these have replied."""
        trusted = [node for node in self.trusted() if node not in self.failed]
        came = sorted(self.times[node] for node in trusted if node in self.times)
        half = (len(trusted) + 1) // 2
        return came[half - 1] if half and len(came) >= half else None


class Patience:
    """The time that each node is waited for.

    Parameters
    ----------
    times : how many times as long as expected a node is waited for; 0: as long as it may take.
    quorum : share of the asked nodes after which slow ones have no more time than the others.
    """

    def __init__(self, times: float = 0.0, quorum: float = 1.0) -> None:
        self.times, self.quorum = times, quorum
        self._late: list[tuple[Message, Message]] = []
        self._slowness: dict[int, float] = {}
        self._typical: dict[str, float] = {}
        self._given_up: dict[str, Pending] = {}
        self._idle = 0.0
        self._slow: set[int] = set()  # nodes that replied too late, and since then not in time

    def until(self, sent: Pending, pace: Pace, waiting: bool) -> float:
        """The time to give up a message, if nothing comes; `waiting`: for trusted nodes."""
        if sent.node not in pace.trusted():
            return math.inf if waiting else sent.at
        if self.quorum < 1 and len(pace.times) >= math.ceil(self.quorum * len(pace.asked)):
            return sent.at + (self.times or TIMES_USUAL) * median_low(pace.times.values())
        usual = self._median(pace)
        if usual is None or not self.times:
            return math.inf
        slowness, times = self._slowness.get(sent.node), self.times
        if slowness is None and pace.kind != QUERY:
            left = self.times - 1.0 - self._idle
            times = min(1.0 + max(left, BRISK), self.times)
        return sent.at + times * usual * pace.work(sent) * (slowness or 1.0)

    def came(self, sent: Pending, seconds: float, pace: Pace) -> None:
        """A reply in time: how slow a node is; what it once was is forgotten by halves."""
        pace.times[sent.node] = seconds
        self._slow.discard(sent.node)
        if (found := pace.median()) is not None:
            self._typical[pace.kind] = found
        if pace.kind != QUERY:
            usual = self._median(pace)
            ratio = seconds / usual / pace.work(sent) if usual else 1.0
            before = self._slowness.get(sent.node, 1.0)
            self._slowness[sent.node] = max(ratio, before / 2, 1.0)

    def give_up(self, identity: str, sent: Pending, now: float, pace: Pace) -> None:
        """A message was waited for in vain; its reply is still looked for."""
        self._given_up[identity] = sent
        usual, new = self._median(pace), sent.node not in self._slowness
        if usual and new and pace.kind != QUERY and sent.node in pace.trusted():
            idle = (now - sent.at - max(pace.times.values(), default=0.0)) / usual
            self._idle += max(idle - pace.idle, 0.0)
            pace.idle = max(pace.idle, idle)

    # What comes too late.

    def given_up(self, now: float) -> list[str]:
        """The messages that may still be answered: Flower keeps them for so long."""
        kept = self._given_up.items()
        self._given_up = {i: p for i, p in kept if now - p.at < p.message.metadata.ttl}
        return list(self._given_up)

    def drop(self, identities: Iterable[str]) -> None:
        """Replies that cannot be read will not come again."""
        for identity in identities:
            self._given_up.pop(identity, None)

    def forget(self, node: int) -> None:
        """A node has said who it is: it need not say it twice, nor is it at work on that."""
        to = {i: p.message.metadata for i, p in self._given_up.items() if p.node == node}
        self.drop(i for i, metadata in to.items() if metadata.message_type == QUERY)

    def came_late(self, reply: Message, now: float) -> bool:
        """Take a reply to a message that was given up: it shows how slow its node is."""
        sent = self._given_up.pop(reply.metadata.reply_to_message_id, None)
        if sent is not None and reply.metadata.src_node_id == sent.node:
            self._late.append((sent.message, reply))
            kind = sent.message.metadata.message_type
            if kind != QUERY and not reply.has_error() and (usual := self._typical.get(kind)):
                self._slowness[sent.node] = max((now - sent.at) / usual, 1.0)
                self._slow.add(sent.node)
        return sent is not None

    def working(self) -> set[int]:
        """The nodes that reply, but late, and have not come to the end of what they were asked."""
        return self._slow & {sent.node for sent in self._given_up.values()}

    def take_late(self, query: bool) -> list[Message]:
        """The replies that came too late, to queries or to all others, once."""
        found = [(m, r) for m, r in self._late if (m.metadata.message_type == QUERY) == query]
        self._late = [pair for pair in self._late if pair not in found]
        return [reply for _, reply in found]

    def _median(self, pace: Pace) -> float | None:
        found = pace.median()
        return self._typical.get(pace.kind) if found is None else found
