"""Convex clustering in a federation: the optimum, its certificate, clusters, what goes wrong."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from corsage.core.errors import ConfigError, NodeError, RoundFailed
from corsage.core.losses import SQUARED_HINGE
from corsage.solvers.convex_clustering import pdmm, sum_of_norms
from corsage.solvers.convex_clustering.edges import Edges
from corsage.solvers.losses.convex import linear_losses
from corsage.solvers.losses.held_out import Fold
from corsage.strategies.convex_clustering.convex_clustering import (
    ConvexClustering,
    ConvexClusteringState,
)
from corsage.strategies.convex_clustering.remote_losses import RemoteLosses, RemoteUsers
from corsage.strategies.rounds.state import restored, stored
from tests.support.at_hand import central
from tests.support.federations import Notes, federate
from tests.support.grids import Watched

SOLVERS = pytest.mark.parametrize("solver", ["dr", "pdmm"])


def cluster(nodes: int = 1, **keys: Any) -> tuple[ConvexClustering, dict[str, Any], Notes]:
    """A run to its certificate; its first result."""
    more = {"fraction_train": 1.0, "num_rounds": 3000, "evaluate_every": 10_000, **keys}
    strategy, result, notes = federate("convex-clustering", nodes, **more)
    assert isinstance(strategy, ConvexClustering)
    return strategy, result.json()[0], notes


def certificate(strategy: Any) -> Any:
    """What is known of the models at the end."""
    assert isinstance(strategy, ConvexClustering)
    assert strategy.state.certificate is not None
    return strategy.state.certificate


@SOLVERS
@pytest.mark.parametrize("share", [1.0, 0.5, 0.2])
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
        state = pdmm.step(state, solve, edges, 0.03, own, everyone, slice(None))
    for what in ("x", "z", "mu", "muh"):
        found = getattr(strategy.solver, what)
        assert found == pytest.approx(getattr(state, what), abs=1e-9), what


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


# Losses at the users.


@pytest.fixture(scope="module")
def remote() -> ConvexClustering:
    strategy, _, _ = cluster(nodes=3, num_rounds=1)
    return strategy


def at_users(strategy: ConvexClustering) -> RemoteUsers:
    """The users of a federation, as mathematics asks them."""
    users, ask = strategy.state.graph.users, strategy.questions.ask
    return RemoteUsers(lambda *words: strategy.federation.play(ask(users, *words)), 12, 3)


def test_losses_at_the_users_are_the_losses(remote: ConvexClustering) -> None:
    far, near = at_users(remote).losses_without(None), central()
    rng = np.random.default_rng(0)
    x, slope = (torch.from_numpy(rng.normal(size=(12, 3)) * size) for size in (1.0, 0.1))
    assert far.value(x).numpy() == pytest.approx(near.value(x).numpy())
    assert far.gradient(x).numpy() == pytest.approx(near.gradient(x).numpy())
    assert far.hessian(x).numpy() == pytest.approx(near.hessian(x).numpy())
    assert far.prox(x, 2.0).numpy() == pytest.approx(near.prox(x, 2.0).numpy())
    one, other = far.minimise(slope).numpy(), near.minimise(slope).numpy()
    assert one == pytest.approx(other, nan_ok=True)
    assert far.smoothness().numpy() == pytest.approx(near.smoothness().numpy())
    assert bool(far.coercive().all())


def test_held_out_samples_are_left_out_and_judged(remote: ConvexClustering) -> None:
    users = at_users(remote)
    fold, near = Fold("test", 1, 0.2), central()
    kept, left = [], []
    for place, user in enumerate(remote.federation.users):
        out = place * 10 + fold.held_out(0, user, 10)
        left.append(out)
        kept.append(np.setdiff1d(np.arange(place * 10, place * 10 + 10), out))
    rows = np.concatenate(kept)
    counts = np.array([len(own) for own in kept])
    part = linear_losses(
        near.features[rows], near.labels[rows], counts,
        loss=SQUARED_HINGE, scale="mean", ridge=0.001,
    )  # fmt: skip
    x = np.random.default_rng(1).normal(size=(12, 3))
    found = users.losses_without(fold)
    assert isinstance(found, RemoteLosses)
    assert found.value(torch.from_numpy(x)).numpy() == pytest.approx(
        part.value(torch.from_numpy(x)).numpy()
    )
    scores = near.predict(torch.from_numpy(x))
    each = SQUARED_HINGE.value(scores, near.labels).numpy()
    assert users.evaluate(x, fold) == pytest.approx([each[out].mean() for out in left])


def test_lambda_on_auto_is_the_least_held_out_loss(remote: ConvexClustering) -> None:
    strategy, _, _ = cluster(num_rounds=2, convex_lambda="auto")
    assert strategy.state.choice is not None
    chosen = strategy.state.choice.lam
    users = at_users(remote)
    fold = Fold("models", 0, 0.3)
    losses = users.losses_without(fold)

    def lost(lam: float) -> float:
        return float(np.nanmean(users.evaluate(sum_of_norms.fit(losses, lam).x, fold)))

    assert lost(chosen) < min(lost(chosen * 3), lost(chosen / 3), lost(1e-4)) + 1e-9
    assert strategy.state.choice.exchanges > 30
    assert "found by" in str(strategy.findings())


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


# Users.


def test_a_user_that_leaves_for_good_is_taken_out_and_the_rest_is_solved() -> None:
    grid = Watched(12)

    class Leaves(Notes):
        def on_round_start(self, strategy: Any, number: int) -> None:
            if number == 4:
                grid.absent = {5}

    notes = Leaves()
    keys = {"fraction_train": 1.0, "num_rounds": 300, "convex_tolerance": 1e-8}
    strategy, result, _ = federate(
        "convex-clustering", callbacks=[notes], grid=grid, evaluate_every=1000, **keys
    )
    gone = set(map(str, range(12))) - set(strategy.state.graph.users)
    assert len(gone) == 1
    assert any("the problem is now that of the others" in note for note in notes.notes)
    rest = [i for i in range(12) if str(i) not in gone]
    best = sum_of_norms.fit(central().pick(rest), 0.03, tolerance=1e-10)
    assert certificate(strategy).value == pytest.approx(best.value, rel=1e-6)
    assert len(result.json()[0]["per_user"]) == 11


def test_a_reply_that_is_missing_leaves_the_user_where_it_was() -> None:
    grid = Watched(12, fails=lambda number, task: number == 2 and task.round == 3)
    strategy, _, notes = federate(
        "convex-clustering", grid=grid, fraction_train=1.0, num_rounds=300,
        convex_tolerance=1e-8, evaluate_every=1000,
    )  # fmt: skip
    best = sum_of_norms.fit(central(), 0.03, tolerance=1e-10)
    assert certificate(strategy).value == pytest.approx(best.value, rel=1e-6)
    assert any("dropped" in note for note in notes.notes)


def users_file(folder: Path, users: dict[str, tuple[Any, Any]]) -> dict[str, Any]:
    """A data file of some users' points and classes; the last two samples are for the test."""
    path = folder / f"{'-'.join(users)}.npz"
    x = np.concatenate([np.asarray(x, np.float32) for x, _ in users.values()])
    y = np.concatenate([np.asarray(y) for _, y in users.values()])
    names = np.repeat(list(users), [len(y) for _, y in users.values()])
    test = np.concatenate([np.arange(len(y)) >= len(y) - 2 for _, y in users.values()])
    np.savez(path, x=x, y=y, user=names, test=test)
    return {"dataset": "npz", "data_file": str(path), "partition": "natural", "num_users": 0,
            "users_per_cluster": 20}  # fmt: skip


