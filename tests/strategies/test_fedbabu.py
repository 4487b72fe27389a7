"""FedBABU against a plain loop: the head stands, and is learnt after the last round."""

from __future__ import annotations

import numpy as np
import pytest

from corsage.core.errors import ModelError
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
PARTS = pytest.mark.parametrize(
    ("part", "purpose", "frozen"), [("full", "model", None), ("head", "head", 1)]
)
"""What is fine-tuned, whose batches it takes, and the layer that stands."""


@PARTS
@pytest.mark.parametrize("weighting", ["uniform", "examples"])
def test_fedbabu_is_algorithm_1(
    weighting: str, part: str, purpose: str, frozen: int | None
) -> None:
    more = {"weighting": weighting, "size_sigma": 0.8}
    data, tuned = users_data(size_sigma=0.8), {"fine_tune_epochs": 3, "fedbabu_fine_tune": part}
    strategy, result = run("fedbabu", local_epochs=2, **more, **tuned)
    body, head = flat(fresh())[:BODY], flat(fresh())[BODY:]
    for number in range(1, 5):
        bodies, weights = [], []
        for user in chosen(strategy, number):
            mine, steps = examples(data, user), user_batches(data, user, "body", number, 2)
            model = plain_sgd(np.concatenate([body, head]), mine, steps, frozen=3)
            assert np.array_equal(model[BODY:], head)
            bodies.append(model[:BODY])
            weights.append(len(mine[1]) if weighting == "examples" else 1)
        body = np.average(bodies, axis=0, weights=weights)
    assert np.allclose(final(result), body, atol=1e-5)
    whole = np.concatenate([body, head])
    assert agrees(result, dict.fromkeys(data.users, whole), data)
    own = {
        user: plain_sgd(
            whole, examples(data, user), user_batches(data, user, purpose, 4, 3), frozen=frozen
        )
        for user in data.users
    }
    assert agrees(result, own, data, row=1)
    plain, fine_tuned = result.json()
    assert (plain["strategy"], fine_tuned["strategy"]) == ("fedbabu", "fedbabu+ft")
    assert plain["bytes_up"] == plain["bytes_down"] == 4 * 6 * 4 * BODY


@PARTS
def test_a_new_user_fine_tunes_the_same(part: str, purpose: str, frozen: int | None) -> None:
    data, new = users_data(), {"new_users": 0.3, "adapt_samples": "0", "adapt_epochs": "5"}
    strategy, result = run("fedbabu", fedbabu_fine_tune=part, **new)
    whole, found = np.concatenate([final(result), flat(fresh())[BODY:]]), {}
    for user in strategy.members.new_users:
        steps = user_batches(data, user, purpose, 4, 5)
        found[user] = plain_sgd(whole, examples(data, user), steps, frozen=frozen)
    assert found and agrees(result, found, data, row=-1)


def test_a_model_without_a_body_is_refused() -> None:
    with pytest.raises(ModelError, match="fedbabu: the model is a head and nothing else"):
        run("fedbabu", model="linear")
