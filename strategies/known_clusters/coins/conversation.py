"""Conversations with cohorts: each cluster has its own script, and none waits for another's.

A round of the known-clusters methods may be several exchanges within a cluster. A cluster's script
is a generator: it yields what its cohorts are asked next and is sent their answers. What is ready
at the same moment goes to a node in one message.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, Generic, TypeVar

import numpy as np
from flwr.app import ConfigRecord, Message

from corsage.core.arrays import Array, Arrays
from corsage.core.counts import Number
from corsage.core.errors import NodeError, RoundFailed
from corsage.core.messages.encoding import encode
from corsage.core.messages.replies import Replies, by_cause, merge_replies
from corsage.core.messages.schema import Schema
from corsage.strategies.known_clusters.clusters.cohorts import (
    Cohort,
    Present,
    in_groups,
    of_several,
)
from corsage.strategies.rounds.job import Job
from corsage.strategies.rounds.outgoing import expected, message_to, new_token, task_for
from corsage.strategies.rounds.turns import Done, Question, own

T = TypeVar("T")


@dataclass(frozen=True)
class Request:
    """A request to one cohort: one row of each array, options, and the form of its answer.

    Parameters
    ----------
    cohort : who.
    rows, options : what goes to it.
    template, numbers : one row of each array that it answers with, and its numbers.
    fault : why no data come to the rows of an answer; empty: they may be.
    each : whether the template's arrays have a row for each of the cohort's users.
    """

    cohort: Cohort
    rows: Arrays = field(default_factory=dict)
    options: Mapping[str, Any] = field(default_factory=dict)
    template: Arrays = field(default_factory=dict)
    numbers: tuple[Number, ...] = ()
    fault: Callable[[Arrays], str] = lambda rows: ""
    each: bool = False


@dataclass(frozen=True)
class Answer:
    """A cohort's answer: one row of each array, and numbers."""

    cohort: Cohort
    rows: Arrays
    metrics: dict[str, float]


@dataclass(frozen=True)
class Asked:
    """The requests in one message, by cohort, what may be replied, and what is to be repeated."""

    requests: Mapping[str, Request]
    schema: Schema
    token: str


ClusterScript = Generator[list[Request], list[Answer], T]
"""Yields requests to the cohorts of one cluster, is sent their answers, and returns something."""


