"""Exchanges, step by step: what is sent next, what came back, what it comes to.

An algorithm's training is a *script*: a generator that yields turns and is sent their replies.
`Strategy.start` plays it to its end; Flower's own loop plays it one exchange a call.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, Protocol, TypeVar

from flwr.app import Message

from corsage.core.arrays import Arrays
from corsage.core.replies import Replies, merge_replies, one_after_the_other
from corsage.core.schema import Schema

T = TypeVar("T")
Done = Sequence[tuple[Message, Message | None]]
"""Messages, each with its reply, or None if none came."""


class Turn(Protocol):
    """Something that takes one exchange, or several one after the other."""

    def messages(self) -> list[Message]:
        """What is to be sent now; [] if there is nothing more."""

    def answered(self, done: Done) -> None:
        """Some messages are done with."""

    def replies(self) -> Replies:
        """What it came to, after the last reply."""


Script = Generator[Turn, Replies, T]
"""Yields turns, is sent their replies, and returns something at its end."""


@dataclass(frozen=True)
class Parcel:
    """What goes to users: arrays that all of them get, and arrays with one row a user."""

    shared: Arrays = field(default_factory=dict)
    rows: Arrays = field(default_factory=dict)

    def pick(self, places: Sequence[int]) -> Arrays:
        """The rows of some of the users."""
        return {name: rows[list(places)] for name, rows in self.rows.items()}


@dataclass
class Question:
    """One exchange: a message to each of some nodes, and their replies merged.

    Parameters
    ----------
    outgoing : the messages.
    asked : the users that each node answers for.
    schema : what the users may reply.
    down : bytes that the users would get as one-user devices.
    tokens : what each node's message had for it to repeat.
    """

    outgoing: list[Message]
    asked: Mapping[int, list[str]]
    schema: Schema
    down: int
    tokens: Mapping[int, str]
    _came: list[Message] = field(default_factory=list)

    def messages(self) -> list[Message]:
        """All messages at once."""
        now, self.outgoing = self.outgoing, []
        return now

    def answered(self, done: Done) -> None:
        """Keep what came, each from the node that it was asked of."""
        self._came += [reply for sent, reply in done if reply and own(sent, reply)]

    def replies(self) -> Replies:
        """The replies checked and merged."""
        return merge_replies(self._came, self.asked, self.schema, self.tokens)


class Series:
    """Questions one after the other that are one turn: each is made when those before are done.

    Parameters
    ----------
    questions : makes each of them.

    `down` are the bytes and `tokens` the words of all that were made.
    """

    def __init__(self, questions: Iterable[Callable[[], Question]]) -> None:
        self._questions = iter(questions)
        self._now: Question | None = None
        self._waiting = 0
        self._found: list[Replies] = []
        self.down, self.tokens = 0, list[str]()

    def messages(self) -> list[Message]:
        """Those of the next question, when all of the last one's are done with."""
        if self._waiting:
            return []
        if self._now is not None:
            self._found.append(self._now.replies())
        make = next(self._questions, None)
        self._now = make() if make else None
        if self._now is None:
            return []
        self.down += self._now.down
        self.tokens += self._now.tokens.values()
        sent = self._now.messages()
        self._waiting = len(sent)
        return sent

    def answered(self, done: Done) -> None:
        """Some messages are done with."""
        assert self._now is not None
        self._waiting -= len(done)
        self._now.answered(done)

    def replies(self) -> Replies:
        """What all of them came to."""
        return one_after_the_other(self._found)


class Steps:
    """Scripts played from outside, one exchange a call.

    A script begins only when it is its turn, so that it sees what happened between two calls. One
    that fails is over; what is to be played after it is for `following` to say.

    Parameters
    ----------
    following : the script after the last one, None if there is none left.
    judge : told what came of every turn, before the script is.
    """

    def __init__(
        self,
        following: Callable[[], Script[Any] | None],
        judge: Callable[[Replies], None] = lambda replies: None,
    ) -> None:
        self._following, self._judge = following, judge
        self._script: Script[Any] | None = None
        self._turn: Turn | None = None
        self._ready: list[Message] = []
        self._sent: list[Message] = []  # these, or copies of them, if they were asked for

    @property
    def between(self) -> bool:
        """Whether no script is under way."""
        return self._turn is None

    def messages(self) -> list[Message]:
        """What is to be sent next; [] if all scripts are at their ends.

        Who asks again has lost the replies: messages that were sent once are made anew.
        """
        while self._turn is None:
            self._script = self._following()
            if self._script is None:
                return []
            self._begin(self._script)
        self._sent = [again(message) for message in self._ready] if self._sent else self._ready
        return self._sent

    def answered(self, replies: Iterable[Message]) -> Replies | None:
        """Take the replies to all these messages; what came of the turn, if it is over."""
        if self._turn is None or self._script is None:
            return None
        try:
            return self._answered(self._turn, self._script, replies)
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """Leave the script that is under way, and let go what it holds."""
        script, self._script, self._turn = self._script, None, None
        self._ready, self._sent = [], []
        if script is not None:
            script.close()

    def _answered(
        self, turn: Turn, script: Script[Any], replies: Iterable[Message]
    ) -> Replies | None:
        came = [reply for _, reply in answers(self._sent or self._ready, replies)]
        turn.answered(list(zip(self._ready, came, strict=True)))
        self._ready, self._sent = turn.messages(), []
        if self._ready:
            return None
        found, self._turn = turn.replies(), None
        self._judge(found)
        with suppress(StopIteration):
            self._enter(script.send(found))
        return found

    def _begin(self, script: Script[Any]) -> None:
        with suppress(StopIteration):
            self._enter(next(script))

    def _enter(self, turn: Turn) -> None:
        """A turn that has nothing to send is over at once."""
        assert self._script is not None
        self._ready = turn.messages()
        while not self._ready:
            turn = self._script.send(turn.replies())
            self._ready = turn.messages()
        self._turn, self._sent = turn, []


def again(message: Message) -> Message:
    """The same message under an id of its own; a time to live begins when a message is made."""
    to = message.metadata
    return Message(
        message.content, to.dst_node_id, to.message_type, ttl=to.ttl, group_id=to.group_id
    )


def own(sent: Message, reply: Message) -> bool:
    """Whether a reply is of the node that was asked."""
    return bool(reply.metadata.src_node_id == sent.metadata.dst_node_id)


def answers(messages: Sequence[Message], replies: Iterable[Message]) -> Done:
    """Each message with its reply: replies to others are none."""
    came = {reply.metadata.reply_to_message_id: reply for reply in replies}
    return [(message, came.get(message.metadata.message_id)) for message in messages]
