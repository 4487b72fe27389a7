"""Newton's rounds, the choice of lambda in a few exchanges, and what is said of it."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest

from corsage.core.errors import ConfigError
from corsage.solvers.convex_clustering.exact import sum_of_norms
from corsage.solvers.convex_clustering.newton import Newton
from corsage.strategies.convex_clustering.convex_clustering import (
    ConvexClustering,
    ConvexClusteringState,
)
from corsage.strategies.convex_clustering.opening import Choice
from corsage.strategies.rounds.state import restored, stored
from tests.support.at_hand import central
from tests.support.convex_runs import certificate, cluster
from tests.support.federations import federate
from tests.support.grids import Watched

ALL: dict[str, Any] = {"convex_tolerance": 1e-8}
FEW: dict[str, Any] = {"users_per_cluster": 6, "convex_tolerance": 1e-6, "convex_report": True}


@pytest.mark.parametrize("loss", ["squared-hinge", "logistic"])
def test_newton_is_the_default_and_ends_after_a_few_rounds(loss: str) -> None:
    strategy, result, notes = cluster(nodes=3, loss=loss, **ALL)
    assert isinstance(strategy.solver, Newton)
    found = certificate(strategy)
    assert found.relative <= 1e-8 and not found.nearby
    assert result["rounds"] <= 7
    assert not notes.notes
    if loss == "squared-hinge":
        best = sum_of_norms.fit(central(), 0.03, tolerance=1e-10)
        assert found.value == pytest.approx(best.value, rel=1e-8)
        gap = sum_of_norms.gap(central(), strategy.models, strategy.solver.mu, 0.03)
        assert gap <= 1e-6 * best.value


def choice_of(strategy: ConvexClustering) -> Choice:
    assert strategy.state.choice is not None
    return strategy.state.choice


def test_newton_does_not_depend_on_how_users_are_dealt_to_nodes() -> None:
    one, other = (cluster(nodes=n, **ALL)[0] for n in (1, 4))
    assert one.models == pytest.approx(other.models, abs=1e-9)


def test_some_of_the_users_take_part_by_splitting_or_are_refused() -> None:
    strategy, _, _ = cluster(fraction_train=0.5, num_rounds=2)
    assert not isinstance(strategy.solver, Newton)
    with pytest.raises(
        ConfigError, match=r"convex-solver=newton: it asks all users .* or convex-solver=dr"
    ):
        cluster(fraction_train=0.5, convex_solver="newton")


def test_a_reply_that_is_missing_costs_a_round_and_not_the_optimum() -> None:
    grid = Watched(12, fails=lambda number, task: number == 2 and task.round == 2)
    strategy, result, notes = federate(
        "convex-clustering", grid=grid, fraction_train=1.0, num_rounds=300, **ALL
    )
    best = sum_of_norms.fit(central(), 0.03, tolerance=1e-10)
    assert certificate(strategy).value == pytest.approx(best.value, rel=1e-7)
    assert result.json()[0]["rounds"] <= 12
    assert any("dropped" in note for note in notes.notes)


def test_the_state_is_stored_with_its_infinities() -> None:
    strategy, _, _ = cluster(num_rounds=1, **ALL)
    plain, arrays = stored(strategy.state)
    again = restored(ConvexClusteringState, json.loads(json.dumps(plain)), arrays)
    assert isinstance(again.solver, Newton)
    assert again.solver.lower == strategy.solver.lower  # type: ignore[union-attr]
    assert np.array_equal(again.solver.hessian, strategy.solver.hessian)  # type: ignore[union-attr]


def test_where_nobody_is_fused_no_clusters_are_spoken_of() -> None:
    strategy, result, _ = federate(
        "convex-clustering", convex_lambda="auto", fraction_train=1.0, num_rounds=20,
        evaluate_every=1000, **FEW,
    )  # fmt: skip
    assert isinstance(strategy, ConvexClustering)
    assert strategy.state.choice is not None and strategy.state.choice.exchanges <= 8
    assert strategy.progress.round <= 4
    assert strategy.progress.questions <= choice_of(strategy).exchanges + 4  # the report
    said = str(strategy.findings())
    assert "none: every user has a model of its own" in said
    assert "cluster 0" not in said
    assert [row["strategy"] for row in result.json()] == ["convex-clustering"]