class Conversation(Generic[T]):
    """Scripts of several clusters at once: a turn of as many exchanges as they need.

    A cohort that does not answer is left out of its cluster's next step; a cluster of which none
    answers has ended its script for now.

    Parameters
    ----------
    job : whose nodes are spoken to.
    scripts : one a cluster.

    Attributes
    ----------
    found : what the scripts returned that came to their ends, by cluster.
    """

    def __init__(self, job: Job, scripts: Mapping[str, ClusterScript[T]]) -> None:
        self.job, self.found = job, dict[str, T]()
        self._scripts = scripts
        self._begun = False
        self._ready: list[Request] = []
        self._asked: dict[int, Asked] = {}  # by the message's identity: ids come late
        self._waiting: dict[str, set[str]] = {}
        self._heard: dict[str, list[Answer]] = {}
        self._kept: dict[str, Cohort] = {}
        self._whole = Replies()
        self._named: set[str] = set()

    def messages(self) -> list[Message]:
        """All that is ready to be asked: one message for each node and shape of rows."""
        if not self._begun:
            self._begun = True
            for cluster in self._scripts:
                self._advance(cluster, None)
        requests, self._ready = self._ready, []
        if requests:
            self.job.progress.exchange += 1
        return [self._message(group) for group in alike(requests)]

    def answered(self, done: Done) -> None:
        """Take answers; a cluster goes on as soon as none of its own is missing."""
        for message, reply in done:
            asked = self._asked.pop(id(message))
            requests, answers = asked.requests, self._read(message, reply, asked)
            for name, request in requests.items():
                self._waiting[request.cohort.cluster].discard(name)
                if name in answers:
                    self._heard[request.cohort.cluster].append(answers[name])
            for cluster in dict.fromkeys(r.cohort.cluster for r in requests.values()):
                if self._heard[cluster] and not self._waiting[cluster]:
                    self._advance(cluster, self._heard[cluster])

    def replies(self) -> Replies:
        """The users that answered at least once, and those that did not and why."""
        return self._whole

    def _advance(self, cluster: str, heard: list[Answer] | None) -> None:
        """A script's next requests, or what it returned; None: it begins."""
        script = self._scripts[cluster]
        try:
            if heard is None:
                requests = next(script)
            else:
                requests = script.send(sorted(heard, key=lambda answer: answer.cohort.name))
        except StopIteration as end:
            self.found[cluster] = end.value
            versions = self.job.progress.versions
            for cohort in self._kept.values():
                if cohort.cluster == cluster:
                    versions.put(cohort.users, cohort.version(versions))
            return
        self._waiting[cluster] = {request.cohort.name for request in requests}
        self._heard[cluster] = []
        self._ready += requests

    def _message(self, group: list[Request]) -> Message:
        """Some requests to one node; `_asked` remembers what is asked in it."""
        job = self.job
        faults = {request.cohort.name: request.fault for request in group}
        schema = Schema(
            group[0].template,
            tuple(group[0].template),
            group[0].numbers,
            fault=lambda name, rows: faults[name](rows),
        )
        samples = {r.cohort.name: job.members.roster.held(r.cohort.users) for r in group}
        schema = expected(job, "train", samples, schema)
        number, token = job.progress.exchange, new_token()
        task = cohort_task(job, group, number, exchange=token)
        node = group[0].cohort.node
        message = message_to(job, "train", node, encode({}), stacked(group), task)
        self._asked[id(message)] = Asked({r.cohort.name: r for r in group}, schema, token)
        return message

    def _read(self, message: Message, reply: Message | None, asked: Asked) -> dict[str, Answer]:
        """A node's answers, checked; what is wrong with them is noted."""
        requests, node = asked.requests, message.metadata.dst_node_id
        came = [reply] if reply and own(message, reply) else []
        found = merge_replies(came, {node: list(requests)}, asked.schema, {node: asked.token})
        cohorts = {name: request.cohort for name, request in requests.items()}
        self._kept |= {name: cohorts[name] for name in found.kept}
        # Of a cohort the first user's version is looked at; all have it when the script has ended.
        users, kept = (
            [user for name in names for user in (name, cohorts[name].users[0])]
            for names in (found.users, found.kept)
        )
        lost = {user for name in found.lost for user in (name, *cohorts[name].users)}
        each = replace(found, users=users, kept={*kept}, lost=lost)
        self.job.record(each, version=int(message.metadata.group_id))
        self._whole.dropped |= found.dropped
        self._whole.silent |= found.silent
        self._whole.refused += found.refused
        self._whole.answered += found.answered
        answers = {}
        for row, name in enumerate(found.users):
            metrics = {key: float(values[row]) for key, values in found.metrics.items()}
            rows = {key: array[row] for key, array in found.rows.items()}
            answers[name] = Answer(requests[name].cohort, rows, metrics)
            if name not in self._named:  # thousands of users, in each answer
                self._named.add(name)
                self._whole.users += requests[name].cohort.users
        return answers


def ask_each(
    job: Job,
    present: Present,
    request: Callable[[Cohort], Request],
    counted: bool = False,
) -> Conversation[list[Answer]]:
    """One question to all cohorts; `found` has the answers by cluster.

    `counted`: it is part of what the algorithm's rounds exchange.
    """

    def script(cohorts: list[Cohort]) -> ClusterScript[list[Answer]]:
        requests = [request(cohort) for cohort in cohorts]
        answers = yield requests
        if counted:
            count_exchange(job, requests)
        return answers

    return Conversation(job, {n: script(group) for n, group in present.groups.items()})


