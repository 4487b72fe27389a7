"""Prepared data in the cache: who may read them, and that a file that is rewritten is read anew."""

from __future__ import annotations

import os
from dataclasses import replace
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
from corsage.datasets.dealing.federated import opened, simulated
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


@RIGHTS
def test_what_an_earlier_version_left_is_closed(tmp_path: Path) -> None:
    """Also what is not asked for, and what a killed process left; but nothing of the user's own."""
    keys = keys_at(tmp_path)
    simulated(keys, 6, 0)
    simulated(replace(keys, max_train_samples=4), 6, 0)
    for path in [*tmp_path.rglob("*")]:
        path.chmod(0o755 if path.is_dir() else 0o644)
    (folder, _) = tmp_path.iterdir()
    (tmp_path / f".{folder.name}-x1").mkdir(mode=0o755)
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine").chmod(0o755)
    rights = tmp_path.stat().st_mode
    opened.cache_clear()
    simulated(keys, 6, 0)
    assert readable(tmp_path) == ["mine: 755"] and tmp_path.stat().st_mode == rights


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
