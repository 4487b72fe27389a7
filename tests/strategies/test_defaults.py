"""What keys that nobody set come to: few users, and numbers of a table."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from corsage import simulate
from corsage.core.configuration.config import Config
from corsage.core.configuration.key_groups import DECAY, TABLE_DECAY, FederationKeys
from corsage.core.errors import ConfigError
from corsage.core.seeding import drawn_count
from corsage.strategies import strategy_class

RNG = np.random.default_rng(0)
X, USERS = RNG.normal(size=(96, 3)), np.repeat(np.arange(8), 12)
NUMBERS = 5 + 30 * X[:, 0] + RNG.normal(size=96)
QUICK: dict[str, Any] = {"progress": False, "num_rounds": 2, "hidden": "4", "head_epochs": 1}


def found(y: Any, strategies: str = "fedrep", **keys: Any) -> Any:
    return simulate(strategies, x=X, y=y, user=USERS, **QUICK, **keys)


@pytest.mark.parametrize(
    ("users", "drawn"), [(1, 1), (3, 3), (5, 5), (7, 5), (49, 5), (50, 5), (59, 5), (60, 6)]
)
def test_a_tenth_of_the_users_but_five_at_least(users: int, drawn: int) -> None:
    assert drawn_count(FederationKeys().share(users), users) == drawn
    assert drawn_count(FederationKeys(fraction_train=0.1).share(users), users) == max(
        users // 10, 1
    )


def test_few_users_are_many_in_a_round_and_it_is_said() -> None:
    run = found(NUMBERS)
    assert [run.results["fedrep"].train_metrics_clientapp[i]["num-users"] for i in (1, 2)] == [5, 5]
    assert "5 of 8 users in each round (fraction-train)" in str(run)
    assert "users in each round" not in str(found(NUMBERS, fraction_train=0.5))


def decay(y: Any, **keys: Any) -> float:
    """What users train with."""
    from corsage.app.client_app import app
    from corsage.app.given import data_of
    from corsage.app.local_grid import LocalGrid

    own = {"num_rounds": 1, "hidden": "4"}
    given = data_of(None, (X, y), {"user": USERS, "label": None, "cluster": None}, keys)
    strategy = strategy_class("fedavg")(**given.among({**own, **keys}))
    strategy.start(LocalGrid(app, 2))
    return strategy.job.train.decay


def test_numbers_of_a_table_have_a_weight_decay_of_their_own() -> None:
    assert decay(NUMBERS) == TABLE_DECAY
    assert decay(NUMBERS, scale="none") == DECAY
    assert decay(NUMBERS, weight_decay=0.5) == 0.5
    assert decay((NUMBERS > 5).astype(int)) == DECAY
    own, given = found(NUMBERS), found(NUMBERS, weight_decay=TABLE_DECAY)
    assert own["fedrep"].per_user == given["fedrep"].per_user
    assert own["fedrep"].per_user != found(NUMBERS, weight_decay=0.0)["fedrep"].per_user
    assert "weight decay 0.03" in str(own) and "weight decay" not in str(given)
    exact = found(NUMBERS, "exact-global", model="linear")
    assert "By default" not in str(exact)


def test_weights_that_grow_are_refused() -> None:
    with pytest.raises(ConfigError, match=r"weight-decay=-0\.5: must be at least 0, or -1"):
        Config.parse({"weight-decay": -0.5})
