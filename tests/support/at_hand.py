"""The losses of a federation's users, all at hand: what a federation is compared with."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from corsage.core.arrays import Floats
from corsage.core.losses import SQUARED_HINGE
from corsage.datasets.dealing.federated import simulated
from corsage.networks.training import to_tensors
from corsage.solvers.convex_clustering.expansions import Expansion, Probe, answer
from corsage.solvers.convex_clustering.pdmm import absorb, centres
from corsage.solvers.losses.convex import Losses
from corsage.solvers.losses.held_out import Fold, HeldOut
from corsage.solvers.losses.linear_losses import LinearLosses
from tests.support.federations import settings


def central(**keys: Any) -> LinearLosses:
    """The same users' losses, all at hand."""
    config = settings("convex-clustering", **keys)
    data = simulated(config.data, 0, config.run.seed)
    users = [data[user] for user in data.users]
    x = np.concatenate([user.x_train for user in users])
    inputs, _ = to_tensors(x, np.zeros(len(x)), data.shift, data.scale)
    labels = np.concatenate([user.y_train for user in users])
    sizes = data.train_sizes
    return LinearLosses(
        inputs.double(), torch.from_numpy(labels.copy()), sizes,
        loss=SQUARED_HINGE, scale="mean", ridge=0.001,
    )  # fmt: skip


def step(
    state: Any, solve: Any, edges: Any, lam: float, settings: Any, users: Any, pairs: Any
) -> Any:
    """One iteration: x of the users and z of the pairs from the same state, then the duals."""
    p, kappa = centres(state, edges, settings.rho, settings.eta, users)
    return absorb(state, users, solve(users, p, kappa), edges, lam, settings, pairs)


class AtHand:
    """An oracle of users who are in this process; `exchanges` has the probes of each exchange."""

    def __init__(self, users: HeldOut) -> None:
        self.users = users
        self.exchanges: list[int] = []
        self._known: dict[Fold | None, Losses] = {}

    def __call__(self, probes: Sequence[Probe]) -> list[Expansion]:
        """The users' answers."""
        self.exchanges.append(len(probes))
        return [answer(self.on(each.fold), each, self.held(each)) for each in probes]

    def on(self, fold: Fold | None) -> Losses:
        """f_i without a fold, made once."""
        if fold not in self._known:
            self._known[fold] = self.users.losses_without(fold)
        return self._known[fold]

    def held(self, probe: Probe) -> Floats:
        """The loss of x_i on the samples that are left out."""
        if probe.fold is None:
            return np.full(len(probe.x), np.nan)
        return self.users.evaluate(probe.x, probe.fold)
