"""A run config of an app that has keys of its own."""

from __future__ import annotations

import logging

import pytest

from corsage import FedRep
from corsage.core.errors import ConfigError


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
        ({"fedrep-heads": "own"}, "no longer a key"),
    ],
)
def test_a_slip_or_a_bad_value_is_still_an_error(config: dict[str, object], why: str) -> None:
    with pytest.raises(ConfigError) as caught:
        FedRep(config)
    assert why in str(caught.value)


def test_keyword_arguments_are_all_ours() -> None:
    with pytest.raises(ConfigError, match="no such key"):
        FedRep(anything=1)  # type: ignore[call-arg]
