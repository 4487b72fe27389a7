"""IFCA against a plain loop over its Algorithm 1, and on users of two kinds."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from torch.nn import functional as F

from corsage import IFCA
from corsage.app.client_app import app
from corsage.app.local_grid import LocalGrid
from corsage.clients.base import Got
from corsage.clients.ifca import IFCAClient
from corsage.core.errors import ModelError
from corsage.core.messages.encoding import decode
from corsage.core.messages.replies import Replies
from corsage.core.messages.wire import Task
from corsage.core.seeding import torch_seed
from corsage.datasets.dealing.federated import simulated
from corsage.datasets.user_data import FederatedData
from corsage.networks.build import build_network
from corsage.strategies.ifca import IFCAState
from corsage.strategies.rounds.base import Strategy
from tests.support.federations import SMALL, federate
from tests.support.grouped import is_turned, two_kinds
from tests.support.reference import (
    Vector,
    agrees,
    chosen,
    examples,
    flat,
    fresh,
    plain_sgd,
    run,
    user_batches,
    users_data,
)

USERS = [str(i) for i in range(12)]


def pick(models: np.ndarray, data: FederatedData, user: str) -> int:
    """argmin_j F_i(theta_j) on the training data."""
    x, y = examples(data, user)
    return int(np.argmin([F.cross_entropy(fresh(m)(x), y).item() for m in models]))


@pytest.mark.parametrize("averaging", ["models", "gradients"])
def test_ifca_is_algorithm_1(averaging: str) -> None:
    more = {"size_sigma": 0.5}
    strategy, result = run(
        "ifca", ifca_clusters=3, ifca_averaging=averaging, num_rounds=6, local_epochs=2, **more
    )
    data, config = users_data(**more), strategy.config
    seeds = [0, torch_seed(0, "ifca", 1), torch_seed(0, "ifca", 2)]
    starts = [build_network(config.model, (1, 8, 8), 10, seed).initial for seed in seeds]
    models = np.stack(starts)
    assert np.array_equal(models[0], flat(fresh())) and not np.allclose(models[1], models[2])
    picks = set()
    for number in range(1, 7):
        users = chosen(strategy, number)
        picked = {user: pick(models, data, user) for user in users}
        picks |= set(picked.values())
        new: list[Vector] = []
        for j, model in enumerate(models):
            own = [user for user in users if picked[user] == j]
            if averaging == "models":
                trained = [
                    plain_sgd(
                        model,
                        examples(data, user),
                        user_batches(data, user, "model", number, 2),
                    )
                    for user in own
                ]
                new.append(np.mean(trained, axis=0) if own else model)
            else:  # a gradient is the difference to one full step of size 1
                keys = {"lr": 1.0, "momentum": 0.0}
                gradients = [
                    model - plain_sgd(model, examples(data, user), [slice(None)], keys)
                    for user in own
                ]
                step = np.sum(gradients, axis=0) if own else np.zeros_like(model)
                new.append(model - 0.05 / len(users) * step)
        models = np.stack(new)
    assert len(picks) > 1  # more than one cluster was at work
    assert result.arrays is not None
    found = np.concatenate([a.reshape(-1) for a in decode(result.arrays).values()])
    assert np.allclose(found.reshape(3, -1), models, atol=1e-5)
    last = {user: pick(models, data, user) for user in USERS}
    assert strategy.state.clusters == last
    assert agrees(result, {user: models[j] for user, j in last.items()}, data)


def test_a_model_that_nobody_picked_stays_and_ties_go_to_the_first() -> None:
    strategy = IFCA({"ifca-clusters": 3})
    models = np.arange(6, dtype=np.float32).reshape(3, 2)
    strategy.state = IFCAState(models)
    rows = np.array([[1, 1], [8, 8], [3, 5], [9, 9]], np.float32)
    picked = {"cluster": np.array([2.0, 0, 2, 7])}
    replies = Replies(users=["a", "b", "c", "d"], rows={"model": rows}, metrics=picked)
    # d says that it picked a model that does not exist: it moves none.
    assert strategy.merge(replies).models.tolist() == [[8, 8], [2, 3], [2, 3]]
    same = np.stack([flat(fresh())] * 3)

    class Same(IFCA):
        def initial(self, network: object) -> IFCAState:
            return IFCAState(same)

    tied = Same({"num-users": 12, "hidden": "16", "num-rounds": 1, "ifca-clusters": 3})
    tied.start(LocalGrid(app, 2))
    assert set(tied.state.clusters.values()) <= {0, 1}
    assert np.array_equal(tied.state.models[1:], same[1:])


def test_users_of_two_kinds_end_in_two_clusters(tmp_path: Path) -> None:
    """From this seed's models; from some others' all users pick the same for good."""
    keys = {**two_kinds(tmp_path), "seed": 2}
    strategy, result, _ = federate("ifca", num_rounds=25, fraction_train=0.6, **keys)
    clusters = strategy.state.clusters
    kinds = {kind: {j for u, j in clusters.items() if is_turned(u) == kind} for kind in (0, 1)}
    assert len(clusters) == 10 and len(kinds[0]) == len(kinds[1]) == 1 and kinds[0] != kinds[1]
    _, single, _ = federate("fedavg", num_rounds=25, fraction_train=0.6, **keys)
    gain = result.json()[0]["accuracy"]["mean"] - single.json()[0]["accuracy"]["mean"]
    assert gain > 0.15
    assert_picks_by_training_data(strategy)


def assert_picks_by_training_data(strategy: Strategy[Any, IFCAState]) -> None:
    """A user whose test data are of the other kind still picks by its training data."""
    config, models = strategy.config, strategy.state.models
    data = simulated(config.data, 10, 0)
    labels = np.array(data.y)
    for _, middle, end in data.bounds:
        labels[middle:end] = 9 - labels[middle:end]
    task = Task("ifca", "", 0, data.shape, 10, train=config.train, keys=config.keys_of("ifca"))
    odd = dataclasses.replace(data, y=labels)
    client = IFCAClient(task, data.users, odd, strategy.job.network, [{}] * 10)
    metrics = client.judge(Got({"models": models}))
    assert dict(zip(data.users, metrics["cluster"], strict=True)) == strategy.state.clusters
    assert np.mean(metrics["correct"] / metrics["num-examples"]) < 0.4


def test_all_models_go_down_and_one_comes_up() -> None:
    _, result, _ = federate("ifca", ifca_clusters=3)
    size = 4 * (64 * 16 + 16 + 16 * 10 + 10)
    assert result.json()[0]["bytes_up"] == 4 * 6 * size
    assert result.json()[0]["bytes_down"] == 4 * 6 * 3 * size


def test_initial_models_are_all_given_or_none() -> None:
    strategy, models = IFCA(SMALL), np.stack([flat(fresh()), -flat(fresh())])
    strategy.begin(LocalGrid(app, 1))
    strategy.take({"models": models})
    assert np.array_equal(strategy.state.models, models)
    for given in ({"fc1.weight": models}, {"models": models[:1]}):
        with pytest.raises(ModelError, match="models"):
            strategy.take(given)
