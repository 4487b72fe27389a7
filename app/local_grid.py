"""The in-process engine: a Flower Grid that calls the client app directly.

No start-up, no processes, microseconds a message. Messages, contexts and replies are the same
objects as on Flower's own engines, so strategies and clients cannot tell the difference.
"""

from __future__ import annotations

import json
import secrets
from collections import deque
from collections.abc import Iterable, Sequence

from flwr.app import Context, Error, Message, RecordDict
from flwr.clientapp import ClientApp
from flwr.common.constant import SUPERLINK_NODE_ID, ErrorCode
from flwr.serverapp import Grid
from flwr.supercore.run import Run
from flwr.supercore.task_identity import TaskIdentity

from corsage.core.errors import ConfigError


class LocalGrid(Grid):
    """Nodes that live in this process.

    Parameters
    ----------
    client_app : what a node runs.
    num_nodes : how many nodes there are; each has its own context, as a Flower simulation gives it.
    users : those of the data that nodes have; None: all.
    """

    closed = True
    """All nodes are there from the beginning: nobody waits for others."""
    simulated = True
    """Users' data are this process's own: there is nobody to keep them from."""

    def __init__(
        self, client_app: ClientApp, num_nodes: int, users: Sequence[str] | None = None
    ) -> None:
        if num_nodes < 1:
            raise ConfigError(f"LocalGrid: num_nodes={num_nodes}: must be at least 1.")
        self._app = client_app
        share = {} if users is None else {"users": json.dumps(list(users))}
        self._run = Run.create_empty(run_id=secrets.randbits(62))
        TaskIdentity.run_id = self._run.run_id
        TaskIdentity.node_id = SUPERLINK_NODE_ID
        TaskIdentity.task_id = 1
        self._contexts = {
            secrets.randbits(62) + 2: Context(
                run_id=self._run.run_id,
                node_id=number,
                node_config={"partition-id": number, "num-partitions": num_nodes, **share},
                state=RecordDict(),
                run_config={},
            )
            for number in range(num_nodes)
        }
        self._queue: deque[Message] = deque()
        self._next = 0

    def set_run(self, run: Run) -> None:
        """Set the run; this grid has made one already."""
        self._run = run

    @property
    def run(self) -> Run:
        """Flower's record of the run that this grid is of."""
        return self._run

    def create_message(
        self,
        content: RecordDict,
        message_type: str,
        dst_node_id: int,
        group_id: str,
        ttl: float | None = None,
    ) -> Message:
        """Flower's old way to make a message."""
        return Message(content, dst_node_id, message_type, ttl=ttl, group_id=group_id)

    def get_node_ids(self) -> Iterable[int]:
        """Ids of all nodes, random as Flower's are."""
        return list(self._contexts)

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
        """Queue messages; the work is done when replies are pulled."""
        ids = []
        for message in messages:
            self._next += 1
            message.metadata.__dict__["_message_id"] = str(self._next)
            self._queue.append(message)
            ids.append(str(self._next))
        return ids

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
        """Let one node do its work and return its reply; what is no longer wanted is let go."""
        wanted = set(message_ids)
        while self._queue:
            message = self._queue.popleft()
            if message.metadata.message_id in wanted:
                return [self._work(message)]
        return []

    @property
    def contexts(self) -> list[Context]:
        """The nodes' own contexts, which this process holds."""
        return list(self._contexts.values())

    def send_and_receive(
        self, messages: Iterable[Message], *, timeout: float | None = None
    ) -> Iterable[Message]:
        """All replies, for strategies that use Flower's own loop."""
        wanted = list(self.push_messages(messages))
        return [reply for _ in wanted for reply in self.pull_messages(wanted)]

    def _work(self, message: Message) -> Message:
        context = self._contexts[message.metadata.dst_node_id]
        try:
            reply = self._app(message=message, context=context)
        except Exception as error:
            reason = f"{type(error).__name__}: {error}"
            reply = Message(Error(ErrorCode.CLIENT_APP_RAISED_EXCEPTION, reason), reply_to=message)
        reply.metadata.__dict__["_message_id"] = f"reply-{message.metadata.message_id}"
        return reply
