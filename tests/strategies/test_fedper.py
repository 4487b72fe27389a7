"""FedPer against a plain loop; with one user it is local training."""

from __future__ import annotations

import numpy as np
import pytest

from tests.support.reference import (
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

BODY = 64 * 16 + 16


@pytest.mark.parametrize("weighting", ["uniform", "examples"])
def test_fedper_is_algorithm_1(weighting: str) -> None:
    data = users_data(size_sigma=0.8)
    strategy, result = run("fedper", local_epochs=2, weighting=weighting, size_sigma=0.8)
    start = flat(fresh())
    body, heads = start[:BODY], dict.fromkeys(data.users, start[BODY:])
    for number in range(1, 5):
        bodies, weights = [], []
        for user in chosen(strategy, number):
            mine, steps = examples(data, user), user_batches(data, user, "model", number, 2)
            model = plain_sgd(np.concatenate([body, heads[user]]), mine, steps)
            bodies.append(model[:BODY])
            heads[user] = model[BODY:]
            weights.append(len(mine[1]) if weighting == "examples" else 1)
        body = np.average(bodies, axis=0, weights=weights)
    assert np.allclose(final(result), body, atol=1e-5)
    assert agrees(result, {u: np.concatenate([body, heads[u]]) for u in data.users}, data)
    assert result.json()[0]["bytes_up"] == result.json()[0]["bytes_down"] == 4 * 6 * 4 * BODY


def test_with_one_user_it_is_local_training() -> None:
    alone = {"num_users": 1, "fraction_train": 1.0, "local_epochs": 2}
    _, fedper = run("fedper", **alone)
    _, local = run("local", **alone)
    assert fedper.json()[0]["loss"]["mean"] == local.json()[0]["loss"]["mean"]


def test_a_new_user_learns_a_head_over_the_common_body() -> None:
    data, new = users_data(), {"new_users": 0.3, "adapt_samples": "0", "adapt_epochs": "5"}
    strategy, result = run("fedper", **new)
    body, found = final(result), {}
    for user in strategy.members.new_users:
        steps = user_batches(data, user, "head", 4, 5)
        start = np.concatenate([body, flat(fresh())[BODY:]])
        found[user] = plain_sgd(start, examples(data, user), steps, frozen=1)
    assert found and agrees(result, found, data, row=-1)