def points(seed: int, shift: float = 0.0) -> Any:
    return np.random.default_rng(seed).normal(size=(14, 2)) + shift


def test_a_user_with_one_class_is_named_and_held_by_the_penalty(tmp_path: Path) -> None:
    two = np.arange(14) % 2
    users = {"a": (points(0), two), "b": (points(1), np.ones(14, int)), "c": (points(2), two)}
    strategy, _, notes = cluster(**users_file(tmp_path, users), convex_tolerance=1e-6)
    assert any("user b is without a best model" in note for note in notes.notes)
    assert np.isfinite(strategy.models).all()
    assert certificate(strategy).relative <= 1e-6


def test_identical_users_have_identical_models_and_one_user_is_a_federation(tmp_path: Path) -> None:
    two, own = np.arange(14) % 2, points(0)
    users = {"a": (own, two), "b": (own, two), "c": (points(3, 1.0), 1 - two)}
    strategy, _, _ = cluster(
        **users_file(tmp_path, users), convex_tolerance=1e-9, convex_lambda=0.01
    )
    assert strategy.models[0] == pytest.approx(strategy.models[1], abs=1e-9)
    assert np.abs(strategy.models[0] - strategy.models[2]).max() > 1e-3
    strategy, result, _ = cluster(**users_file(tmp_path, {"a": (own, two)}), convex_report=True)
    assert result["users"] == 1
    assert certificate(strategy).relative <= 1e-6


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ({"convex_lambda": -1}, "convex-lambda=-1: must be finite and at least 0"),
        ({"convex_lambda": "many"}, "convex-lambda=many: not a number"),
        ({"convex_rho": 0}, "convex-rho=0: must be finite and above 0"),
        ({"model": "mlp", "loss": "auto", "ridge": 0}, "model=mlp is not convex; set model=linear"),
    ],
)
def test_what_cannot_be_is_refused_in_one_line(keys: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message) as error:
        cluster(**keys)
    assert "\n" not in str(error.value)


def test_silence_at_the_start_is_an_error_that_names_the_user() -> None:
    grid = Watched(12, fails=lambda number, task: number == 2)
    with pytest.raises((RoundFailed, NodeError), match="all users must answer"):
        federate("convex-clustering", grid=grid)


def test_softmax_models_are_solved_by_gradients_alone(tmp_path: Path) -> None:
    """Three classes: no closed curvature, every proximal step by L-BFGS."""
    rng, users = np.random.default_rng(0), {}
    for name in "abcd":
        y = np.arange(14) % 3
        users[name] = rng.normal(size=(14, 2)) + y[:, None], y
    keys = {**users_file(tmp_path, users), "loss": "auto", "ridge": 0.1, "convex_lambda": 0.02}
    strategy, _, _ = cluster(**keys, convex_tolerance=1e-4, num_rounds=60)
    assert certificate(strategy).relative <= 1e-4
    plain, arrays = stored(strategy.state)
    again = restored(ConvexClusteringState, json.loads(json.dumps(plain)), arrays)
    assert again.choice == strategy.state.choice
    assert again.certificate == strategy.state.certificate
