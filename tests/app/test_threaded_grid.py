"""Nodes in threads: at the same time, with the numbers of those in one process."""

from __future__ import annotations

import threading
import time
from typing import Any

from flwr.app import Context, Message, RecordDict

from corsage.app.client_app import app, make_client_app
from corsage.app.threaded_grid import ThreadedGrid
from tests.support.federations import federate


def test_nodes_work_at_the_same_time() -> None:
    """Each waits for the other, so neither would come to its end alone; one thing at a time."""
    meet, busy = threading.Barrier(2, timeout=20), dict[int, int]()

    def mod(message: Message, context: Context, call: Any) -> Message:
        busy[context.node_id] = busy.get(context.node_id, 0) + 1
        assert busy[context.node_id] == 1
        meet.wait()
        busy[context.node_id] -= 1
        return Message(RecordDict(), reply_to=message)

    grid = ThreadedGrid(make_client_app(mods=[mod]), 2)
    wanted = set(
        grid.push_messages(
            [Message(RecordDict(), node, "query") for node in grid.get_node_ids() for _ in range(3)]
        )
    )
    replies: list[Message] = []
    while len(replies) < 6:
        replies += grid.pull_messages(wanted)
    grid.close()
    assert {reply.metadata.reply_to_message_id for reply in replies} == wanted
    assert not any(reply.has_error() for reply in replies)


def test_a_reply_is_for_whoever_asks_for_it() -> None:
    """Two may wait on one grid; none takes what is the other's."""
    grid = ThreadedGrid(
        make_client_app(mods=[lambda m, c, f: Message(RecordDict(), reply_to=m)]), 1
    )
    (node,) = grid.get_node_ids()
    one, other = grid.push_messages([Message(RecordDict(), node, "query") for _ in range(2)])
    end = time.monotonic() + 20
    found: list[Message] = []
    while not found and time.monotonic() < end:
        found = list(grid.pull_messages([other]))
    assert [r.metadata.reply_to_message_id for r in found] == [other]
    assert [r.metadata.reply_to_message_id for r in grid.pull_messages([one])] == [one]
    grid.close()


def test_the_numbers_are_those_of_one_thread() -> None:
    grid = ThreadedGrid(app, 3)
    _, found, _ = federate("fedrep", grid=grid)
    grid.close()
    _, wanted, _ = federate("fedrep", nodes=3)
    assert found.json()[0]["per_user"] == wanted.json()[0]["per_user"]
