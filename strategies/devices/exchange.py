"""Messages out and replies in, within a bounded time."""

from __future__ import annotations

import time
import traceback
from collections.abc import Callable, Iterable
from logging import DEBUG, WARNING

from flwr.app import Message
from flwr.serverapp import Grid
from flwr.supercore import log
from google.protobuf.message import DecodeError

from corsage.core.errors import line
from corsage.strategies.devices.patience import Pace, Patience, Pending

NONSENSE = (ValueError, LookupError, TypeError, AttributeError, RecursionError, DecodeError)
"""What Flower raises on the bytes of a message that it cannot put together."""


class Puller:
    """Pulls replies; after the first that is nonsense one at a time.

    A SuperLink hands on what a node has sent, and Flower puts it together in the server's process:
    a node that sends nonsense there would end the run before anything of it is looked at.
    """

    def __init__(self, grid: Grid) -> None:
        self._grid, self._careful = grid, False
        self._broken: list[str] = []

    def pull(self, messages: Iterable[str]) -> list[Message]:
        """The replies that are there to some messages."""
        wanted = list(messages)
        if not self._careful:
            found = self._try(wanted)
            self._careful = found is None
            if found is not None:
                return found
        return [reply for one in wanted for reply in self._one(one)]

    def take_broken(self) -> list[str]:
        """The messages whose replies could not be read: there will be no others."""
        found, self._broken = self._broken, []
        return found

    def _one(self, message: str) -> list[Message]:
        found = self._try([message])
        self._broken += [message] if found is None else []
        return found or []

    def _try(self, messages: list[str]) -> list[Message] | None:
        try:
            return list(self._grid.pull_messages(messages))
        except NONSENSE as error:
            log(WARNING, "a reply cannot be read: %s: %s", type(error).__name__, line(error))
            log(DEBUG, "%s", traceback.format_exc())
            return None


# How often the server looks whether a node it waits for is still connected.
PRESENCE_SECONDS = 5.0


