"""Every strategy is Flower's `Strategy` in earnest: whoever drives it comes to the same models."""

from __future__ import annotations

import logging
from typing import Any

import numpy as np
import pytest
from flwr.app import ArrayRecord, ConfigRecord, MetricRecord
from flwr.clientapp.mod import arrays_size_mod, message_size_mod
from flwr.serverapp.strategy import DifferentialPrivacyServerSideFixedClipping
from flwr.serverapp.strategy import Strategy as FlowerStrategy

from corsage import FedRep
from corsage.app.client_app import app, make_client_app
from corsage.app.local_grid import LocalGrid
from corsage.core.errors import ConfigError
from corsage.strategies import strategy_class
from corsage.strategies.rounds.base import Strategy
from tests.support.federations import KINDS, ONE_MEAN, SEEDLESS, reference, same_arrays, settings

NONE = ConfigRecord()


def drive(strategy: Strategy[Any, Any], grid: LocalGrid, rounds: int) -> MetricRecord:
    """Flower's loop: one exchange a call, as many as the rounds take, and an evaluation."""
    arrays, number = ArrayRecord(), 0
    while strategy.progress.round < rounds:
        number += 1
        messages = list(strategy.configure_train(number, arrays, NONE, grid))
        if not messages:
            break
        found, _ = strategy.aggregate_train(number, grid.send_and_receive(messages))
        arrays = found or arrays
    messages = list(strategy.configure_evaluate(number, arrays, NONE, grid))
    metrics = strategy.aggregate_evaluate(number, grid.send_and_receive(messages))
    assert metrics is not None
    return metrics


@pytest.mark.parametrize("name", ["fedrep", "async-l2gd"])
def test_driven_from_outside_it_comes_to_the_same_models(name: str) -> None:
    """And numbers; `test_any_way.py` has all algorithms."""
    whole, wanted, _ = reference(name, 3)
    grid = LocalGrid(app, 3)
    strategy = strategy_class(name)(settings(name))
    metrics = drive(strategy, grid, whole.progress.round)
    assert strategy.progress.round == whole.progress.round
    assert same_arrays(strategy.named_arrays(), wanted.arrays, tolerance=0)
    summary = wanted.json()[0]
    assert metrics["loss"] == summary["loss"]["mean"]
    assert metrics["num-users"] == summary["users"]
    for count in ("bytes_up", "bytes_down", "messages"):
        assert getattr(strategy.job.traffic, count) == summary[count]


@pytest.mark.parametrize("name", KINDS)
def test_flowers_own_loop_plays_it_and_may_go_on_after_its_end(name: str) -> None:
    strategy = strategy_class(name)(settings(name, num_rounds=2))
    grid = LocalGrid(app, 1)
    result = FlowerStrategy.start(strategy, grid, strategy.arrays(grid), num_rounds=4)
    assert result.arrays is not None
    assert strategy.progress.round >= 1 or name in SEEDLESS


@pytest.mark.parametrize("name", ONE_MEAN)
def test_flowers_private_wrapper_without_noise_changes_nothing(name: str) -> None:
    """Clipping at a norm that no update has, and noise of size zero: the run as it is."""
    _, wanted, _ = reference(name, num_rounds=3)
    strategy, grid = strategy_class(name)(settings(name, num_rounds=3)), LocalGrid(app, 12)
    wrapper = DifferentialPrivacyServerSideFixedClipping(strategy, 0.0, 1e9, num_sampled_clients=1)
    wrapper.start(grid, strategy.arrays(grid), num_rounds=3)
    assert same_arrays(strategy.named_arrays(), wanted.arrays, tolerance=1e-6)


def test_its_noise_and_its_clipping_reach_the_model() -> None:
    def model(noise: float, norm: float) -> Any:
        strategy, grid = strategy_class("fedavg")(settings("fedavg")), LocalGrid(app, 12)
        first = strategy.arrays(grid)
        wrapper = DifferentialPrivacyServerSideFixedClipping(strategy, noise, norm, 6)
        wrapper.start(grid, first, num_rounds=1)
        change = strategy.state.model - first["model"].numpy()
        return float(np.linalg.norm(change))

    assert 1e-4 < model(0.0, 1e-3) <= 1.001e-3
    strategy, grid = strategy_class("fedavg")(settings("fedavg")), LocalGrid(app, 1)
    size = len(strategy.arrays(grid)["model"].numpy())
    assert model(30.0, 1e-3) == pytest.approx(5e-3 * size**0.5, rel=0.1)


@pytest.mark.parametrize("name", KINDS)
def test_flowers_client_mods_run(name: str) -> None:
    """They see every message: introductions, training, evaluation."""
    strategy = strategy_class(name)(settings(name, num_rounds=2))
    result = strategy.start(LocalGrid(make_client_app(mods=[message_size_mod, arrays_size_mod]), 2))
    assert result.json()[0]["dropped"] == {}


def test_nothing_is_asked_amid_a_round_or_before_the_first() -> None:
    grid, strategy = LocalGrid(app, 1), strategy_class("fedavg")(settings("fedavg"))
    assert list(strategy.configure_evaluate(0, ArrayRecord(), NONE, grid)) == []
    assert strategy.aggregate_evaluate(0, []) is None
    assert list(strategy.configure_train(1, ArrayRecord(), NONE, grid))
    assert list(strategy.configure_evaluate(1, ArrayRecord(), NONE, grid)) == []


def test_keys_of_the_app_are_named_and_left_alone(caplog: pytest.LogCaptureFixture) -> None:
    logging.getLogger("flwr").propagate = True
    try:
        with caplog.at_level(logging.INFO, logger="flwr"):
            strategy = FedRep({"num-server-rounds": 3, "fraction-evaluate": 1.0, "lr": 0.5})
    finally:
        logging.getLogger("flwr").propagate = False
    assert strategy.config.train.lr == 0.5
    (line,) = caplog.messages
    assert line == (
        "fedrep: not Corsage's, left to the app: num-server-rounds (Corsage's is num-rounds), "
        "fraction-evaluate"
    )


@pytest.mark.parametrize(
    ("config", "why"),
    [
        ({"num-round": 3}, "num-round: no such key. Did you mean num-rounds?"),
        ({"num_rounds": 3}, "Did you mean num-rounds?"),
        ({"head-epoch": 3, "my-own": 1}, "Did you mean head-epochs?"),
        ({"lr": "fast", "my-own": 1}, "lr=fast: not a number"),
    ],
)
def test_a_slip_or_a_bad_value_is_still_an_error(config: dict[str, object], why: str) -> None:
    with pytest.raises(ConfigError) as caught:
        FedRep(config)
    assert why in str(caught.value)


def test_keyword_arguments_are_all_ours() -> None:
    with pytest.raises(ConfigError, match="no such key"):
        FedRep(anything=1)  # type: ignore[call-arg]
