"""A cluster of two Ray nodes, of which one is killed in the middle: the numbers are the local ones.

pytest -m slow tests/test_ray_cluster.py
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from flwr.app import Context, RecordDict
from flwr.serverapp import ServerApp

from corsage.app import ray_engine
from corsage.app.local_grid import LocalGrid
from corsage.core.errors import NodeError
from tests.support import ray_cluster
from tests.support.killing import ROOT, rounds_in, running, wait_for

WORDS = ["strategy=fedrep,scaffold", "num-users=12", "num-rounds=12", "hidden=16", "head-epochs=2"]
EXACT = ("per_user", "bytes_up", "messages", "never_drawn", "curve", "dropped")


@pytest.fixture
def cluster() -> Iterator[subprocess.Popen[str]]:
    """Its first line is the address; a line to it kills the second node."""
    command, pipe = [sys.executable, "-m", "tests.support.ray_cluster"], subprocess.PIPE
    with subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True, cwd=ROOT) as process:
        yield process


def results(folder: Path) -> dict[str, Any]:
    """The rows of the only run in a folder."""
    (file,) = folder.glob("runs/*/summary.json")
    return {row["strategy"]: row for row in json.loads(file.read_text())["results"]}


def tell(process: subprocess.Popen[str]) -> str:
    """Let it go on; what it says then."""
    assert process.stdin and process.stdout
    process.stdin.write("\n")
    process.stdin.flush()
    return process.stdout.readline().strip()


@pytest.mark.slow
def test_a_node_of_a_cluster_may_die(tmp_path: Path, cluster: subprocess.Popen[str]) -> None:
    assert cluster.stdout
    words = [*WORDS, "run-dir=runs", "num-nodes=4"]
    (tmp_path / "local").mkdir()
    with running(tmp_path / "local", words, {}) as local:
        assert local.wait() == 0
    address, folder = cluster.stdout.readline().strip(), tmp_path / "cluster"
    folder.mkdir()
    on_it = [*words, "engine=ray", f"ray-address={address}"]
    with running(folder, on_it, ray_cluster.QUICK) as process:
        wait_for(lambda: rounds_in(folder) >= 3, process, folder)
        assert tell(cluster) == "killed"
        assert rounds_in(folder) < 24
        assert process.wait() == 0, (folder / "log").read_text()
    tell(cluster)
    found, wanted = results(folder), results(tmp_path / "local")
    assert found.keys() == wanted.keys()
    for name, row in wanted.items():
        for key in EXACT:
            assert found[name][key] == row[key], (name, key)


def test_a_run_has_a_ray_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    """And not the one that was started last on this machine; nothing is left of how it starts."""
    import ray
    from ray._private.node import Node

    found: dict[str, Any] = {}

    def init(**arguments: Any) -> None:
        found.update(arguments, paths=os.environ["PYTHONPATH"], monitor=Node.start_monitor)
        raise RuntimeError

    monkeypatch.setattr(ray, "init", init)
    monkeypatch.setenv("PYTHONPATH", "mine")
    usual = Node.start_monitor
    with pytest.raises(RuntimeError):
        ray_engine.started({"log_to_driver": False})
    assert found["address"] == "local" and found["include_dashboard"] is False
    assert found["monitor"] is ray_engine.nothing and Node.start_monitor is usual
    assert "mine" in found["paths"].split(os.pathsep) and os.environ["PYTHONPATH"] == "mine"
    assert all(hasattr(Node, name) for name in ray_engine.UNUSED)


class Pool:
    """Flower's pool: workers that answer, or die of any message."""

    def __init__(self, *pool: str) -> None:
        self.pool, self._future_to_actor, self.num_actors = [*pool], dict[int, str](), len(pool)

    def submit(self, run: Any, job: tuple[Any, ...]) -> int:
        future = len(self._future_to_actor) + 100
        self._future_to_actor[future] = self.pool.pop()
        return future

    def fetch_result_and_return_actor_to_pool(self, future: int) -> tuple[str, str]:
        from ray.exceptions import RayActorError

        if self._future_to_actor[future] == "dying":
            raise RayActorError
        if self._future_to_actor[future] == "wrong":
            raise ValueError("an error of the app")
        self.add_actor_back_to_pool(future)
        return "reply", "context"

    def add_actor_back_to_pool(self, future: int) -> None:
        self.pool.append(self._future_to_actor.pop(future))

    def add_actors_to_pool(self, number: int) -> None:
        self.pool += ["new"] * number
        self.num_actors += number


def processed(pool: Pool) -> Any:
    """What comes of a message."""
    backend: Any = SimpleNamespace(pool=pool, app_fn=lambda: None)
    context: Any = SimpleNamespace(node_config={"partition-id": 3})
    return ray_engine.process(backend, None, context)  # type: ignore[arg-type]


def test_a_message_goes_to_another_worker() -> None:
    """The dead one gets no more; the last one is replaced."""
    pool = Pool("living", "dying")
    assert processed(pool) == ("reply", "context")
    assert pool.pool == ["living"] and pool.num_actors == 1
    alone = Pool("dying")
    assert processed(alone) == ("reply", "context") and alone.pool == ["new"]


def test_a_message_that_kills_is_given_up() -> None:
    from ray.exceptions import RayActorError

    with pytest.raises(RayActorError):
        processed(pool := Pool("living", "dying", "dying", "dying"))
    assert pool.pool == ["living"]


def test_errors_of_the_app_are_its_own() -> None:
    """They are no reason to ask again."""
    pool = Pool("wrong")
    with pytest.raises(ValueError, match="an error of the app"):
        processed(pool)
    assert pool.pool == ["wrong"] and not pool._future_to_actor


def test_nobody_waits_for_an_engine_that_is_over() -> None:
    own, over = ServerApp(), threading.Event()
    pulled: list[int] = []

    @own.main()
    def main(grid: Any, context: Context) -> None:
        pulled.append(len(grid.pull_messages([])))
        over.set()
        grid.pull_messages([])

    context = Context(1, 0, {}, RecordDict(), {})
    with pytest.raises(NodeError, match="Ray"):
        ray_engine.UntilOver(own, over, lambda: None)(LocalGrid(None, 1), context)  # type: ignore[arg-type]
    assert pulled == [0]
