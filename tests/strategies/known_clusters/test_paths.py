"""Clusters whose names are paths: users in classes in schools in regions, against dense algebra."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from corsage.app.client_app import app
from corsage.app.local_grid import LocalGrid
from corsage.core.arrays import Floats, Ints
from corsage.core.configuration.config import Config
from corsage.core.errors import ConfigError
from corsage.strategies import strategy_class
from corsage.strategies.known_clusters.paths import check_paths, tree_levels, unit_of, units_above
from corsage.strategies.rounds.base import Result, Strategy

USERS, ROWS = 48, 10
PATHS = [f"r{c // 6}/s{c // 3}/c{c}" for c in range(12)]
OWN = [
    np.arange(USERS),
    np.arange(USERS) % 12,
    np.arange(USERS) % 12 // 3,
    np.arange(USERS) % 12 // 6,
]
"""Each user's number on every level: its own, its class', its school's, its region's."""


def drawn(intercept: bool) -> tuple[Floats, Floats, Ints]:
    """x with its intercept, y and the user of each record; all coefficients differ, or one does."""
    rng, d = np.random.default_rng(3), 2
    theta = np.tile([1.0, 2.0], (USERS, 1))
    for own, size in zip(OWN, (0.4, 0.8, 1.2, 2.0), strict=True):
        away = size * rng.standard_normal((own.max() + 1, d))
        theta += away[own] * ([0.0, 1.0] if intercept else [1.0, 1.0])
    user = np.repeat(np.arange(USERS), ROWS)
    x = np.column_stack([rng.standard_normal(len(user)), np.ones(len(user))])
    return x, (x * theta[user]).sum(1) + rng.standard_normal(len(user)), user


def run(folder: Path, intercept: bool, **keys: Any) -> tuple[Strategy[Any, Any], Result]:
    """The mixed model on it; the last record of each user is its test."""
    x, y, user = drawn(intercept)
    names = np.array([PATHS[u % 12] for u in range(USERS)])
    path, last = folder / "paths.npz", np.arange(len(user)) % ROWS == ROWS - 1
    np.savez(path, x=x[:, :1], y=y, user=user, cluster=names[user], test=last)
    own = {
        "dataset": "npz", "data-file": str(path), "user-column": "user", "labels": "numbers",
        "cluster-column": "cluster", "model": "linear", "scale": "none", "mixed-intervals": "never",
        **{key.replace("_", "-"): value for key, value in keys.items()},
    }  # fmt: skip
    strategy = strategy_class("mixed-model")(Config.parse(own))
    return strategy, strategy.start(LocalGrid(app, 1))


def dense(x: Floats, y: Floats, user: Ints, ds: list[Floats], sigma2: float) -> tuple[float, Any]:
    """The restricted log likelihood, and each user's best prediction, by inverting all of V."""
    v = sigma2 * np.eye(len(y))
    for own, d in zip(OWN, ds, strict=False):
        unit = own[user]
        v += np.equal.outer(unit, unit) * (x @ d @ x.T)
    inverse = np.linalg.inv(v)
    fisher = x.T @ inverse @ x
    middle = np.linalg.solve(fisher, x.T @ inverse @ y)
    rest = y - x @ middle
    logs = np.linalg.slogdet(v)[1] + np.linalg.slogdet(fisher)[1]
    loglik = -((len(y) - 2) * np.log(2 * np.pi) + logs + rest @ inverse @ rest) / 2
    theta = np.tile(middle, (USERS, 1))
    for own, d in zip(OWN, ds, strict=False):
        score = x * (inverse @ rest)[:, None]
        sums = np.zeros((own.max() + 1, 2))
        np.add.at(sums, own[user], score)
        theta += (sums @ d)[own]
    return float(loglik), theta


def trained(intercept: bool) -> tuple[Floats, Floats, Ints]:
    """The training records."""
    x, y, user = drawn(intercept)
    there = np.arange(len(user)) % ROWS != ROWS - 1
    return x[there], y[there], user[there]


@pytest.mark.parametrize("variances", ["auto", "full"])
def test_all_levels_are_those_of_a_dense_solve(variances: str, tmp_path: Path) -> None:
    strategy, result = run(tmp_path, intercept=False, mixed_variances=variances)
    fit = strategy.state.estimates.covariance
    assert list(fit.levels) == ["users", "clusters", "superclusters", "supersuperclusters"]
    x, y, user = trained(False)
    loglik, theta = dense(x, y, user, list(fit.levels.values()), fit.sigma2)
    assert fit.loglik == pytest.approx(loglik, rel=1e-10)
    x, y, user = drawn(False)
    last = np.arange(len(user)) % ROWS == ROWS - 1
    off = np.abs(y - (x * theta[user]).sum(1))[last]  # of one test record
    found = result.summaries[0].per_user
    assert [found[str(u)] for u in range(USERS)] == pytest.approx(off.tolist(), rel=1e-9, abs=1e-10)
    assert [list(level) for level in strategy.state.above] == [
        ["r0/s0", "r0/s1", "r1/s2", "r1/s3"],
        ["r0", "r1"],
    ]
    told = {f["title"]: dict(f["rows"]) for f in result.json()[0]["findings"]}
    assert "intercept" in told["supersuperclusters' estimates"]["r1"]
    levels = {one["level"] for one in result.json()[0]["estimates"]["variances"]}
    assert {"user: intercept", "supercluster: intercept"} <= levels


