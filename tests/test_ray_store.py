"""What Ray's store holds is asked of the Ray that runs, and a run that it does not hold ends."""

from __future__ import annotations

import shutil
from collections import namedtuple
from pathlib import Path
from types import SimpleNamespace

import pytest

from corsage.app import engines, ray_engine
from corsage.app.command import run
from corsage.app.ray_engine import UNBOUNDED, RayStore, store_of
from corsage.strategies.rounds.sizes import Load

Usage = namedtuple("Usage", "total used free")
WORDS = ["strategy=fedavg", "num-users=4", "num-rounds=1", "hidden=16", "fine-tune-epochs=0"]


def connected(patch: pytest.MonkeyPatch, memories: list[float], place: str | None) -> None:
    """A Ray of such machines, of which this process may have started one."""
    import ray
    from ray._private import worker

    nodes = [{"Resources": {"object_store_memory": memory}} for memory in memories]
    own = place and SimpleNamespace(get_temp_dir_path=lambda: place)
    patch.setattr(ray, "nodes", lambda: nodes)
    patch.setattr(worker, "_global_node", own)
    patch.setattr(shutil, "disk_usage", lambda path: Usage(1000, 700, 300))


def test_memory_and_disk_of_this_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of the disk what is left until it is full to 95 per cent; of a cluster it is not known."""
    connected(monkeypatch, [500.0], "/somewhere")
    assert store_of(4, nodes=3) == RayStore(500, 250, workers=3)
    connected(monkeypatch, [500.0, 400.0], "/somewhere")
    assert store_of(2, nodes=3) == RayStore(400, UNBOUNDED, workers=2)
    connected(monkeypatch, [500.0], None)
    assert store_of(2, nodes=3) == RayStore(500, UNBOUNDED, workers=2)


def test_as_many_messages_as_workers_are_under_way() -> None:
    store = RayStore(memory=100, disk=50, workers=2)
    fits, slow, none = (Load(size, 0, 1, size) for size in (50, 75, 76))
    assert not store.warning(fits) and not store.refusal(fits)
    assert store.warning(slow) and not store.refusal(slow)
    assert store.refusal(none)


@pytest.mark.slow
def test_a_run_on_ray_that_its_store_does_not_hold_ends_in_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    words = [*WORDS, "engine=ray", "num-nodes=2", f"run-dir={tmp_path}"]
    found: list[RayStore] = []

    def small(workers: int, nodes: int) -> RayStore:
        found.append(ray_engine.store_of(workers, nodes))
        return RayStore(1000, 2000, found[0].workers)

    monkeypatch.setattr(engines, "store_of", small)
    assert run(words, "") != 0
    said = capsys.readouterr().err
    assert "MB of disk: make room in Ray's temporary folder" in said and "Traceback" not in said
    assert found[0].memory > 10**7 and 0 <= found[0].disk < UNBOUNDED
