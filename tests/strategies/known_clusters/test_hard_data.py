"""Data on which known clusters used to stop, or never to end."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from corsage.app.client_app import app
from corsage.app.fitting import fit
from corsage.app.local_grid import LocalGrid
from corsage.core.configuration.config import Config
from corsage.core.messages.wire import Task
from corsage.solvers.known_clusters.coins.katyusha import LEAST_REFRESHES, thrifty
from corsage.strategies import strategy_class
from tests.support.federations import federate
from tests.support.grids import Watched
from tests.support.known_users import HIERARCHICAL, UNEVEN, written


@pytest.mark.parametrize("variances", ["auto", "summed"])
def test_a_cluster_of_one_silent_user_stops_nobody(variances: str, tmp_path: Path) -> None:
    def fails(number: int, task: Task) -> bool:
        return "11" in task.users

    keys: dict[str, Any] = {
        **HIERARCHICAL, "known_gamma": "auto", "known_lambda": "auto", "num_rounds": 3,
        "mixed_variances": variances, "cluster_map": written(tmp_path, UNEVEN),
        "samples_per_user": 8, "mixed_intervals": "never",
    }  # fmt: skip
    strategy, result, _ = federate("mixed-model", grid=Watched(12, fails), **keys)
    assert strategy.progress.dropped["11"] >= 1
    assert result.summaries[0].users >= 11 and np.isfinite(result.summaries[0].score.mean)
    assert len(strategy.state.w) == 4


def linear(users: int, rows: int) -> tuple[Any, Any, Any]:
    """Samples x, y of so many users."""
    rng, user = np.random.default_rng(0), np.repeat(np.arange(users), rows)
    x = rng.standard_normal((users * rows, 2))
    return x, x @ [1.0, -1.0] + 0.1 * rng.standard_normal(users * rows), user


LINEAR: dict[str, Any] = {
    "model": "linear", "labels": "numbers", "progress": False, "mixed_grouping": "all",
}  # fmt: skip


@pytest.mark.filterwarnings("error:divide by zero:RuntimeWarning")
def test_clusters_without_a_variance_are_tied_without_a_warning() -> None:
    x, y, user = linear(6, 8)
    noisy = y + 3 * np.random.default_rng(0).standard_normal(len(y))
    keys = {**LINEAR, "cluster": user % 2, "num_rounds": 1}
    row = fit(x=x, y=noisy, user=user, strategy="async-al2sgd", **keys)["async-al2sgd"]
    assert np.isfinite(row.score.mean)


@pytest.mark.parametrize("variances", ["auto", "summed"])
@pytest.mark.parametrize("label", [0.0, 5.1])
def test_labels_that_are_all_equal_are_learned(label: float, variances: str) -> None:
    x, y, user = linear(6, 8)
    row = fit(
        x=x, y=0 * y + label, user=user, strategy="mixed-model", mixed_variances=variances, **LINEAR
    )["mixed-model"]
    assert np.ravel(row.user("3").predict(x[:4])) == pytest.approx([label] * 4)


@pytest.mark.parametrize("users", [1, 2])
def test_shapes_are_not_chosen_where_nobody_can_be_left_out(users: int) -> None:
    """A fold would leave no records, or fewer than coefficients."""
    x, y, user = linear(users, 4 if users == 2 else 40)
    row = fit(x=x, y=y, user=user, strategy="mixed-model", **LINEAR)["mixed-model"]
    assert "one variance" in row.summary()
    assert row.user("0").predict(np.ones((1, 2))) == pytest.approx(0.0, abs=0.5)


@pytest.mark.parametrize("name", ["exact-cluster", "exact-global"])
def test_squared_hinge_on_classes_that_a_plane_tells_apart(name: str, tmp_path: Path) -> None:
    """Of the many models without a loss the nearest is taken: it settles, with no loss left."""
    rng, user = np.random.default_rng(0), np.repeat(np.arange(10), 20)
    x = rng.standard_normal((200, 2))
    y = (x @ [1.0, 0.2] > 0).astype(int)
    x += np.where(y, 0.3, -0.3)[:, None] * [1.0, 0.2]
    np.savez(tmp_path / "apart.npz", x=x, y=y, user=user, cluster=user % 2)
    keys = {
        "dataset": "npz", "data-file": str(tmp_path / "apart.npz"), "user-column": "user",
        "cluster-column": "cluster", "model": "linear", "scale": "none", "loss": "squared-hinge",
        "evaluate-every": 1000,
    }  # fmt: skip
    strategy = strategy_class(name)(Config.parse(keys))
    strategy.start(LocalGrid(app, 2))
    assert strategy.finished() and strategy.progress.round < 100  # rounding decides how many
    w = strategy.state.w[user % 2 if name == "exact-cluster" else user * 0]
    margins = (2 * y - 1) * ((x * w[:, :2]).sum(1) + w[:, 2])
    assert (margins > 1 - 1e-6).mean() > 0.75  # of all, the tested ones too


def test_anchors_are_refreshed_where_the_middle_hardly_pulls() -> None:
    p = np.array([0.1, 0.6])
    assert thrifty(1e-9, p) == pytest.approx(LEAST_REFRESHES * 0.24)
    assert thrifty(0.3, p) == pytest.approx(0.21)
    keys = {"known_gamma": 2, "known_lambda": 1e-6, "known_iterations": 2000, "num_rounds": 2000}
    strategy, _, _ = federate("async-al2sgd", **{**HIERARCHICAL, **keys, "evaluate_every": 10**6})
    assert strategy.state.refreshes > 0
