"""Equal work: compared strategies compute as many gradients of minibatches a user."""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
import pytest

from corsage.app.client_app import app
from corsage.app.local_grid import LocalGrid
from corsage.app.simulation import simulate
from corsage.core.configuration.config import Config
from corsage.core.configuration.key_groups import TrainKeys
from corsage.core.registry import ALGORITHMS
from corsage.strategies import strategy_class
from corsage.strategies.effort import as_set, said, unequal, whole_steps, with_budget, work_of
from corsage.strategies.rounds.base import Strategy
from corsage.strategies.rounds.callbacks import Callback
from tests.support.federations import CLUSTER_MAP, CONVEX
from tests.support.steps import Steps, counted

OWN_STEPS = ("l2gd", "fedrep-exact")
SGD = [name for name in ALGORITHMS if name not in (*CONVEX, *OWN_STEPS)]
ROUNDS, BUDGET = 2, 11
KEYS: dict[str, Any] = {
    "num-users": 12,
    "num-rounds": ROUNDS,
    "fraction-train": 1.0,
    "max-train-samples": 60,
    "hidden": "8",
    "fine-tune-epochs": 0,
    "evaluate-every": 100,
    "cluster-map": CLUSTER_MAP,
}


class OnlyTraining(Callback):
    """Counts gradients of the rounds, and none of the evaluations (Per-FedAvg adapts there)."""

    def __init__(self, steps: Steps) -> None:
        self.steps = steps

    def on_round_end(self, strategy: Strategy[Any, Any], row: dict[str, Any]) -> None:
        self.steps.on = row["round"] < ROUNDS


@cache
def gradients(name: str, **keys: Any) -> int:
    """Gradients of minibatches that all users of a run computed in its rounds."""
    config = Config.parse({**KEYS, "strategy": name, **keys})
    with counted() as steps:
        strategy = strategy_class(name)(config, [OnlyTraining(steps)])
        steps.on = True
        strategy.evaluation = no_work(strategy.evaluation, steps)  # type: ignore[method-assign]
        strategy.start(LocalGrid(app, 1))
    return steps.count


def no_work(evaluation: Any, steps: Steps) -> Any:
    """An evaluation from whose question on nothing counts: here only the last round has one."""

    def asked(*words: Any) -> Any:
        steps.on = False
        return evaluation(*words)

    return asked


@pytest.mark.parametrize("name", SGD)
def test_every_method_computes_as_many_gradients(name: str) -> None:
    """Within the rounding of one step a part and user: pFedMe's parts are K steps."""
    epochs = gradients("fedavg", work="as-set")
    own = {"fedala-start-epochs": 12} if name == "fedala" else {}  # what its first round leaves out
    found = gradients(name, **{"work-epochs": BUDGET, **own})
    assert found == pytest.approx(BUDGET * epochs, abs=12 * 5)


def test_as_set_fedrep_does_eleven_times_the_work_of_fedavg() -> None:
    assert gradients("fedrep", work="as-set") == BUDGET * gradients("fedavg", work="as-set")


def test_the_budget_is_that_of_the_most_costly_method() -> None:
    config = with_budget(
        Config.parse({"strategy": "fedrep,fedavg,local,mixed-model", "model": "mlp"})
    )
    assert config.train.work_epochs == 11
    efforts = {n: work_of(n, config.train, config.keys_of(n))[0] for n in config.run.strategy}
    assert efforts == {"fedrep": 1, "fedavg": 11, "local": 11, "mixed-model": 1}
    assert unequal(config) == {"mixed-model": "it is solved exactly"}
    assert said(config) == (
        "Equal work: 11 epochs of gradient steps a user and round; but mixed-model (it is solved "
        "exactly)."
    )


def test_a_method_alone_does_what_its_keys_say() -> None:
    config = with_budget(Config.parse({"strategy": "ditto", "ditto-epochs": 3}))
    assert work_of("ditto", config.train, config.keys_of("ditto")) == (1, 0)


def test_a_budget_that_is_set_stays() -> None:
    config = with_budget(Config.parse({"strategy": "fedrep,fedavg", "work-epochs": 5}))
    assert config.train.work_epochs == 5
    as_they_are = Config.parse({"strategy": "fedrep,fedavg", "work": "as-set"})
    assert with_budget(as_they_are) == as_they_are


@pytest.mark.parametrize("steps", [0.3, 1.0, 2.75, 16.5, 11 / 3])
def test_rounded_steps_are_right_over_the_rounds(steps: float) -> None:
    each = [whole_steps(steps, number) for number in range(1, 101)]
    assert abs(sum(each) - 100 * steps) <= 0.5 + 1e-9
    assert max(abs(count - steps) for count in each) <= 1


def test_a_small_budget_still_trains_a_body() -> None:
    """A tenth of a step a round is a step in each tenth round, not none at all."""
    assert sum(whole_steps(0.1, number) for number in range(1, 51)) == 5


def test_every_algorithm_says_what_a_round_costs_or_that_it_is_not_counted() -> None:
    config = Config.parse({})
    costs = {name: as_set(config, name) for name in ALGORITHMS}
    assert {n for n, cost in costs.items() if cost is None} == {*CONVEX, *OWN_STEPS} - {"fedrep"}
    assert costs["perfedavg"] == 4 and costs["pfedme"] == 5 and costs["apfl"] == 2


def test_named_strategies_do_as_much_as_objects_that_are_compared_with_them() -> None:
    cls = strategy_class("fedrep")
    keys: dict[str, Any] = {"num_users": 10, "num_rounds": 1, "hidden": "8"}
    mine = cls(head_epochs=3, **keys)
    alone = simulate("fedavg", progress=False, local_epochs=4, **keys)
    beside = simulate([mine, "fedavg"], progress=False, **keys)
    assert beside["fedavg"].per_user == alone["fedavg"].per_user


def test_local_may_train_in_every_round() -> None:
    few = gradients("local", **{"fraction-train": 0.5, "work": "as-set"})
    always = gradients("local", **{"fraction-train": 0.5, "work": "as-set", "local-always": True})
    assert always > 1.5 * few and always == gradients("local", work="as-set")


def test_adaptation_of_new_users_is_not_multiplied() -> None:
    keys: dict[str, Any] = {"num_users": 10, "num_rounds": 1, "hidden": "8", "new_users": 0.3}
    # One round of which nobody's step counts: new users adapt from the same model.
    plain = simulate("fedavg", progress=False, lr=0.0, **keys)
    more = simulate("fedavg", progress=False, lr=0.0, work_epochs=7, **keys)
    assert plain["fedavg+new"].per_user == more["fedavg+new"].per_user


def test_a_budget_is_within_what_a_device_allows() -> None:
    limits = {f.name: f.metadata["limit"] for f in TrainKeys.__dataclass_fields__.values()}
    assert limits["work_epochs"] == "max-epochs"


def test_means_of_equal_text_share_the_first_place() -> None:
    from corsage.app.output.summary import best

    means = [0.98, 0.98 - 1e-12, 0.9804, 0.97]
    rows = [{"strategy": str(m), "accuracy": {"mean": m}, "per_user": {"a": m}} for m in means]
    assert best(rows) == [True, True, True, False]
    assert not np.any(best([]))
