"""Several models that a server holds: how they begin, and their names."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from flwr.app import ArrayRecord

from corsage.core.arrays import Arrays, Floats32
from corsage.core.errors import ModelError
from corsage.core.messages.encoding import encode
from corsage.core.seeding import torch_seed
from corsage.strategies.rounds.base import Strategy

if TYPE_CHECKING:
    from corsage.networks.network import Network


def starts(strategy: Strategy[Any, Any], network: Network, count: int) -> Floats32:
    """Initial models of different seeds: the run's own, then of its seed and the model's number.

    ModelError if they are alike: they would stay so, or none but the first be trained.
    """
    from corsage.networks.build import build_network, said

    agreed, config, found = strategy.job.agreed, strategy.config, [network.initial]
    for j in range(1, count):
        seed = torch_seed(config.run.seed, "ifca", j)
        facts = config.model, agreed.shape, agreed.num_classes, seed
        found.append(build_network(*facts).initial)
    if count > 1 and np.array_equal(found[0], found[-1]):
        raise ModelError(
            f"{strategy.name}: its {count} models would begin alike: model={said(config.model)} is "
            "the same from every seed; give a class or function that draws its weights."
        )
    return np.stack(found)


def named_models(network: Network, models: Floats32, of: str = "cluster") -> ArrayRecord:
    """Several models as `cluster-0.fc1.weight`, ..."""
    named = Arrays()
    for k, model in enumerate(models):
        named |= {f"{of}-{k}.{name}": a for name, a in network.named(model).items()}
    return encode(named)
