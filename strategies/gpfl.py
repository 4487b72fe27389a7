"""GPFL: a valve that makes global and personal features of the same, and points that guide them.

Zhang, Hua, Wang, Song, Xue, Ma, Cao, Guan: GPFL: Simultaneously Learning Global and Personalized
Feature Information for Personalized Federated Learning, ICCV 2023. All users share a body f, a
point v_k a class (the global category embedding) and a valve, two small nets of a vector:

    CoV(f, c) = ReLU((gamma(c) + 1) * f + beta(c)),    gamma(c) = LayerNorm(ReLU(W c + b)).

User i's personal features are CoV(f, p_i), p_i the mean of v_k by how often it has class k; the
global ones are CoV(f, g), g the mean of all v_k. It keeps a head h_i, and trains all at once on

    loss(h_i(CoV(f, p_i)), y)  -  log softmax_y cos(CoV(f, g), v)  +  lambda |CoV(f, g) - v_y|

where g, p_i and the last v_y are of the points as they came; points and valve have a weight decay
mu of their own. The server keeps the means of body, points and valve. A user predicts by
h_i(CoV(f(x), p_i)): its body and head, and two vectors. Without valve and guidance it is FedPer.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from corsage.core.arrays import Floats32
from corsage.core.keys import Keys, key
from corsage.core.seeding import generator
from corsage.strategies.rounds.base import Strategy
from corsage.strategies.rounds.prototypes import no_prototypes
from corsage.strategies.rounds.state import BodyState

if TYPE_CHECKING:
    from corsage.networks.network import Network


@dataclass(frozen=True)
class GPFLKeys(Keys):
    """Keys of GPFL."""

    title = "GPFL"

    gpfl_lambda: float = key(
        0.01, "weight of the distance to the classes' points (lambda)", tuned=(1e-4, 1.0), low=0.0
    )
    gpfl_mu: float = key(0.1, "weight decay of points and valve (mu)", tuned=(1e-3, 1.0), low=0.0)


@dataclass
class GPFLState(BodyState):
    """f, v (classes, features), and of both nets W (2, F, F) and b, LayerNorm's scale and shift.

    The latter are `vectors` (2, 3, F).
    """

    points: Floats32
    weights: Floats32
    vectors: Floats32


class GPFL(Strategy[GPFLKeys, GPFLState]):
    """The server of GPFL: it holds the body, the points and the valve."""

    name = "gpfl"
    own_loss = True
    tuned = ("own",)

    def unused(self, name: str) -> str:
        """It trains what is no part of the model."""
        precise = "its points and valve are trained in single precision"
        return precise if name == "mixed-precision" else super().unused(name)

    def initial(self, network: Network) -> GPFLState:
        """f^0; points and valve as torch draws embeddings and linear layers."""
        like, rng = no_prototypes(self, network)[0], generator(self.config.run.seed, "gpfl")
        f, most = like.shape[1], like.shape[1] ** -0.5
        points, weights = rng.normal(size=like.shape), rng.uniform(-most, most, (2, f, f))
        vectors = np.stack([rng.uniform(-most, most, (2, f)), np.ones((2, f)), np.zeros((2, f))], 1)
        single = (part.astype(np.float32) for part in (points, weights, vectors))
        return GPFLState(network.initial[network.body], *single)
