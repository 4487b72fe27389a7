"""A run, from its opening to its results.

`run` plays it to its end, as `Strategy.start` does. Who drives a strategy one exchange a call, as
Flower's own loop does (steps.py), plays the same scripts, `opened` and `one_round`.
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
from corsage.strategies.rounds.evaluation import (
    evaluated,
    last_evaluation,
    round_over,
    rows,
    tell,
)
from corsage.strategies.rounds.model_arrays import lean
from corsage.strategies.rounds.opening.first_data import check_data
from corsage.strategies.rounds.outgoing import question_to
from corsage.strategies.rounds.results import LAST, Result, Summary, weighted_metrics
from corsage.strategies.rounds.state import not_finite
from corsage.strategies.rounds.turns import Script, T, Turn, played

if TYPE_CHECKING:
    from corsage.strategies.devices.riding import Riding
    from corsage.strategies.rounds.algorithm import Algorithm
    from corsage.strategies.rounds.base import Strategy

NUMERIC = (ArithmeticError, ValueError, RuntimeError)
"""What mathematics raises on numbers that it cannot work with; NumPy's and torch's are among it."""
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

    riding = riding_of(strategy, result)
    rounds = strategy.length(rounds)
    seen: Replies | None = None
    evaluation: Replies | None = None
    while not is_over(strategy, rounds):
        # See who is there.
        number = strategy.progress.round + 1
        if riding is None or riding.waiting is None:
            tell(strategy, "on_round_start", number)
        job.refresh()

        # Choose, send, wait, merge.
        training = play(strategy, one_round, riding.exchange if riding else members.exchange)
        strategy.progress.seconds = strategy.clock.seconds
        result.train_metrics_clientapp[number] = weighted_metrics(training)

        # Evaluate.
        last, every = is_over(strategy, rounds), strategy.config.run.evaluate_every
        due = last or number % every == 0 or number > rounds - LAST
        if evaluate and (found := evaluate(number, strategy.named_arrays())) is not None:
            result.evaluate_metrics_serverapp[number] = found
        if due and not last and riding is not None:
            riding.wait(training)
            continue  # the next round's first messages bring it, and end this round
        evaluation = evaluated(strategy, last, seen) if due else None
        seen = evaluation or seen

        # Tell callbacks, which write metrics and checkpoints.
        round_over(strategy, training, evaluation, result)

    # Close: a last question to users, and the rows of the table.
    result.summaries = concluded(strategy, evaluation)
    result.arrays = strategy.named_arrays()
    return result


def concluded(strategy: Strategy[Any, Any], evaluation: Replies | None) -> list[Summary]:
    """The last questions of a run, and its report."""
    last = evaluation or last_evaluation(strategy)  # before the closing, as in a whole run
    play(strategy, lambda strategy: strategy.closing(), strategy.members.exchange)
    found = rows(strategy, last)
    tell(strategy, "on_end", found)
    return found


def riding_of(strategy: Strategy[Any, Any], result: Result) -> Riding | None:
    """Exchanges in which evaluations ride on training; None where they do not."""
    wanted = strategy.config.federation.evaluate_with_training
    if strategy.members.devices is None or strategy.members.at_home or not wanted:
        return None
    riding = attached("riding")
    found: Riding | None = None
    if riding.rides(strategy):
        found = riding.Riding(strategy, result, strategy.members.devices)
    return found


def play(
    strategy: Strategy[Any, Any],
    script: Callable[[Strategy[Any, Any]], Script[T]],
    exchange: Callable[[Turn], Replies],
) -> T:
    """Play a script; if it fails and nodes were silent, play it again without these."""
    job = strategy.job
    while True:
        try:
            return played(script(strategy), exchange)
        except RoundFailed as error:
            if not job.members.go_without():
                raise
            job.note(f"{error} It is played again without those that are silent.")


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
def whole(strategy: Strategy[Any, Any], what: str) -> Iterator[None]:
    """A script that comes to a state whose numbers are finite, or changes nothing.

    Where it fails because users' states are gone, they start anew, and it is to be played again.
    """
    job, before, updates = strategy.job, strategy.snapshot(), replace(strategy.job.updates)
    versions = job.begin()
    try:
        with failing(f"{strategy.name}: {what}"):
            yield
        if name := not_finite(strategy.state):
            raise RoundFailed(
                f"{strategy.name}: {what} would make {name} not finite; nothing of it is kept. "
                "If training diverges: a smaller lr."
            )
    except BaseException as error:
        strategy.state, job.updates = before, updates
        gone = job.go_back(versions)
        if not (gone and isinstance(error, RoundFailed)):
            raise
        job.note(f"{name_users(gone)} to start anew: the round is tried again")
    finally:
        job.before = {}


@contextmanager
def failing(what: str) -> Iterator[None]:
    """Numbers that cannot be worked with make `what` fail, in one line."""
    try:
        yield
    except NUMERIC as error:
        log(DEBUG, "%s failed:\n%s", what, traceback.format_exc())
        frames = traceback.extract_tb(error.__traceback__)
        where = f"{Path(frames[-1].filename).name}:{frames[-1].lineno}"
        raise RoundFailed(
            f"{what} cannot be computed from what users sent, nothing of it is kept: "
            f"{type(error).__name__}: {line(error)} ({where})"
        ) from error


def exchange_once(strategy: Algorithm[Any, Any], number: int) -> Script[Replies]:
    """A round as most methods have it: users train on what they are sent, and the server merges."""
    job, config, averaging = strategy.job, strategy.config, strategy.averaging
    users = strategy.choose(number, job.members.users)
    options = {**strategy.train_options, **strategy.options(number)}
    numbers, sent = (*strategy.numbers("train"), GRADIENT_STEPS), Arrays()
    schema = Schema(strategy.template(), strategy.by_user, numbers)
    if config.robust.on or config.server.on:
        sent = averaged(strategy)
    if config.robust.on:
        averaging.check_enough(len(users))
        schema = replace(schema, by_user=tuple(schema.arrays))
        options[ROWS_BY_USER] = True
    parcel = strategy.send(users)
    question = question_to(job, "train", users, parcel, schema, options, number)
    replies = yield question
    job.accept(number, replies)
    replies = strategy.server_step.taken(averaging.merged(replies, sent), sent)
    strategy.state = lean(strategy.merge(replies))
    job.count(question, replies)
    return replies


def averaged(strategy: Algorithm[Any, Any]) -> Arrays:
    """Arrays that were sent of those that are averaged; zeros where users send changes."""
    own, zero = strategy.shared(), np.zeros_like
    return {
        name: zero(like) if name in strategy.changes else own[name]
        for name, like in strategy.template().items()
        if name not in strategy.by_user
    }


def is_over(strategy: Strategy[Any, Any], rounds: int) -> bool:
    """True if all rounds are done, or none is left to do."""
    done = strategy.progress.round
    return done >= rounds or (done > 0 and strategy.finished())


def refuse_no_rounds(strategy: Strategy[Any, Any], rounds: int) -> None:
    """Refuse a second start that would do nothing, and give the first one's result."""
    done = strategy.progress.round
    if not done or not is_over(strategy, strategy.length(rounds)):
        return
    more = f"start(grid, num_rounds={done + rounds}) does more, and " * (not strategy.finished())
    raise ConfigError(
        f"{strategy.name}: this object has done its {done} rounds; {more}"
        f"{type(strategy).__name__}(...) makes another for a run of its own."
    )
