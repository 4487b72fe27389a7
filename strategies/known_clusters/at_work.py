"""Clusters that are at work while others meet: their walks outlast the rounds that they began in.

With `known-staleness` above 0 a round does not wait for all clusters (loose_rounds.py). A walk is
still a script of questions to a cluster's users, and the server hears its answers in whatever round
they come.
"""

from __future__ import annotations

import math
import time
from collections.abc import Collection
from dataclasses import dataclass, field

from flwr.app import Message

from corsage.core.arrays import Floats
from corsage.core.replies import Replies
from corsage.strategies.known_clusters.conversation import (
    Answer,
    Asked,
    ClusterScript,
    Conversation,
    Request,
    alike,
)
from corsage.strategies.rounds.job import Job
from corsage.strategies.rounds.turns import Done

GRACE = 1.5
"""Usual times of a walk that a round waits for those who began it together."""


@dataclass
class Busy:
    """Where a cluster is in its walk: enough to begin it again at that place.

    Parameters
    ----------
    first : the first iteration of the stretch that it walks.
    answers : how often its users have answered.
    """

    first: int
    answers: int = 0


@dataclass
class AtWork:
    """What is remembered of clusters that do not wait for each other.

    Parameters
    ----------
    joined : the round in which a cluster last took part, by its name.
    away : in how many rounds it did not, and how old its centre was at most.
    seen : what the others see of it, by the name of the cluster or of a user's row.
    busy : those at work.
    renewed : rows whose users have new anchors that the others do not see yet.
    xbar : the middle of all anchors as a row goes by it, of methods that have anchors.
    behind : clusters whose users have not heard of their last steps by that middle.
    """

    joined: dict[str, int] = field(default_factory=dict)
    away: dict[str, tuple[int, int]] = field(default_factory=dict)
    seen: dict[str, Floats] = field(default_factory=dict)
    busy: dict[str, Busy] = field(default_factory=dict)
    renewed: list[str] = field(default_factory=list)
    xbar: dict[str, Floats] = field(default_factory=dict)
    behind: list[str] = field(default_factory=list)


def followed(script: ClusterScript[None], busy: Busy) -> ClusterScript[None]:
    """A cluster's walk; `busy` knows how often it was answered."""
    try:
        requests = next(script)
        while True:
            answers = yield requests
            requests = script.send(answers)
            busy.answers += 1
    except StopIteration:
        busy.answers += 1


class Walkers(Conversation[None]):
    """All walks of a run, in one conversation that never ends; a turn is a part of it.

    A node is asked one thing at a time, and answers of a cluster are taken when all of its nodes
    have answered: what the server remembers of it is of one moment.

    Parameters
    ----------
    job : whose nodes are spoken to.
    staleness : how many rounds a centre may be old.
    """

    def __init__(self, job: Job, staleness: int) -> None:
        super().__init__(job, {})
        self._begun, self.staleness, self.line = True, staleness, None
        self.patience = job.members.patience * (staleness + 1)
        self._came: dict[str, list[tuple[Message, Message | None, Asked]]] = {}
        self._fresh: set[str] = set()
        self._start, self._brought = 0.0, False
        self._awaited: Collection[str] | None = None
        self._overdue: set[str] = set()

    def start(self) -> None:
        """A round begins."""
        self._fresh, self._start = set(), time.monotonic()

    def begin(self, cluster: str, script: ClusterScript[None], fresh: bool = False) -> None:
        """A cluster begins its walk; `fresh`: in this round, and not one that was cut off."""
        self._waiting.pop(cluster, None)
        self.times.pop(cluster, None)
        self._scripts = {**self._scripts, cluster: script}
        self._fresh |= {cluster} if fresh else set()
        self._advance(cluster, None)

    def wait_for(self, overdue: Collection[str], awaited: Collection[str] | None = None) -> None:
        """At the end of the turn that comes these must not be at work any more.

        `awaited`: it waits for just these, whatever it takes, and for none of the others.
        """
        self._overdue, self._awaited, self._brought = set(overdue), awaited, True

    def is_back(self, cluster: str) -> bool:
        """Whether a cluster is not at work, and may be taken for that."""
        waited = self._awaited is None or cluster in self._awaited
        return waited and cluster not in self.running()

    def running(self) -> set[str]:
        """The clusters that are at work."""
        return {cluster for cluster, names in self._waiting.items() if names}

    @property
    def nodes(self) -> set[int]:
        """The nodes that have not come to the end of what they were asked."""
        return {r.cohort.node for one in self._asked.values() for r in one.requests.values()}

    def messages(self) -> list[Message]:
        """What is ready to be asked of nodes that have nothing else to do."""
        asked = self.nodes
        chosen: dict[int, list[Request]] = {}
        for group in alike(self._ready, by_cluster=True):
            if group[0].cohort.node not in asked:
                chosen.setdefault(group[0].cohort.node, group)
        sent = {id(request) for group in chosen.values() for request in group}
        self._ready = [request for request in self._ready if id(request) not in sent]
        if chosen:
            self.job.progress.exchange += 1
        for group in chosen.values():
            self._clock(group[0].cohort.cluster)
        return [self._message(group) for group in chosen.values()]

    def answered(self, done: Done) -> None:
        """Take a cluster's answers when none is missing; then it goes on."""
        self._brought = bool(done)
        for message, reply in done:
            asked = self._asked.pop(id(message))
            cluster = next(iter(asked.requests.values())).cohort.cluster
            self._came.setdefault(cluster, []).append((message, reply, asked))
            self._waiting[cluster] -= asked.requests.keys()
            if not self._waiting[cluster]:
                self._take(cluster)

    def _take(self, cluster: str) -> None:
        """All answers of a cluster to one question."""
        heard: list[Answer] = []
        for message, reply, asked in self._came.pop(cluster):
            heard += self._read(message, reply, asked).values()
        if heard:
            self._advance(cluster, heard)
        if cluster not in self.running():
            self._clock(cluster)

    def replies(self) -> Replies:
        """Who answered since the last turn, and who did not and why."""
        found, self._whole = super().replies(), Replies()
        return found

    def until(self) -> float | None:
        """How long the round waits: for those whose centres would be too old, as long as it takes.

        For those that began in this round, as long as they may take compared with one another.
        """
        busy = self.running()
        if self._awaited is not None:
            return math.inf if busy.intersection(self._awaited) else None
        if busy & self._overdue:
            return math.inf
        if not busy:
            return None
        late = self._deadline() if busy & self._fresh else -math.inf
        return late if self._brought or time.monotonic() < late else None

    def _deadline(self) -> float:
        """When those that began in this round have had their time, if half of them have come."""
        busy = self.running()
        ends = sorted(self.times[c][1] for c in self._fresh - busy if c in self.times)
        half = (len(self._fresh) + 1) // 2
        if len(ends) < half:
            return math.inf
        return self._start + GRACE * (ends[half - 1] - self._start)
