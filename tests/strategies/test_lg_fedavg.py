"""LG-FedAvg against a plain loop, with and without FedAvg before it."""

from __future__ import annotations

import numpy as np
import pytest

from corsage.core.errors import ConfigError
from tests.support.federations import federate
from tests.support.reference import KEYS, run

BODY, HEAD = 64 * 16 + 16, 16 * 10 + 10


def test_bytes_are_those_of_heads_and_of_models_in_the_warm_up() -> None:
    """4 rounds, 6 of 12 users each; with a warm-up the body goes on travelling down."""
    _, plain = run("lg-fedavg")
    assert plain.json()[0]["bytes_up"] == plain.json()[0]["bytes_down"] == 4 * 6 * 4 * HEAD
    _, warm = run("lg-fedavg", lg_fedavg_warmup_rounds=3)
    assert warm.json()[0]["bytes_up"] == 6 * 4 * (3 * (BODY + HEAD) + HEAD)
    assert warm.json()[0]["bytes_down"] == 4 * 6 * 4 * (BODY + HEAD)


def test_the_warm_up_is_fedavg() -> None:
    """The body of round 2 is FedAvg's; nobody has a body of its own before round 3."""
    more = {**KEYS, "num_rounds": 3, "evaluate_every": 1}
    warm, _, notes = federate("lg-fedavg", lg_fedavg_warmup_rounds=2, **more)
    fedavg, _, other = federate("fedavg", **{**more, "num_rounds": 2})
    body = fedavg.state.model[warm.job.network.body]
    assert np.array_equal(warm.state.body, body)
    for mine, theirs in zip(notes.rows[:2], other.rows, strict=True):
        assert mine["loss"]["mean"] == pytest.approx(theirs["loss"]["mean"], abs=1e-6)
        assert mine["accuracy"] == pytest.approx(theirs["accuracy"])
    assert set(warm.progress.versions.values()) == {3}


def test_a_warm_up_as_long_as_the_run_is_refused() -> None:
    with pytest.raises(ConfigError, match="lg-fedavg-warmup-rounds=4: must be less than"):
        federate("lg-fedavg", lg_fedavg_warmup_rounds=4)


def test_a_users_own_norms_do_not_become_what_is_shared() -> None:
    """batch-norm=personal put them into the head, which is what LG-FedAvg shares."""
    with pytest.raises(ConfigError, match="batch-norm=personal: with lg-fedavg all but the head"):
        federate("lg-fedavg", batch_norm="personal")
