"""One federation of real processes for all tests of this folder: it takes a while to start."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.support.fleet import Fleet
from tests.support.killing import Point


@pytest.fixture(scope="module")
def fleet(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Fleet]:
    """A SuperLink and three SuperNodes; none of their processes outlives the tests.

    The first run of three rounds stands still twice: at user 2 in round 2, at the server in round 3.
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
