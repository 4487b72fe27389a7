"""Ditto against a plain loop, and between local training and FedAvg."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch.nn import functional as F

from tests.support.federations import same_arrays
from tests.support.reference import (
    KEYS,
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


def test_ditto_is_algorithm_1() -> None:
    data = users_data()
    strategy, result = run("ditto", ditto_lambda=0.7, ditto_epochs=2)
    model = flat(fresh())
    own = dict.fromkeys(data.users, model)
    for number in range(1, 5):
        models = []
        for user in chosen(strategy, number):
            mine = examples(data, user)
            steps = user_batches(data, user, "model", number, 1)
            models.append(plain_sgd(model, mine, steps))
            steps = user_batches(data, user, "model", number, 2)
            own[user] = plain_sgd(own[user], mine, steps, KEYS, near(0.7, model))
        model = np.mean(models, axis=0)
    assert np.allclose(final(result), model, atol=1e-5)
    for user, accuracy in result.json()[0]["per_user"].items():
        assert accuracy == pytest.approx(right(own[user], data, user))


def test_without_lambda_it_is_local_training_and_its_global_model_is_fedavgs() -> None:
    _, ditto = run("ditto", ditto_lambda=0.0, ditto_epochs=3, local_epochs=3, num_rounds=8)
    _, local = run("local", local_epochs=3, num_rounds=8)
    _, fedavg = run("fedavg", local_epochs=3, num_rounds=8)
    assert ditto.json()[0]["per_user"] == local.json()[0]["per_user"]
    assert ditto.json()[0]["loss"] == local.json()[0]["loss"]
    assert same_arrays(ditto.arrays, fedavg.arrays, tolerance=0)
    assert ditto.json()[0]["bytes_up"] == fedavg.json()[0]["bytes_up"]
    assert len(ditto.json()) == 1


def test_a_strong_pull_holds_the_personal_models_at_the_global_one() -> None:
    """lr lambda = 1 without momentum: after each step v = w^t - lr grad, whatever v was."""
    data = users_data()
    more = {"ditto_lambda": 20.0, "momentum": 0.0, "weight_decay": 0.0, "batch_size": 1000}
    strategy, result = run("ditto", num_rounds=2, fraction_train=1.0, **more)
    _, before = run("fedavg", num_rounds=1, fraction_train=1.0, **more)
    fresh_model = final(before)
    for user, accuracy in result.json()[0]["per_user"].items():
        # v^1 = w^0 - lr grad(w^0); v^2 = w^1 - lr grad(v^1)
        mine = examples(data, user)
        first = step(flat(fresh()), flat(fresh()), mine)
        assert accuracy == pytest.approx(right(step(fresh_model, first, mine), data, user))
    assert strategy.progress.round == 2


def step(start: np.ndarray, at: np.ndarray, data: tuple) -> np.ndarray:  # type: ignore[type-arg]
    """`start` after one step of gradient descent with the gradient at `at`."""
    module = fresh(at)
    F.cross_entropy(module(data[0]), data[1]).backward()
    gradient = torch.cat([p.grad.reshape(-1) for p in module.parameters() if p.grad is not None])
    return start - 0.05 * gradient.numpy()


def test_new_users_start_at_the_global_model_and_are_pulled_to_it() -> None:
    data = users_data()
    strategy, result = run("ditto", new_users=0.3, adapt_epochs="3", ditto_lambda=0.7)
    model = final(result)
    new = result.json()[-1]["per_user"]
    assert set(new) == set(strategy.members.new_users)
    for user, accuracy in new.items():
        steps = user_batches(data, user, "model", 4, 3)
        own = plain_sgd(model, examples(data, user), steps, KEYS, near(0.7, model))
        assert accuracy == pytest.approx(right(own, data, user))
