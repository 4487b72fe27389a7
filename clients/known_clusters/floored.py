"""Rows of users as sums may be of them: none stands out among those of its user.

A user's own model is of all its rows as they are; what leaves its node is not.
"""

from __future__ import annotations

from dataclasses import replace
from logging import INFO

import numpy as np
import torch
from flwr.supercore import log

from corsage.clients.convex import one_output
from corsage.clients.known_clusters.cohort import CohortClient
from corsage.core.arrays import Array, Floats, Ints
from corsage.core.seeding import user_keys
from corsage.networks.batches import Examples
from corsage.solvers.known_clusters.folds import Folds, keyed, sums_in
from corsage.solvers.losses.floor import Floored, of_users
from corsage.solvers.losses.linear_losses import LinearLosses
from corsage.strategies.known_clusters.mixed_state import AVERAGED, WITHHELD, MixedModelKeys


class FlooredClient(CohortClient[MixedModelKeys]):
    """Users of whom sums are sent."""

    @property
    def shared(self) -> Floored:
        """The rows as sums are of them; prepared once a node."""
        return self.prepared(("floor", self.floor), self._floored)

    def _floored(self) -> Floored:
        data = self.train_data(self.limits)
        found = of_users(
            self.columns(data), doubles(data.y), data.sizes, self.parts(data), self.floor
        )
        if not self.at_home:
            log(INFO, "%s", in_words(self.users, data.sizes, found, self.floor))
        return found

    def parts(self, data: Examples) -> Ints:
        """The part of each row: sums are of whole parts, and no row stands out in its own."""
        folded = self.keys.folded or self.network.criterion.name == "cross-entropy"
        return self.folds_of(data.sizes)[1] if folded else np.zeros(len(data.y), np.int64)

    def folds_of(self, sizes: Ints) -> tuple[Ints, Ints]:
        """The user of each row, and its fold: they are drawn for each user alone."""
        return keyed(sizes, user_keys(self.task.seed, "folds", self.users), self.floor)

    @property
    def held(self) -> Folds:
        """The sums of each user's rows in each fold; of users with too few nothing."""
        return self.prepared(("folds", self.floor), self._in_folds)

    def _in_folds(self) -> Folds:
        data = self.train_data(self.limits)
        x, (user, fold) = self.columns(data), self.folds_of(data.sizes)
        y = self.labels(data)
        if self.floor >= 2:
            some = self.shared.some[user]
            x, y = self.shared.x * some[:, None], y * some
        return sums_in(x, y, user, fold, len(self.users))

    def columns(self, data: Examples) -> Floats:
        """The rows' inputs, with the intercept's 1."""
        x = doubles(data.x.flatten(1))
        return np.column_stack([x, np.ones(len(x))]) if self.task.model.intercept else x

    def labels(self, data: Examples) -> Floats:
        """The labels as numbers; two classes are -1 and 1."""
        y = doubles(data.y)
        return y if self.network.criterion.numbers else 2 * y - 1

    @property
    def told_data(self) -> Examples:
        """The training examples with the inputs that sums are of."""
        data = self.train_data(self.limits)
        x = torch.from_numpy(self.shared.x).to(data.x.device, data.x.dtype)
        return replace(data, x=x[:, :-1] if self.task.model.intercept else x)

    @property
    def told_losses(self) -> LinearLosses:
        """f_i of these."""
        return one_output(self.losses_on(self.told_data))

    @property
    def floored(self) -> dict[str, Array]:
        """The counts of rows with a group's mean inputs, and of those that no sum is of."""
        if self.floor < 2:
            return {AVERAGED.name: np.array(0.0), WITHHELD.name: np.array(0.0)}
        averaged, held = self.shared.averaged.sum(), self.sizes[~self.shared.some].sum()
        return {AVERAGED.name: np.array(float(averaged)), WITHHELD.name: np.array(float(held))}


def doubles(values: torch.Tensor) -> Floats:
    """A tensor as an array of float64."""
    return np.asarray(values.double().cpu().numpy())


def in_words(users: list[str], sizes: Ints, found: Floored, floor: int) -> str:
    """Say what is sent of a device's rows."""
    averaged, held = found.averaged.sum(), sizes[~found.some].sum()
    return (
        f"min-share={floor}: of {sizes.sum():,} rows that sums are sent of, {averaged:,} have the "
        f"mean inputs of {floor} or more, and {held:,} of users with fewer are in none"
    )
