"""One federation of real processes for all tests of this folder: it takes a while to start."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.support.fleet import Fleet
from tests.support.killing import Point


@pytest.fixture(scope="module")
def fleet(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Fleet]:
    """A SuperLink and three SuperNodes; none of their processes outlives the tests.

    The first run of three rounds stands still in round 2 at user 2, and in round 3 at the server.
    """
    points = {
        "superlink": Point("/fedrep/metrics.jsonl$", rounds=2),
        "2": Point("/state-2/fedrep-.*/2.safetensors$"),
    }
    fleet = Fleet(tmp_path_factory.mktemp("fleet"), points=points)
    try:
        fleet.start("seed=3")
        yield fleet
    finally:
        fleet.stop()
