"""What the mixed model is told by keys, and what its server remembers."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from corsage.core.arrays import Floats
from corsage.core.keys import key
from corsage.solvers.known_clusters.mixed_model import Pace
from corsage.strategies.known_clusters.cohorts import ClusterNames
from corsage.strategies.known_clusters.estimation import Estimates
from corsage.strategies.known_clusters.strengths import ClusterKeys, Strengths, value_of


@dataclass(frozen=True)
class MixedModelKeys(ClusterKeys):
    """Keys of the mixed model."""

    title = "Mixed model"

    mixed_tolerance: float = key(
        1e-8,
        "ends when a round moves the models by less than this share of them (float32: 1e-5)",
        low=0.0,
    )
    mixed_em_rounds: int = key(
        20, "auto, but not with the squared loss: rounds that estimate the variances", low=1
    )
    mixed_grouping: str = key(
        "known",
        "known: the known clusters; all: everybody in one cluster",
        choices=("known", "all"),
    )


@dataclass
class MixedModelState:
    """(2.3), as far as it is solved; rows are the clusters' in the order of their numbers.

    Parameters
    ----------
    model : wbar (d,).
    w : w_j (k, d).
    gamma, lam : gamma_j and lambda_j by coordinate (k, d), of the next sums.
    used : gamma_j of the sums that w_j came from (k, d).
    covariance : of w_j given the data (k, d, d), where EM estimates the strengths.
    clusters, strengths : the clusters, and the strengths as they are given or estimated.
    estimates : what those on auto were estimated from.
    quadratics : what the quadratics of the last sums were; empty before the first.
    pace : which ones are next.
    change : how far the last round moved the models, as a share of them.
    done : whether the last round changed nothing any more.
    """

    model: Floats
    w: Floats
    gamma: Floats
    lam: Floats
    used: Floats
    covariance: Floats
    clusters: ClusterNames = field(default_factory=ClusterNames)
    strengths: Strengths = field(default_factory=Strengths)
    estimates: Estimates = field(default_factory=Estimates)
    quadratics: str = ""
    pace: Pace = field(default_factory=Pace)
    change: float = 0.0
    done: bool = False

    @classmethod
    def of_size(cls, d: int) -> MixedModelState:
        """The middle at zero; all else comes with the first round."""
        none = np.zeros((0, d))
        return cls(np.zeros(d), none, none, none, none, np.zeros((0, d, d)))

    def enter(self) -> None:
        """What there is to know of a cluster when it is new, by coordinate."""
        d, new = len(self.model), self.clusters.known[len(self.w) :]
        if not new:
            return
        known = self.strengths.gamma or self.strengths.users
        gamma = np.stack([np.full(d, value_of(known, name)) for name in new])
        lam = np.stack([np.full(d, value_of(self.strengths.lam, name)) for name in new])
        self.w = np.concatenate([self.w, np.tile(self.model, (len(new), 1))])
        self.gamma = np.concatenate([self.gamma, gamma])
        self.used = np.concatenate([self.used, gamma])
        self.lam = np.concatenate([self.lam, lam])
        self.covariance = np.concatenate([self.covariance, np.zeros((len(new), d, d))])

    def place(self, cluster: str) -> int | None:
        """The row of a cluster; None if it is not part of the problem."""
        known = self.clusters.known[: len(self.w)]
        return known.index(cluster) if cluster in known else None
