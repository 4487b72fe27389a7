"""Each algorithm against a plain loop over users, written with torch's own optimiser."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional as F

from corsage.core.configuration.config import Config
from corsage.core.messages.encoding import decode
from corsage.core.seeding import generator
from corsage.datasets.dealing.federated import simulated
from corsage.datasets.sample_table import model_input
from corsage.datasets.user_data import FederatedData
from corsage.networks.build import build_network
from corsage.networks.training import batches
from corsage.strategies.rounds.base import Strategy
from tests.support.federations import SMALL, federate

KEYS = {**SMALL, "weight-decay": 0.01, "momentum": 0.5, "lr": 0.05}
CONFIG = Config.parse(KEYS)


@pytest.fixture(scope="module")
def data() -> FederatedData:
    return simulated(CONFIG.data, 12, 0)


def fresh() -> nn.Module:
    """The model of the run as a plain module of its own, at its initial parameters."""
    network = build_network(CONFIG.model, (1, 8, 8), 10, 0)
    module = nn.Sequential(nn.Flatten(), nn.Linear(64, 16), nn.ReLU(), nn.Linear(16, 10))
    state = {k: torch.from_numpy(v) for k, v in network.named(network.initial).items()}
    for parameter, value in zip(module.parameters(), state.values(), strict=True):
        parameter.data = value.clone()
    return module


def sgd(
    module: nn.Module,
    part: nn.Module,
    data: FederatedData,
    user: str,
    words: tuple[Any, ...],
    e: int,
) -> None:
    """Plain SGD on one part of a model, with the run's batches."""
    weights = [p for p in part.parameters() if p.dim() > 1]
    biases = [p for p in part.parameters() if p.dim() == 1]
    groups = [{"params": weights, "weight_decay": 0.01}, {"params": biases}]
    optimiser = torch.optim.SGD(groups, lr=0.05, momentum=0.5)
    x = torch.from_numpy(model_input(data[user].x_train, data.shift, data.scale))
    y = torch.from_numpy(np.array(data[user].y_train))
    for rows in batches(generator(0, *words, user), len(y), e, 10):
        module.zero_grad()
        F.cross_entropy(module(x[rows]), y[rows]).backward()
        optimiser.step()


def flat(module: nn.Module) -> np.ndarray:
    return torch.cat([p.detach().reshape(-1) for p in module.parameters()]).numpy()


def set_flat(module: nn.Module, values: np.ndarray) -> None:
    nn.utils.vector_to_parameters(torch.from_numpy(values.astype(np.float32)), module.parameters())


def chosen(strategy: Strategy, number: int) -> list[str]:
    return strategy.choose(number, [str(i) for i in range(12)])


def test_fedrep_is_algorithm_1(data: FederatedData) -> None:
    strategy, result, _ = federate("fedrep", **{k.replace("-", "_"): v for k, v in KEYS.items()})
    body, heads = flat(fresh()[:3]), {}  # type: ignore[index]
    for number in range(1, 5):
        bodies = []
        for user in chosen(strategy, number):
            module = fresh()
            set_flat(module[:3], body)  # type: ignore[index]
            if user in heads:
                set_flat(module[3], heads[user])  # type: ignore[index]
            sgd(module, module[3], data, user, ("head", number), 2)  # type: ignore[index]
            sgd(module, module[:3], data, user, ("body", number), 1)  # type: ignore[index]
            heads[user] = flat(module[3])  # type: ignore[index]
            bodies.append(flat(module[:3]))  # type: ignore[index]
        body = np.mean(bodies, axis=0)
    found = np.concatenate([a.reshape(-1) for a in decode(result.arrays).values()])
    assert np.allclose(found, body, atol=1e-5)
    for user, accuracy in result.json()[0]["per_user"].items():
        module = fresh()
        set_flat(module[:3], body)  # type: ignore[index]
        if user in heads:
            set_flat(module[3], heads[user])  # type: ignore[index]
        assert accuracy == pytest.approx(right(module, data, user))


