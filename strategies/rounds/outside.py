"""A strategy played from outside, one exchange a call, as Flower's own loop and its wrappers do.

Callbacks are told what they are told in a run of `start`: so such a run has its metrics, its
checkpoints and its results too, and goes on where a checkpoint stands. A round is over for them
when its evaluation is in, or the next round begins: only then has a wrapper handed over the arrays
that it made of the round's. Its results follow on the evaluation after round `num-rounds`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

from flwr.app import Message

from corsage.core.arrays import Arrays
from corsage.core.replies import Replies
from corsage.strategies.rounds.course import one_round, opened
from corsage.strategies.rounds.first_data import check_data
from corsage.strategies.rounds.run import Run
from corsage.strategies.rounds.turns import Question, Script, Steps, answers

if TYPE_CHECKING:
    from corsage.strategies.rounds.base import Strategy


class Outside:
    """Where whoever plays the strategy stands: amid a script, in an evaluation, or between.

    Parameters
    ----------
    strategy : knows its users and holds its first state before anything is asked here.
    """

    def __init__(self, strategy: Strategy[Any, Any]) -> None:
        self._strategy, self._opened = strategy, False
        self._steps = Steps(self._following, strategy.federation.turnout.judge)
        self._evaluation: tuple[Question, list[Message]] | None = None  # the one under way
        self._options: Mapping[str, Any] = {}  # of that evaluation
        self._trained: Replies | None = None  # of a round that callbacks have not heard of
        self._begun = self._resumed = False

    def enter(self, arrays: Arrays) -> None:
        """Take what whoever plays it hands over; a run that is resumed has its own to begin with.

        What it hands over then is what the run once began with.
        """
        if not (self._resumed and not self._opened):
            self._strategy.take(arrays)
        if self._begun:
            return
        self._begun = True
        self._strategy.clock.start()
        self._run({}).call("on_start")  # may put a checkpoint in place
        self._resumed = self._strategy.progress.round > 0

    def training(self) -> list[Message]:
        """The messages of the next exchange; [] if the algorithm has come to its end."""
        self._end_round(None)
        return self._steps.messages()

    def trained(self, replies: Iterable[Message]) -> Replies | None:
        """Take the replies; what came of a turn, if it is over."""
        return self._steps.answered(replies)

    def evaluation(self, arrays: Arrays, options: Mapping[str, Any]) -> list[Message]:
        """Messages to all nodes; [] amid a round, or before the first."""
        self._evaluation = None
        if not self._steps.between or not self._strategy.progress.round:
            return []
        strategy = self._strategy
        strategy.take(arrays)
        strategy.federation.turnout.rest()
        last = strategy.is_over(strategy.config.run.num_rounds)
        self._options = self._run(options).options(strategy.name, last)
        some = None if last or strategy.by_cohort else strategy.federation.sample
        question = strategy.evaluation(self._options, some)
        self._evaluation = question, question.messages()
        return self._evaluation[1]

    def evaluated(self, replies: Iterable[Message]) -> Replies | None:
        """The users' evaluations, if any were asked for."""
        under_way, self._evaluation = self._evaluation, None
        if under_way is None:
            return None
        question, messages = under_way
        question.answered(answers(messages, replies))
        found = question.replies()
        strategy = self._strategy
        strategy.federation.turnout.judge(found)
        tokens = question.tokens.values()
        strategy.deliveries.note(self._options, strategy.progress.round, tokens, found)
        strategy.evaluated(question.down, found)
        self._end_round(found)
        return found

    def close(self) -> None:
        """Leave the script that is under way."""
        self._steps.close()

    def _run(self, options: Mapping[str, Any]) -> Run:
        """What callbacks are told, as `start` does it."""
        return Run(self._strategy, options)

    def _end_round(self, evaluation: Replies | None) -> None:
        """Tell the callbacks of a round, and of the results after the last one."""
        training, self._trained = self._trained, None
        if training is None:
            return
        strategy, run = self._strategy, self._run({})
        strategy.progress.seconds = strategy.clock.seconds
        run.end_round(training, evaluation)
        last = strategy.is_over(strategy.config.run.num_rounds)
        if last and evaluation is not None and strategy.callbacks:
            run.conclude(evaluation)

    def _following(self) -> Script[Any] | None:
        """The next script of the training."""
        strategy = self._strategy
        if not self._opened:
            check_data(strategy.federation)
            return self._opening()
        done = strategy.progress.round >= strategy.config.run.num_rounds and self._resumed
        if done or (strategy.progress.round > 0 and strategy.finished()):
            return None
        number = strategy.progress.round + 1
        self._run({}).call("on_round_start", number)
        strategy.federation.refresh()
        return self._round(number)

    def _opening(self) -> Script[None]:
        """The opening, which is asked again if it failed."""
        yield from opened(self._strategy)
        self._opened = True

    def _round(self, number: int) -> Script[None]:
        """A round; callbacks hear of it later."""
        self._trained = yield from one_round(self._strategy, number)
