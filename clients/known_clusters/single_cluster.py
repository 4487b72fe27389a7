"""The single cluster at the users: the mixed model's, and sums over folds for cross-validation."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import numpy as np

from corsage.clients.base import Got, Sent
from corsage.clients.convex import Answer
from corsage.clients.known_clusters.mixed_model import MixedModelClient
from corsage.core.arrays import Floats
from corsage.core.messages.asked import floats
from corsage.solvers.known_clusters.folds import SINGLE_CENTRE_GRID
from corsage.solvers.known_clusters.mixed_model import pack, personal, shrunk


class SingleClusterClient(MixedModelClient):
    """The users of the single cluster."""

    takes = replace(
        MixedModelClient.takes,
        rows={**MixedModelClient.takes.rows, "centres": floats("K", "K", "P")},
        squares=400,
    )

    def answers(self) -> Mapping[str, Answer]:
        """The mixed model's, and both exchanges of the cross-validation."""
        return {**super().answers(), "folds": self.folds, "held-out": self.held_out}

    def folds(self, got: Got) -> Sent:
        """P and q of the samples outside each fold, for each lambda, over all users."""
        rows: list[list[tuple[Floats, Floats]]] = [
            [shrunk(a, b, strength) for strength in SINGLE_CENTRE_GRID] for a, b in self.held.rest
        ]
        p = np.stack([[pack(part.sum(0)) for part, _ in fold] for fold in rows])
        q = np.stack([[part.sum(0) for _, part in fold] for fold in rows])
        return Sent(rows={"p": p, "q": q})

    def held_out(self, got: Got) -> Sent:
        """Squared errors on each fold of the models of the rest, summed, for each lambda."""
        held, errors = self.held, np.zeros(len(SINGLE_CENTRE_GRID))
        for fold, (a, b) in enumerate(held.rest):
            for place, strength in enumerate(SINGLE_CENTRE_GRID):
                centre = np.broadcast_to(got.rows["centres"][fold, place], b.shape)
                errors[place] += held.errors(fold, personal(a, b, strength, centre))
        return Sent(rows={"errors": errors})
