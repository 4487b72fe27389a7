"""What all tests share: a cache of their own, one thread, a quiet log."""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from corsage.core.registry import ALGORITHMS

LONGEST = ("fleet", "ray", "killed", "packaged")
"""Groups of tests with processes of their own, which wait more than they compute."""


@pytest.hookimpl(tryfirst=True)  # before xdist reads the groups
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """What takes longest begins first, so that nothing has to wait for it at the end.

    The contract tests of an algorithm are a group: its one-node runs are computed once (see
    `tests.support.federations.reference`).
    """
    for item in items:
        name = getattr(item, "callspec", None) and item.callspec.params.get("name")
        if name in ALGORITHMS and item.path.parent.name == "strategies":
            item.add_marker(pytest.mark.xdist_group(name))
    items.sort(key=place)


def place(item: pytest.Item) -> int:
    """When a test begins: the longest groups in their order, then the other tests as they are."""
    mark = item.get_closest_marker("xdist_group")
    group = mark.args[0] if mark else ""
    return LONGEST.index(group) if group in LONGEST else len(LONGEST)


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
    yield folder
    if before is None:
        del os.environ["XDG_CACHE_HOME"]
    else:
        os.environ["XDG_CACHE_HOME"] = before
