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

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
from flwr.app import ArrayRecord

from corsage.core.arrays import Array, Arrays, Bools, Floats32
from corsage.core.configuration.config import Config
from corsage.core.errors import ModelError
from corsage.core.keys import Keys, key
from corsage.core.messages.encoding import encode
from corsage.core.messages.replies import Replies, name_users
from corsage.core.registry import attachment
from corsage.strategies.rounds.base import Strategy
from corsage.strategies.rounds.means.most import RECORDS_DIFFER, means_of
from corsage.strategies.rounds.results import Finding

if TYPE_CHECKING:
    from corsage.networks.network import Network

LIGHTEST, HEAVIEST = 1e-9, 1.0001
"""What a class of a user weighs, if it has it."""


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


class Prototypes(Protocol):
    """Points of classes, as a state has them."""

    prototypes: Floats32
    known: Floats32


class FedProto(Strategy[FedProtoKeys, FedProtoState]):
    """The server of FedProto: it holds the prototypes, and no model."""

    name = "fedproto"
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


def no_prototypes(strategy: Strategy[Any, Any], network: Network) -> tuple[Floats32, Floats32]:
    """Prototypes, and which are known, before anybody has any; ModelError where none can be."""
    classes, name = strategy.job.agreed.num_classes, strategy.name
    if strategy.job.loss != "cross-entropy":
        raise ModelError(f"{name}: prototypes are of classes; take loss=cross-entropy.")
    if network.body.stop == 0 or not network.split_exact:
        why = network.why or "the model is a head and nothing else; take model=mlp"
        raise ModelError(f"{name}: prototypes are of a body's features: {why}.")
    return np.zeros((classes, network.width), np.float32), np.zeros(classes, np.float32)


def averaged(
    config: Config, state: Prototypes, replies: Replies
) -> tuple[Floats32, Floats32, Bools]:
    """The prototypes after a round, which are known, and whose of which class do not count."""
    own = {name: replies.rows[name].copy() for name in ("weighted", "weights")}
    out = far(own["weighted"], own["weights"])
    for rows in own.values():
        rows[out] = 0
    means = means_of(config, replace(replies, rows=own), np.ones(len(out), bool))
    came = means["weights"] > 0
    points = means["weighted"] / np.where(came, means["weights"], 1)[:, None]
    prototypes = np.where(came[:, None], points, state.prototypes)
    return prototypes, np.where(came, 1, state.known).astype(np.float32), out


def set_aside(
    strategy: Strategy[Any, Any], before: list[str], users: Sequence[str], out: Bools, what: str
) -> list[str]:
    """Those who were set aside before or are now, who are named."""
    new = [user for user, far_out in zip(users, out, strict=True) if far_out and user not in before]
    if new:
        strategy.job.note(f"{name_users(new)} set aside: {what} far from all others")
    return [*before, *new]


def found_aside(users: list[str], what: str) -> list[Finding]:
    """The same at the end."""
    rows = [(f"user {user}", f"{what} far from all others") for user in users]
    return [Finding("Set aside", rows)] if rows else []


def far(weighted: Array, weights: Array) -> Bools:
    """Prototypes (users, classes) that are far from those of all others that have the class.

    Who has few classes is no less like the others in these. Those of fewer than four users are held
    against all classes' alone: there nobody counts who is far out in another.
    """
    wrong = ~((weights == 0) | (weights >= LIGHTEST) & (weights <= HEAVIEST))
    wrong |= (weights == 0) & weighted.any(2)
    wrong = wrong.any(1, keepdims=True)
    found = np.repeat(wrong, weights.shape[1], axis=1)
    rules, has = attachment("robust"), (weights > 0) & ~wrong
    points = weighted[has] / weights[has, None]
    if rules is not None and len(points):
        found[has] = rules.outlying(points)
        differ = np.median(rules.lengths(points, rules.median(points)))
        which = np.nonzero(has)[1]
        for j in np.flatnonzero(has.sum(0) >= rules.FEWEST):
            found[has[:, j], j] |= rules.outlying(points[which == j], least=RECORDS_DIFFER * differ)
        found |= found.any(1, keepdims=True) & (has.sum(0) < rules.FEWEST)
    return np.asarray(found)
