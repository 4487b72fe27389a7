"""An evaluation that rides on the next round's training messages: on devices a message is dear.

What is evaluated is the same, only later: the models after round t are judged in the exchange of
round t + 1, before anything is trained. Users that do not train then are asked by messages of their
own in the same exchange. For callbacks a round is over, and has its checkpoint, when its evaluation
is in.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from logging import INFO
from typing import TYPE_CHECKING, Any

from flwr.app import Message
from flwr.supercore import log

from corsage.core.messages.aboard import packed, split
from corsage.core.messages.encoding import payload
from corsage.core.messages.replies import Replies
from corsage.strategies.rounds.evaluations import accepted, options_of, round_over, tell
from corsage.strategies.rounds.state import Traffic
from corsage.strategies.rounds.turns import Done, Turn

if TYPE_CHECKING:
    from corsage.strategies.devices.devices import Devices
    from corsage.strategies.rounds.base import Strategy
    from corsage.strategies.rounds.results import Result


@dataclass(frozen=True)
class Waiting:
    """A round that is over but for its evaluation.

    Parameters
    ----------
    training : what its training came to.
    options : those of the evaluation.
    """

    training: Replies
    options: Mapping[str, Any]


class Riding:
    """Exchanges of a run, whose evaluations go with the next round's training where they can.

    Parameters
    ----------
    strategy : whose run it is.
    result : gets what the evaluations come to.
    devices : who is asked.
    """

    def __init__(self, strategy: Strategy[Any, Any], result: Result, devices: Devices) -> None:
        self.strategy, self.result, self.devices = strategy, result, devices
        self.waiting: Waiting | None = None  # the last round, if its evaluation is to come

    def wait(self, training: Replies) -> None:
        """A round's evaluation comes with the next round's training, which then ends it."""
        strategy = self.strategy
        self.waiting = Waiting(training, options_of(strategy, strategy.name, deliver=False))

    def exchange(self, turn: Turn) -> Replies:
        """Exchange a turn; with it goes the last round's evaluation, if that waits."""
        strategy, waiting, job = self.strategy, self.waiting, self.strategy.job
        if waiting is None:
            return job.members.exchange(turn)
        question = strategy.evaluation(waiting.options, job.members.sample)
        both = Together(turn, question, job.traffic)
        replies = job.members.exchanged(both)
        found = both.judged()
        self.devices.judge(both.bystanders(found))
        evaluation = accepted(strategy, waiting.options, question, found, some=True)
        self.waiting = None
        with both.before_training():
            round_over(strategy, waiting.training, evaluation, self.result)
        tell(strategy, "on_round_start", strategy.progress.round + 1)
        self.devices.judge_others(replies)
        return replies


class Together:
    """A training exchange and an evaluation as one turn, whose replies are the training's.

    Parameters
    ----------
    training, evaluation : both; `evaluation` has its own replies afterwards.
    traffic : counted as both alone until then.
    """

    def __init__(self, training: Turn, evaluation: Turn, traffic: Traffic) -> None:
        self.training, self.evaluation, self._traffic = training, evaluation, traffic
        self._trains, self._rides = training.messages(), evaluation.messages()
        self._parts: dict[int, tuple[Message | None, Message | None]] = {}
        self._double = 0  # replies that are of both
        self._trained = {message.metadata.dst_node_id for message in self._trains}
        self._own = Traffic(
            wire_messages=len(self._trains), wire_bytes_down=sum(map(down, self._trains))
        )

    def _pairs(self) -> list[tuple[Message | None, Message | None]]:
        """For each node its training message and its evaluation, if it has both."""
        trains, rides = (
            {message.metadata.dst_node_id: message for message in messages}
            for messages in (self._trains, self._rides)
        )
        return [(trains.get(node), rides.get(node)) for node in {**trains, **rides}]

    def messages(self) -> list[Message]:
        """One to each node that trains or evaluates; [] once they are sent."""
        joined, pairs = [], self._pairs()
        self._trains, self._rides = [], []
        for train, ride in pairs:
            message = self._joined(train, ride) if train and ride else train or ride
            assert message is not None
            self._parts[id(message)] = train, ride
            joined.append(message)
        return joined

    def _joined(self, train: Message, ride: Message) -> Message:
        """One message out of two: what both of them had is sent once."""
        self._traffic.wire_bytes_down -= down(ride)
        self._traffic.wire_messages -= 1
        to = train.metadata
        content = packed(train.content, ride.content)
        return Message(content, to.dst_node_id, to.message_type, ttl=to.ttl, group_id=to.group_id)

    def answered(self, done: Done) -> None:
        """Give each of the two its own replies."""
        for sent, reply in done:
            train, ride = self._parts.pop(id(sent), (None, None))
            both = train is not None and ride is not None and reply is not None
            own, other = split(reply) if both and reply is not None else (reply, reply)
            self._double += both
            if train is not None:
                self.training.answered([(train, own)])
            if ride is not None:
                self.evaluation.answered([(ride, other)])

    def replies(self) -> Replies:
        """The training's replies."""
        return self.training.replies()

    def judged(self) -> Replies:
        """The evaluation's replies; one that was both is counted as the training's."""
        found = self.evaluation.replies()
        found.wire_messages -= self._double
        return found

    @contextmanager
    def before_training(self) -> Iterator[None]:
        """Count without the training's own messages: who resumes sends those once more."""
        traffic, training = self._traffic, self._own
        traffic.wire_messages -= training.wire_messages
        traffic.wire_bytes_down -= training.wire_bytes_down
        yield
        traffic.wire_messages += training.wire_messages
        traffic.wire_bytes_down += training.wire_bytes_down

    def bystanders(self, evaluation: Replies) -> Replies:
        """The behaviour of nodes that were asked for the evaluation alone."""
        return Replies(
            silent={n: users for n, users in evaluation.silent.items() if n not in self._trained},
            refused=[n for n in evaluation.refused if n not in self._trained],
            answered=[n for n in evaluation.answered if n not in self._trained],
        )


def down(message: Message) -> int:
    """Bytes of a message's arrays."""
    return sum(payload(record) for record in message.content.array_records.values())


def begun(strategy: Strategy[Any, Any], result: Result, devices: Devices) -> Riding | None:
    """Its exchanges, if its evaluations can ride."""
    return Riding(strategy, result, devices) if rides(strategy) else None


def rides(strategy: Strategy[Any, Any]) -> bool:
    """True if a round begins with one exchange, in which users get what they are evaluated on.

    So it is where an algorithm has the round of the base, and sends what all users share; more
    users than are asked at once have exchanges of their own.
    """
    from corsage.strategies.rounds.algorithm import EVALUATED_AT_ONCE, Algorithm

    names, kind = ("round", "send", "show", "evaluation"), type(strategy)
    few = len(strategy.members.sample) <= EVALUATED_AT_ONCE
    able = few and all(getattr(kind, name) is getattr(Algorithm, name) for name in names)
    stops = strategy.config.run.stop_after  # it must be known before the next round
    if able and not stops:
        return True
    why = "its rounds are not of one exchange, or users get other arrays for them"
    told = "stop-after looks at each before the next round" if stops else why
    log(INFO, "%s: evaluations have messages of their own: %s", strategy.name, told)
    return False
