"""What Ray's store holds: messages beyond its memory go through the disk, until that is full."""

from __future__ import annotations

import shutil
from dataclasses import dataclass

from corsage.strategies.devices.sizes import MB, Load

FULL = 0.95
"""The share of a disk beyond which Ray puts nothing more there (local_fs_capacity_threshold)."""
MUCH = 2**62


@dataclass(frozen=True)
class RayStore:
    """The store of a machine, through which messages go to Ray's workers and replies come back.

    Parameters
    ----------
    memory : bytes of its memory.
    disk : bytes that it may write where it keeps what the memory does not hold.
    workers : messages that are under way at once.
    """

    memory: int
    disk: int
    workers: int

    def refusal(self, load: Load) -> str:
        """With memory and disk full, Ray raises OutOfDiskError."""
        if self.workers * load.total <= self.memory + self.disk:
            return ""
        return (
            f"{self._many(load)} and Ray's store has {self.memory / MB:,.0f} MB of memory "
            f"and {self.disk / MB:,.0f} MB of disk: make room in Ray's temporary folder (TMPDIR), "
            "or run fewer workers (a greater node-cpus)"
        )

    def warning(self, load: Load) -> str:
        """Beyond the memory they go through the disk."""
        if self.workers * load.total <= self.memory:
            return ""
        return (
            f"{self._many(load)} and Ray's store has {self.memory / MB:,.0f} MB of memory: they go "
            "through the disk, which is slow"
        )

    def _many(self, load: Load) -> str:
        return f"{self.workers} at once are {self.workers * load.total / MB:,.1f} MB"


def store_of(workers: int, nodes: int) -> RayStore:
    """The store of the Ray that this process is connected to, the smallest if there are several.

    What other machines have of disk is not known here: there, nothing is refused.
    """
    import ray
    from ray._private import worker

    found = ray.nodes()  # type: ignore[no-untyped-call]
    stores = [node["Resources"].get("object_store_memory", 0) for node in found]
    node = getattr(worker, "_global_node", None)
    disk = MUCH
    if node is not None and len(stores) == 1:
        usage = shutil.disk_usage(node.get_temp_dir_path())
        disk = max(0, usage.free - usage.total + int(FULL * usage.total))
    return RayStore(int(min(stores)), disk, min(workers, nodes))
