"""FedAMP against a plain loop, and where it must equal local training."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from corsage.core.messages.encoding import decode
from corsage.strategies.fedamp import attention
from tests.support.reference import (
    Vector,
    agrees,
    chosen,
    examples,
    flat,
    fresh,
    near,
    plain_sgd,
    run,
    user_batches,
    users_data,
)

ALPHA, SIGMA, LAMBDA = 0.8, 0.7, 2.0
KEYS: dict[str, Any] = {"fedamp_alpha": ALPHA, "fedamp_sigma": SIGMA, "fedamp_lambda": LAMBDA}


def message(w_i: Vector, others: list[Vector], pairs: list[float]) -> Vector:
    """u_i, with alpha_k and sigma as the paper has them."""
    u_i = w_i.copy()
    if not others:
        return u_i
    sigma = SIGMA * float(np.mean(pairs)) if pairs else 1.0
    alpha_k = ALPHA * sigma / len(others)
    for w_j in others:
        slope = np.exp(-float(np.sum((w_i - w_j) ** 2)) / sigma) / sigma  # A'(|w_i - w_j|^2)
        u_i += np.float32(alpha_k * slope) * (w_j - w_i)
    return u_i


def test_fedamp_is_algorithm_1() -> None:
    strategy, result = run("fedamp", **KEYS)
    data, trained = users_data(), dict[str, Vector]()
    for number in range(1, 5):
        new, rows = dict(trained), list(trained.values())
        pairs = [float(np.sum((a - b) ** 2)) for i, a in enumerate(rows) for b in rows[:i]]
        for user in chosen(strategy, number):
            w_i = trained.get(user, flat(fresh()))
            u_i = message(w_i, [w for other, w in trained.items() if other != user], pairs)
            steps = user_batches(data, user, "model", number, 1)
            new[user] = plain_sgd(w_i, examples(data, user), steps, extra=near(LAMBDA, u_i))
        trained = new
    assert agrees(result, {user: trained.get(user, flat(fresh())) for user in data.users}, data)
    assert result.arrays is not None
    models = decode(result.arrays)["models"]
    assert set(strategy.state.users) == set(trained)
    for user, row in zip(strategy.state.users, models, strict=True):
        assert np.allclose(row, trained[user], atol=1e-5)


def test_without_the_pull_it_is_local_training() -> None:
    _, ours = run("fedamp", fedamp_lambda=0.0)
    _, local = run("local")
    assert ours.json()[0]["per_user"] == local.json()[0]["per_user"]
    assert ours.json()[0]["loss"] == local.json()[0]["loss"]


def test_who_is_alike_weighs_more_and_nobody_weighs_less_than_nothing() -> None:
    models = np.array([[0.0, 0], [0.1, 0], [5.0, 5]], np.float32)
    xi = attention(models, models, [0, 1, 2], 1.0, 0.2)
    assert np.all(np.diag(xi) == 0) and np.all(xi >= 0) and np.all(xi.sum(1) <= 1)
    assert xi[0, 1] > 0.49 and xi[0, 2] < 1e-3
    stranger = attention(models[:1], models, [-1], 1.0, 0.2)
    assert stranger[0, 0] == pytest.approx(1 / 3)
    assert not attention(models[:1], models[:1], [0], 1.0, 0.2).any()


def test_without_alpha_messages_are_the_users_own_models() -> None:
    models = np.random.default_rng(0).normal(size=(4, 3)).astype(np.float32)
    assert not attention(models, models, [0, 1, 2, 3], 0.0, 0.2).any()
