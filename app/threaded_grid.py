"""The in-process engine with a thread for each node: nodes work at the same time.

What a node is asked it does one thing after the other, as a device does; numpy and torch let other
threads on while they compute.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from threading import Event, Lock

from flwr.app import Message
from flwr.clientapp import ClientApp

from corsage.app.local_grid import LocalGrid

MOST = 0.002
"""Seconds for which a look waits for a reply, if none is there."""


class ThreadedGrid(LocalGrid):
    """Nodes that live in threads of this process.

    Parameters
    ----------
    client_app, num_nodes, users : as for `LocalGrid`.
    """

    patient = True
    """A node is given all the time that it takes: it is a thread that will come to its end."""

    def __init__(
        self, client_app: ClientApp, num_nodes: int, users: Sequence[str] | None = None
    ) -> None:
        super().__init__(client_app, num_nodes, users)
        self._threads = {node: ThreadPoolExecutor(1, f"node {node}") for node in self._contexts}
        self._replies: dict[str, Message] = {}
        self._lock, self._news = Lock(), Event()

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
        """Give each message to its node's thread."""
        messages = list(messages)
        ids = list(super().push_messages(messages))
        self._queue.clear()
        for message in messages:
            self._threads[message.metadata.dst_node_id].submit(self._answer, message)
        return ids

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
        """The replies that are there; what is no longer asked for is let go."""
        wanted = set(message_ids)
        found = self._take(wanted)
        if not found and self._news.wait(MOST):
            found = self._take(wanted)
        return found

    def close(self) -> None:
        """Begin nothing more."""
        for thread in self._threads.values():
            thread.shutdown(wait=False, cancel_futures=True)

    def _answer(self, message: Message) -> None:
        """A node's work, in its thread."""
        reply = self._work(message)
        with self._lock:
            self._replies[message.metadata.message_id] = reply
            self._news.set()

    def _take(self, wanted: set[str]) -> list[Message]:
        with self._lock:
            self._news.clear()
            return [self._replies.pop(one) for one in [*self._replies] if one in wanted]
