"""A model of 40.7 million parameters on real SuperNodes: refused before it is sent, or trained.

pytest -m slow tests/deploy/test_large.py
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.deploy.test_devices import KEYS as USUAL
from tests.deploy.test_devices import assert_same, simulated
from tests.support.fleet import FEDAVG, USERS, Fleet

KEYS = {**USUAL, "hidden": "6350,6350", "num-rounds": 2, "local-steps": 2}
WORDS = FEDAVG.replace(" num-rounds=3", "") + "".join(f" {k}={v!r}" for k, v in KEYS.items())
ALLOWED = "num-classes=10 cluster='a' max-parameters=50000000 "


@pytest.fixture(params=[ALLOWED, "num-classes=10 cluster='a' "], ids=["allowed", "refused"])
def fleet(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Fleet]:
    """Three SuperNodes with or without a limit of their own."""
    made = Fleet(tmp_path, dict.fromkeys(USERS, request.param))
    try:
        made.start("seed=3")
        yield made
    finally:
        made.stop()


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_a_model_of_163_mb(fleet: Fleet, tmp_path: Path) -> None:
    """Without a word of the owner's it is more than a device allows: 20 million."""
    name = fleet.run(WORDS)
    assert fleet.words
    if fleet.words["0"] == ALLOWED:
        keys = {k.replace("-", "_"): v for k, v in KEYS.items()}
        own = simulated(tmp_path / "own", strategy="fedavg", **keys)
        assert_same(fleet.finish(name), own, "fedavg")
        return
    fleet.until(lambda: fleet.processes[name].poll() is not None)
    log = fleet.log(name)
    assert "40,805,110 parameters, 163 MB a message, and the node allows 20,000,000" in log
    assert "raise max-parameters in its node config" in log and "Run folder" not in log