def test_fedavg_averages_whole_models(data: FederatedData) -> None:
    for weighting in ("uniform", "examples"):
        keys = {k.replace("-", "_"): v for k, v in KEYS.items()}
        strategy, result, _ = federate("fedavg", size_sigma=0.8, weighting=weighting, **keys)
        other = simulated(Config.parse({**KEYS, "size-sigma": 0.8}).data, 12, 0)
        model = flat(fresh())
        for number in range(1, 5):
            models, weights = [], []
            for user in chosen(strategy, number):
                module = fresh()
                set_flat(module, model)
                sgd(module, module, other, user, ("model", number), 1)
                models.append(flat(module))
                weights.append(len(other[user].y_train) if weighting == "examples" else 1)
            model = np.average(models, axis=0, weights=weights)
        found = np.concatenate([a.reshape(-1) for a in decode(result.arrays).values()])
        assert np.allclose(found, model, atol=1e-5)


def test_local_users_learn_alone(data: FederatedData) -> None:
    keys = {k.replace("-", "_"): v for k, v in KEYS.items()}
    strategy, result, _ = federate("local", **keys)
    modules = {user: fresh() for user in data.users}
    for number in range(1, 5):
        for user in chosen(strategy, number):
            sgd(modules[user], modules[user], data, user, ("model", number), 1)
    for user, accuracy in result.json()[0]["per_user"].items():
        assert accuracy == pytest.approx(right(modules[user], data, user))
    summary = result.json()[0]
    assert (summary["bytes_up"], summary["bytes_down"], summary["messages"]) == (0, 0, 0)


def test_fine_tuning_trains_the_head_of_the_final_model(data: FederatedData) -> None:
    keys = {**{k.replace("-", "_"): v for k, v in KEYS.items()}, "fine_tune_epochs": 3}
    _, result, _ = federate("fedavg", **keys)
    plain, tuned = result.json()
    assert (plain["strategy"], tuned["strategy"]) == ("fedavg", "fedavg+ft")
    model = np.concatenate([a.reshape(-1) for a in decode(result.arrays).values()])
    for user, accuracy in tuned["per_user"].items():
        module = fresh()
        set_flat(module, model)
        assert plain["per_user"][user] == pytest.approx(right(module, data, user))
        sgd(module, module[3], data, user, ("fine-tune", 4), 3)  # type: ignore[index]
        assert accuracy == pytest.approx(right(module, data, user))


def right(module: nn.Module, data: FederatedData, user: str) -> float:
    x = torch.from_numpy(model_input(data[user].x_test, data.shift, data.scale))
    labels = torch.from_numpy(np.array(data[user].y_test))
    return float((module(x).argmax(1) == labels).float().mean())


def test_bytes_are_those_of_one_user_devices() -> None:
    """4 rounds, 6 of 12 users each: body 64*16+16 floats, head 16*10+10."""
    _, fedrep, _ = federate("fedrep", nodes=5)
    _, fedavg, _ = federate("fedavg", nodes=2)
    assert fedrep.json()[0]["bytes_down"] == 4 * 6 * 4 * (64 * 16 + 16)
    assert fedrep.json()[0]["bytes_up"] == fedrep.json()[0]["bytes_down"]
    assert fedavg.json()[0]["bytes_up"] == 4 * 6 * 4 * (64 * 16 + 16 + 16 * 10 + 10)
    assert fedavg.json()[0]["messages"] == 4 * 6 * 2


def test_users_are_drawn_uniformly_and_without_replacement() -> None:
    from corsage import FedRep

    strategy = FedRep({"fraction-train": 0.1})
    users = [str(i) for i in range(50)]
    counts = dict.fromkeys(users, 0)
    for number in range(2000):
        drawn = strategy.choose(number, users)
        assert len(set(drawn)) == 5
        for user in drawn:
            counts[user] += 1
    # 2000 rounds at r = 0.1: mean 200, standard deviation 13.4
    assert abs(np.mean(list(counts.values())) - 200) < 1e-9
    assert max(abs(count - 200) for count in counts.values()) < 5 * 13.4
    assert len(strategy.choose(1, users[:3])) == 1  # max(r n, 1)
