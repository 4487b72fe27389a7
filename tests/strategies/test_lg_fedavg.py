"""LG-FedAvg against a plain loop, with and without FedAvg before it."""

from __future__ import annotations

import numpy as np
import pytest

from corsage.core.errors import ConfigError
from tests.support.federations import federate, same_arrays
from tests.support.reference import (
    KEYS,
    agrees,
    chosen,
    examples,
    final,
    flat,
    fresh,
    plain_sgd,
    run,
    user_batches,
    users_data,
)

BODY, HEAD = 64 * 16 + 16, 16 * 10 + 10


@pytest.mark.parametrize("warmup", [0, 2])
def test_lg_fedavg_is_algorithm_1(warmup: int) -> None:
    data = users_data()
    strategy, result = run("lg-fedavg", local_epochs=2, lg_fedavg_warmup_rounds=warmup)
    start = flat(fresh())
    body, head, own = start[:BODY], start[BODY:], {}
    for number in range(1, 5):
        models = []
        for user in chosen(strategy, number):
            steps = user_batches(data, user, "model", number, 2)
            begin = np.concatenate([own.get(user, body), head])
            models.append(plain_sgd(begin, examples(data, user), steps))
            if number > warmup:
                own[user] = models[-1][:BODY]
        head = np.mean(models, axis=0)[BODY:]
        if number <= warmup:
            body = np.mean(models, axis=0)[:BODY]
    wanted = np.concatenate([body, head]) if warmup else head
    assert np.allclose(final(result), wanted, atol=1e-5)
    everyone = {u: np.concatenate([own.get(u, body), head]) for u in data.users}
    assert agrees(result, everyone, data)
    drawn, never = (
        {u for n in range(warmup + 1, 5) for u in chosen(strategy, n)},
        set(data.users) - set(own),
    )
    assert set(own) == drawn and (warmup == 0 or never)


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


def test_the_warm_up_does_not_depend_on_the_number_of_nodes() -> None:
    _, one, _ = federate("lg-fedavg", nodes=1, lg_fedavg_warmup_rounds=2)
    _, many, _ = federate("lg-fedavg", nodes=5, lg_fedavg_warmup_rounds=2)
    assert same_arrays(one.arrays, many.arrays)
    assert one.json()[0]["per_user"] == many.json()[0]["per_user"]
    assert one.json()[0]["bytes_up"] == many.json()[0]["bytes_up"]


def test_with_one_user_it_is_local_training() -> None:
    alone = {"num_users": 1, "fraction_train": 1.0, "local_epochs": 2}
    _, lg = run("lg-fedavg", **alone)
    _, local = run("local", **alone)
    assert lg.json()[0]["loss"]["mean"] == local.json()[0]["loss"]["mean"]


def test_a_warm_up_as_long_as_the_run_is_refused() -> None:
    with pytest.raises(ConfigError, match="lg-fedavg-warmup-rounds=4: must be less than"):
        federate("lg-fedavg", lg_fedavg_warmup_rounds=4)


def test_a_users_own_norms_do_not_become_what_is_shared() -> None:
    """batch-norm=personal put them into the head, which is what LG-FedAvg shares."""
    with pytest.raises(ConfigError, match="batch-norm=personal: with lg-fedavg all but the head"):
        federate("lg-fedavg", batch_norm="personal")


def test_a_new_user_learns_a_body_under_the_common_head() -> None:
    data, new = users_data(), {"new_users": 0.3, "adapt_samples": "0", "adapt_epochs": "5"}
    strategy, result = run("lg-fedavg", **new)
    head, found = final(result), {}
    for user in strategy.members.new_users:
        steps = user_batches(data, user, "body", 4, 5)
        start = np.concatenate([flat(fresh())[:BODY], head])
        mine = examples(data, user)
        found[user] = plain_sgd(start, mine, steps, frozen=3)
    assert found and agrees(result, found, data, row=-1)
