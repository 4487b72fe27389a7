"""Drivers that lose replies, come in the wrong order, or leave in the middle."""

from __future__ import annotations

import threading
from typing import Any

import numpy as np
import pytest
from flwr.app import ArrayRecord, ConfigRecord, Message
from flwr.clientapp.mod import LocalDpMod, adaptiveclipping_mod, fixedclipping_mod
from flwr.serverapp.strategy import (
    DifferentialPrivacyClientSideAdaptiveClipping,
    DifferentialPrivacyClientSideFixedClipping,
)

from corsage.app.client_app import app, make_client_app
from corsage.app.local_grid import LocalGrid
from corsage.core.errors import ConfigError, RoundFailed
from corsage.solvers.convex_clustering import selection
from corsage.strategies import strategy_class
from corsage.strategies.rounds.base import Strategy
from tests.support.federations import federate, reference, same_arrays, settings
from tests.support.grids import Watched

NONE = ConfigRecord()


def made(name: str, **keys: Any) -> Strategy[Any, Any]:
    return strategy_class(name)(settings(name, **keys))


def asked(strategy: Strategy[Any, Any], grid: LocalGrid) -> list[Message]:
    return list(strategy.configure_train(1, ArrayRecord(), NONE, grid))


def step(strategy: Strategy[Any, Any], grid: LocalGrid) -> None:
    strategy.aggregate_train(1, grid.send_and_receive(asked(strategy, grid)))


def judged(strategy: Strategy[Any, Any], grid: LocalGrid) -> list[Message]:
    messages = strategy.configure_evaluate(1, ArrayRecord(), NONE, grid)
    return list(grid.send_and_receive(messages))


def test_settings_that_do_not_suit_the_users_are_refused_as_often_as_they_are_tried() -> None:
    """Not once, and then taken for the end of the training."""
    strategy, grid = made("fedavg", new_cluster="nowhere"), LocalGrid(app, 1)
    for _ in range(2):
        with pytest.raises(ConfigError, match="would be new"):
            asked(strategy, grid)


def test_an_evaluation_takes_no_replies_to_an_earlier_one() -> None:
    strategy, grid = made("fedavg"), LocalGrid(app, 3)
    step(strategy, grid)
    old = judged(strategy, grid)
    first = strategy.aggregate_evaluate(1, old)
    step(strategy, grid)
    new = judged(strategy, grid)
    second = strategy.aggregate_evaluate(2, [*new, *old])
    assert first is not None and second is not None
    assert first["loss"] != second["loss"] == reference_loss(strategy, grid)
    judged(strategy, grid)
    with pytest.raises(RoundFailed, match="no user could be evaluated"):
        strategy.aggregate_evaluate(2, old)


def reference_loss(strategy: Strategy[Any, Any], grid: LocalGrid) -> Any:
    found = strategy.aggregate_evaluate(2, judged(strategy, grid))
    assert found is not None
    return found["loss"]


def test_nodes_that_come_and_go_are_noticed_from_outside_too() -> None:
    grid = Watched(3, absent={2})
    strategy = made("fedavg", fraction_train=1.0)
    step(strategy, grid)
    assert len(strategy.progress.trained) == 8
    grid.absent = {0}
    step(strategy, grid)
    assert strategy.progress.trained == {str(user) for user in range(12)}
    assert len(strategy.members.users) == 8
    assert strategy.progress.dropped == {}


def test_a_strategy_may_go_on_at_another_grid() -> None:
    """Its nodes have other ids: those of the first grid are not asked any more."""
    strategy, _, _ = federate("fedavg", num_rounds=2)
    result = strategy.start(LocalGrid(app, 3), num_rounds=4)
    _, wanted, _ = reference("fedavg")
    assert same_arrays(result.arrays, wanted.arrays)
    assert result.json()[0]["dropped"] == {}


def in_turns() -> int:
    return sum(thread.name == "in_turns" for thread in threading.enumerate())


@pytest.fixture
def short(monkeypatch: pytest.MonkeyPatch) -> None:
    """Few lambda to choose from: what is asked about one is asked about all."""
    monkeypatch.setattr(selection, "MODELS_GRID", 6)


