"""What all tests share: an order, a cache of their own, one thread, a quiet log."""

from __future__ import annotations

import gc
import logging
import os
import sys
from collections.abc import Iterator
from pathlib import Path

import hypothesis
import pytest

# No deadline, however busy the machine is. At home each run draws anew; a clean clone is judged by
# the same draws each time.
again = "CORSAGE_SAME_DRAWS" in os.environ
hypothesis.settings.register_profile("any machine", deadline=None, derandomize=again)
hypothesis.settings.load_profile("any machine")

sys.dont_write_bytecode = False  # three workers and many processes read the same files
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
if "PYTEST_XDIST_WORKER" in os.environ:
    gc.disable()  # until all tests are collected: what is imported stays

LONGEST = (
    "tests/deploy/test_devices.py",
    "tests/test_ray.py",
    "tests/test_kill.py",
    "tests/test_docs.py",
    "tests/test_package.py",
    "tests/strategies/test_any_way.py",
    "tests/strategies/test_contract.py",
    "tests/deploy/test_obedience.py",
    "tests/deploy/test_attacks.py",
    "tests/strategies/known_clusters/test_own_sums.py",
    "tests/app/test_forget.py",
    "tests/strategies/convex_clustering/test_outside.py",
    "tests/strategies/test_odd_users.py",
    "tests/app/test_light.py",
)
"""The files that take longest, and first those whose tests mostly wait for other processes."""


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_auto_num_workers() -> int | None:
    """One more than there are cores: the tests of devices and of Ray mostly wait."""
    asked = os.environ.get("PYTEST_XDIST_AUTO_NUM_WORKERS")
    return None if asked else (os.cpu_count() or 1) + 1


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """What takes longest begins first, so that nothing has to wait for it at the end."""
    items.sort(key=lambda item: place(item.nodeid.partition("::")[0]))
    gc.freeze()  # modules and tests: whoever collects garbage need not look at them
    gc.enable()


def place(file: str) -> int:
    """The place of a file among the longest; all others come after them, as they are."""
    return LONGEST.index(file) if file in LONGEST else len(LONGEST)


@pytest.fixture(scope="session", autouse=True)
def cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Prepared data of the tests, never those of the user; sub-processes inherit it."""
    import threadpoolctl
    import torch

    folder = tmp_path_factory.mktemp("cache")
    before = os.environ.get("XDG_CACHE_HOME")
    os.environ["XDG_CACHE_HOME"] = str(folder)
    torch.set_num_threads(1)  # each core has a process of its own
    threadpoolctl.threadpool_limits(1, user_api="blas")
    logging.getLogger("flwr").setLevel(logging.ERROR)
    os.fsync = lambda _: None  # no test pulls the plug, and what is killed has written all the same
    gc.freeze()
    yield folder
    if before is None:
        del os.environ["XDG_CACHE_HOME"]
    else:
        os.environ["XDG_CACHE_HOME"] = before


@pytest.fixture(autouse=True)
def same_draws() -> None:
    """What a test draws without a generator of its own does not depend on what ran before it."""
    import numpy as np
    import torch

    torch.manual_seed(0)
    np.random.seed(0)
