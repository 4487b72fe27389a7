"""One federation of real processes for all tests of this folder: it takes a while to start."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.support.fleet import Fleet


@pytest.fixture(scope="module")
def fleet(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Fleet]:
    """A SuperLink and three SuperNodes; none of their processes outlives the tests."""
    fleet = Fleet(tmp_path_factory.mktemp("fleet"))
    try:
        fleet.start("seed=3")
        yield fleet
    finally:
        fleet.stop()
