"""This process is a device's, or a simulation's: asked before anything is loaded."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import Any

from flwr.app import Context

from corsage.core.errors import ConfigError

CLIENT_PROCESS = "flwr.supernode.runtime.run_clientapp"
"""What the process of a SuperNode's client app has loaded, and no other."""
RESIDENT = "corsage.app.nodes.resident.process"
"""The same of a SuperNode's resident worker."""
WORKER_SECONDS = "worker-seconds"
USUAL_SECONDS = 900.0
"""Seconds for which a worker without work stays, if its owner says nothing."""


def is_device(context: Context) -> bool:
    """True if a node has data of its own, or is a SuperNode, which must have some.

    Else it is one of a simulation, whose server is its user's own: it may name files.
    """
    return "data" in context.node_config or CLIENT_PROCESS in sys.modules or RESIDENT in sys.modules


def is_client() -> bool:
    """True if this is the process that a SuperNode has started for one message."""
    return CLIENT_PROCESS in sys.modules


def worker_seconds(node_config: Mapping[str, Any]) -> float:
    """For how long a device keeps a worker that has no work; 0: it keeps none."""
    value = node_config.get(WORKER_SECONDS, USUAL_SECONDS)
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value <= 1e6:
        raise ConfigError(
            f"node config: {WORKER_SECONDS}={value!r:.40}: must be a number from 0 to 1000000."
        )
    return float(value)
