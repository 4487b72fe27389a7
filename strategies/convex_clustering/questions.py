"""Questions to all users of the problem, besides the rounds."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np

from corsage.core.arrays import Arrays
from corsage.core.counts import Number
from corsage.core.errors import RoundFailed
from corsage.core.messages.replies import Replies, by_cause, name_users
from corsage.core.messages.schema import Schema
from corsage.strategies.convex_clustering.disproof import Disproof
from corsage.strategies.rounds.asking import Ask, in_turns
from corsage.strategies.rounds.job import Job
from corsage.strategies.rounds.means.user_rows import places
from corsage.strategies.rounds.outgoing import question_to
from corsage.strategies.rounds.turns import Parcel, Question, Script

if TYPE_CHECKING:
    from corsage.solvers.convex_clustering.batched import Batched, Users
    from corsage.solvers.convex_clustering.expansions import Expansion, Probe
    from corsage.strategies.convex_clustering.remote_losses import RemoteUsers

T = TypeVar("T")
MOST_FAILURES = 3
"""Rounds in a row in which a user's answer cannot be used; then it is left out for good."""
FOUND_ONE = Number("found", low=0.0, high=1.0, whole=True)
ANSWERED_NUMBERS: dict[str, tuple[Number, ...]] = {
    "prox": (),
    "gradient": (Number("value"),),
    "hessian": (),
    "minimise": (FOUND_ONE,),
    "slack": (Number("at_x"), Number("least"), Number("value"), FOUND_ONE),
    "facts": (
        Number("curvature", low=0.0),
        Number("slope", low=0.0),
        Number("smoothness", low=0.0),
        Number("convexity"),
        Number("coercive", low=0.0, high=1.0, whole=True),
    ),
    "held_out": (Number("value"), FOUND_ONE),
    "expand": (),
}
"""The questions, and the numbers that each user answers with."""


class Unanswered(RoundFailed):
    """A question that all must answer, and some did not.

    Parameters
    ----------
    users : those who did not.
    """

    def __init__(self, text: str, users: list[str]) -> None:
        super().__init__(text)
        self.users = users