def test_the_variances_are_those_of_dense_reml(tmp_path: Path) -> None:
    """Of random intercepts, one number a level."""
    keys = {"mixed_random": "intercept", "mixed_variances": "one", "mixed_aside": "never"}
    strategy, _ = run(tmp_path, intercept=True, **keys)
    fit = strategy.state.estimates.covariance
    x, y, user = trained(True)

    parts = [np.eye(len(y)), *(np.equal.outer(own[user], own[user]) * 1.0 for own in OWN)]
    values = np.ones(5)
    for _ in range(25):
        values = values + scoring_step(x, y, parts, values)
    found = [fit.sigma2, *(float(one[1, 1]) for one in fit.levels.values())]
    assert found == pytest.approx(values.tolist(), rel=1e-6)


def scoring_step(x: Floats, y: Floats, parts: list[Floats], values: Floats) -> Floats:
    """Fisher's of the restricted likelihood whose covariance is the sum of values times parts."""
    inverse = np.linalg.inv(np.tensordot(values, np.stack(parts), 1))
    p = inverse - inverse @ x @ np.linalg.solve(x.T @ inverse @ x, x.T @ inverse)
    py = p @ y
    slopes = np.array([py @ one @ py - np.sum(p * one) for one in parts])
    ps = [p @ one for one in parts]
    fisher = np.array([[np.sum(one * other.T) for other in ps] for one in ps])
    return np.asarray(np.linalg.solve(fisher, slopes))


def test_a_class_that_comes_later_is_in_its_school(tmp_path: Path) -> None:
    state = run(tmp_path, intercept=False, mixed_variances="one")[0].state
    assert state.centre("r0/s1/new") is state.above[0]["r0/s1"]
    assert state.centre("r1/new/c") is state.above[1]["r1"]
    assert state.centre("new/s/c") is state.model
    assert state.centre(PATHS[2]) == pytest.approx(state.w[state.clusters.known.index(PATHS[2])])


def test_names_that_are_no_paths(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    flat = run(tmp_path, intercept=False, mixed_paths=False)[0].state
    assert len(flat.estimates.covariance.levels) == 2 and not flat.above
    monkeypatch.setitem(globals(), "PATHS", [*PATHS[:-1], "short"])
    with pytest.raises(ConfigError, match=r"short and r1/s3/c9: paths must have equally many"):
        run(tmp_path, intercept=False)
    assert not run(tmp_path, intercept=False, mixed_paths=False)[0].state.above


@pytest.mark.parametrize("name", ["r0//c1", "r0/s1/", "/s1/c1", "r0/ /c1"])
def test_a_path_with_a_gap_is_refused(name: str) -> None:
    """Nobody would see that all gaps are taken for one school."""
    with pytest.raises(ConfigError, match=r"a part of its path is empty.*mixed-paths=false"):
        check_paths(["r0/s1/c2", name])
    check_paths(["north", "", "south"])


def test_names_are_paths_in_any_script_and_the_same_ones_under_others_are_others() -> None:
    names = ["é/№ 1/クラス", "é/№ 2/クラス", "ü/№ 1/クラス", "ü/№ 1/class"]
    assert units_above(names) == [["é/№ 1", "é/№ 2", "ü/№ 1"], ["é", "ü"]]


def test_levels_that_say_nothing_are_none() -> None:
    assert units_above(["a", "b"]) == []
    assert units_above(["x/a", "x/b"]) == []  # one unit is the middle
    assert units_above(["x/a", "y/b"]) == []  # each is alone
    assert units_above(["x/p/a", "x/p/b", "y/q/c"]) == [["x/p", "y/q"]]
    assert unit_of("a/b/c", 0) == "a/b" and unit_of("a/b/c", 1) == "a" and unit_of("a", 1) == "a"
    names = ["x/a", "y/b", "x/c"]
    levels = tree_levels(np.array([0, 1, 2, 2]), names, units_above(names))
    assert [level.parent.tolist() for level in levels] == [[0, 1, 2, 2], [0, 1, 0], [0, 0]]
