"""Prepared data in the cache: who may read them, and that a file that is rewritten is read anew."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest

from corsage.app.client_app import app
from corsage.app.local_grid import LocalGrid
from corsage.core.configuration.config import Config
from corsage.core.configuration.key_groups import DataKeys
from corsage.core.errors import DataError
from corsage.core.files import POSIX
from corsage.datasets.dealing.data_cache import read_folder
from corsage.datasets.dealing.federated import simulated
from corsage.strategies import strategy_class

RIGHTS = pytest.mark.skipif(not POSIX, reason="this system's folders have no such rights")


def keys_at(root: Path) -> DataKeys:
    return Config.parse({"dataset": "ellipses", "cache-dir": str(root)}).data


def readable(root: Path) -> list[str]:
    """What others may read in a cache, and with what rights."""
    paths = sorted(path for path in root.rglob("*") if path.stat().st_mode & 0o077)
    return [f"{path.relative_to(root)}: {path.stat().st_mode & 0o777:o}" for path in paths]


@RIGHTS
def test_prepared_data_are_their_owners(tmp_path: Path) -> None:
    before = os.umask(0)
    try:
        root = tmp_path / "cache"
        simulated(keys_at(root), 6, 0)
    finally:
        os.umask(before)
    assert len(list(root.rglob("*.npy"))) > 1 and readable(tmp_path) == []


def test_a_folder_of_another_account_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refused(path: Path) -> bool:
        raise PermissionError(13, "Permission denied", str(path))

    monkeypatch.setattr(Path, "exists", refused)
    with pytest.raises(DataError, match=r"prepared by another account.*set cache-dir=FOLDER"):
        read_folder(tmp_path / "data")


def coefficient(file: Path, slope: float) -> float:
    """The slope that is found in a file with this one."""
    rng = np.random.default_rng(0)
    x, user = rng.standard_normal((160, 2)), np.repeat(np.arange(8), 20)
    np.savez(file, x=x, y=x @ [1.0, slope], user=user, cluster=user % 2)
    keys = {
        "dataset": "npz", "data-file": str(file), "labels": "numbers", "user-column": "user",
        "cluster-column": "cluster", "model": "linear", "scale": "none",
    }  # fmt: skip
    result = strategy_class("exact-global")(Config.parse(keys)).start(LocalGrid(app, 2))
    estimates = result.summaries[0].estimates or {}
    return float(estimates["coefficients"][1]["estimate"])


def test_every_run_has_the_file_as_it_is_then(tmp_path: Path) -> None:
    for slope in (2.0, -5.0, 20.0):
        assert coefficient(tmp_path / "data.npz", slope) == pytest.approx(slope)
