"""Models of both algorithms of the family: convex ones, refitted ones, new users'."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from corsage.core.arrays import Floats
from corsage.core.errors import ConfigError
from corsage.strategies.rounds.means.user_rows import places
from corsage.strategies.rounds.turns import Parcel, Question

if TYPE_CHECKING:
    from corsage.networks.network import Network
    from corsage.strategies.rounds.base import Strategy
    from corsage.strategies.rounds.job import Job

WEAK_PULL = 1e-2
"""kappa of those without a best model of their own, as a share of the curvature."""


def check_convex(job: Job, network: Network) -> None:
    """Refuse models that are known not to be convex; one's own may be."""
    from torch import nn

    from corsage.networks.zoo import ZOO

    model = job.config.model.model
    layers = [layer for layer in network.module.modules() if not list(layer.children())]
    one_linear = sum(isinstance(layer, nn.Linear) for layer in layers) == 1 and all(
        isinstance(layer, nn.Flatten | nn.Linear | nn.Identity) for layer in layers
    )
    if job.convex or (model not in ZOO and one_linear):  # every loss here is convex after it
        return
    if model in ZOO:
        raise ConfigError(f"{job.name}: model={model} is not convex; set model=linear.")
    if network.batch_statistics:
        raise ConfigError(
            f"{job.name}: model={model} has layers that normalise by the batch (BatchNorm): its "
            "losses are not convex; take fedrep-convex, whose heads cluster."
        )
    job.note(f"model={model}: if its losses are not convex, the certificate is not valid")


def check_ridge(job: Job, network: Network) -> None:
    """Refuse losses of several classes of which hardly any user has a minimum: it takes minutes."""
    from corsage.solvers.convex_clustering.batched import MOST_WITH_HESSIANS

    d = network.whole.stop
    if job.loss == "cross-entropy" and d > MOST_WITH_HESSIANS and not job.config.model.ridge:
        raise ConfigError(
            f"{job.name}: models of several classes and {d} numbers tell a user's classes apart "
            "without end; give a ridge, as in ridge=0.01."
        )


def of_left_out(
    strategy: Strategy[Any, Any], faults: Iterable[str], options: Mapping[str, Any], some: bool
) -> Iterator[Callable[[], Question]]:
    """The evaluation of those who are left out for good, each by a model of its own."""
    there = [user for user in faults if user in strategy.members.everybody]
    if there and not (some or options.get("adapt")):
        yield partial(strategy.evaluation, options, there)


def shown(known: Sequence[str], models: Floats, users: Sequence[str]) -> Parcel:
    """The users' models; who is not in the problem finds its own, near 0 if that is not there."""
    rows = places(known, users)
    if (rows >= 0).all():
        return Parcel(rows={"x": models[rows]})
    own = np.asarray(rows < 0, np.float64)
    return Parcel(rows={"x": np.where(own[:, None] > 0, 0.0, models[rows]), "own": own})


def to_choose_from(models: Floats) -> Parcel:
    """All different models, once for all the new users of a node."""
    return Parcel({"known": np.unique(models, axis=0)})
