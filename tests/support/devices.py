"""Devices in this process: nodes with a file and a folder of their own, as SuperNodes have them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from corsage.app.client_app import make_client_app
from corsage.app.device_files import write_files
from corsage.app.local_grid import LocalGrid
from corsage.core.configuration.config import Config
from corsage.datasets.dealing.federated import simulated


class Devices(LocalGrid):
    """The users of a simulation, each on a device.

    Parameters
    ----------
    folder : where their files and states are.
    config : what the simulation would be.
    own : more of each device's node config.
    """

    simulated = closed = False

    def __init__(self, folder: Path, config: Config, **own: Any) -> None:
        list(write_files(folder, config))
        data = simulated(config.data, config.federation.num_users, config.run.seed)
        super().__init__(make_client_app(), len(data.users))
        for user, context in zip(data.users, self._contexts.values(), strict=True):
            state_dir = str(folder / f"state-{user}")
            words = {"data": str(folder / f"{user}.npz"), "user": user, "state-dir": state_dir}
            words["min-share"] = 0  # as a simulation, which tests compare with
            if data.num_classes:
                words["num-classes"] = data.num_classes
            if user in data.clusters:
                words["cluster"] = data.clusters[user]
            context.node_config = {**words, **own}

    def node_config(self, place: int) -> dict[str, Any]:
        """The node config of one device, to be changed."""
        config: dict[str, Any] = list(self._contexts.values())[place].node_config
        return config
