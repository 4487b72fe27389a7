"""Whether this process is a device's; asked before anything is loaded."""

from __future__ import annotations

import sys

from flwr.app import Context

CLIENT = "flwr.supernode.runtime.run_clientapp"
"""What the process of a SuperNode's client app has loaded, and no other."""
RESIDENT = "corsage.app.nodes.resident.process"
"""The same of a SuperNode's resident worker."""


def is_device(context: Context) -> bool:
    """Whether a node has data of its own, or is a SuperNode, which must have some.

    Else it is one of a simulation, whose server is its user's own: it may name files.
    """
    return "data" in context.node_config or CLIENT in sys.modules or RESIDENT in sys.modules


def is_client() -> bool:
    """Whether this is the process that a SuperNode has started for one message."""
    return CLIENT in sys.modules
