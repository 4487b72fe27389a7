"""FedProto: users share what their features of a class are on average, and no parameters.

Tan, Long, Liu, Zhou, Lu, Jiang, Zhang: FedProto: Federated Prototype Learning across Heterogeneous
Clients, AAAI 2022, Algorithm 1. User i trains a whole model of its own, a body f_i and a head, on
its loss and a term that draws its features to the global prototypes, one point a class. It returns
its own prototypes, the means of its features by class; the server averages those of a class over
the users that have it. A class that nobody of a round has keeps its prototype. Whose prototype of a
class is ten median distances from the median of those of who has it, or of all, does not count.

The paper's mean is sum_i |D_ij| / N_j C_i^(j), divided by the number of these users once more: its
weights then do not sum to 1. Without that it is `weighting=examples`; the authors' code has all
users of a class count the same, as `weighting=uniform` does. The term is that of their code, the
mean over samples and features of (f_i(x) - C^(y))^2, where the paper has the distance of two means.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np
from flwr.app import ArrayRecord

from corsage.core.arrays import Arrays, Floats32
from corsage.core.keys import Keys, key
from corsage.core.messages.encoding import encode
from corsage.core.messages.replies import Replies
from corsage.strategies.rounds.base import Strategy
from corsage.strategies.rounds.prototypes import averaged, found_aside, no_prototypes, set_aside
from corsage.strategies.rounds.results import Finding

if TYPE_CHECKING:
    from corsage.networks.network import Network


@dataclass(frozen=True)
class FedProtoKeys(Keys):
    """Keys of FedProto."""

    title = "FedProto"

    fedproto_lambda: float = key(
        1.0, "weight of the distance to the prototypes (lambda)", tuned=(0.1, 10.0), low=0.0
    )


@dataclass
class FedProtoState:
    """The global prototypes.

    Parameters
    ----------
    prototypes : C^(j) (classes, features).
    known : 1 for classes that have one, else 0.
    aside : users who were set aside, in any round.
    """

    prototypes: Floats32
    known: Floats32
    aside: list[str] = field(default_factory=list)


class FedProto(Strategy[FedProtoKeys, FedProtoState]):
    """The server of FedProto: it holds the prototypes, and no model."""

    name = "fedproto"
    own_loss = True
    tuned = ("own",)
    by_user = ("weighted", "weights")
    unprotected = "a class's prototype is of the users that have the class, none of them far out"
    no_server_step = "prototypes are the users' own, not a step from the last ones"

    def initial(self, network: Network) -> FedProtoState:
        """No class has a prototype."""
        return FedProtoState(*no_prototypes(self, network))

    def named_arrays(self) -> ArrayRecord:
        """The prototypes: there is no model."""
        return encode(self.shared())

    def template(self) -> Arrays:
        """Users send their prototypes, each times its weight, and the weights."""
        return {"weighted": self.state.prototypes, "weights": self.state.known}

    def merge(self, replies: Replies) -> FedProtoState:
        """C^(j) <- sum_i q_ij C_i^(j) / sum_i q_ij, over the users that have class j."""
        prototypes, known, out = averaged(self.config, self.state, replies)
        aside = set_aside(
            self, self.state.aside, replies.users, np.asarray(out.any(1)), "prototypes"
        )
        return FedProtoState(prototypes, known, aside)

    def findings(self) -> list[Finding]:
        """Name those who were set aside."""
        return found_aside(self.state.aside, "prototypes")
