"""Ray on this machine alone: nobody else can reach it, and nothing of it outlives the run.

As Flower starts it, Ray listens on all interfaces and asks nobody who he is: whoever reaches one of
its ports runs code here. With `ray-address` there is a cluster, which has its own rules.

In Flower's own pool a worker that is gone stays in its place, and every message that it gets is an
error. Here it leaves the pool, and its message is given to another one: a message says all that a
node has to know, so the reply is the same, whoever writes it.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from logging import WARNING
from pathlib import Path
from typing import Any

from flwr.app import Context, Message
from flwr.serverapp import Grid, ServerApp
from flwr.supercore import log

from corsage.app import reaper
from corsage.core.errors import NodeError
from corsage.strategies.rounds.sizes import MB, Carrier, Load

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


MOST_DEATHS = 3
"""Workers that may die of a message, until it is the message's fault."""
ACTOR_PAUSE = 0.05


@contextlib.contextmanager
def lasting() -> Iterator[None]:
    """Messages outlive the workers that have them, and workers are ours, for the time of a run."""
    from flwr.server.superlink.fleet.vce.backend import raybackend

    from corsage.app.ray_worker import RayWorker

    with (
        replaced(raybackend.RayBackend, "process_message", process),
        replaced(raybackend, "ClientAppActor", RayWorker),
    ):
        yield


def process(self: Any, message: Message, context: Context) -> tuple[Message, Context]:
    """Do as `RayBackend.process_message`; again with another worker if this one dies."""
    from ray.exceptions import RayActorError

    job = self.app_fn(), message, str(context.node_config["partition-id"]), context
    for left in reversed(range(MOST_DEATHS)):
        future = submitted(self.pool, job)
        try:
            found: tuple[Message, Context] = self.pool.fetch_result_and_return_actor_to_pool(future)
            return found
        except RayActorError:
            bury(self.pool, future)
            if not left:
                raise
            log(WARNING, "a Ray worker is gone: its message is given to another one.")
        except BaseException:
            self.pool.add_actor_back_to_pool(future)
            raise
    raise AssertionError


LOCK = threading.Lock()
"""Around the pool, which several threads share."""


def submitted(pool: Any, job: tuple[Any, ...]) -> Any:
    """A message given to the next worker that is free."""
    while True:
        with LOCK:
            if pool.pool:
                return pool.submit(lambda actor, *given: actor.run.remote(*given), job)
        time.sleep(ACTOR_PAUSE)


def bury(pool: Any, future: Any) -> None:
    """A worker that is gone leaves the pool; the last one is replaced."""
    with LOCK:
        del pool._future_to_actor[future]
        pool.num_actors -= 1
        if not pool.num_actors:
            pool.add_actors_to_pool(1)


class UntilOver(ServerApp):
    """A server app that waits for nobody any more once its engine is over.

    Parameters
    ----------
    own : the app.
    over : set when the engine has ended, well or not.
    carrier : what messages go through, once Ray is there.
    """

    def __init__(
        self, own: ServerApp, over: threading.Event, carrier: Callable[[], Carrier]
    ) -> None:
        super().__init__()
        self._own, self._over, self._carrier = own, over, carrier

    def __call__(self, grid: Grid, context: Context) -> None:
        """Run the app on a grid that says so when it is over."""
        usual = grid.pull_messages

        def pull(message_ids: Iterable[str]) -> Iterable[Message]:
            if self._over.is_set():
                raise NodeError("Ray could not start its workers, or lost them all.")
            return usual(message_ids)

        grid.pull_messages = pull  # type: ignore[method-assign]
        grid.carrier = self._carrier  # type: ignore[attr-defined]
        self._own(grid, context)
