"""A data file that is rewritten: one process, one app, and each run has the file as it is then."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from corsage.app.client_app import app
from corsage.app.local_grid import LocalGrid
from corsage.core.configuration.config import Config
from corsage.strategies import strategy_class


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
    estimates = result.summaries[0].estimates
    assert estimates is not None
    return float(estimates["coefficients"][1]["estimate"])


def test_every_run_has_the_file_as_it_is_then(tmp_path: Path) -> None:
    for slope in (2.0, -5.0, 20.0):
        assert coefficient(tmp_path / "data.npz", slope) == pytest.approx(slope)
