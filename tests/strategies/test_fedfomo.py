"""FedFomo against a plain loop, and where it must equal local training."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch.nn import functional as F

from corsage.clients.base import Got
from corsage.clients.fedfomo import FedFomoClient
from corsage.core.errors import Refused
from corsage.core.messages.encoding import decode
from corsage.core.seeding import generator
from corsage.networks.batches import Examples
from corsage.networks.training import batches
from corsage.strategies.fedfomo import picked
from tests.support.reference import (
    Vector,
    agrees,
    examples,
    flat,
    fresh,
    plain_sgd,
    run,
    users_data,
)

ALL: dict[str, Any] = {"fraction_train": 1.0, "num_rounds": 3}


def held_loss(model: Vector, data: Any, rows: Any) -> float:
    with torch.no_grad():
        return float(F.cross_entropy(fresh(model)(data[0][rows]), data[1][rows]))


def test_fedfomo_is_its_formula() -> None:
    """All take part, and get the models of all others."""
    strategy, result = run("fedfomo", fedfomo_models=20, fedfomo_validation=0.3, **ALL)
    data, start = users_data(), flat(fresh())
    own, before = dict.fromkeys(data.users, start), dict.fromkeys(data.users, start)
    worth = {user: dict.fromkeys(data.users, 0.0) for user in data.users}
    mixtures = 0
    for number in range(1, 4):
        new = {}
        for user in data.users:
            mine = examples(data, user)
            n = len(mine[1])
            order = generator(0, "samples kept out", user).permutation(n)
            held, rest = np.split(order, [round(0.3 * n)])
            rest.sort()
            base, theta = before[user], own[user]
            gains = {}
            for other in [user] if number == 1 else data.users:
                apart = float(np.linalg.norm(own[other] - base))
                gain = held_loss(base, mine, held) - held_loss(own[other], mine, held)
                gains[other] = gain / apart if apart else 0.0
                worth[user][other] += gains[other] * (other != user)
            better = {other: gain for other, gain in gains.items() if gain > 0}
            if better:
                shares = {other: gain / sum(better.values()) for other, gain in better.items()}
                theta = base + sum(s * (own[other] - base) for other, s in shares.items())
            mixtures += len(better) > 1
            rng = generator(0, "model", number, user)
            many = -(-n // 10)  # batches of an epoch of all samples
            drawn = batches(rng, len(rest), 2, 10)[:many]
            steps = [rest[batch] for batch in drawn]
            before[user] = theta.astype(np.float32)
            new[user] = plain_sgd(before[user], mine, steps)
        own = new
    assert mixtures > 8
    assert agrees(result, own, data)
    assert result.arrays is not None
    models = dict(zip(strategy.state.users, decode(result.arrays)["models"], strict=True))
    for row, user in enumerate(strategy.state.users):
        assert np.allclose(models[user], own[user], atol=1e-5)
        wanted = [worth[user][other] for other in strategy.state.users]
        assert np.allclose(strategy.state.worth[row], wanted, atol=1e-4)


def test_without_others_it_is_local_training() -> None:
    _, ours = run("fedfomo", fedfomo_models=0, fedfomo_validation=0.0)
    _, local = run("local")
    assert ours.json()[0]["per_user"] == local.json()[0]["per_user"]
    assert ours.json()[0]["loss"] == local.json()[0]["loss"]


def test_the_best_are_sent_and_with_epsilon_any() -> None:
    worth, among = np.array([0.0, 3.0, -1.0, 0.0, 2.0], np.float32), np.array([0, 1, 2, 3])
    seen = [picked(worth, among, 2, 0.0, np.random.default_rng(seed)) for seed in range(40)]
    assert {best for best, _ in seen} == {1} and {second for _, second in seen} == {0, 3}
    assert picked(worth, among, 4, 0.0, np.random.default_rng(0))[3] == 2
    rng = np.random.default_rng(0)
    counts = np.bincount([row for _ in range(400) for row in picked(worth, among, 1, 1.0, rng)])
    assert len(counts) == 4 and all(abs(counts - 100) < 5 * 75**0.5)
    assert sorted(picked(worth, among, 4, 0.5, rng)) == [0, 1, 2, 3]


def test_models_that_came_are_bounded_in_number_and_those_without_numbers_are_not_used() -> None:
    """More than a user asked for are refused; NaN and huge ones weigh nothing."""
    strategy, _ = run("fedfomo", fedfomo_models=2, num_rounds=1)
    size = len(flat(fresh()))
    client = object.__new__(FedFomoClient)
    client.keys, client.users = strategy.keys, ["0"]
    client.network = strategy.job.network
    with pytest.raises(Refused, match="3 models of others came, and fedfomo-models=2"):
        client.others(Got(rows={"others": np.zeros((1, 3, size), np.float32)}))
    data = users_data()
    x, y = examples(data, data.users[0])
    held = Examples(x, y, np.array([len(y)], np.int64))
    start = flat(fresh())
    client.states = [{"model": start, "before": start}]
    bad = np.stack([np.full(size, np.nan, np.float32), 1e30 * start])[None]
    mixed, worth = client.mixed(bad, held)
    assert np.array_equal(mixed[0], start) and worth[0, 0] == 0 and not worth[0, 2] > 0
