"""L2GD against the naive loop that throws one coin after the other, and closed forms."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from corsage.core.configuration.key_groups import TrainKeys
from corsage.core.errors import ConfigError
from corsage.core.seeding import generator
from corsage.strategies.l2gd import L2GDKeys, aggregate, coins, contraction, falls
from tests.support.federations import federate, same_arrays
from tests.support.reference import (
    Vector,
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

USERS = [str(i) for i in range(12)]
P, LAMBDA, LR = 0.4, 4.0, 0.05
C = LR * 12 * (1 - P) * LAMBDA / (12 * P)  # alpha lambda/(n p), alpha = lr n (1 - p)


def thrown() -> Iterator[tuple[int, bool]]:
    """Coins one by one, and the round that each belongs to: it ends before a new aggregation."""
    number, learnt = 1, False
    for coin in generator(0, "l2gd coins", 0).random(4096) < P:
        if coin and learnt:
            number, learnt = number + 1, False
        learnt = learnt or not coin
        yield number, bool(coin)


def naive(data: Any, rounds: int, drawn: dict[int, list[str]]) -> dict[str, Vector]:
    """Algorithm 1 coin by coin; users that are not drawn stand still."""
    models = dict.fromkeys(USERS, flat(fresh()))
    learning: dict[str, list[Any]] = {}
    starts: dict[str, Vector] = {}
    for number, aggregation in thrown():
        if number > rounds:
            break
        if aggregation:
            mean = np.mean(list(models.values()), axis=0)
            for user in drawn[number]:
                models[user] = models[user] - C * (models[user] - mean)
            learning = {}
            continue
        if not learning:  # momentum begins anew: the run of local steps so far is done over
            starts = dict(models)
            learning = {user: [] for user in drawn[number]}
        for user, steps in learning.items():
            every = user_batches(data, user, "model", number, 40)
            steps.append(every[len(steps)])
            keys = {"lr": LR, "momentum": 0.5}
            models[user] = plain_sgd(starts[user], examples(data, user), steps, keys)
    return models


@pytest.mark.parametrize("weighting", ["uniform", "examples"])
def test_a_coalesced_run_is_the_loop_over_coins(weighting: str) -> None:
    """Users have different numbers of samples, and count once each whatever `weighting` says."""
    keys = {"l2gd_p": P, "l2gd_lambda": LAMBDA, "fraction_train": 1.0, "num_rounds": 5}
    sizes: dict[str, Any] = {"size_sigma": 0.8}
    _, result = run("l2gd", weighting=weighting, **keys, **sizes)
    data = users_data(**sizes)
    models = naive(data, 5, dict.fromkeys(range(1, 6), USERS))
    own = [sum(coin for at, coin in thrown() if at == number) for number in range(1, 6)]
    assert max(own) > 1  # aggregation steps in a row
    assert np.allclose(final(result), np.mean(list(models.values()), axis=0), atol=1e-5)
    assert agrees(result, models, data)


def test_with_part_of_the_users_the_mean_is_still_that_of_all() -> None:
    strategy, result = run("l2gd", l2gd_p=P, l2gd_lambda=LAMBDA, num_rounds=5)
    drawn = {number: chosen(strategy, number) for number in range(1, 6)}
    # One exchange a round: the mean of a round's aggregation steps is the one it began with.
    data, models = users_data(), dict.fromkeys(USERS, flat(fresh()))
    for number in range(1, 6):
        own = [coin for at, coin in thrown() if at == number]
        r, k = sum(own), len(own) - sum(own)
        mean = np.mean(list(models.values()), axis=0)
        for user in drawn[number]:
            start = mean + (1 - C) ** r * (models[user] - mean)
            steps = user_batches(data, user, "model", number, 40)[:k]
            models[user] = plain_sgd(start, examples(data, user), steps)
    assert np.allclose(final(result), np.mean(list(models.values()), axis=0), atol=1e-5)
    assert agrees(result, models, data)


def test_one_coin_a_round_gives_the_same_as_all_coins_of_a_round() -> None:
    """Full gradients without momentum, so that it does not matter where a round ends."""
    keys = {"batch_size": 1000, "momentum": 0.0, "fraction_train": 1.0, "l2gd_p": P}
    some, result = run("l2gd", **keys, l2gd_lambda=LAMBDA, num_rounds=4)
    count = some.state.coins
    single, other = run("l2gd", **keys, l2gd_lambda=LAMBDA, num_rounds=count, l2gd_coins=1)
    assert count > 8 and single.state.coins == count
    assert same_arrays(result.arrays, other.arrays, tolerance=1e-5)
    assert result.json()[0]["per_user"] == other.json()[0]["per_user"]


def test_the_coins_run_together_are_the_coins() -> None:
    first, rounds = 0, []
    while first < 3000:
        rounds.append(coins(0, P, first, 0))
        first += sum(rounds[-1])
    together = [word for r, k in rounds for word in (*[True] * r, *[False] * k)]
    assert together == [falls(0, P, i) for i in range(first)]
    assert all(k > 0 for _, k in rounds) and all(r > 0 for r, _ in rounds[1:])
    # A share p of them, within 4 standard deviations; other seeds throw others.
    assert abs(np.mean(together) - P) < 4 * np.sqrt(P * (1 - P) / first)
    assert [falls(1, P, i) for i in range(100)] != together[:100]
    cut = [coins(0, P, i, 3) for i in range(200)]
    assert max(r + k for r, k in cut) == 3


def test_the_expected_step_is_alpha_times_the_gradient_of_2() -> None:
    """f_i(x) = |x - b_i|^2 / 2: at x_i = (b_i + lambda mean(b)) / (1 + lambda) nothing moves."""
    rng = np.random.default_rng(0)
    b, p, lam, lr = rng.normal(size=(7, 3)), 0.3, 0.6, 0.1
    c = contraction(TrainKeys(lr=lr), L2GDKeys(l2gd_lambda=lam, l2gd_p=p))

    def expected(x: np.ndarray) -> np.ndarray:
        local = x - lr * (x - b)
        return (1 - p) * local + p * aggregate(x, x.mean(axis=0), c, 1)

    fixed = (b + lam * b.mean(axis=0)) / (1 + lam)
    assert np.allclose(expected(fixed), fixed, atol=1e-12)
    x = rng.normal(size=(7, 3))
    gradient = (x - b + lam * (x - x.mean(axis=0))) / 7
    assert np.allclose(x - expected(x), lr * 7 * (1 - p) * gradient, atol=1e-12)


def test_aggregation_steps_in_a_row_are_their_closed_form() -> None:
    x = np.random.default_rng(0).normal(size=(5, 3))
    mean, one = x.mean(axis=0), x
    for _ in range(6):
        one = one - 0.3 * (one - one.mean(axis=0))
    assert np.allclose(aggregate(x, mean, 0.3, 6), one, atol=1e-12)
    assert np.allclose(one.mean(axis=0), mean, atol=1e-12)


def test_a_step_beyond_the_mean_is_refused() -> None:
    with pytest.raises(ConfigError, match="lower l2gd-lambda"):
        federate("l2gd", l2gd_lambda=10.0)


def test_each_way_one_model_and_a_word_if_weighting_is_not_used() -> None:
    _, result, notes = federate("l2gd", weighting="examples")
    size = 4 * (64 * 16 + 16 + 16 * 10 + 10)
    assert result.json()[0]["bytes_up"] == result.json()[0]["bytes_down"] == 4 * 6 * size
    assert notes.notes == ["weighting=examples is not used: the mean counts each user once"]
