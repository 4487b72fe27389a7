"""The client app: Corsage's, on this app's data, model and training function."""

from __future__ import annotations

from typing import Any

from flwr.app import Context

from corsage import make_client_app
from own_app.task import Net, load_data, train


def data(context: Context) -> Any:
    """This node's training and test data."""
    node = context.node_config
    return load_data(int(node["partition-id"]), int(node["num-partitions"]))


app = make_client_app(data=data, model=Net, train=train)
