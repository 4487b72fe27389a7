"""Exchanges, step by step: what is sent next, what came back, what it comes to.

An algorithm's training is a *script*: a generator that yields turns and is sent their replies.
`played` takes it to its end; Flower's own loop plays it one exchange a call (outside.py).
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol, TypeVar

from flwr.app import Message
from flwr.serverapp import Grid

from corsage.core.arrays import Arrays
from corsage.core.messages.replies import Replies, merge_replies, one_after_the_other
from corsage.core.messages.schema import Schema

T = TypeVar("T")
Done = Sequence[tuple[Message, Message | None]]
"""Messages, each with its reply, or None if none came."""


class Turn(Protocol):
    """Something that takes one exchange, or several one after the other."""

    def messages(self) -> list[Message]:
        """Messages to be sent now; [] if there is nothing more."""

    def answered(self, done: Done) -> None:
        """Some messages are done with."""

    def replies(self) -> Replies:
        """The replies merged, after the last one."""


Script = Generator[Turn, Replies, T]
"""Yields turns, is sent their replies, and returns something at its end."""


@dataclass(frozen=True)
class Parcel:
    """A parcel for users: arrays that all of them get, and arrays with one row a user."""

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
        """The replies to all of them."""
        return one_after_the_other(self._found)


class Line:
    """Messages to nodes that all reply, and are waited for as long as they take.

    Parameters
    ----------
    grid : leads to the nodes.
    timeout : seconds that a node has: of one that works longer here, the reply is too late.
    """

    def __init__(self, grid: Grid, timeout: float = math.inf) -> None:
        self._grid, self._sent, self._unsent = grid, dict[str, Message](), list[Message]()
        self._timeout = timeout

    def push(self, messages: Iterable[Message]) -> None:
        """Send messages; those that cannot be sent have no reply."""
        batch = list(messages)
        accepted = {str(i) for i in self._grid.push_messages(batch) if i}
        for message in batch:
            if message.metadata.message_id in accepted:
                self._sent[message.metadata.message_id] = message
            else:
                self._unsent.append(message)

    def pull(self) -> Done:
        """The next messages that are done with, each with its reply or None; [] if none is left.

        Looking takes at most a twentieth longer than the nodes do.
        """
        if self._unsent:
            lost, self._unsent = self._unsent, []
            return [(message, None) for message in lost]
        begin = time.monotonic()
        while self._sent:
            looked = time.monotonic()
            if came := list(self._grid.pull_messages(list(self._sent))):
                late = time.monotonic() - looked >= self._timeout
                own = [(self._sent.pop(r.metadata.reply_to_message_id), r) for r in came]
                return [(message, None if late else reply) for message, reply in own]
            time.sleep(min(max((time.monotonic() - begin) / 20, 0.002), 1.0))
        return []


def played(script: Script[T], exchange: Callable[[Turn], Replies]) -> T:
    """Play a script, whose turns are exchanged one after the other; what it returns."""
    try:
        turn = next(script)
        while True:
            turn = script.send(exchange(turn))
    except StopIteration as end:
        found: T = end.value
        return found
    finally:
        script.close()  # also where the exchange failed: nothing of it stays under way


def again(message: Message) -> Message:
    """The same message under an id of its own; a time to live begins when a message is made."""
    to = message.metadata
    return Message(
        message.content, to.dst_node_id, to.message_type, ttl=to.ttl, group_id=to.group_id
    )


def own(sent: Message, reply: Message) -> bool:
    """True if a reply is of the node that was asked."""
    return bool(reply.metadata.src_node_id == sent.metadata.dst_node_id)


def answers(messages: Sequence[Message], replies: Iterable[Message]) -> Done:
    """Each message with its reply: replies to others are none."""
    came = {reply.metadata.reply_to_message_id: reply for reply in replies}
    return [(message, came.get(message.metadata.message_id)) for message in messages]


def is_at_home(grid: Grid) -> bool:
    """True if all users' data are the server's own anyway: a simulation, by whatever engine.

    A grid of ours says so; one of Flower's simulations holds the state of all nodes itself.
    """
    return bool(getattr(grid, "simulated", hasattr(grid, "state")))


def is_closed(grid: Grid) -> bool:
    """True if all nodes are there from the beginning, and each of them replies."""
    return bool(getattr(grid, "closed", hasattr(grid, "state")))
