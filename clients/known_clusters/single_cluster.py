"""The single cluster at the users: the mixed model's, and sums over folds for cross-validation."""

from __future__ import annotations

from typing import Any

import numpy as np

from corsage.clients.convex import cached
from corsage.clients.known_clusters.cohort import Rows
from corsage.clients.known_clusters.mixed_model import MixedModelClient
from corsage.core.arrays import Floats
from corsage.core.seeding import uniforms, user_keys
from corsage.solvers.known_clusters.mixed_model import pack, personal, shrunk
from corsage.solvers.known_clusters.pooling import FOLDS, SINGLE_CENTRE_GRID, Folds, sums_of_folds


class SingleClusterClient(MixedModelClient):
    """The users of the single cluster."""

    def folds(self, config: dict[str, Any]) -> Rows:
        """P and q of the samples outside each fold, for each lambda, over all users."""
        held = self._held
        rows: list[list[tuple[Floats, Floats]]] = [
            [shrunk(a, b, strength) for strength in SINGLE_CENTRE_GRID] for a, b in self._rest(held)
        ]
        p = np.stack([[pack(part.sum(0)) for part, _ in fold] for fold in rows])
        q = np.stack([[part.sum(0) for _, part in fold] for fold in rows])
        return {"p": p, "q": q}, {}

    def held_out(self, config: dict[str, Any]) -> Rows:
        """Squared errors on each fold of the models of the rest, summed, for each lambda."""
        held, errors = self._held, np.zeros(len(SINGLE_CENTRE_GRID))
        for fold, (a, b) in enumerate(self._rest(held)):
            for place, strength in enumerate(SINGLE_CENTRE_GRID):
                centre = np.broadcast_to(self.rows["centres"][fold, place], b.shape)
                errors[place] += held.errors(fold, personal(a, b, strength, centre))
        return {"errors": errors}, {}

    @property
    def _held(self) -> Folds:
        return cached((*self._key, "folds"), self._dealt)

    def _dealt(self) -> Folds:
        """The sums of each user's samples in each fold, which are drawn for the user alone."""
        losses = self.losses
        x = losses.features.double().cpu().numpy()
        if losses.intercept:
            x = np.column_stack([x, np.ones(len(x))])
        keys = user_keys(self.task.seed, "folds", self.users)
        user = np.repeat(np.arange(len(keys)), losses.counts)
        place = np.arange(len(user)) - np.repeat(
            np.cumsum(losses.counts) - losses.counts, losses.counts
        )
        draws = np.empty(len(user))
        for number in range(int(losses.counts.max())):
            draws[place == number] = uniforms(keys[user[place == number]], number)
        start = (uniforms(keys, -1) * FOLDS).astype(np.int64)
        y = losses.labels.double().cpu().numpy()
        return sums_of_folds(x, y, user, draws, start)

    def _rest(self, held: Folds) -> list[tuple[Floats, Floats]]:
        """A and b of the samples outside each fold."""
        a, b = held.a.sum(0), held.b.sum(0)
        return [(a - own, b - slope) for own, slope in zip(held.a, held.b, strict=True)]
