"""Users who lie about their losses: they are named, and the others' run is as without them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from corsage.app.run.checkpoint import write_checkpoint
from corsage.clients.base import Got, Sent
from corsage.clients.convex_clustering.convex_clustering import ConvexClusteringClient
from corsage.core.arrays import Array
from corsage.solvers.losses.held_out import bounded
from corsage.strategies.convex_clustering.convex_clustering import ConvexClustering
from corsage.strategies.convex_clustering.local_clusters import LocalClusters
from corsage.strategies.rounds.state import restored, stored
from tests.support.federations import federate
from tests.support.resuming import IDENTITY, Resume

Lie = Callable[[str, Array], Array]
RNG = np.random.default_rng(0)
LIES: dict[str, Lie] = {
    "turned": lambda name, a: -a,
    "ten times, turned": lambda name, a: -10 * a,
    "half as much more": lambda name, a: 1.5 * a,
    "huge": lambda name, a: 1e10 * a,
    "too large to square": lambda name, a: 1e150 * a,
    "nothing": lambda name, a: 0 * a,
    "noise": lambda name, a: a + RNG.normal(size=a.shape) * 1e3,
    "some noise": lambda name, a: a + 0.1 * RNG.normal(size=a.shape) * (np.abs(a).mean() + 1e-9),
    "slopes": lambda name, a: -a if name == "gradient" else a,
    "curvature": lambda name, a: -a if name == "hessian" else a,
    "a constant": lambda name, a: np.ones_like(a),
}
LIAR = "3"
KEYS: dict[str, Any] = {
    "num_rounds": 60, "fraction_train": 1.0, "evaluate_every": 1000, "users_per_cluster": 5,
    "samples_per_user": 20, "convex_report": True, "convex_lambda": 0.03,
}  # fmt: skip


@contextmanager
def lying(lie: Lie, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """One user's rows are changed where its client returns them."""
    honest = ConvexClusteringClient.respond

    def respond(self: ConvexClusteringClient, got: Got) -> Sent:
        sent, own = honest(self, got), np.array([user == LIAR for user in self.users])
        rows = {}
        for name, a in sent.rows.items():
            bad = own.reshape(-1, *[1] * (a.ndim - 1))
            rows[name] = np.where(bad, lie(name, a), a).astype(a.dtype)
        return replace(sent, rows=rows)

    with monkeypatch.context() as patch:
        patch.setattr(ConvexClusteringClient, "respond", respond)
        yield