class Exchange:
    """Messages under way; more may be sent while others are still being waited for.

    Waiting for a reply takes at most a twentieth longer than the node does: the pause between
    looks grows with the time that has passed. For a node that is gone the SuperLink replies
    itself, in its own name: that is no reply of the node.

    Parameters
    ----------
    grid, timeout : whom is spoken to, and seconds after which a message has no reply.
    patience : what is known of the nodes, so that those which never reply are given up before.
    doubtful : nodes that are not waited for longer than others.
    size : how much work a message is.

    Attributes
    ----------
    missed : some message had no reply of its node.
    """

    def __init__(
        self,
        grid: Grid,
        timeout: float,
        patience: Patience | None = None,
        doubtful: Iterable[int] = (),
        size: Callable[[Message], float] = lambda message: 1.0,
    ) -> None:
        self._grid, self._timeout, self._puller = grid, timeout, Puller(grid)
        self._patience, self._size = patience or Patience(), size
        self._doubtful, self._paces = frozenset(doubtful), dict[str, Pace]()
        self._pending: dict[str, Pending] = {}
        self._unsent: list[Message] = []
        self._next_look = time.monotonic() + PRESENCE_SECONDS
        self._asked = self._heard = self.missed = False

    @property
    def silent(self) -> bool:
        """True if messages were sent, and no node has replied to any."""
        return self._asked and not self._heard

    def push(self, messages: Iterable[Message]) -> None:
        """Send messages; those that cannot be sent have no reply."""
        batch, now = list(messages), time.monotonic()
        self._asked = self._asked or bool(batch)
        accepted = {str(i) for i in self._grid.push_messages(batch) if i}
        for message in batch:
            if message.metadata.message_id in accepted:
                sent = Pending(message, now, self._size(message))
                self._pending[message.metadata.message_id] = sent
                self._pace(sent).ask(sent)
            else:
                self._unsent.append(message)

    def pull(self) -> list[tuple[Message, Message | None]]:
        """The next messages that are done with, each with its reply or None; [] if none is left.

        Waits until there is one: a reply, a node that left, or one whose time is up.
        """
        while self._pending or self._unsent:
            done: list[tuple[Message, Message | None]] = [(m, None) for m in self._unsent]
            self._unsent = []
            looked, found = self._replies()
            done += found + self._given_up(idle=not looked)
            if done:
                self.missed = self.missed or None in (reply for _, reply in done)
                return done
            waited = time.monotonic() - max(sent.at for sent in self._pending.values())
            time.sleep(min(max(waited / 20, 0.002), 1.0, max(self._timeout - waited, 0.001)))
        return []

    def _replies(self) -> tuple[int, list[tuple[Message, Message | None]]]:
        """The number of replies that this look brought, and those that are not too late."""
        if not self._pending:
            return 0, []
        done: list[tuple[Message, Message | None]] = []
        late = self._patience.given_up(time.monotonic())
        came = self._puller.pull([*self._pending, *late])
        for reply in came:
            now = time.monotonic()
            if self._patience.came_late(reply, now):
                continue
            sent = self._pending.get(reply.metadata.reply_to_message_id)
            if sent is None or now - sent.at >= self._timeout:
                continue  # what came during this look came too late
            del self._pending[sent.message.metadata.message_id]
            asked = reply.metadata.src_node_id == sent.node
            self._heard = self._heard or asked
            if asked and not reply.has_error():
                self._patience.came(sent, now - sent.at, self._pace(sent))
            else:
                self._pace(sent).failed.add(sent.node)
            done.append((sent.message, reply if asked else None))
        return len(came), done

    def _given_up(self, idle: bool) -> list[tuple[Message, Message | None]]:
        """Messages whose time is up, or whose node is no longer there.

        Nobody is given up before the end of time by a look that brought something: a grid that
        does one piece of work after the other has not come to the rest yet.
        """
        now = time.monotonic()
        late = {i for i, sent in self._pending.items() if now - sent.at >= self._timeout}
        late |= self._out_of_patience(now) if idle else set()
        for identity in late:
            sent = self._pending[identity]
            self._patience.give_up(identity, sent, now, self._pace(sent))
        broken = self._puller.take_broken()
        self._patience.drop(broken)
        late |= {identity for identity in broken if identity in self._pending}
        if self._pending and now > self._next_look:
            self._next_look = now + PRESENCE_SECONDS
            connected = set(self._grid.get_node_ids())
            late |= {i for i, sent in self._pending.items() if sent.node not in connected}
        order = [identity for identity in self._pending if identity in late]
        return [(self._pending.pop(identity).message, None) for identity in order]

    def _out_of_patience(self, now: float) -> set[str]:
        """The messages that are not waited for any more, though they still have time."""
        waiting = any(sent.node in self._pace(sent).trusted() for sent in self._pending.values())
        until, pace = self._patience.until, self._pace
        pending = self._pending.items()
        return {i for i, sent in pending if now >= until(sent, pace(sent), waiting)}

    def _pace(self, sent: Pending) -> Pace:
        """The pace of messages of this kind: a training takes longer than an evaluation."""
        kind = sent.message.metadata.message_type
        return self._paces.setdefault(kind, Pace(self._doubtful))


def exchange(
    grid: Grid,
    messages: list[Message],
    timeout: float,
    patience: Patience | None = None,
    doubtful: Iterable[int] = (),
) -> tuple[list[Message], list[int]]:
    """Send messages and collect replies until all are there, their nodes left, or time is up.

    Returns the replies, and the nodes that gave none.
    """
    line = Exchange(grid, timeout, patience, doubtful)
    line.push(messages)
    replies: list[Message] = []
    lost: list[int] = []
    while done := line.pull():
        for message, reply in done:
            if reply is None:
                lost.append(message.metadata.dst_node_id)
            else:
                replies.append(reply)
    return replies, lost
