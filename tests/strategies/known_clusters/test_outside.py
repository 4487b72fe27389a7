"""Driven from outside, one exchange a call: rounds of many exchanges, and such as fail."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from flwr.app import ArrayRecord, ConfigRecord, MetricRecord

from corsage.app.client_app import app
from corsage.app.local_grid import LocalGrid
from corsage.core.errors import RoundFailed
from corsage.strategies import strategy_class
from corsage.strategies.rounds.base import Strategy
from tests.support.federations import federate, same_arrays, settings
from tests.support.known_users import HIERARCHICAL, LOGISTIC, written

NONE = ConfigRecord()
COINS = {"known_p0": 0.1, "known_p": 0.4, "num_rounds": 4, "known_gamma": 1.5, "known_lambda": 0.8}
AUTO = {"known_gamma": "auto", "known_lambda": "auto", "num_rounds": 3}
USERS = {str(i): 1 + i / 10 for i in range(12)}
CASES = [
    ("async-l2gd", {**HIERARCHICAL, **COINS}),
    ("async-l2gd", {**HIERARCHICAL, **COINS, "known_gamma": USERS}),
    ("async-l2gd", {**LOGISTIC, **AUTO, "mixed_em_rounds": 3}),
    ("async-al2sgd", {**HIERARCHICAL, **COINS, "al2sgd_rho": 0.05}),
    ("async-al2sgd", {**HIERARCHICAL, **COINS, "known_gamma": USERS}),
    ("async-al2sgd", {**HIERARCHICAL, **AUTO}),
    ("mixed-model", {**LOGISTIC, **AUTO, "num_rounds": 12, "mixed_em_rounds": 4}),
    ("mixed-model", {**HIERARCHICAL, **AUTO, "known_refine": 1, "mixed_intervals": "never"}),
    ("single-cluster", {**HIERARCHICAL, "single_cluster_lambda": "cv"}),
]


def drive(
    strategy: Strategy[Any, Any], grid: LocalGrid, rounds: int, lost: int = 0
) -> tuple[int, MetricRecord]:
    """So many rounds, and an evaluation; the replies to one exchange, the `lost` one, are lost."""
    exchange = 0
    while strategy.progress.round < rounds:
        exchange += 1
        messages = list(strategy.configure_train(exchange, ArrayRecord(), NONE, grid))
        if not messages:
            break
        if exchange == lost:
            with pytest.raises(RoundFailed):
                strategy.aggregate_train(exchange, [])
        else:
            strategy.aggregate_train(exchange, grid.send_and_receive(messages))
    messages = list(strategy.configure_evaluate(exchange, ArrayRecord(), NONE, grid))
    found = strategy.aggregate_evaluate(exchange, grid.send_and_receive(messages))
    assert found is not None
    return exchange, found


@pytest.mark.parametrize("nodes", [1, 12])
@pytest.mark.parametrize(("name", "keys"), CASES)
def test_rounds_of_many_exchanges_come_to_the_same(
    name: str, keys: dict[str, Any], nodes: int, tmp_path: Path
) -> None:
    if keys.get("known_gamma") is USERS:
        keys = {**keys, "known_gamma": written(tmp_path, USERS)}
    whole, wanted, _ = federate(name, nodes, **keys)
    strategy = strategy_class(name)(settings(name, **keys))
    exchanges, found = drive(strategy, LocalGrid(app, nodes), whole.progress.round)
    assert exchanges > whole.progress.round or name == "mixed-model"
    assert same_arrays(strategy.named_arrays(), wanted.arrays, tolerance=1e-12)
    assert found["loss"] == pytest.approx(wanted.json()[0]["loss"]["mean"], rel=1e-12)
    for count in ("bytes_up", "bytes_down", "messages"):
        assert getattr(strategy.job.traffic, count) == wanted.json()[0][count]


@pytest.mark.parametrize("gamma", ["number", "user"])
@pytest.mark.parametrize("name", ["async-l2gd", "async-al2sgd"])
def test_a_round_that_nobody_answers_has_not_been(name: str, gamma: str, tmp_path: Path) -> None:
    """The server's own steps in it are not taken twice; one node hosts everybody.

    Where users are told apart only the first exchange of a round can be one that nobody answers.
    """
    keys = {**HIERARCHICAL, **COINS}
    keys |= {"known_gamma": written(tmp_path, USERS)} if gamma == "user" else {}
    whole, wanted, _ = federate(name, **keys)
    opening, rounds = 1 if name == "async-l2gd" else 2, 1 if gamma == "user" else 3
    for lost in range(1, opening + rounds + 1):
        strategy = strategy_class(name)(settings(name, **keys))
        drive(strategy, LocalGrid(app, 1), whole.progress.round, lost)
        assert same_arrays(strategy.named_arrays(), wanted.arrays, tolerance=0)


def test_a_round_that_is_left_is_played_anew_by_a_start(tmp_path: Path) -> None:
    """Users that had answered go back to the models that they had before it."""
    keys = {**HIERARCHICAL, **COINS, "known_p": 0.0, "num_rounds": 6}
    _, wanted, _ = federate("async-l2gd", 3, **keys)
    strategy, grid = strategy_class("async-l2gd")(settings("async-l2gd", **keys)), LocalGrid(app, 3)
    while strategy.progress.round < 2:
        messages = list(strategy.configure_train(1, ArrayRecord(), NONE, grid))
        strategy.aggregate_train(1, grid.send_and_receive(messages))
    messages = list(strategy.configure_train(1, ArrayRecord(), NONE, grid))
    list(grid.send_and_receive(messages))  # the users learn, but nobody hears of it
    result = strategy.start(grid)
    assert same_arrays(result.arrays, wanted.arrays, tolerance=0)
    assert result.json()[0]["per_user"] == wanted.json()[0]["per_user"]
