"""A run, from its opening to its results.

`run` is the whole of it, as `Strategy.start` plays it; `exchange_once` is what most algorithms do
in a round. Both are on this screen and the next. Who drives a strategy one exchange a call, as
Flower's own loop does (outside.py), plays the same scripts, `opened` and `one_round`.
"""

from __future__ import annotations

import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from logging import DEBUG
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from flwr.app import ArrayRecord, MetricRecord
from flwr.supercore import log

from corsage.core.arrays import Arrays
from corsage.core.errors import ConfigError, RoundFailed, line
from corsage.core.measures import GRADIENT_STEPS
from corsage.core.messages.replies import Replies, name_users
from corsage.core.messages.schema import Schema
from corsage.core.messages.wire import ROWS_BY_USER
from corsage.core.registry import attached
from corsage.strategies.rounds.agreed import check_data
from corsage.strategies.rounds.evaluations import (
    evaluated,
    last_evaluation,
    persistently,
    round_over,
    rows,
    tell,
)
from corsage.strategies.rounds.model_arrays import lean
from corsage.strategies.rounds.outgoing import question_to
from corsage.strategies.rounds.results import LAST_ROUNDS, Result, Summary, weighted_metrics
from corsage.strategies.rounds.state import not_finite
from corsage.strategies.rounds.turns import Script, T, Turn, played

if TYPE_CHECKING:
    from corsage.strategies.devices.riding import Riding
    from corsage.strategies.rounds.algorithm import Algorithm
    from corsage.strategies.rounds.base import Strategy

NUMERIC = (ArithmeticError, ValueError, RuntimeError)
"""Errors of mathematics on numbers that it cannot work with; NumPy's and torch's are among them."""
Evaluate = Callable[[int, ArrayRecord], MetricRecord | None]
"""The server's own evaluation after a round, as Flower has it."""


def run(strategy: Strategy[Any, Any], rounds: int, evaluate: Evaluate | None = None) -> Result:
    """All rounds, and what is reported after them."""
    job, members, result = strategy.job, strategy.members, Result()

    # Begin: a callback may put a checkpoint in place, which the nodes' data have to fit.
    tell(strategy, "on_start")
    check_data(job)
    strategy.summary()

    # Ask what must be known before the first round.
    play(strategy, opened, members.exchange)
    if members.scales is not None:
        members.scales.weigh_all(strategy)

    rounds, every = strategy.length(rounds), strategy.config.run.evaluate_every
    riding = riding_of(strategy, result)
    exchange = riding.exchange if riding else members.exchange
    evaluation: Replies | None = None  # of the round that was last
    latest: Replies | None = None  # of any round
    while not is_over(strategy, rounds):
        number = strategy.progress.round + 1
        if riding is None or riding.waiting is None:
            tell(strategy, "on_round_start", number)

        # See who is there: devices come and go.
        if members.devices is not None:
            job.refresh()

        # Choose, send, wait, merge: all that the algorithm does in a round.
        training = play(strategy, one_round, exchange)
        strategy.progress.seconds = strategy.clock.seconds
        result.train_metrics_clientapp[number] = weighted_metrics(training)

        # Evaluate: every so many rounds, and in the last ones.
        last = is_over(strategy, rounds)
        due = last or number % every == 0 or number > rounds - LAST_ROUNDS
        if evaluate and (metrics := evaluate(number, strategy.named_arrays())) is not None:
            result.evaluate_metrics_serverapp[number] = metrics
        if due and not last and riding is not None:
            riding.wait(training)
            continue  # the next round's first messages bring it, and end this round
        evaluation = evaluated(strategy, last, latest) if due else None
        latest = evaluation or latest

        # Tell callbacks, which write metrics and checkpoints.
        round_over(strategy, training, evaluation, result)

    # Close: a last question to users, and the rows of the table.
    result.summaries = concluded(strategy, evaluation)
    result.arrays = strategy.named_arrays()
    return result


def exchange_once(strategy: Algorithm[Any, Any], number: int) -> Script[Replies]:
    """A round as most methods have it: users train on what they are sent, and the server merges."""
    job, averaging, server = strategy.job, strategy.averaging, strategy.server_step

    # Choose users, and declare what they may reply.
    users = strategy.choose(number, job.members.users)
    options = {**strategy.train_options, **strategy.options(number)}
    numbers = (*strategy.numbers("train"), GRADIENT_STEPS)
    schema = Schema(strategy.template(), strategy.by_user, numbers)
    if averaging.on:
        averaging.check_enough(len(users))
        schema = replace(schema, by_user=tuple(schema.arrays))
        options[ROWS_BY_USER] = True

    # Send, and wait.
    origins = averaged(strategy) if averaging.on or server else {}
    parcel = strategy.send(users)
    question = question_to(job, "train", users, parcel, schema, options, number)
    replies = yield question

    # Merge, by robust averages and the server's own optimizer where they are on.
    job.accept(number, replies)
    if averaging.on:
        replies = averaging.merged(replies, origins)
    if server:
        replies = server.taken(replies, origins)
    strategy.state = lean(strategy.merge(replies))
    job.count(question, replies)
    return replies