class Questions:
    """Questions of the server about the users' losses; each is one exchange, and is counted.

    What can be asked is in the clients' table of answers. What is answered is held against all that
    the same user said before (disproof.py).
    """

    def __init__(self, job: Job) -> None:
        self.job, self.disproof = job, Disproof(job.config.model.precision)
        self.failures: dict[str, int] = {}

    def ask(
        self,
        users: list[str],
        question: str,
        rows: Arrays | None = None,
        template: Arrays | None = None,
        options: Mapping[str, Any] | None = None,
        *,
        strict: bool = True,
        number: int | None = None,
    ) -> Script[Replies]:
        """One exchange with all users of the problem.

        Parameters
        ----------
        users : the users; rows are in their order, down and up.
        question : a name in the clients' table of answers.
        rows, template, options : what goes to the users, and the arrays that one of them sends.
        strict : all of them must answer; RoundFailed if one does not.
        number : of the round that it belongs to, by default the last one.
        """
        turn = self._exchange(
            users, rows or {}, template or {}, {**(options or {}), "ask": question}, number
        )
        replies = yield turn
        job = self.job
        job.record(replies, version=job.progress.round)
        job.progress.questions += 1
        if strict and len(replies.users) < len(users):
            raise Unanswered(
                f"{job.name}: all users must answer about their losses ({question}). "
                + "; ".join(by_cause(replies.dropped)[:3]),
                [user for user in users if user not in set(replies.users)],
            )
        replies = in_order(replies, users)
        there = (rows or {}) if replies.users == users else picked(rows or {}, users, replies.users)
        self.hear_answers(users, question, there, options or {}, replies)
        return replies

    def hear_answers(
        self,
        users: list[str],
        question: str,
        rows: Arrays,
        options: Mapping[str, Any],
        replies: Replies,
    ) -> None:
        """Hold answers against earlier ones; `rows` are what the users who replied were sent."""
        self.disproof.about(users)
        self.disproof.hear_answers(question, rows, options, replies)
        self.believe(users)

    def believe(self, users: list[str]) -> None:
        """Unanswered, if any of these is disproved: what it said is no answer."""
        faults = self.disproof.faults
        if liars := [user for user in users if user in faults]:
            whose = "; ".join(f"user {user}: {faults[user]}" for user in liars[:3])
            raise Unanswered(f"{self.job.name}: no convex loss answers so: {whose}", liars)

    def count_failures(self, replies: Replies) -> None:
        """Leave out for good those who answer round after round, and never with what counts."""
        silent = {user for users in replies.silent.values() for user in users}
        failed = [user for user in replies.dropped if user not in silent]
        self.failures = {user: self.failures.get(user, 0) + 1 for user in failed}
        for user, times in self.failures.items():
            if times >= MOST_FAILURES:
                why = f"{times} times in a row {replies.dropped[user]}"
                self.disproof.faults.setdefault(user, why)
        self.believe(failed)

    def without_silent(self, script: Callable[[], Script[T]]) -> Script[T]:
        """A script of questions that all must answer; it begins anew without those who do not.

        As long as there are `min-users` others, and no fewer than half of those that there were.
        """
        job = self.job
        least = max(job.config.federation.min_users, (len(job.members.users) + 1) // 2)
        before = set(job.members.left_out)
        while True:
            try:
                return (yield from script())
            except Unanswered as error:
                job.members.left_out.update(error.users)
                if len(job.members.users) < least:
                    job.members.left_out = before
                    raise
                job.note(self.left_out(error.users))

    def left_out(self, users: list[str]) -> str:
        """A note on users without whom it begins anew."""
        whys = {self.disproof.faults[user] for user in users if user in self.disproof.faults}
        why = (
            f" for the rest of the run: {', '.join(sorted(whys))}"
            if whys
            else (" of what needs an answer of everybody")
        )
        return f"{name_users(users)} left out{why}; it begins anew with the others"

    def about_losses(self, users: list[str], d: int, work: Callable[[RemoteUsers], T]) -> Script[T]:
        """Mathematics on the losses at the users, with d parameters each, as a script."""
        from corsage.strategies.convex_clustering.remote_losses import RemoteUsers

        def inside(ask: Ask) -> T:
            return work(RemoteUsers(lambda *words: ask(self.ask(users, *words)), len(users), d))

        return in_turns(inside)

    def of_users(self, users: list[str], d: int, work: Callable[[Users], T]) -> Script[T]:
        """Mathematics on many problems over the users, with d parameters each, as a script."""
        from corsage.solvers.convex_clustering.batched import MOST_WITH_HESSIANS, Single

        if d > MOST_WITH_HESSIANS:
            return self.about_losses(users, d, lambda each: work(Single(each, len(users), d)))
        return self.batched(users, d, work)

    def batched(self, users: list[str], d: int, work: Callable[[Batched], T]) -> Script[T]:
        """The same by Hessians, all problems at once."""
        from corsage.solvers.convex_clustering.batched import Batched
        from corsage.strategies.convex_clustering.probing import ask_all

        def inside(ask: Ask) -> T:
            def oracle(probes: Sequence[Probe]) -> list[Expansion]:
                found: list[Expansion] = ask(ask_all(self, users, d, probes))
                return found

            return work(Batched(oracle, len(users), d))

        return in_turns(inside)

    def _exchange(
        self,
        users: list[str],
        rows: Arrays,
        template: Arrays,
        options: dict[str, Any],
        number: int | None,
    ) -> Question:
        """The exchange with those of the users that are there now."""
        members = self.job.members.everybody
        present = [user for user in users if user in members]
        parcel = Parcel(rows=rows)
        if len(present) < len(users):
            parcel = Parcel(rows=parcel.pick(places(users, present).tolist()))
        schema = Schema(template, tuple(template), ANSWERED_NUMBERS.get(options["ask"], ()))
        return question_to(self.job, "train", present, parcel, schema, options, number)


def picked(rows: Arrays, users: list[str], some: list[str]) -> Arrays:
    """The rows of some of the users."""
    own = places(users, some)
    return {name: array[own] for name, array in rows.items()}


def in_order(replies: Replies, users: list[str]) -> Replies:
    """The replies with rows and numbers in the order of the users."""
    if replies.users == users:
        return replies
    order = np.argsort(places(users, replies.users), kind="stable")
    return replace(
        replies,
        users=[replies.users[i] for i in order],
        rows={name: array[order] for name, array in replies.rows.items()},
        metrics={name: values[order] for name, values in replies.metrics.items()},
    )
