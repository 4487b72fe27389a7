"""Conversations with cohorts: each cluster has its own, and none waits for another's.

A round of the known-clusters methods may be several exchanges within a cluster. A `Talk` is a
generator: it yields what its cohorts are asked next and is sent their answers. What is ready at the
same moment goes to a node in one message.
"""

from __future__ import annotations

import json
from collections.abc import Generator, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from flwr.app import ConfigRecord, Message
from flwr.serverapp import Grid

from corsage.app.cohorts import MEMBERS, Cohort
from corsage.core.arrays import Arrays
from corsage.core.errors import RoundFailed
from corsage.core.replies import Outcome, by_cause, merge_replies
from corsage.core.wire import encode
from corsage.strategies.rounds.base import Strategy
from corsage.strategies.rounds.exchange import Exchange


@dataclass(frozen=True)
class Request:
    """What one cohort is asked: one row of each array, options, and what comes back."""

    cohort: Cohort
    rows: Arrays = field(default_factory=dict)
    options: Mapping[str, Any] = field(default_factory=dict)
    template: Arrays = field(default_factory=dict)


@dataclass(frozen=True)
class Answer:
    """What a cohort answers: one row of each array, and numbers."""

    cohort: Cohort
    rows: Arrays
    metrics: dict[str, float]


Talk = Generator[list[Request], list[Answer], None]


class Talks(Strategy):
    """A strategy whose rounds are conversations with cohorts."""

    def converse(self, grid: Grid, talks: Mapping[str, Talk]) -> Outcome:
        """Hold all conversations to their ends; who answered, and who did not and why.

        A cohort that does not answer is left out of its cluster's next step; a cluster of which
        none answers has ended its conversation for now.
        """
        line, talking = Exchange(grid, self._timeout), dict(talks)
        asked: dict[int, dict[str, Request]] = {}  # by the message's identity: ids come late
        waiting: dict[str, set[str]] = {}
        heard: dict[str, list[Answer]] = {}
        whole = Outcome()
        ready = {name: next(talk, []) for name, talk in talking.items()}
        while True:
            ready = {name: requests for name, requests in ready.items() if requests}
            for name, requests in ready.items():
                waiting[name], heard[name] = {r.cohort.name for r in requests}, []
            line.push(self._letters([r for group in ready.values() for r in group], asked))
            done, ready = line.pull(), {}
            if not done:
                break
            for message, reply in done:
                letter = asked.pop(id(message))
                answers = self._read(message, reply, letter, whole)
                for place, request in letter.items():
                    cluster = request.cohort.cluster
                    waiting[cluster].discard(place)
                    heard[cluster] += [answers[place]] if place in answers else []
                for cluster in dict.fromkeys(r.cohort.cluster for r in letter.values()):
                    if not waiting[cluster] and heard[cluster]:
                        ready[cluster] = self._go_on(talking[cluster], heard[cluster])
        return whole

    def _go_on(self, talk: Talk, heard: list[Answer]) -> list[Request]:
        """The next requests of a conversation; [] if it has ended."""
        try:
            return talk.send(sorted(heard, key=lambda answer: answer.cohort.name))
        except StopIteration:
            return []

    def _letters(
        self, requests: list[Request], asked: dict[int, dict[str, Request]]
    ) -> list[Message]:
        """One message for each node (and shape of rows); `asked` remembers what is asked in it."""
        if not requests:
            return []
        tick = self.state.scalars["tick"] = int(self.state.scalars.get("tick", 0)) + 1
        groups: dict[tuple[Any, ...], list[Request]] = {}
        for request in requests:
            kinds = tuple((name, row.shape) for name, row in request.rows.items())
            groups.setdefault((request.cohort.node, kinds, *request.template), []).append(request)
        nothing, messages = encode({}), []
        for (node, *_), group in groups.items():
            message = self._letter("train", node, nothing, stacked(group), self._form(tick, group))
            messages.append(message)
            asked[id(message)] = {r.cohort.name: r for r in group}
        return messages

    def _form(self, tick: int, group: list[Request]) -> ConfigRecord:
        """The task of one message; cohorts that the node does not know yet are told their users."""
        names = [request.cohort.name for request in group]
        new = {
            r.cohort.name: list(r.cohort.users)
            for r in group
            if not self.state.versions.get(r.cohort.name)
        }
        options: dict[str, Any] = {"cohort-options": [json.dumps(dict(r.options)) for r in group]}
        if new:
            options[MEMBERS] = json.dumps(new)
        return self._task(tick, names, options)

    def _read(
        self,
        message: Message,
        reply: Message | None,
        requests: dict[str, Request],
        whole: Outcome,
    ) -> dict[str, Answer]:
        """A node's answers, checked; what is wrong with them is noted and added to `whole`."""
        asked = {message.metadata.dst_node_id: list(requests)}
        template = next(iter(requests.values())).template
        found = merge_replies([reply] if reply else [], asked, template, ("num-examples",))
        self._noted(found, version=int(message.metadata.group_id))
        whole.dropped |= found.dropped
        answers = {}
        for place, name in enumerate(found.users):
            metrics = {key: float(values[place]) for key, values in found.metrics.items()}
            rows = {key: array[place] for key, array in found.rows.items()}
            answers[name] = Answer(requests[name].cohort, rows, metrics)
            whole.users += requests[name].cohort.users
        return answers

    def check_heard(self, number: int, outcome: Outcome) -> None:
        """RoundFailed if too few users answered, unless there was nothing to ask."""
        least = self.config.federation.min_users
        outcome.users = list(dict.fromkeys(outcome.users))
        if len(outcome.users) < least and (outcome.users or outcome.dropped):
            raise RoundFailed(
                f"round {number}: {len(outcome.users)} users gave a usable reply, "
                f"min-users={least}. " + "; ".join(by_cause(outcome.dropped)[:3])
            )


def stacked(group: list[Request]) -> Arrays:
    """The requests' rows, one a cohort."""
    return {name: np.stack([r.rows[name] for r in group]) for name in group[0].rows}
