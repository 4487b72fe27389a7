"""Users that leave, are silent, have one class, or cannot be what they are said to be."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from corsage.core.errors import ConfigError, NodeError, RoundFailed
from corsage.core.messages.encoding import decode
from corsage.solvers.convex_clustering.exact import sum_of_norms
from corsage.strategies.convex_clustering.convex_clustering import ConvexClusteringState
from corsage.strategies.rounds.state import restored, stored
from tests.support.at_hand import central
from tests.support.convex_runs import certificate, cluster
from tests.support.federations import Notes, federate
from tests.support.grids import Watched
from tests.support.points import picked


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
    best = sum_of_norms.fit(picked(central(), rest), 0.03, tolerance=1e-10)
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


@pytest.mark.parametrize("name", ["convex-clustering", "local-clusters"])
def test_who_never_answers_is_left_out_and_the_others_are_clustered(name: str) -> None:
    """Before the first round, in it and at the end, where all must answer."""
    grid = Watched(12, fails=lambda number, task: number == 2)
    strategy, result, notes = federate(name, grid=grid, convex_report=True)
    assert len(strategy.models) == 11
    assert list(result.json()[0]["dropped"]) == ["2"]
    assert any("user 2 is left out of what needs an answer" in note for note in notes.notes)
    assert result.json()[0]["findings"]


@pytest.mark.parametrize("name", ["convex-clustering", "local-clusters"])
def test_silence_of_most_is_an_error_that_names_the_users(name: str) -> None:
    grid = Watched(12, fails=lambda number, task: number < 7)
    with pytest.raises((RoundFailed, NodeError), match="all users must answer"):
        federate(name, grid=grid)


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


@pytest.mark.parametrize("loss", ["squared-hinge", "cross-entropy"])
@pytest.mark.parametrize("name", ["convex-clustering", "local-clusters"])
def test_new_users_take_the_model_that_fits_their_few_samples_best(
    name: str, loss: str, tmp_path: Path
) -> None:
    """Two groups with opposite labels: three samples tell a new user which one it is of."""
    rng, users = np.random.default_rng(0), {}
    for place in range(12):
        x, y = rng.normal(size=(14, 2)), np.arange(14) % 2
        x[:, 0] += (4 * y - 2) * (1 if place % 2 else -1)
        users[f"u{place}"] = x, y
    keys = {**users_file(tmp_path, users), "loss": loss, "ridge": 0.1, "new_users": 0.4}
    own = {"convex_lambda": 0.002} if name == "convex-clustering" else {"local_clusters_number": 2}
    _, result, _ = federate(name, nodes=2, adapt_samples="3", adapt_epochs="1", **keys, **own)
    new = result.json()[-1]
    assert new["strategy"] == f"{name}+new"
    assert 0 < new["users"] < 12
    assert new["dropped"] == {}
    assert new["accuracy"]["mean"] > 0.9


def test_the_models_that_new_users_choose_from_go_to_a_node_once() -> None:
    strategy, _, _ = cluster(new_users=0.5, num_rounds=2)
    (message,) = strategy.evaluation({"adapt": True}).messages()
    records = message.content.array_records.values()
    sent = [array for record in records for array in decode(record).values()]
    assert len(strategy.members.new_users) > 1
    assert sum(array.nbytes for array in sent) == np.unique(strategy.models, axis=0).nbytes
