"""Rounds of several exchanges: driven from outside, resumed, or left in the middle."""

from __future__ import annotations

import gc
import threading
from pathlib import Path

import numpy as np
import pytest
from flwr.app import ArrayRecord, ConfigRecord

from corsage.app.client_app import app
from corsage.app.local_grid import LocalGrid
from corsage.core.errors import RoundFailed
from corsage.solvers.convex_clustering import selection
from corsage.solvers.convex_clustering.newton import Newton
from corsage.solvers.convex_clustering.pdmm import Pdmm
from corsage.solvers.convex_clustering.splitting import Splitting
from corsage.strategies.convex_clustering.convex_clustering import ConvexClustering
from corsage.strategies.rounds.state import arrays_of
from tests.support.federations import federate, settings
from tests.support.grids import Watched
from tests.support.resuming import Resume, Stop

NONE = ConfigRecord()


@pytest.fixture
def short(monkeypatch: pytest.MonkeyPatch) -> None:
    """Fewer lambda along a path: what is asked about one is asked about all."""
    monkeypatch.setattr(selection, "MODELS_GRID", 8)


def test_a_run_that_is_left_while_mathematics_waits_leaves_no_thread() -> None:
    strategy = ConvexClustering(settings("convex-clustering", convex_lambda="auto"))
    grid = LocalGrid(app, 2)
    for number in range(5):
        messages = list(strategy.configure_train(number, ArrayRecord(), NONE, grid))
        strategy.aggregate_train(number, grid.send_and_receive(messages))
    assert any(thread.name == "in_turns" for thread in threading.enumerate())
    del strategy, messages
    gc.collect()
    assert not any(thread.name == "in_turns" for thread in threading.enumerate())


def test_a_user_that_is_silent_while_lambda_is_sought_ends_the_run_and_the_search() -> None:
    grid = Watched(12, fails=lambda number, task: task.options.get("ask") == "expand")
    with pytest.raises(RoundFailed, match=r"all users must answer about their losses \(expand\)"):
        federate("convex-clustering", grid=grid, convex_lambda="auto")
    assert not any(thread.name == "in_turns" for thread in threading.enumerate())


@pytest.mark.usefixtures("short")
@pytest.mark.parametrize(("solver", "graph"), [("dr", "all"), ("pdmm", "knn"), ("newton", "knn")])
def test_a_run_resumed_in_the_middle_asks_nothing_again_and_ends_the_same(
    solver: str, graph: str, tmp_path: Path
) -> None:
    """All of the state is in the checkpoint, lambda and the graph too: bit for bit.

    Lambda is sought by the same questions whatever solves with it: with one solver it is.
    """
    path = tmp_path / "checkpoint"
    lam = "auto" if (graph, solver) == ("knn", "pdmm") else 0.03
    keys = {"convex_solver": solver, "convex_graph": graph, "convex_neighbours": 3,
            "convex_lambda": lam, "num_rounds": 12}  # fmt: skip
    if solver == "newton":
        keys |= {"fraction_train": 1.0, "convex_tolerance": 1e-14, "convex_certify_every": 100}

    whole, wanted, _ = federate("convex-clustering", **keys)
    after = 2 if solver == "newton" else 8  # whose rounds are few
    with pytest.raises(KeyboardInterrupt):
        federate("convex-clustering", callbacks=[Stop(path, after)], **keys)
    again, result, _ = federate("convex-clustering", callbacks=[Resume(path, after - 1)], **keys)
    assert isinstance(whole, ConvexClustering) and isinstance(again, ConvexClustering)
    kinds = {"pdmm": Pdmm, "dr": Splitting, "newton": Newton}
    assert isinstance(again.solver, kinds[solver])
    for name, array in arrays_of(whole.solver).items():
        found = getattr(again.solver, name)
        assert np.array_equal(found, array), name
        assert found.flags.f_contiguous == array.flags.f_contiguous, name
    assert again.state.choice == whole.state.choice
    assert again.state.certificate == whole.state.certificate
    assert again.progress.questions == whole.progress.questions
    assert result.json()[0]["per_user"] == wanted.json()[0]["per_user"]
    assert result.json()[0]["findings"] == wanted.json()[0]["findings"]
