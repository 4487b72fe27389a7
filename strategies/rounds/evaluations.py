"""Evaluations of a run, the end of a round, and the rows of the table."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from corsage.core.configuration.config import Config
from corsage.core.errors import RoundFailed
from corsage.core.messages.replies import Replies, by_cause
from corsage.core.messages.wire import DELIVER_OPTION, OUTCOMES, ROOM_OPTION, ROW_OPTION
from corsage.core.registry import attached, attachment
from corsage.strategies.rounds.judged import judged, with_others
from corsage.strategies.rounds.results import (
    LAST_ROUNDS,
    NewUsers,
    Result,
    Summary,
    round_row,
    summarised,
    weighted_metrics,
)
from corsage.strategies.rounds.turns import Question, Series, T

if TYPE_CHECKING:
    from corsage.strategies.rounds.base import Strategy

Options = Mapping[str, Any]


def tell(strategy: Strategy[Any, Any], hook: str, *arguments: Any) -> None:
    """Tell all callbacks."""
    for callback in strategy.callbacks:
        getattr(callback, hook)(strategy, *arguments)


def round_over(
    strategy: Strategy[Any, Any],
    training: Replies,
    evaluation: Replies | None,
    result: Result | None = None,
) -> None:
    """The end of a round: a point of the curve if it was evaluated, and a row for callbacks."""
    progress = strategy.progress
    if evaluation is not None:
        own = judged(evaluation, strategy.job.measures).first
        progress.curve.append((progress.round, float(np.mean(own))))
        if result is not None:
            found = weighted_metrics(evaluation)
            result.evaluate_metrics_clientapp[progress.round] = found
    tell(strategy, "on_round_end", round_row(strategy, training, evaluation))


def options_of(
    strategy: Strategy[Any, Any], row: str, deliver: bool, more: Options | None = None
) -> Options:
    """The options of an evaluation of a row; of the one that the table shows if it delivers."""
    job = strategy.job
    users = job.members.judged(more or {})
    kept = bool(job.state_dir) or job.collects
    rest = row_options(row, deliver, strategy.config, len(users) if kept else 0)
    if deliver and (pairs := attachment("pairs")):
        sizes = job.members.roster.samples("evaluate", users).values()
        rest = {**rest, OUTCOMES: pairs.wanted(job.measure, sizes)}
    return {**strategy.evaluate_options, **(more or {}), **rest}


def evaluated(strategy: Strategy[Any, Any], last: bool, seen: Replies | None) -> Replies:
    """All users' evaluation after a round, or that of a sample.

    Who is not asked, as it is at work, is where it was when it was last `seen`.
    """
    replies = evaluate(strategy, options_of(strategy, strategy.name, last), some=not last)
    return with_others(replies, seen, strategy.members.users)


def evaluate(strategy: Strategy[Any, Any], options: Options, some: bool = False) -> Replies:
    """All users' evaluation, or that of a sample, by messages of its own."""
    members = strategy.members
    members.rest()

    def asked() -> Replies:
        turn = Series(strategy.evaluations(options, some))
        return accepted(strategy, options, turn, members.exchange(turn), some)

    return persistently(strategy, asked)


def persistently(strategy: Strategy[Any, Any], work: Callable[[], T]) -> T:
    """Work with nodes; if it fails and nodes were silent, once more without these, or when they
    are back."""
    job = strategy.job
    while True:
        try:
            return work()
        except RoundFailed as error:
            if not (how := job.members.go_on(job.introduction)):
                raise
            job.note(f"{error} {how}")


def accepted(
    strategy: Strategy[Any, Any],
    options: Options,
    turn: Question | Series,
    replies: Replies,
    some: bool,
) -> Replies:
    """An evaluation as it came; once more if states turn out to be gone: they start anew."""
    job = strategy.job
    if job.reset(replies):
        for line in by_cause(replies.dropped):
            job.note(line)
        turn = Series(strategy.evaluations(options, some))
        replies = job.members.exchange(turn)
    words = turn.tokens.values() if isinstance(turn, Question) else turn.tokens
    return noted(strategy, options, turn.down, words, replies)


