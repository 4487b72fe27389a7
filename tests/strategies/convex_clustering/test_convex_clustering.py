"""Convex clustering in a federation: the optimum, its certificate, and the clusters."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from corsage import simulate
from corsage.core.errors import ModelError
from corsage.solvers.convex_clustering import pdmm, splitting
from corsage.solvers.convex_clustering.exact import sum_of_norms
from corsage.solvers.convex_clustering.exact.edges import Edges
from corsage.strategies.convex_clustering.convex_clustering import ConvexClustering
from corsage.strategies.convex_clustering.keys import ConvexClusteringKeys
from tests.support.at_hand import central, step
from tests.support.convex_runs import certificate, cluster
from tests.support.federations import federate
from tests.support.known_users import SEVERAL, Users, several, users_of

SOLVERS = pytest.mark.parametrize("solver", ["dr", "pdmm"])


def test_auto_lambda_of_classes_that_every_user_tells_apart_is_refused() -> None:
    users, rng = dict[str, tuple[Any, Any]](), np.random.default_rng(0)
    for i in range(30):  # eight numbers a class and eight samples to fit them to
        x = rng.normal(size=(8, 7)).astype(np.float32)
        users[str(i)] = x, rng.permutation(np.arange(8) % 5)
    keys: dict[str, Any] = {
        "model": "linear",
        "loss": "cross-entropy",
        "test_fraction": 0.0,
        "num_rounds": 1,
    }
    with pytest.raises(ModelError, match=r"no user has a best model of its own.*set ridge=0\.001"):
        simulate("convex-clustering", users, convex_lambda="auto", **keys)


@pytest.mark.parametrize(("solver", "share"), [("dr", 1.0), ("dr", 0.2), ("pdmm", 0.5)])
def test_the_optimum_is_reached_and_certified(solver: str, share: float) -> None:
    best = sum_of_norms.fit(central(), 0.03, tolerance=1e-10)
    keys = {"convex_solver": solver, "fraction_train": share, "convex_tolerance": 1e-7}
    strategy, result, notes = cluster(nodes=3, **keys)
    found = certificate(strategy)
    assert found.relative <= 1e-7
    assert found.value == pytest.approx(best.value, rel=1e-6)
    assert found.value - best.value <= found.gap + 1e-9  # never below the true gap
    assert strategy.models == pytest.approx(best.x, abs=3e-3)
    assert result["rounds"] < 3000
    assert "certified: relative gap" in str(strategy.findings())
    assert not notes.notes


@SOLVERS
def test_the_certificate_is_the_one_of_all_data_at_hand(solver: str) -> None:
    """Two floats a user, whatever round it is: 7 rounds are far from the end."""
    strategy, _, _ = cluster(num_rounds=7, convex_solver=solver, fraction_train=0.5)
    gap = sum_of_norms.gap(central(), strategy.models, strategy.solver.mu, 0.03)
    assert certificate(strategy).gap == pytest.approx(gap, rel=1e-6)
    assert gap > 1e-3
    assert certificate(strategy).round == 7


def test_pdmm_in_a_federation_is_the_servers_pdmm_with_all_losses_at_hand() -> None:
    strategy, _, _ = cluster(nodes=4, num_rounds=25, convex_solver="pdmm", convex_rho=1.5)
    losses = central()
    edges, state = Edges.all_pairs(losses.n), pdmm.PdmmState.zeros(losses.n, Edges.all_pairs(12), 3)
    everyone = np.arange(losses.n)

    def solve(users: Any, p: Any, kappa: Any) -> Any:
        return losses.prox(torch.from_numpy(p), torch.from_numpy(kappa)).numpy()

    for _ in range(25):
        own = pdmm.Settings(1.5)
        state = step(state, solve, edges, 0.03, own, everyone, slice(None))
    for what in ("x", "z", "mu", "muh"):
        found = getattr(strategy.solver, what)
        assert found == pytest.approx(getattr(state, what), abs=1e-9), what


def plain_step(users: Users, p: Any, kappa: Any, ridge: float) -> Any:
    """(16) for the multinomial loss, user by user, by Newton's method on torch's cross-entropy."""
    found = []
    for x, y, at, weight in zip(users.x, users.y, p, kappa, strict=True):
        rows, labels = torch.from_numpy(x), torch.from_numpy(y).long()
        centre = torch.from_numpy(at)

        def f(t: torch.Tensor) -> torch.Tensor:
            w, b = t[:12].view(3, 4), t[12:]
            loss = torch.nn.functional.cross_entropy(rows[:, :4] @ w.T + b, labels)  # noqa: B023
            far = (t - centre).square().sum()  # noqa: B023
            return loss + ridge / 2 * t.square().sum() + float(weight) / 2 * far  # noqa: B023

        t = centre
        for _ in range(30):
            slope = torch.func.grad(f)(t)
            if slope.norm() < 1e-14:
                break
            step = torch.linalg.solve(torch.func.hessian(f)(t), slope)
            length = 1.0
            while f(t - length * step) > f(t) + 1e-15:
                length /= 2
            t = t - length * step
        found.append(t.numpy())
    return np.stack(found)


def test_pdmm_of_several_classes_is_algorithm_1(tmp_path: Path) -> None:
    """Users' steps written from (16), and the server's half as solvers/test_pdmm.py checks it."""
    keys = {**SEVERAL, "data_file": several(tmp_path), "ridge": 0.01, "convex_lambda": 0.02}
    run = {**keys, "num_rounds": 3, "convex_solver": "pdmm", "convex_rho": 0.3}
    strategy, _, _ = cluster(nodes=4, **run)
    users = users_of("convex-clustering", **keys)
    edges, everyone = Edges.all_pairs(12), np.arange(12)
    state = pdmm.PdmmState.zeros(12, edges, 15)
    for _ in range(3):
        own = pdmm.Settings(0.3)
        solve = lambda _, p, kappa: plain_step(users, p, kappa, 0.01)  # noqa: E731
        state = step(state, solve, edges, 0.02, own, everyone, slice(None))
    assert np.abs(strategy.solver.x - state.x).max() < 1e-10
    assert np.abs(strategy.solver.mu - state.mu).max() < 1e-10


def test_several_classes_are_certified(tmp_path: Path) -> None:
    """By Hessians and without them the same optimum, with a ridge and without one."""
    keys = {**SEVERAL, "data_file": several(tmp_path), "convex_lambda": 0.02}
    for ridge in (0.01, 0.0):
        own = {**keys, "ridge": ridge, "convex_tolerance": 1e-7}
        one, other = (cluster(**own, convex_solver=name)[0] for name in ("newton", "dr"))
        assert certificate(one).relative <= 1e-7
        assert certificate(one).value == pytest.approx(certificate(other).value, rel=1e-6)


def test_a_class_that_nobody_has_is_named_at_once(tmp_path: Path) -> None:
    """Without a ridge its scores fall for ever; with one it is a class like others."""
    keys = {**SEVERAL, "data_file": several(tmp_path), "num_rounds": 1}
    with np.load(keys["data_file"]) as rows:
        np.savez(keys["data_file"], **{**rows, "y": 2 * rows["y"]})
    with pytest.raises(ModelError, match="no user has a record of class 1, 3,"):
        cluster(**keys, ridge=0.0)
    cluster(**keys, ridge=0.01, convex_lambda=0.02)


def test_the_acceptance_problem(tmp_path: Path) -> None:
    """60 users in three clusters: the optimum to 7 digits, three clusters exactly, refitted."""
    keys = {"users_per_cluster": 20, "convex_lambda": 0.0913593, "convex_tolerance": 1e-8}
    strategy, result, _ = federate(
        "convex-clustering", **keys, fraction_train=1.0, num_rounds=200, convex_report=True,
        evaluate_every=1000,
    )  # fmt: skip
    assert isinstance(strategy, ConvexClustering)
    reading = strategy.state.reading
    assert reading is not None
    assert reading.theorem1 is not None and reading.theorem2 is not None
    assert certificate(strategy).value == pytest.approx(55.9970389, abs=5e-6)
    assert reading.distinct == 3
    assert reading.exact is True
    assert reading.labels == [0] * 20 + [1] * 20 + [2] * 20
    assert reading.theorem1 == pytest.approx(0.158, abs=5e-4)
    assert reading.theorem2 == pytest.approx(0.0459, abs=5e-5)
    assert reading.necessary is not None and reading.necessary <= 0.0913593
    fused, refitted = (row["accuracy"]["mean"] for row in result.json())
    assert fused == pytest.approx(0.821, abs=5e-4)
    assert refitted == pytest.approx(0.8882, abs=5e-4)
    text = str(strategy.findings())
    assert "3, exact" in text
    assert "20 users" in text
    assert "can be narrow" in text


# The ends of lambda, and graphs.


@SOLVERS
def test_without_a_penalty_everybody_is_alone(solver: str) -> None:
    keys = {"convex_lambda": 0, "convex_solver": solver, "convex_tolerance": 1e-9}
    strategy, _, notes = cluster(**keys)
    alone = central().minimise().numpy()
    assert strategy.models == pytest.approx(alone, abs=1e-3)
    assert any("every user is alone" in note for note in notes.notes)


def test_above_consensus_is_the_global_model_and_says_so() -> None:
    keys = {"convex_lambda": 5, "convex_tolerance": 1e-9, "convex_report": True}
    strategy, _, _ = cluster(**keys)
    own = strategy.models
    assert np.ptp(own, axis=0) == pytest.approx(0, abs=1e-12)
    losses = central()
    at = torch.from_numpy(np.array(own))
    assert losses.gradient(at).sum(0).numpy() == pytest.approx(0, abs=1e-3)
    assert "at or above consensus: this is the global model" in str(strategy.findings())


def test_neighbours_alone_are_joined_and_pieces_are_named() -> None:
    keys = {"convex_graph": "knn", "convex_neighbours": 1, "convex_lambda": 0.2}
    strategy, _, notes = cluster(convex_tolerance=1e-8, **keys)
    edges = strategy.state.graph.edges
    assert len(edges) < 12
    assert edges.pieces > 1
    assert any(f"falls into {edges.pieces} pieces" in note for note in notes.notes)
    assert any("raise convex-neighbours" in note for note in notes.notes)
    best = sum_of_norms.fit(central(), 0.2, edges, tolerance=1e-10)
    assert certificate(strategy).value == pytest.approx(best.value, rel=1e-6)


def test_the_keys_have_the_solvers_defaults() -> None:
    """They are named without loading a solver."""
    keys = ConvexClusteringKeys()
    assert keys.convex_relax == splitting.RELAX
    assert (keys.convex_nu, keys.convex_eta) == (pdmm.Settings(1).nu, pdmm.Settings(1).eta)
