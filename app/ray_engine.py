"""Ray on this machine alone: nobody else can reach it, and nothing of it outlives the run.

As Flower starts it, Ray listens on all interfaces and asks nobody who he is: whoever reaches one of
its ports runs code here. With `ray-address` there is a cluster, which has its own rules.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from logging import WARNING
from pathlib import Path
from typing import Any

from flwr.supercore import log

from corsage.app import reaper
from corsage.strategies.rounds.sizes import MB, Load

LOOPBACK = "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER"
"""With 0, Ray's processes take the loopback for the address of this machine, on any system."""
UNUSED = "start_monitor", "start_log_monitor", "start_api_server"
"""How Ray starts what a single machine and a single run have no use for."""
FULL_DISK = 0.95
"""The share of a disk beyond which Ray puts nothing more there (local_fs_capacity_threshold)."""
UNBOUNDED = 2**62


def shut() -> None:
    """Before Ray is imported: the loopback only, and a secret that its processes share.

    Ray reads both when it is imported, so whoever has imported it already is told.
    """
    if "ray" in sys.modules and LOOPBACK not in os.environ:
        log(
            WARNING,
            "Ray was imported before this run: it listens on all interfaces and asks for no token. "
            "Import it later, or set %s=0 and RAY_AUTH_MODE=token.",
            LOOPBACK,
        )
        return
    os.environ[LOOPBACK] = "0"
    if "RAY_AUTH_MODE" not in os.environ:
        os.environ["RAY_AUTH_MODE"] = "token"
        os.environ["RAY_AUTH_TOKEN"] = secrets.token_hex(32)


def quiet() -> None:
    """Have neither Ray nor Flower report a run to their makers, unless the environment says so."""
    from flwr.supercore import telemetry

    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    if "FLWR_TELEMETRY_ENABLED" not in os.environ:
        os.environ["FLWR_TELEMETRY_ENABLED"] = telemetry.FLWR_TELEMETRY_ENABLED = "0"


def started(arguments: Mapping[str, Any]) -> None:
    """Ray for one run, with its workers and nothing that watches or shows them.

    The scheduler of clusters, the dashboard and the collector of logs are processes of Python each,
    which nobody asks anything here. Without `local` Ray would join whatever cluster was started
    last on this machine, be it somebody else's. Flower would start Ray with an environment for its
    workers: Ray starts processes for that, and those that wait without it are of no use. Workers
    inherit this process' environment anyway.
    """
    import ray
    from ray._private.node import Node

    own = os.environ.get("PYTHONPATH")
    paths = dict.fromkeys([*sys.path, *([own] if own else [])])
    with contextlib.ExitStack() as stack:
        for name in UNUSED:
            if hasattr(Node, name):
                stack.enter_context(replaced(Node, name, nothing))
        os.environ["PYTHONPATH"] = os.pathsep.join(paths)
        try:
            ray.init(address="local", include_dashboard=False, **arguments)
        finally:
            del os.environ["PYTHONPATH"]
            os.environ.update({"PYTHONPATH": own} if own else {})


@contextlib.contextmanager
def replaced(owner: Any, name: str, new: object) -> Iterator[None]:
    """Something of another package is ours for a while."""
    usual = getattr(owner, name)
    setattr(owner, name, new)
    try:
        yield
    finally:
        setattr(owner, name, usual)


def nothing(node: object, *_: object, **__: object) -> None:
    """Do nothing in the place of starting a process that nobody needs."""


@contextlib.contextmanager
def reaped() -> Iterator[None]:
    """Nothing that is started in the block outlives this process, even if it is killed.

    It takes the list of processes that Linux keeps; on other systems, Ray's agents end when they
    notice.
    """
    if not Path("/proc/self/stat").exists():
        yield
        return
    command = [sys.executable, reaper.__file__, str(os.getpid())]
    pipe = subprocess.PIPE
    with subprocess.Popen(command, stdin=pipe, stdout=pipe, start_new_session=True) as process:
        if process.stdout:
            process.stdout.read(1)
        try:
            yield
        finally:
            process.communicate(b".")


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
    disk = UNBOUNDED
    if node is not None and len(stores) == 1:
        usage = shutil.disk_usage(node.get_temp_dir_path())
        disk = max(0, usage.free - usage.total + int(FULL_DISK * usage.total))
    return RayStore(int(min(stores)), disk, min(workers, nodes))
