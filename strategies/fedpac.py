"""FedPAC: features drawn to the classes' global means, and heads that help like users' heads.

Xu, Tong, Huang: Personalized Federated Learning with Feature Alignment and Classifier
Collaboration, ICLR 2023, Algorithm 1. The server holds a body theta, a head phi_i a user, and for
each class the mean c_k of all users' features. In a round user i takes what its features under
theta^t come to,

    h_ik = P_i(y=k) E_i[f | y=k]  of each class,    V_i = (E_i|f|^2 - sum_k |h_ik|^2) / n_i,

trains phi_i over theta^t, then theta_i under phi_i on its loss and lambda times the mean over
samples and features of (f(x) - c_y)^2, and sends both, h_i, V_i and its own means of the new
features. The server averages the bodies and the means, and puts in the place of each user's head

    sum_j alpha_ij phi_j,    alpha_i = argmin over the simplex of
                             sum_j alpha_j^2 V_j + sum_k |sum_j alpha_j (h_ik - h_jk)|^2,

the weights of least error of an estimate of h_i: variance, and bias. j is of the round's users. A
head stands at the server until its user is drawn again. Without this collaboration each user has
its own head back, and with lambda = 0 that is FedRep.

A head ten median distances from the median of all is in nobody's but its own user's, nor is that of
who has such class means, or a deviation that none can be.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from corsage.core.arrays import Array, Arrays, Floats, Floats32
from corsage.core.configuration.key_groups import TrainKeys
from corsage.core.keys import EPOCH_LIMIT, Keys, key
from corsage.core.messages.replies import Replies
from corsage.core.registry import attachment
from corsage.strategies.rounds.base import Strategy
from corsage.strategies.rounds.means.user_rows import enter, places
from corsage.strategies.rounds.prototypes import averaged, found_aside, no_prototypes, set_aside
from corsage.strategies.rounds.results import Finding
from corsage.strategies.rounds.state import BodyState
from corsage.strategies.rounds.turns import Parcel

if TYPE_CHECKING:
    from corsage.networks.network import Network

RIDGE = 1e-9
"""Of a matrix with ones on its diagonal: rounding does not make it indefinite."""
WHAT = "heads, or prototypes,"


@dataclass(frozen=True)
class FedPACKeys(Keys):
    """Keys of FedPAC."""

    title = "FedPAC"

    fedpac_lambda: float = key(
        1.0, "weight of the distance to the classes' means (lambda)", tuned=(0.1, 10.0), low=0.0
    )
    fedpac_head_epochs: int = key(
        1, "epochs of the head before the body's", low=0, limit=EPOCH_LIMIT, tuned=(1, 10)
    )
    fedpac_collaboration: bool = key(
        True, "users get combinations of heads; false: each its own back"
    )


@dataclass
class FedPACState(BodyState):
    """theta, and the heads and class means.

    Parameters
    ----------
    prototypes, known : c_k (classes, features); 1 for classes that have one.
    users : whose heads these are: those that have trained.
    h : phi_i, one row a user.
    aside : users who were set aside, in any round.
    """

    prototypes: Floats32
    known: Floats32
    users: list[str]
    h: Floats32
    aside: list[str] = field(default_factory=list)


class FedPAC(Strategy[FedPACKeys, FedPACState]):
    """The server of FedPAC: it holds theta, c_k and all phi_i."""

    name = "fedpac"
    own_loss = True
    tuned = ("own",)
    by_user = ("head", "means", "deviation", "weighted", "weights")

    @classmethod
    def epochs(cls, train: TrainKeys, keys: FedPACKeys) -> float:
        """Those of the head and those of the body."""
        return train.local_epochs + keys.fedpac_head_epochs

    def initial(self, network: Network) -> FedPACState:
        """theta^0; no class has a mean, nobody has trained."""
        nobody = np.zeros((0, len(network.initial[network.head])), np.float32)
        known = no_prototypes(self, network)
        return FedPACState(network.initial[network.body], *known, [], nobody)

    def shared(self) -> Arrays:
        """theta and c_k."""
        state = self.state
        return {"body": state.body, "prototypes": state.prototypes, "known": state.known}

    def send(self, users: list[str]) -> Parcel:
        """The same, and each user's phi_i."""
        return Parcel(self.shared(), {"head": self._heads(users)})

    def show(self, users: list[str], options: Mapping[str, Any]) -> Parcel:
        """Users are judged by theta and phi_i."""
        if options.get("adapt") or options.get("fine-tune"):
            return self.send(users)
        return Parcel({"body": self.state.body}, {"head": self._heads(users)})

    def template(self) -> Arrays:
        """A user sends theta_i, phi_i, h_i, V_i's root, and its means of the new features."""
        state, like = self.state, self.state.prototypes
        return {
            "body": state.body,
            "head": self._first,
            "means": like,
            "deviation": np.zeros((), np.float32),
            "weighted": like,
            "weights": state.known,
        }

    def merge(self, replies: Replies) -> FedPACState:
        """The mean of theta_i, the classes' means, and combinations of the heads."""
        state, rows, users = self.state, replies.rows, replies.users
        prototypes, known, out = averaged(self.config, state, replies)
        rules, wrong = attachment("robust"), out.any(1) | ~(rows["deviation"] >= 0)
        if rules is not None:
            wrong |= rules.outlying(rows["head"])
        heads, kept = rows["head"].copy(), np.flatnonzero(~wrong)
        if self.keys.fedpac_collaboration and len(kept):
            alpha = combination(
                rows["means"][kept], rows["deviation"][kept].astype(np.float64) ** 2
            )
            heads[kept] = alpha @ heads[kept].astype(np.float64)
        everybody, h = enter(state.users, state.h, users, heads, self._first)
        aside = set_aside(self, state.aside, users, wrong, WHAT)
        return FedPACState(replies.mean["body"], prototypes, known, everybody, h, aside)

    def findings(self) -> list[Finding]:
        """Name those who were set aside."""
        return found_aside(self.state.aside, WHAT)

    def _heads(self, users: list[str]) -> Floats32:
        """phi_i, or the initial head."""
        at = places(self.state.users, users)  # the last row is of those at -1
        return np.concatenate([self.state.h, self._first[None]])[at]

    @property
    def _first(self) -> Floats32:
        network = self.job.network
        return network.initial[network.head]


def combination(means: Array, variances: Floats) -> Floats:
    """alpha (users, users), one row a user, by h (users, classes, features) and V (users,).

    With A = diag(V) + (h_j - h_i)'(h_l - h_i) the minimiser over the simplex is beta/sum(beta),
    beta >= 0 that of beta' A beta - 2 sum(beta): with A = L L' one of |L' beta - L^(-1) 1|.
    """
    from scipy.linalg import cholesky, solve_triangular
    from scipy.optimize import nnls

    flat = means.reshape(len(means), -1).astype(np.float64)
    flat -= np.median(flat, axis=0)
    gram, found = flat @ flat.T, np.eye(len(flat))
    for i in range(len(flat)):
        a = np.diag(variances) + gram - gram[i] - gram[:, [i]] + gram[i, i]
        least = RIDGE * float(np.median(np.diag(a))) or 1.0
        scale = np.maximum(np.diag(a), least) ** -0.5
        lower = cholesky(a * scale * scale[:, None] + RIDGE * np.eye(len(a)), lower=True)
        beta, _ = nnls(lower.T, solve_triangular(lower, scale, lower=True), maxiter=30 * len(a))
        found[i] = scale * beta / (scale * beta).sum()
    return found
