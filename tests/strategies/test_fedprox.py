"""FedProx against a plain loop over the proximal loss, and mu = 0 against FedAvg."""

from __future__ import annotations

import numpy as np
import pytest

from tests.support.federations import same_arrays
from tests.support.reference import (
    chosen,
    examples,
    final,
    flat,
    fresh,
    near,
    plain_sgd,
    right,
    run,
    user_batches,
    users_data,
)


@pytest.mark.parametrize("momentum", [0.0, 0.5])
def test_fedprox_is_algorithm_2(momentum: float) -> None:
    data, keys = users_data(), {"lr": 0.05, "momentum": momentum}
    strategy, result = run("fedprox", fedprox_mu=2.0, local_epochs=2, momentum=momentum)
    model = flat(fresh())
    for number in range(1, 5):
        models = [
            plain_sgd(
                model,
                examples(data, user),
                user_batches(data, user, "model", number, 2),
                keys,
                near(2.0, model),
            )
            for user in chosen(strategy, number)
        ]
        model = np.mean(models, axis=0)
    assert np.allclose(final(result), model, atol=1e-5)
    for user, accuracy in result.json()[0]["per_user"].items():
        assert accuracy == pytest.approx(right(model, data, user))


def test_without_mu_it_is_fedavg_to_the_last_bit() -> None:
    more = {"fine_tune_epochs": 2, "local_epochs": 2, "size_sigma": 0.5, "weighting": "examples"}
    _, prox = run("fedprox", fedprox_mu=0.0, **more)
    _, plain = run("fedavg", **more)
    assert same_arrays(prox.arrays, plain.arrays, tolerance=0)
    assert [s["strategy"] for s in prox.json()] == ["fedprox", "fedprox+ft"]
    for one, other in zip(prox.json(), plain.json(), strict=True):
        assert one["per_user"] == other["per_user"] and one["loss"] == other["loss"]
        assert one["bytes_up"] == other["bytes_up"]


def test_users_stay_nearer_the_larger_mu_is() -> None:
    start, moved = flat(fresh()), []
    for mu in (0.0, 1.0, 10.0):
        _, result = run("fedprox", fedprox_mu=mu, num_rounds=1, local_epochs=5)
        moved.append(float(np.linalg.norm(final(result) - start)))
    assert moved[0] > 1.2 * moved[1] > 1.2 * 1.2 * moved[2] > 0
