"""Messages out and replies in, within a bounded time."""

from __future__ import annotations

import time
from collections.abc import Iterable
from dataclasses import dataclass

from flwr.app import Message
from flwr.serverapp import Grid

from corsage.strategies.rounds.pulling import Puller

# How often the server looks whether a node it waits for is still connected.
PRESENCE_SECONDS = 5.0


@dataclass(frozen=True)
class Pending:
    """A message under way: which one, and when it was sent."""

    message: Message
    at: float

    @property
    def node(self) -> int:
        """Whom it went to."""
        return self.message.metadata.dst_node_id


class Exchange:
    """Messages under way; more may be sent while others are still being waited for.

    Waiting for a reply takes at most a twentieth longer than the node does: the pause between
    looks grows with the time that has passed. For a node that is gone the SuperLink replies
    itself, in its own name: that is no reply of the node.
    """

    def __init__(self, grid: Grid, timeout: float) -> None:
        self._grid, self._timeout, self._puller = grid, timeout, Puller(grid)
        self._pending: dict[str, Pending] = {}
        self._unsent: list[Message] = []
        self._next_look = time.monotonic() + PRESENCE_SECONDS

    def push(self, messages: Iterable[Message]) -> None:
        """Send messages; those that cannot be sent have no reply."""
        batch, now = list(messages), time.monotonic()
        accepted = {str(i) for i in self._grid.push_messages(batch) if i}
        for message in batch:
            if message.metadata.message_id in accepted:
                self._pending[message.metadata.message_id] = Pending(message, now)
            else:
                self._unsent.append(message)

    def pull(self) -> list[tuple[Message, Message | None]]:
        """The next messages that are done with, each with its reply or None; [] if none is left.

        Waits until there is one: a reply, a node that left, or one whose time is up.
        """
        while self._pending or self._unsent:
            done: list[tuple[Message, Message | None]] = [(m, None) for m in self._unsent]
            self._unsent = []
            done += self._replies() + self._given_up()
            if done:
                return done
            waited = time.monotonic() - max(sent.at for sent in self._pending.values())
            time.sleep(min(max(waited / 20, 0.002), 1.0, max(self._timeout - waited, 0.0)))
        return []

    def _replies(self) -> list[tuple[Message, Message | None]]:
        if not self._pending:
            return []
        done: list[tuple[Message, Message | None]] = []
        for reply in self._puller.pull(self._pending):
            sent = self._pending.get(reply.metadata.reply_to_message_id)
            if sent is None or time.monotonic() - sent.at >= self._timeout:
                continue  # what came during this look came too late
            del self._pending[sent.message.metadata.message_id]
            own = reply.metadata.src_node_id == sent.node
            done.append((sent.message, reply if own else None))
        return done

    def _given_up(self) -> list[tuple[Message, Message | None]]:
        """Messages whose time is up, or whose node is no longer there."""
        now = time.monotonic()
        late = [i for i, sent in self._pending.items() if now - sent.at >= self._timeout]
        late += self._puller.take_broken()
        if self._pending and now > self._next_look:
            self._next_look = now + PRESENCE_SECONDS
            connected = set(self._grid.get_node_ids())
            late += [i for i, sent in self._pending.items() if sent.node not in connected]
        return [(self._pending.pop(i).message, None) for i in dict.fromkeys(late)]


def exchange(
    grid: Grid, messages: list[Message], timeout: float
) -> tuple[list[Message], list[int]]:
    """Send messages and collect replies until all are there, their nodes left, or time is up.

    Returns the replies, and the nodes that gave none.
    """
    line = Exchange(grid, timeout)
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
