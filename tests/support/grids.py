"""Grids of this process whose nodes are slow, fail, come and go."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from flwr.app import ConfigRecord, Error, Message, RecordDict
from flwr.common.constant import ErrorCode

from corsage.app.client_app import app
from corsage.app.local_grid import LocalGrid
from corsage.core.messages.wire import Task, decode_task
from corsage.strategies.rounds.base import Strategy
from corsage.strategies.rounds.callbacks import Callback

Fails = Callable[[int, Task], bool]


class Watched(LocalGrid):
    """Nodes that are watched, and may fail or be absent; numbered as they host users.

    Parameters
    ----------
    num_nodes : how many there are.
    fails : whether a node answers a message for training with an error.
    absent : nodes that are not there now.
    """

    closed = False

    def __init__(
        self, num_nodes: int, fails: Fails | None = None, absent: Iterable[int] = ()
    ) -> None:
        super().__init__(app, num_nodes)
        self.fails, self.absent = fails or (lambda number, task: False), set(absent)
        self.sent: list[Message] = []

    def number(self, message: Message) -> int:
        """The node that a message is for."""
        return int(self._contexts[message.metadata.dst_node_id].node_config["partition-id"])

    def get_node_ids(self) -> Iterable[int]:
        """Those that are there."""
        found = super().get_node_ids()
        return [node for node in found if self._contexts[node].node_id not in self.absent]

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
        """Note them."""
        messages = list(messages)
        self.sent += messages
        return super().push_messages(messages)

    def forget(self, number: int) -> None:
        """A node loses all that its users kept."""
        for context in self._contexts.values():
            if context.node_id == number:
                context.state = RecordDict()

    def training(self, user: str = "") -> list[tuple[Message, Task]]:
        """What was sent for training so far, of a user or of all, and the tasks in it."""
        found = [(m, task_of(m)) for m in self.sent if m.metadata.message_type == "train"]
        return [(message, task) for message, task in found if not user or user in task.users]

    def _work(self, message: Message) -> Message:
        if message.metadata.message_type == "train" and self.fails(
            self.number(message), task_of(message)
        ):
            reply = Message(Error(ErrorCode.CLIENT_APP_RAISED_EXCEPTION, "boom"), reply_to=message)
            reply.metadata.__dict__["_message_id"] = f"reply-{message.metadata.message_id}"
            return reply
        return super()._work(message)


def task_of(message: Message) -> Task:
    """The task in a message."""
    config: Any = message.content["config"]
    assert isinstance(config, ConfigRecord)
    return decode_task(config)


class At(Callback):
    """Does something at the start of a round."""

    def __init__(self, number: int, do: Callable[[], object]) -> None:
        self.number, self.do = number, do

    def on_round_start(self, strategy: Strategy, number: int) -> None:
        if number == self.number:
            self.do()
