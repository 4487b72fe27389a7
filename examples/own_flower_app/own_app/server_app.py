"""The server app: one of Corsage's strategies in the place of Flower's FedAvg."""

from __future__ import annotations

import torch
from flwr.app import Context
from flwr.serverapp import Grid, ServerApp

from corsage import Ditto, FedRep
from own_app.task import Net

METHODS = {"fedrep": FedRep, "ditto": Ditto}
app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> None:
    """Train, say how well every node's own model does, and keep what they share."""
    name, rounds = str(context.run_config["method"]), int(context.run_config["num-server-rounds"])
    strategy = METHODS[name](context.run_config, model=Net)
    result = strategy.start(grid=grid, num_rounds=rounds)
    for node, accuracy in result[name].per_user.items():
        print(f"node {node}: {accuracy:.1%}")
    torch.save(result.arrays.to_torch_state_dict(), str(context.run_config["save-to"]))