@pytest.mark.usefixtures("short")
def test_an_opening_that_is_left_in_the_middle_is_played_anew() -> None:
    """A solver waits for answers in a thread: `start` does not leave it behind."""
    keys = {"convex_lambda": "auto", "num_rounds": 2}
    strategy, grid = made("convex-clustering", **keys), LocalGrid(app, 1)
    before = in_turns()
    for _ in range(4):
        step(strategy, grid)
    assert in_turns() == before + 1
    result = strategy.start(grid)
    assert in_turns() == before
    _, wanted, _ = federate("convex-clustering", 1, **keys)
    assert same_arrays(result.arrays, wanted.arrays, tolerance=0)


@pytest.mark.usefixtures("short")
def test_a_question_of_a_solver_that_fails_leaves_no_thread() -> None:
    strategy, grid = made("convex-clustering", convex_lambda="auto"), LocalGrid(app, 3)
    before = in_turns()
    for _ in range(6):
        step(strategy, grid)
    asked(strategy, grid)
    with pytest.raises(RoundFailed):
        strategy.aggregate_train(1, [])
    assert in_turns() == before


def torn(replies: list[Message]) -> Any:
    yield replies[0]
    raise KeyboardInterrupt


def test_replies_that_are_interrupted_end_the_exchange() -> None:
    _, wanted, _ = reference("fedavg", 3)
    strategy, grid = made("fedavg"), LocalGrid(app, 3)
    replies = list(grid.send_and_receive(asked(strategy, grid)))
    with pytest.raises(KeyboardInterrupt):
        strategy.aggregate_train(1, torn(replies))
    while strategy.progress.round < 4:
        step(strategy, grid)
    assert same_arrays(strategy.named_arrays(), wanted.arrays, tolerance=0)


def private(wrapper: Any, mod: Any, *more: Any) -> tuple[Strategy[Any, Any], Any]:
    """A run under a wrapper of Flower's whose other half is a mod at the clients."""
    strategy = made("fedavg", num_rounds=2)
    grid = LocalGrid(make_client_app(train_mods=[mod]), 12)
    first = strategy.arrays(grid)
    result = wrapper(strategy, 0.0, *more).start(grid, first, num_rounds=2)
    assert strategy.progress.round == 2 and strategy.progress.dropped == {}
    assert sorted(result.evaluate_metrics_clientapp) == [1, 2]
    return strategy, strategy.state.model - first["model"].numpy()


def test_clipping_at_the_clients_works() -> None:
    wrapper, mod = DifferentialPrivacyClientSideFixedClipping, fixedclipping_mod
    _, wanted, _ = reference("fedavg", 3, num_rounds=2)
    strategy, _ = private(wrapper, mod, 1e9, 3)
    assert same_arrays(strategy.named_arrays(), wanted.arrays)
    _, change = private(wrapper, mod, 1e-3, 3)
    assert 1e-4 < np.linalg.norm(change) < 2.001e-3


def test_adaptive_clipping_at_the_clients_works() -> None:
    """It begins at the norm 0.1."""
    wrapper = DifferentialPrivacyClientSideAdaptiveClipping
    _, change = private(wrapper, adaptiveclipping_mod, 3)
    assert 1e-2 < np.linalg.norm(change) < 0.25


def test_local_differential_privacy_works() -> None:
    grid = LocalGrid(make_client_app(train_mods=[LocalDpMod(1e9, 1e-9, 1e9, 0.5)]), 12)
    _, wanted, _ = reference("fedavg", 3)
    _, result, _ = federate("fedavg", grid=grid)
    assert same_arrays(result.arrays, wanted.arrays)


def test_two_that_take_turns_on_one_grid_keep_what_is_personal() -> None:
    """States in memory are kept by experiment: the other one's used to be let go."""
    names, grid = ("local", "fedper"), LocalGrid(app, 2)
    both = [made(name, fraction_train=1.0, num_rounds=3) for name in names]
    for _ in range(3):
        for strategy in both:
            step(strategy, grid)
    for strategy, name in zip(both, names, strict=True):
        _, wanted, _ = federate(name, 2, fraction_train=1.0, num_rounds=3)
        replies = judged(strategy, grid)
        assert strategy.progress.dropped == {}
        found = strategy.aggregate_evaluate(1, replies)
        assert found is not None and found["loss"] == wanted.json()[0]["loss"]["mean"]
