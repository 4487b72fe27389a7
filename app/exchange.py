"""One exchange: messages out, replies in, within a bounded time."""

from __future__ import annotations

import time

from flwr.app import Message
from flwr.serverapp import Grid

# How often the server looks whether a node it waits for is still connected.
PRESENCE_SECONDS = 5.0


def exchange(
    grid: Grid, messages: list[Message], timeout: float
) -> tuple[list[Message], list[int]]:
    """Send messages and collect replies until all are there, their nodes left, or time is up.

    Returns the replies, and the nodes that gave none. Waiting takes at most a twentieth longer
    than the nodes do: the pause between looks grows with the time that has passed. For a node that
    is gone the SuperLink replies itself, in its own name: that is no reply of the node.
    """
    start = time.monotonic()
    sent = {str(i) for i in grid.push_messages(messages) if i}
    pending = {m.metadata.message_id: m.metadata.dst_node_id for m in messages}
    lost = [node for message_id, node in pending.items() if message_id not in sent]
    pending = {message_id: node for message_id, node in pending.items() if message_id in sent}
    replies: list[Message] = []
    next_look = start + PRESENCE_SECONDS
    while pending and (elapsed := time.monotonic() - start) < timeout:
        came = list(grid.pull_messages(list(pending)))
        if time.monotonic() - start >= timeout:
            break  # what came during this look came too late
        for reply in came:
            node = pending.pop(reply.metadata.reply_to_message_id, None)
            if node == reply.metadata.src_node_id:
                replies.append(reply)
            elif node is not None:
                lost.append(node)
        if pending and time.monotonic() > next_look:
            next_look = time.monotonic() + PRESENCE_SECONDS
            here = set(grid.get_node_ids())
            lost += [node for node in pending.values() if node not in here]
            pending = {i: node for i, node in pending.items() if node in here}
        if pending and not came:
            time.sleep(min(max(elapsed / 20, 0.002), 1.0, max(timeout - elapsed, 0.0)))
    return replies, lost + list(pending.values())
