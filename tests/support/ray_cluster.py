"""A Ray cluster of two nodes on this machine, on the loopback, as a process.

It prints its address. At each line that it is given it goes on: it kills the second node, and then
ends.
"""

from __future__ import annotations

import os
import sys

QUICK = {
    "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0",  # the loopback, on any system
    "RAY_health_check_initial_delay_ms": "0",
    "RAY_health_check_period_ms": "300",
    "RAY_health_check_timeout_ms": "1000",
    "RAY_health_check_failure_threshold": "3",
}
"""A node that is gone is missed at once, and not after half a minute."""


def main() -> None:
    """The cluster, from its start to its end."""
    os.environ.update(QUICK)
    from ray.cluster_utils import Cluster

    own = {"num_cpus": 1, "include_dashboard": False, "object_store_memory": 80_000_000}
    cluster = Cluster(initialize_head=True, head_node_args=own)
    try:
        other = cluster.add_node(**own)
        print(cluster.address, flush=True)
        if sys.stdin.readline():
            other.kill_raylet()
            print("killed", flush=True)
            sys.stdin.readline()
    finally:
        cluster.shutdown()


if __name__ == "__main__":
    main()
