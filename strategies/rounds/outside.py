"""A strategy played from outside, one exchange a call, as Flower's own loop and its wrappers do."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

from flwr.app import Message

from corsage.core.arrays import Arrays
from corsage.core.replies import Replies
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
        self._steps = Steps(self._following, strategy.federation.judge)
        self._evaluation: tuple[Question, list[Message]] | None = None  # the one under way

    def training(self) -> list[Message]:
        """The messages of the next exchange; [] if the algorithm has come to its end."""
        return self._steps.messages()

    def trained(self, replies: Iterable[Message]) -> Replies | None:
        """Take the replies; what came of a turn, if it is over."""
        return self._steps.answered(replies)

    def evaluation(self, arrays: Arrays, options: Mapping[str, Any]) -> list[Message]:
        """Messages to all nodes; [] amid a round, or before the first."""
        self._evaluation = None
        if not self._steps.between or not self._strategy.progress.round:
            return []
        self._strategy.take(arrays)
        self._strategy.federation.rest()
        question = self._strategy.evaluation(options)
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
        self._strategy.federation.judge(found)
        return self._strategy.evaluated(question, found)

    def close(self) -> None:
        """Leave the script that is under way."""
        self._steps.close()

    def _following(self) -> Script[Any] | None:
        """The next script of the training."""
        strategy = self._strategy
        if not self._opened:
            strategy.federation.check_data()
            return self._opening()
        if strategy.progress.round > 0 and strategy.finished():
            return None
        strategy.federation.refresh()
        return strategy.one_round(strategy.progress.round + 1)

    def _opening(self) -> Script[None]:
        """The opening, which is asked again if it failed."""
        yield from self._strategy.opened()
        self._opened = True
