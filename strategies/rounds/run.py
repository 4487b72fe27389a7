"""A run from its first round to its results, with the callbacks around it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from logging import INFO
from typing import TYPE_CHECKING, Any

import numpy as np
from flwr.app import ArrayRecord, MetricRecord
from flwr.supercore import log

from corsage.core.errors import RoundFailed
from corsage.core.replies import Replies, by_cause
from corsage.strategies.rounds.course import one_round, opened
from corsage.strategies.rounds.delivery import row_options
from corsage.strategies.rounds.first_data import check_data
from corsage.strategies.rounds.judged import judged, with_others
from corsage.strategies.rounds.results import (
    LAST,
    NewUsers,
    Result,
    Summary,
    round_row,
    summarised,
    weighted_metrics,
)
from corsage.strategies.rounds.riding import Together, Waiting, rides
from corsage.strategies.rounds.turns import Question, Script, Series, T, Turn

if TYPE_CHECKING:
    from corsage.strategies.rounds.base import Strategy

Options = Mapping[str, Any]


class Run:
    """Plays a strategy's scripts round by round.

    Parameters
    ----------
    strategy : knows its users, and holds its first state.
    evaluate : options of all evaluations, from Flower's config.
    evaluate_fn : the server's own evaluation, as Flower has it.
    """

    def __init__(
        self,
        strategy: Strategy[Any, Any],
        evaluate: Options,
        evaluate_fn: Callable[[int, ArrayRecord], MetricRecord | None] | None = None,
    ) -> None:
        self.strategy, self.federation = strategy, strategy.federation
        self.evaluate_options, self.evaluate_fn = evaluate, evaluate_fn
        self._seen: Replies | None = None  # the last evaluation
        self._waiting: Waiting | None = None  # the last round, if its evaluation is to come

    def to_its_end(self, rounds: int) -> Result:
        """All rounds, and what is reported after them."""
        strategy = self.strategy
        self.call("on_start")  # may put a checkpoint in place
        check_data(self.federation)
        strategy.summary()
        self._played(partial(opened, strategy))
        self.federation.scales.weigh_all(strategy)
        rounds, result, evaluation = strategy.length(rounds), Result(), None
        riding = self._is_riding()
        while not strategy.is_over(rounds):
            number = strategy.progress.round + 1
            if self._waiting is None:
                self.call("on_round_start", number)
            self.federation.refresh()
            training = self._played(partial(one_round, strategy, number), self._begin(result))
            strategy.progress.seconds = strategy.clock.seconds
            last, due = strategy.is_over(rounds), self._is_due(number, rounds)
            result.train_metrics_clientapp[number] = weighted_metrics(training)
            self._serve_evaluation(number, result)
            if due and not last and riding:
                self._waiting = Waiting(training, self.options(strategy.name, deliver=False))
                continue
            evaluation = self._evaluate_round(result, last) if due else None
            self.call("on_round_end", round_row(strategy, training, evaluation))
        result.summaries = self._results(evaluation)
        result.arrays = strategy.named_arrays()
        self.call("on_end", result.summaries)
        return result

    def _played(
        self, script: Callable[[], Script[T]], begin: Callable[[Turn], Replies] | None = None
    ) -> T:
        """Play a script; if it fails and nodes were silent, play it again without these."""
        while True:
            try:
                return self.federation.player.play(script(), begin)
            except RoundFailed as error:
                if self._waiting is not None or not self.federation.turnout.go_without():
                    raise
                begin = None
                self.federation.note(f"{error} It is played again without those that are silent.")

    def end_round(self, training: Replies, evaluation: Replies | None) -> None:
        """A round that somebody else played: a row, and if evaluated a point of the curve."""
        if evaluation is not None:
            self._add_point(evaluation)
        self.call("on_round_end", round_row(self.strategy, training, evaluation))

    def conclude(self, evaluation: Replies) -> None:
        """What is reported after the last round, whoever played them."""
        self.call("on_end", self._results(evaluation))

    def _is_riding(self) -> bool:
        """Whether evaluations go with the next round's training: on devices, where they can."""
        wanted = self.strategy.config.federation.evaluate_with_training
        if not wanted or self.federation.at_home:
            return False
        if not (found := rides(self.strategy)):
            told = "%s: evaluations have messages of their own: its rounds are not of one exchange"
            log(INFO, f"{told}, or users get other arrays for them", self.strategy.name)
        return found

    def _begin(self, result: Result) -> Callable[[Turn], Replies] | None:
        """How a round's first turn is played: with the last round's evaluation, if that waits."""
        return None if self._waiting is None else partial(self._with_evaluation, result)

    def _with_evaluation(self, result: Result, turn: Turn) -> Replies:
        """A round's first turn, and in the same exchange what the last round's models are worth."""
        assert self._waiting is not None
        strategy, waiting = self.strategy, self._waiting
        question = strategy.evaluation(waiting.options, self.federation.sample)
        both = Together(turn, question, strategy.progress.traffic)
        replies = self.federation.player.exchanged(both)
        found = both.judged()
        self.federation.turnout.judge(both.bystanders(found))
        evaluation = self._accepted(waiting.options, question, found, some=True)
        self._add_point(evaluation, result)
        self._waiting = None
        with both.before_training():
            self.call("on_round_end", round_row(strategy, waiting.training, evaluation))
        self.call("on_round_start", strategy.progress.round + 1)
        self.federation.turnout.judge_others(replies)
        return replies

    def _is_due(self, number: int, rounds: int) -> bool:
        """Whether all users are evaluated after this round."""
        due = number % self.strategy.config.run.evaluate_every == 0 or number > rounds - LAST
        return due or self.strategy.is_over(rounds)

    def options(self, row: str, deliver: bool, more: Options | None = None) -> Options:
        """The options of an evaluation of a row; of the one that the table shows if it delivers."""
        federation, adapt = self.federation, bool((more or {}).get("adapt"))
        users = len(federation.new_users if adapt else federation.users)
        kept = bool(federation.state_dir) or federation.collects
        rest = row_options(row, deliver, self.strategy.config, users if kept else 0)
        return {**self.evaluate_options, **(more or {}), **rest}

    def _evaluate(self, options: Options, some: bool = False) -> Replies:
        """All users' evaluation, or that of a sample, by messages of its own."""
        self.federation.turnout.rest()
        turn = self._asked(options, some)
        return self._accepted(options, turn, self.federation.player.complete(turn), some)

    def _accepted(
        self, options: Options, turn: Question | Series, replies: Replies, some: bool
    ) -> Replies:
        """An evaluation as it came; once more if states turn out to be gone: they start anew."""
        strategy = self.strategy
        if self.federation.books.reset(replies):
            for line in by_cause(replies.dropped):
                self.federation.note(line)
            turn = self._asked(options, some)
            replies = self.federation.player.complete(turn)
        tokens = list(turn.tokens.values()) if isinstance(turn, Question) else turn.tokens
        strategy.deliveries.note(options, strategy.progress.round, tokens, replies)
        return strategy.evaluated(turn.down, replies)

    def _asked(self, options: Options, some: bool) -> Series:
        """An evaluation as a turn."""
        return Series(self.strategy.evaluations(options, some))

    def _last_evaluation(self) -> Replies:
        """The last round's evaluation, which a killed run has had already: it counts once."""
        progress, options = self.strategy.progress, self.options(self.strategy.name, deliver=True)
        if not any(number == progress.round for number, _ in progress.curve):
            return self._evaluate(options)
        traffic, dropped = replace(progress.traffic), dict(progress.dropped)
        found = self._evaluate(options)
        vars(progress.traffic).update(vars(traffic))  # others count in the same one
        progress.dropped = dropped
        return found

    def _evaluate_round(self, result: Result, last: bool) -> Replies:
        """All users' evaluation after a round, a point of the curve.

        Who is not asked, as it is at work, is where it was when it last was.
        """
        replies = self._evaluate(self.options(self.strategy.name, last), some=not last)
        self._seen = replies = with_others(replies, self._seen, self.federation.users)
        self._add_point(replies, result)
        return replies

    def _add_point(self, replies: Replies, result: Result | None = None) -> None:
        progress, found = self.strategy.progress, judged(replies, self.federation.measures)
        progress.curve.append((progress.round, float(np.mean(found.first))))
        if result is not None:
            result.evaluate_metrics_clientapp[progress.round] = weighted_metrics(replies)

    def _serve_evaluation(self, number: int, result: Result) -> None:
        """Flower's evaluation at the server, if there is one."""
        if self.evaluate_fn is None:
            return
        if (found := self.evaluate_fn(number, self.strategy.named_arrays())) is not None:
            result.evaluate_metrics_serverapp[number] = found

    def _results(self, evaluation: Replies | None) -> list[Summary]:
        """What is asked at the end, the final evaluation of all users, and further rows."""
        strategy = self.strategy
        last = evaluation or self._last_evaluation()  # before the closing, as in a whole run
        self._played(strategy.closing)
        results = [summarised(strategy.name, strategy, last, LAST)]
        for name, more in strategy.extra_evaluations().items():
            extra = self._evaluate(self.options(name, True, more))
            results.append(summarised(name, strategy, extra))
        if strategy.config.new.wanted:
            results.append(self._adapt())
        return results

    def _adapt(self) -> Summary:
        """New users adapt, in every case that the config names; the last one heads the result."""
        cases, strategy = [], self.strategy
        name, wanted = f"{strategy.name}+new", strategy.config.new.cases
        for number, (samples, epochs) in enumerate(wanted, 1):
            more = {"adapt": True, "adapt-samples": samples, "adapt-epochs": epochs}
            replies = self._evaluate(self.options(name, number == len(wanted), more))
            summary = summarised(name, strategy, replies)
            cases.append(NewUsers(samples, epochs, summary.score))
        return replace(summary, new_users=cases)

    def call(self, hook: str, *arguments: Any) -> None:
        """Tell all callbacks."""
        for callback in self.strategy.callbacks:
            getattr(callback, hook)(self.strategy, *arguments)
