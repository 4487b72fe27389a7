"""A Flower app that does nothing: what a message costs on a device before Corsage has a say.

The benchmark `device-round` puts it in the place of Corsage's apps, in a bundle that is otherwise
Corsage's own.
"""

from __future__ import annotations

import time

from flwr.app import ConfigRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp

client, server = ClientApp(), ServerApp()


@client.train()
def train(message: Message, context: Context) -> Message:
    """Nothing is done."""
    return Message(RecordDict({"metrics": MetricRecord({"n": 1})}), reply_to=message)


@server.main()
def main(grid: Grid, context: Context) -> None:
    """So many exchanges with so many devices."""
    nodes, rounds = int(context.run_config["num-nodes"]), int(context.run_config["num-rounds"])
    while len(ids := list(grid.get_node_ids())) < nodes:
        time.sleep(0.1)
    for _ in range(rounds):
        content = RecordDict({"config": ConfigRecord({"round": 1})})
        replies = list(grid.send_and_receive([Message(content, node, "train") for node in ids]))
        if any(reply.has_error() for reply in replies):
            raise RuntimeError("a device failed")
