"""Problems without a solution are refused before the first round; equal models are one cluster."""

from __future__ import annotations

import csv
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import corsage
from corsage.app.results.csv_files import write_tables
from corsage.core.arrays import Floats
from corsage.core.errors import ModelError

User = tuple[Floats, Any, Floats, Any]
KEYS = {"model": "linear", "progress": False, "evaluate_every": 1000, "num_rounds": 300}


def user(seed: int, w: Floats, kind: str = "noisy") -> User:
    """40 records; classes by chance, by a plane, or but one class where the last feature is 1."""
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(40, 3))
    chance = 1 / (1 + np.exp(-2 * x @ w))
    if kind == "rare":
        x[:, 2] = np.arange(40) % 5 == 0
    noisy = rng.random(40) < chance
    y = {"noisy": noisy, "plane": x @ w > 0, "rare": noisy | (x[:, 2] == 1)}[kind]
    return x[:30], y[:30].astype(int), x[30:], y[30:].astype(int)


W = np.array([1.0, 0.5, 0.0])


def run(users: list[User], lam: str, **keys: Any) -> Any:
    given = {"loss": "logistic", "ridge": 0.0, "convex_lambda": lam, **KEYS, **keys}
    return corsage.simulate("convex-clustering", users, **given)["convex-clustering"]


@pytest.mark.parametrize(
    ("solver", "kind"), [("newton", "plane"), ("newton", "rare"), ("dr", "plane"), ("pdmm", "rare")]
)
def test_what_a_plane_separates_for_everybody_even_weakly_is_refused(
    solver: str, kind: str
) -> None:
    users = [user(seed, W, kind) for seed in range(6)]
    with pytest.raises(ModelError, match=r"convex-lambda=0.5: all users together without a best"):
        run(users, "0.5", convex_solver=solver, num_rounds=20)


def test_one_user_that_grows_in_all_directions_holds_the_others() -> None:
    """Its classes overlap: no direction is left, and the solution is certified."""
    users = [user(0, W), *(user(seed, W, "plane") for seed in range(1, 6))]
    row = run(users, "0.5")
    rows = {name: text for one in row.json()["findings"] for name, text in one["rows"]}
    assert rows["optimality"].startswith("certified")


def test_users_whose_planes_differ_have_a_solution_together() -> None:
    """Each has none alone; no direction is common to all."""
    users = [user(seed, sign * W, "plane") for seed, sign in enumerate((1, -1, 1, -1))]
    row = run(users, "0.5")
    rows = {name: text for one in row.json()["findings"] for name, text in one["rows"]}
    assert rows["optimality"].startswith("certified")
    with pytest.raises(ModelError, match=r"convex-lambda=0: all users without .* lambda above 0"):
        run(users, "0")


def test_a_piece_of_the_graph_is_refused_alone_and_named() -> None:
    """Two groups far apart, no edge between them: the second is separable."""
    users = [user(1, W) for _ in range(3)] + [user(9, -W, "plane") for _ in range(3)]
    keys = {"convex_graph": "knn", "convex_neighbours": 2}
    with pytest.raises(ModelError, match=r"users 3, 4, 5 together without a best model"):
        run(users, "0.1", **keys)


def test_losses_that_have_a_least_value_are_not_refused() -> None:
    users = [user(seed, W, "plane") for seed in range(4)]
    row = run(users, "0.5", loss="squared-hinge", num_rounds=2, convex_report=False)
    assert np.isfinite(row.json()["rounds"])


@pytest.mark.parametrize(
    ("solver", "lam"), [("newton", "0"), ("dr", "0"), ("pdmm", "0"), ("newton", "0.01")]
)
def test_equal_models_are_one_cluster_where_no_edge_joins_them(
    solver: str, lam: str, tmp_path: Path
) -> None:
    """Three users of one kind and three of another; the neighbours' graph is in pieces."""
    one, other = user(1, 2 * W), user(2, np.array([-1.0, 0.0, 2.0]))
    users = [one, one, other, other, one, other]
    keys = {"convex_graph": "knn", "convex_neighbours": 1, "ridge": 0.01}
    row = run(users, lam, convex_solver=solver, convex_tolerance=1e-8, **keys)
    write_tables(tmp_path, [row.json()])
    with (tmp_path / "clusters.csv").open() as file:
        found = [line["cluster"] for line in csv.DictReader(file)]
    assert found == ["0", "0", "1", "1", "0", "1"]


def test_nearly_equal_models_are_not_one_cluster_without_a_penalty() -> None:
    """One label in thirty is another."""
    x, y, *test = user(1, 2 * W)
    changed = np.where(np.arange(30) == 3, 1 - y, y)
    users: list[User] = [(x, y, *test), (x, y, *test), (x, changed, *test)]  # type: ignore[misc]
    row = run(users, "0", ridge=0.01, convex_solver="dr", convex_tolerance=1e-8)
    assert list(row.json()["clusters"].values()) == ["0", "0", "1"]
