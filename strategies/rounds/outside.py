"""A strategy played from outside, one exchange a call, as Flower's own loop and its wrappers do.

The scripts are those of a run (loop.py), and callbacks are told what they are told there: so such a
run has its metrics, its checkpoints and its results too, and goes on where a checkpoint stands. A
round is over for callbacks when its evaluation is in, or the next round begins: only then has a
wrapper handed over the arrays that it made of the round's. Its results follow on the evaluation
after round `num-rounds`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

from flwr.app import Message

from corsage.core.arrays import Arrays
from corsage.core.messages.replies import Replies
from corsage.strategies.rounds.agreed import check_data
from corsage.strategies.rounds.evaluations import noted, options_of, round_over, tell
from corsage.strategies.rounds.loop import concluded, is_over, one_round, opened
from corsage.strategies.rounds.turns import Question, Script, Turn, again, answers

if TYPE_CHECKING:
    from corsage.strategies.rounds.base import Strategy


class Steps:
    """A strategy in others' hands: amid a script, in an evaluation, or between.

    A script begins only when it is its turn, so that it sees what happened between two calls. One
    that fails is over, and is begun anew by the next call.

    Parameters
    ----------
    strategy : knows its users and holds its first state before anything is asked here.
    """

    def __init__(self, strategy: Strategy[Any, Any]) -> None:
        self._strategy = strategy
        self._begun = self._resumed = self._opened = False
        self._script: Script[Replies | None] | None = None
        self._turn: Turn | None = None
        self._ready: list[Message] = []
        self._sent: list[Message] = []  # these, or copies of them, if they were asked for
        self._trained: Replies | None = None  # of a round that callbacks have not heard of
        self._evaluation: tuple[Question, list[Message]] | None = None  # the one under way
        self._options: Mapping[str, Any] = {}  # of that evaluation

    # Training.

    def enter(self, arrays: Arrays) -> None:
        """Take what whoever plays it hands over; a run that is resumed has its own to begin with.

        What it hands over then is what the run once began with.
        """
        strategy = self._strategy
        if not (self._resumed and not self._opened):
            strategy.take(arrays)
        if self._begun:
            return
        self._begun = True
        strategy.clock.start()
        tell(strategy, "on_start")  # may put a checkpoint in place
        self._resumed = strategy.progress.round > 0

    def training(self) -> list[Message]:
        """The messages of the next exchange; [] if the algorithm has come to its end.

        Who asks again has lost the replies: messages that were sent once are made anew.
        """
        self._end_round(None)
        while self._turn is None:
            self._script = self._following()
            if self._script is None:
                return []
            self._go_on(None)
        self._sent = [again(message) for message in self._ready] if self._sent else self._ready
        return self._sent

    def trained(self, replies: Iterable[Message]) -> Replies | None:
        """Take the replies to all these messages; what came of the turn, if it is over."""
        turn = self._turn
        if turn is None:
            return None
        try:
            came = [reply for _, reply in answers(self._sent or self._ready, replies)]
            turn.answered(list(zip(self._ready, came, strict=True)))
            self._ready, self._sent = turn.messages(), []
            if self._ready:
                return None
            merged = turn.replies()
            if (devices := self._strategy.members.devices) is not None:
                devices.judge(merged)
            self._go_on(merged)
            return merged
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """Leave the script that is under way, and let go what it holds."""
        script, self._script, self._turn = self._script, None, None
        self._ready, self._sent = [], []
        if script is not None:
            script.close()

    def _following(self) -> Script[Replies | None] | None:
        """The opening, which is asked again if it failed; then one round after the other."""
        strategy = self._strategy
        if not self._opened:
            check_data(strategy.job)
            return opened(strategy)
        number = strategy.progress.round
        if is_over(strategy, strategy.config.run.num_rounds if self._resumed else number + 1):
            return None
        tell(strategy, "on_round_start", number + 1)
        if strategy.members.devices is not None:
            strategy.job.refresh()
        return one_round(strategy)

    def _go_on(self, replies: Replies | None) -> None:
        """The script's next turn that has something to send, or its end."""
        script, self._turn = self._script, None
        assert script is not None
        try:
            turn = next(script) if replies is None else script.send(replies)
            self._ready = turn.messages()
            while not self._ready:
                turn = script.send(turn.replies())
                self._ready = turn.messages()
            self._turn, self._sent = turn, []
        except StopIteration as end:
            self._opened, self._trained = True, end.value

    # Evaluation.

    def evaluation(self, arrays: Arrays, options: Mapping[str, Any]) -> list[Message]:
        """Messages to all nodes; [] amid a round, or before the first."""
        self._evaluation, strategy = None, self._strategy
        if self._turn is not None or not strategy.progress.round:
            return []
        strategy.take(arrays)
        strategy.members.rest()
        last = is_over(strategy, strategy.config.run.num_rounds)
        self._options = options_of(strategy, strategy.name, last, options)
        some = None if last or strategy.by_cohort else strategy.members.sample
        question = strategy.evaluation(self._options, some)
        self._evaluation = question, question.messages()
        return self._evaluation[1]

    def evaluated(self, replies: Iterable[Message]) -> Replies | None:
        """The users' evaluations, if any were asked for."""
        under_way, self._evaluation = self._evaluation, None
        if under_way is None:
            return None
        strategy, (question, messages) = self._strategy, under_way
        question.answered(answers(messages, replies))
        evaluation = question.replies()
        if strategy.members.devices is not None:
            strategy.members.devices.judge(evaluation)
        noted(strategy, self._options, question.down, question.tokens.values(), evaluation)
        self._end_round(evaluation)
        return evaluation

    def _end_round(self, evaluation: Replies | None) -> None:
        """Tell the callbacks of a round, and of the results after the last one."""
        training, self._trained = self._trained, None
        if training is None:
            return
        strategy = self._strategy
        strategy.progress.seconds = strategy.clock.seconds
        round_over(strategy, training, evaluation)
        last = is_over(strategy, strategy.config.run.num_rounds)
        if last and evaluation is not None and strategy.callbacks:
            concluded(strategy, evaluation)
