"""What the references of the methods' tests have in common: plain torch, one user at a time."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np
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
from corsage.strategies.rounds.base import Result, Strategy
from tests.support.federations import SMALL, federate

DECAY = 0.01
KEYS: dict[str, Any] = {"weight_decay": DECAY, "momentum": 0.5, "lr": 0.05}
Vector = np.ndarray[Any, np.dtype[np.float32]]
Extra = Callable[[torch.Tensor], torch.Tensor]


def run(name: str, **keys: Any) -> tuple[Strategy[Any, Any], Result]:
    """A small federation under KEYS."""
    strategy, result, _ = federate(name, **{**KEYS, **keys})
    return strategy, result


def users_data(**keys: Any) -> FederatedData:
    """The data of that job."""
    flat = {**SMALL, **{k.replace("_", "-"): v for k, v in keys.items()}}
    return simulated(Config.parse(flat).data, 12, 0)


def fresh(values: Vector | None = None) -> nn.Sequential:
    """The model of the run as a plain module, at given parameters or the initial ones."""
    config = Config.parse(SMALL)
    network = build_network(config.model, (1, 8, 8), 10, 0)
    module = nn.Sequential(nn.Flatten(), nn.Linear(64, 16), nn.ReLU(), nn.Linear(16, 10))
    set_flat(module, network.initial if values is None else values)
    return module


def flat(module: nn.Module) -> Vector:
    """All parameters as one vector."""
    return torch.cat([p.detach().reshape(-1) for p in module.parameters()]).numpy().copy()


def set_flat(module: nn.Module, values: Vector) -> None:
    """The inverse of `flat`."""
    vector = torch.from_numpy(np.array(values, np.float32))
    nn.utils.vector_to_parameters(vector, module.parameters())


def examples(data: FederatedData, user: str) -> tuple[torch.Tensor, torch.Tensor]:
    """A user's training data."""
    x = torch.from_numpy(model_input(data[user].x_train, data.shift, data.scale))
    return x, torch.from_numpy(np.array(data[user].y_train, np.int64))


def user_batches(
    data: FederatedData, user: str, purpose: str, number: int, epochs: int
) -> list[Any]:
    """A user's batches of a round."""
    return batches(generator(0, purpose, number, user), len(data[user].y_train), epochs, 10)


def plain_sgd(
    start: Vector,
    data: tuple[torch.Tensor, torch.Tensor],
    steps: Iterable[Any],
    keys: dict[str, Any] = KEYS,
    extra: Extra | None = None,
    frozen: int | None = None,
    of: Callable[[torch.Tensor, torch.Tensor, torch.Tensor], torch.Tensor] | None = None,
) -> Vector:
    """torch.optim.SGD on the loss plus `extra(theta)`, a term of the flat parameters.

    `frozen` is the number of a layer that stands: 1 is the body, 3 the head. `of` is a loss of
    (features, outputs, labels), if it is not the cross-entropy of the outputs.
    """
    module = fresh(start)
    if frozen is not None:
        module[frozen].requires_grad_(False)
    groups: Sequence[dict[str, Any]] = [
        {"params": [p for p in module.parameters() if p.dim() > 1], "weight_decay": DECAY},
        {"params": [p for p in module.parameters() if p.dim() == 1]},
    ]
    optimiser = torch.optim.SGD(groups, lr=keys["lr"], momentum=keys["momentum"])
    for batch in steps:
        optimiser.zero_grad()
        features = module[:3](data[0][batch])
        outputs, labels = module[3](features), data[1][batch]
        loss = F.cross_entropy(outputs, labels) if of is None else of(features, outputs, labels)
        if extra is not None:
            loss = loss + extra(torch.cat([p.reshape(-1) for p in module.parameters()]))
        loss.backward()
        optimiser.step()
    return flat(module)


def near(strength: float, centre: Vector) -> Extra:
    """strength/2 |theta - centre|^2."""
    target = torch.from_numpy(np.array(centre, np.float32))
    return lambda theta: strength / 2 * (theta - target).square().sum()


def chosen(strategy: Strategy[Any, Any], number: int) -> list[str]:
    """Who trains in a round."""
    return strategy.choose(number, strategy.members.users)


def final(result: Result) -> Vector:
    """The global model at the end."""
    assert result.arrays is not None
    return np.concatenate(
        [np.empty(0, np.float32), *(a.reshape(-1) for a in decode(result.arrays).values())]
    )


def right(model: Vector, data: FederatedData, user: str) -> float:
    """A model's accuracy on a user's test data."""
    x = torch.from_numpy(model_input(data[user].x_test, data.shift, data.scale))
    labels = torch.from_numpy(np.array(data[user].y_test))
    return float((fresh(model)(x).argmax(1) == labels).float().mean())


def agrees(result: Result, models: Mapping[str, Vector], data: FederatedData, row: int = 0) -> bool:
    """Whether a row of the result is that of these models: each accuracy, the mean loss.

    By default it is the last evaluation of the users that train.
    """
    summary = result.json()[row]
    assert set(models) == set(summary["per_user"])
    same = all(
        abs(summary["per_user"][user] - right(model, data, user)) < 1e-6
        for user, model in models.items()
    )
    losses = [loss_at(model, data, user) for user, model in models.items()]
    return same and abs(summary["loss"]["mean"] - np.mean(losses)) < 1e-5


def loss_at(model: Vector, data: FederatedData, user: str) -> float:
    """A model's mean loss on a user's test data."""
    x = torch.from_numpy(model_input(data[user].x_test, data.shift, data.scale))
    labels = torch.from_numpy(np.array(data[user].y_test, np.int64))
    with torch.no_grad():
        return float(F.cross_entropy(fresh(model)(x), labels))
