"""Models of both algorithms of the family: convex ones, refitted ones, new users'."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from corsage.core.arrays import Floats
from corsage.core.errors import ConfigError
from corsage.strategies.rounds.turns import Parcel

if TYPE_CHECKING:
    from corsage.networks.network import Network
    from corsage.strategies.rounds.job import Job


def check_convex(job: Job, network: Network) -> None:
    """Refuse models that are known not to be convex; one's own may be."""
    from corsage.networks.zoo import ZOO, is_convex_module

    model = job.config.model.model
    if job.convex or (model not in ZOO and is_convex_module(network.module)):
        return
    if model in ZOO:
        raise ConfigError(f"{job.name}: model={model} is not convex; set model=linear.")
    if network.batch_statistics:
        raise ConfigError(
            f"{job.name}: model={model} has layers that normalise by the batch (BatchNorm): its "
            "losses are not convex; take fedrep-convex, whose heads cluster."
        )
    job.note(f"model={model}: if its losses are not convex, the certificate is not valid")


def to_choose_from(models: Floats) -> Parcel:
    """All different models, once for all the new users of a node."""
    return Parcel({"known": np.unique(models, axis=0)})
