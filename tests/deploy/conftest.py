"""What tests of devices share: one federation of real processes, and a device in this one."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from corsage.benchmarks.device.target import Target
from tests.support.fleet import Fleet
from tests.support.killing import Point

HELD = {"2": 2, "0": 3}
"""Who stands still before a state is kept, and of which round."""


@pytest.fixture(scope="module")
def fleet(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Fleet]:
    """A SuperLink and three SuperNodes; none of their processes outlives the tests.

    Of the first run, user 2's second round and user 0's third end only when a test lets them.
    """
    points = {user: Point(f"/state-{user}/fedrep-.*/{n}.safetensors$") for user, n in HELD.items()}
    fleet = Fleet(tmp_path_factory.mktemp("fleet"), points=points, hasty=["2"])
    try:
        fleet.start("seed=3")
        yield fleet
    finally:
        fleet.stop()


@pytest.fixture(params=[False, True], ids=["alone", "worker"])
def target(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> Target:
    """A device, whose process stands where a planted module could be imported from.

    It does each message's work in a process of its own, or in its resident worker.
    """
    target = Target(tmp_path, request.param)
    monkeypatch.chdir(target.outside)
    return target