def count_exchange(job: Job, requests: Iterable[Request]) -> None:
    """Count what devices of one user would exchange: the rows down, an answer up."""
    traffic = job.traffic
    for request in requests:
        users = len(request.cohort.users)
        down, up = size_of(request.rows.values()), size_of(request.template.values())
        traffic.bytes_down += users * down
        traffic.bytes_up += up if request.each else users * up
        traffic.messages += users * ((down > 0) + (up > 0))


def evaluations_of(
    job: Job,
    cohorts: Sequence[Cohort],
    shown: Callable[[Cohort], Request],
    options: Mapping[str, Any],
    most: int,
) -> list[Callable[[], Question]]:
    """Evaluations of some cohorts at a time: a node answers for all users of a cohort."""

    def asked(group: Sequence[Cohort]) -> Question:
        return evaluation_of(job, [shown(cohort) for cohort in group], options)

    return [partial(asked, group) for group in in_groups(cohorts, most)]


def evaluation_of(job: Job, requests: Sequence[Request], options: Mapping[str, Any]) -> Question:
    """The exchange in which cohorts judge their users' models: an answer for each user."""
    number, new = job.progress.round, bool(options.get("adapt"))
    if not requests:
        raise NodeError(f"round {number}: no users are connected.")
    groups: dict[int, list[Request]] = {}
    for request in requests:
        groups.setdefault(request.cohort.node, []).append(request)
    messages, everybody = [], (user for r in requests for user in r.cohort.users)
    samples = job.members.roster.samples("evaluate", everybody)
    schema = expected(job, "evaluate", samples, job.judgement(options))
    options = {**options, **job.judging}
    tokens = {node: new_token() for node in groups}
    for node, group in groups.items():
        task = cohort_task(job, group, number, options, new, tokens[node])
        messages.append(message_to(job, "evaluate", node, encode({}), stacked(group), task))
    asked = {node: [u for r in group for u in r.cohort.users] for node, group in groups.items()}
    down = sum(len(r.cohort.users) * size_of(r.rows.values()) for r in requests)
    return Question(messages, asked, schema, down, tokens)


def cohort_task(
    job: Job,
    group: Sequence[Request],
    number: int,
    options: Mapping[str, Any] | None = None,
    new: bool = False,
    exchange: str = "",
) -> ConfigRecord:
    """The task of one message; a node is told the users of cohorts that it does not know yet."""
    progress, cohorts = job.progress, [request.cohort for request in group]
    unknown = [c for c in cohorts if new or c.version(progress.versions) <= c.since]
    begin = tuple({of_several(c.cluster) for c in unknown if c.version(progress.versions)})
    return task_for(
        job,
        number,
        [c.name for c in cohorts],
        options or {},
        [c.users[0] for c in cohorts],
        exchange=exchange,
        cohort_options=[dict(request.options) for request in group],
        members={c.name: list(c.users) for c in unknown},
        former=[n for n in progress.versions if n.startswith(begin)] if begin else [],
    )


def alike(requests: Iterable[Request]) -> list[list[Request]]:
    """The requests that can go in one message: to one node, with rows and answers of one shape."""
    groups: dict[tuple[Any, ...], list[Request]] = {}
    for request in requests:
        kinds = tuple((name, row.shape) for name, row in request.rows.items())
        back = *((name, row.shape) for name, row in request.template.items()), *request.numbers
        groups.setdefault((request.cohort.node, kinds, *back), []).append(request)
    return list(groups.values())


def stacked(group: Sequence[Request]) -> Arrays:
    """The requests' rows, one a cohort."""
    return {name: np.stack([r.rows[name] for r in group]) for name in group[0].rows}


def size_of(arrays: Iterable[Array]) -> int:
    """Bytes that these arrays have together."""
    return sum(array.nbytes for array in arrays)


def check_enough(job: Job, number: int, replies: Replies) -> None:
    """RoundFailed if too few users answered, unless there was nothing to ask."""
    least, users = job.config.federation.min_users, replies.users
    if len(users) < least and (users or replies.dropped):
        raise RoundFailed(
            f"round {number}: {len(users)} users gave a usable reply, min-users={least}. "
            + "; ".join(by_cause(replies.dropped)[:3])
        )