def averaged(strategy: Algorithm[Any, Any]) -> Arrays:
    """Arrays that were sent of those that are averaged; zeros where users send changes."""
    shared, zero = strategy.shared(), np.zeros_like
    return {
        name: zero(like) if name in strategy.changes else shared[name]
        for name, like in strategy.template().items()
        if name not in strategy.by_user
    }


# Scripts, which are played to their end, or change nothing.


def play(
    strategy: Strategy[Any, Any],
    script: Callable[[Strategy[Any, Any]], Script[T]],
    exchange: Callable[[Turn], Replies],
) -> T:
    """Play a script; once more if it fails for nodes that were silent."""
    return persistently(strategy, lambda: played(script(strategy), exchange))


def opened(strategy: Strategy[Any, Any]) -> Script[None]:
    """The opening, or nothing of it."""
    is_open = False
    while not is_open:
        with whole(strategy, "the opening"):
            yield from strategy.opening()
            is_open = True


def one_round(strategy: Strategy[Any, Any]) -> Script[Replies]:
    """The next round, and that it is done."""
    number, replies = strategy.progress.round + 1, None
    while replies is None:
        with whole(strategy, f"round {number}"):
            replies = yield from strategy.round(number)
    strategy.progress.round = number
    strategy.note_trained(replies)
    return replace(replies, mean={}, rows={})  # a model more would be held for nobody


@contextmanager
def whole(strategy: Strategy[Any, Any], part: str) -> Iterator[None]:
    """A script that comes to a state whose numbers are finite, or changes nothing.

    Where it fails because users' states are gone, they start anew, and it is to be played again.
    """
    job, before, updates = strategy.job, strategy.snapshot(), replace(strategy.job.updates)
    versions = job.begin()
    try:
        yield
        if name := not_finite(strategy.state):
            raise RoundFailed(
                f"{strategy.name}: {part} would make {name} not finite; nothing of it is kept. "
                "If training diverges: a smaller lr."
            )
    except BaseException as error:
        strategy.state, job.updates = before, updates
        gone = job.go_back(versions)
        if isinstance(error, NUMERIC):
            error = not_computed(f"{strategy.name}: {part}", error)
        if not (gone and isinstance(error, RoundFailed)):
            raise error
        job.note(f"{name_users(gone)} to start anew: the round is tried again")
    finally:
        job.before = {}


def not_computed(part: str, error: BaseException) -> RoundFailed:
    """Numbers that cannot be worked with, as an error in one line."""
    log(DEBUG, "%s failed:\n%s", part, traceback.format_exc())
    frame = traceback.extract_tb(error.__traceback__)[-1]
    failed = RoundFailed(
        f"{part} cannot be computed from what users sent, nothing of it is kept: "
        f"{type(error).__name__}: {line(error)} ({Path(frame.filename).name}:{frame.lineno})"
    )
    failed.__cause__ = error
    return failed


# The end of a run.


def is_over(strategy: Strategy[Any, Any], rounds: int) -> bool:
    """True if all rounds are done, none is left to do, or none brings more (`stop-after`)."""
    done, after = strategy.progress.round, strategy.config.run.stop_after
    ends = done and (strategy.finished() or (after and attached("stopping").is_due(strategy)))
    return done >= rounds or bool(ends)


def concluded(strategy: Strategy[Any, Any], evaluation: Replies | None) -> list[Summary]:
    """The last questions of a run, and its report."""
    found = strategy.deliveries.get(strategy.name)  # none of the last round: it came sooner
    delivers = found is not None and found.round == strategy.progress.round
    last = (delivers and evaluation) or last_evaluation(strategy)  # before the closing
    play(strategy, lambda strategy: strategy.closing(), strategy.members.exchange)
    summaries = rows(strategy, last)
    tell(strategy, "on_end", summaries)
    return summaries


def refuse_no_rounds(strategy: Strategy[Any, Any], rounds: int) -> None:
    """Refuse a second start that would do nothing, and give the first one's result."""
    done = strategy.progress.round
    if not done or not is_over(strategy, strategy.length(rounds)):
        return
    goes_on = not is_over(strategy, done + rounds)
    more = f"start(grid, num_rounds={done + rounds}) does more, and " * goes_on
    raise ConfigError(
        f"{strategy.name}: this object has done its {done} rounds; {more}"
        f"{type(strategy).__name__}(...) makes another for a run of its own."
    )


def riding_of(strategy: Strategy[Any, Any], result: Result) -> Riding | None:
    """Exchanges in which devices' evaluations ride on training; None where they do not."""
    members, wanted = strategy.members, strategy.config.federation.evaluate_with_training
    if members.devices is None or members.at_home or not wanted:
        return None
    riding: Riding | None = attached("riding").begun(strategy, result, members.devices)
    return riding