def noted(
    strategy: Strategy[Any, Any],
    options: Options,
    down: int,
    tokens: Iterable[str],
    replies: Replies,
) -> Replies:
    """An evaluation whose numbers count: RoundFailed if it is of too few."""
    strategy.deliveries.note(options, strategy.progress.round, tokens, replies)
    strategy.judged(replies)
    strategy.job.accept_evaluation(replies, down)
    return replies


def rows(strategy: Strategy[Any, Any], last: Replies) -> list[Summary]:
    """The rows of the table: that of the last evaluation, and those of further ones."""
    summaries = [summarised(strategy.name, strategy, last, LAST_ROUNDS)]
    for name, more in strategy.extra_evaluations().items():
        extra = evaluate(strategy, options_of(strategy, name, True, more))
        summaries.append(summarised(name, strategy, extra))
    if strategy.config.train.end_heads:
        summaries += attached("heads at the end").summaries(strategy)
    if strategy.config.new.wanted:
        summaries.append(adapted(strategy))
    return summaries


def last_evaluation(strategy: Strategy[Any, Any]) -> Replies:
    """The last round's evaluation, which a killed run has had already: it counts once."""
    progress, options = strategy.progress, options_of(strategy, strategy.name, deliver=True)
    if not any(number == progress.round for number, _ in progress.curve):
        return evaluate(strategy, options)
    traffic, dropped = strategy.job.traffic, {**progress.dropped}
    before = replace(traffic)
    found = evaluate(strategy, options)
    vars(traffic).update(vars(before))  # others count in the same one
    progress.dropped = dropped
    return found


def adapted(strategy: Strategy[Any, Any]) -> Summary:
    """New users adapt, in every case that the config names; the last one heads the result."""
    cases, name, wanted = [], f"{strategy.name}+new", strategy.config.new.cases
    for number, (samples, epochs) in enumerate(wanted, 1):
        more = {"adapt": True, "adapt-samples": samples, "adapt-epochs": epochs}
        options = options_of(strategy, name, number == len(wanted), more)
        summary = summarised(name, strategy, evaluate(strategy, options))
        cases.append(NewUsers(samples, epochs, summary.score, summary.per_user))
    return replace(summary, new_users=cases)


AUTO_BYTES = 2**30
"""What the users' models of a row may take where nobody said how much."""
NO_LIMIT = 2**62


@dataclass(frozen=True)
class Delivery:
    """An evaluation whose models the table's row names.

    Parameters
    ----------
    row : of the table.
    round : after which it was.
    tokens : of its messages: what nodes left under others is of no use.
    users : who answered, in the order of the row.
    options : what the evaluation said.
    """

    row: str
    round: int
    tokens: tuple[str, ...]
    users: tuple[str, ...]
    options: Mapping[str, Any]


def row_options(row: str, deliver: bool, config: Config, users: int) -> Mapping[str, Any]:
    """Options of an evaluation besides what is asked; 0 users: nobody would take the models."""
    limits = {"auto": AUTO_BYTES // max(users, 1), "all": NO_LIMIT, "none": 0}
    room = {ROOM_OPTION: limits[config.run.keep_models]} if deliver and users else {}
    return {ROW_OPTION: row, DELIVER_OPTION: deliver, **room}


class Deliveries(dict[str, Delivery]):
    """The last delivery of each row."""

    def note(
        self, options: Mapping[str, Any], number: int, tokens: Iterable[str], replies: Replies
    ) -> None:
        """Remember an evaluation after round `number`, if it is one that delivers."""
        if options.get(DELIVER_OPTION):
            row = str(options[ROW_OPTION])
            self[row] = Delivery(row, number, (*tokens,), (*replies.users,), dict(options))