@pytest.mark.parametrize(("solver", "lie"), [("newton", lie) for lie in LIES] + [
    ("dr", lie) for lie in ("turned", "huge", "some noise", "a constant", "slopes")
])  # fmt: skip
def test_a_liar_is_named_and_the_others_models_are_as_without_it(
    solver: str, lie: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    keys = {**KEYS, "convex_solver": solver, "convex_tolerance": 1e-9}
    with lying(LIES[lie], monkeypatch):
        strategy, result, notes = federate("convex-clustering", **keys)
    assert isinstance(strategy, ConvexClustering)
    assert set(strategy.state.disproved) == {LIAR}
    assert LIAR not in strategy.state.graph.users
    assert any("left out for the rest of the run" in note for note in notes.notes)
    assert "user 3" in str(strategy.findings())
    certificate = strategy.state.certificate
    assert certificate is not None and certificate.within(1e-8)
    assert certificate.value is not None and certificate.value > 0
    assert result.json()[0]["accuracy"]["mean"] > 0.8
    assert result["convex-clustering"].per_user.keys() == strategy.members.everybody.keys()
    assert LIAR not in result["convex-clustering"].clusters


def test_without_a_liar_nobody_is_named_and_pdmm_names_one(monkeypatch: pytest.MonkeyPatch) -> None:
    keys = {**KEYS, "convex_solver": "pdmm", "num_rounds": 30}
    strategy, _, _ = federate("convex-clustering", **keys)
    assert isinstance(strategy, ConvexClustering) and not strategy.state.disproved
    for lie in ("ten times, turned", "huge"):
        with lying(LIES[lie], monkeypatch):
            strategy, result, _ = federate("convex-clustering", **keys)
        assert isinstance(strategy, ConvexClustering)
        assert set(strategy.state.disproved) == {LIAR}
        assert result.json()[0]["accuracy"]["mean"] > 0.75
    plain, arrays = stored(strategy.state)
    again = restored(type(strategy.state), plain, arrays)
    assert again.disproved == strategy.state.disproved


@pytest.mark.parametrize("lie", ["ten times, turned", "noise", "huge"])
def test_clusters_of_local_models_go_without_a_liar(
    lie: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    keys = {name: KEYS[name] for name in KEYS if not name.startswith("convex")}
    with lying(LIES[lie], monkeypatch):
        strategy, result, _ = federate("local-clusters", **{**keys, "num_rounds": 1})
    assert isinstance(strategy, LocalClusters)
    assert set(strategy.questions.disproof.faults) == {LIAR}
    assert LIAR not in strategy.state.users
    _, own, _ = federate("convex-clustering", **{**KEYS, "convex_lambda": 0.0})
    scores = (of.summaries[0].per_user[LIAR] for of in (result, own))
    assert next(scores) == next(scores), "its own best model, at home"


@pytest.mark.parametrize("solver", ["newton", "dr"])
def test_who_never_answers_with_a_number_is_left_out_for_good(
    solver: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    keys = {**KEYS, "convex_solver": solver, "convex_tolerance": 1e-9}
    asked = 0

    def later(name: str, a: Array) -> Array:
        nonlocal asked
        asked += 1
        return a if asked <= 12 else np.full_like(a, np.nan)

    with lying(later, monkeypatch):
        strategy, _, notes = federate("convex-clustering", **keys)
    assert isinstance(strategy, ConvexClustering)
    assert set(strategy.state.disproved) == {LIAR}
    assert any("3 times in a row" in note for note in notes.notes)
    certificate = strategy.state.certificate
    assert certificate is not None and certificate.within(1e-8)
    assert strategy.progress.round < 60


def test_no_voice_on_lambda_is_louder_than_others() -> None:
    losses = np.random.default_rng(0).random((5, 21))
    assert np.array_equal(bounded(losses), losses)
    best = int(losses.mean(1).argmin())
    loud = losses.copy()
    loud[best, 3] = 1e9
    assert bounded(loud)[:, 3].max() < 10 and loud.mean(1).argmin() != best
    others = np.delete(bounded(loud), 3, 1)
    assert np.array_equal(others, np.delete(losses, 3, 1))
    for level in (-1e16, 1e16):  # rounding would hide the others
        loud[:, 3] = level
        assert bounded(loud).mean(1).argmin() == np.delete(losses, 3, 1).mean(1).argmin()


def test_float32_has_a_certificate_and_nobody_is_named() -> None:
    keys = {**KEYS, "convex_solver": "dr", "precision": "float32", "convex_tolerance": 1e-3}
    strategy, _, notes = federate("convex-clustering", **keys)
    assert isinstance(strategy, ConvexClustering) and not strategy.state.disproved
    assert strategy.state.certificate is not None
    assert not any("dropped" in note for note in notes.notes)


def test_a_resumed_run_knows_who_is_left_out_of_its_clusters(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """It stopped after its only round, before the last evaluation."""
    keys = {name: KEYS[name] for name in KEYS if not name.startswith("convex")}
    keys = {**keys, "num_rounds": 1, "users_per_cluster": 4}
    with lying(LIES["huge"], monkeypatch):
        whole, wanted, _ = federate("local-clusters", **keys)
    path = tmp_path / "checkpoint"
    write_checkpoint(path, whole.parts, IDENTITY)
    again, found, _ = federate("local-clusters", callbacks=[Resume(path, 1)], **keys)
    assert again.findings() == whole.findings() and "user 3" in str(again.findings())
    assert found.json()[0]["per_user"] == wanted.json()[0]["per_user"]
