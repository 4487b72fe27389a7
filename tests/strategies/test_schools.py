"""139 schools straight from CSV, with default keys: words, gaps, schools of two pupils."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from corsage.app.client_app import app
from corsage.app.local_grid import LocalGrid
from corsage.benchmarks.schools import NOISE_SD, TRUTH, write_schools
from corsage.core.configuration.config import Config
from corsage.strategies import strategy_class
from corsage.strategies.rounds.base import Strategy
from corsage.strategies.rounds.results import Summary


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_schools(tmp_path_factory.mktemp("schools") / "schools.csv")


def run(name: str, file: Path, **keys: Any) -> tuple[Strategy[Any, Any], Summary]:
    """What an analyst types, and nothing more but how many rounds."""
    own = {
        "dataset": "csv", "data-file": str(file), "user-column": "school",
        "cluster-column": "sector", "label-column": "score", "labels": "numbers",
        "missing": "mean", "model": "linear", "evaluate-every": 1000, "min-samples": 2,
        **{key.replace("_", "-"): value for key, value in keys.items()},
    }  # fmt: skip
    strategy = strategy_class(name)(Config.parse(own))
    return strategy, strategy.start(LocalGrid(app, 1)).summaries[0]


@pytest.mark.parametrize("name", ["mixed-model", "exact-global", "exact-cluster", "exact-local"])
def test_schools_are_solved(name: str, file: Path) -> None:
    strategy, found = run(name, file)
    assert strategy.finished() and found.users >= 137 and not found.dropped
    assert np.isfinite(found.score.mean)


def test_schools_have_the_coefficients_that_they_were_drawn_with(file: Path) -> None:
    """In the units of the file, under the names of its columns and words."""
    _, found = run("mixed-model", file, mixed_random="intercept")
    assert found.estimates is not None
    for one in found.estimates["coefficients"]:
        wanted = TRUTH[one["name"]]
        slack = 1.5 if one["name"] == "intercept" else 0.0  # three sectors are not many
        assert abs(one["estimate"] - wanted) < 4 * one["se"] + slack, one
    noise = found.estimates["variances"][0]["variance"]
    assert noise == pytest.approx(NOISE_SD**2, rel=0.1)
    assert len(found.estimates["users"]) == found.users
    small, large = (found.estimates["users"][name]["shrinkage"] for name in ("s2", "s3"))
    assert small > 0.8 and large < 0.2


@pytest.mark.parametrize("name", ["fedavg", "fedrep"])
def test_schools_are_learnt(name: str, file: Path) -> None:
    _, alone = run("exact-local", file)
    _, found = run(name, file, num_rounds=20)
    assert found.score.mean < alone.score.mean
