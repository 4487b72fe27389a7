"""Fed-MTL: a model for each user, tied by a matrix of relations that is learned with them.

Smith, Chiang, Sanjabi, Talwalkar: Federated Multi-Task Learning (MOCHA), NeurIPS 2017. With
W = [w_1, ..., w_m], one column a user, the objective (1) with the regulariser (2) is

    min over W, Omega of  sum_i f_i(w_i) + lambda_1 tr(W Omega W') + lambda_2 |W|^2,

solved in turns: Omega is fixed while the users work on W (Algorithm 1, its H_i inner rounds), then
the server sets Omega. Zhang and Yeung's prior on the relations, which the paper names and its code
uses, has the closed form Sigma = (W'W)^(1/2) / tr((W'W)^(1/2)) for the users' covariance, and the
precision Omega = Sigma^-1 is what (2) takes: with Sigma itself in it, like users would be driven
apart. (The code published with FedRep has neither: its Omega is I - 11'/m squared element by
element.) Then tr(W Omega W') is the squared nuclear norm of W, so users share a subspace.

The paper's linear models have a dual, which its local solver ascends. Here w_i is user i's whole
network, f_i its mean loss, and the solver is SGD on f_i plus the regulariser's gradient in w_i, the
others as they were at the start of the round,

    2 lambda_1 sum_j Omega_ij w_j + 2 lambda_2 w_i = strength_i (w_i - centre_i).

So the server sends centre_i and strength_i only, and W stays in two places: w_i at user i, all of
W at the server, which cannot do without it. Users that are not drawn keep their w_i, which the
paper allows (its theta_i = 1: a node that drops out of a round).

W'W is singular as long as two users have the same model, above all at the start. Singular values
below `fedmtl-floor` of the largest count as that (the paper's code floors the squares at 1e-7).
The server keeps W as changes from w^0, and their products from round to round: what is sent and
computed is that of the drawn users, and W'W is exact where its columns hardly differ.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from flwr.app import ArrayRecord

from corsage.core.arrays import Arrays, Floats, Floats32
from corsage.core.errors import ConfigError, ModelError
from corsage.core.keys import Keys, key
from corsage.core.messages.encoding import encode
from corsage.core.messages.replies import Replies
from corsage.strategies.rounds.base import Strategy
from corsage.strategies.rounds.means.user_rows import enter, places
from corsage.strategies.rounds.model_arrays import without_statistics
from corsage.strategies.rounds.turns import Parcel

if TYPE_CHECKING:
    from corsage.networks.network import Network


@dataclass(frozen=True)
class FedMTLKeys(Keys):
    """Keys of Fed-MTL."""

    title = "Fed-MTL"

    fedmtl_lambda1: float = key(
        1e-3, "weight of tr(W Omega W') (lambda_1)", tuned=(1e-4, 0.1), low=0.0
    )
    fedmtl_lambda2: float = key(0.0, "weight of |W|^2 (lambda_2), beside weight-decay", low=0.0)
    fedmtl_relations: str = key(
        "learned",
        "Omega: learned in closed form, or mean: (I - 11'/m)^2, which pulls all to their mean",
        choices=("learned", "mean"),
    )
    fedmtl_inner_rounds: int = key(1, "rounds on W between two updates of Omega (H_i)", low=1)
    fedmtl_floor: float = key(
        0.01, "singular values of W below this share of the largest count as it", low=1e-6, high=1.0
    )


@dataclass
class FedMTLState:
    """W and Omega.

    Parameters
    ----------
    users : whose rows these are.
    changes : W' - w^0, one row a user.
    products : those of the changes with each other, and, in the last column, with w^0.
    omega : Omega.
    """

    users: list[str]
    changes: Floats32
    products: Floats
    omega: Floats


class FedMTL(Strategy[FedMTLKeys, FedMTLState]):
    """The server of Fed-MTL: it holds W, one row a user, and Omega."""

    name = "fedmtl"
    tuned = ("own",)
    by_user = ("model",)
    unprotected = "users' models are tasks that Omega ties, nothing is averaged"
    no_server_step = unprotected

    def initial(self, network: Network) -> FedMTLState:
        """w_i = w^0 for all users, and the Omega of that."""
        users = self.members.users
        changes = np.zeros((len(users), len(network.initial)), np.float32)
        products = np.zeros((len(users), len(users) + 1))
        return FedMTLState(users, changes, products, self._omega(products))

    def shared(self) -> Arrays:
        """Nothing is the same for all."""
        return {}

    def send(self, users: list[str]) -> Parcel:
        """centre_i and strength_i for each user."""
        state, where = self.state, places(self.state.users, users).tolist()
        changes, omega = state.changes, state.omega
        if -1 in where:  # as one more task, at the mean of the others
            changes = np.concatenate([changes, changes.mean(axis=0, keepdims=True)])
            omega = self._omega(with_mean(state.products))
        pulls = regulariser(
            changes,
            self.job.network.initial,
            omega,
            where,
            (self.keys.fedmtl_lambda1, self.keys.fedmtl_lambda2),
        )
        self._check(float(pulls[1].max()))
        return Parcel(rows=dict(zip(("centre", "strength"), pulls, strict=True)))

    def show(self, users: list[str], options: Mapping[str, Any]) -> Parcel:
        """Users evaluate what they have at home; new users need their pull."""
        return self.send(users) if options.get("adapt") or options.get("fine-tune") else Parcel()

    def template(self) -> Arrays:
        """A user sends back w_i."""
        return {"model": self.job.network.initial}

    def merge(self, replies: Replies) -> FedMTLState:
        """Take over the users' w_i, and after H_i rounds set Omega."""
        state, start, users = self.state, self.job.network.initial, replies.users
        new = replies.rows["model"] - start
        known, changes = enter(state.users, state.changes, users, new, np.zeros_like(start))
        seen, first = (without_statistics(self.job.network, v) for v in (changes, start))
        products = renewed(state.products, seen, places(known, users).tolist(), first)
        omega, due = state.omega, (self.progress.round + 1) % self.keys.fedmtl_inner_rounds == 0
        if due or len(omega) != len(changes):
            omega = self._omega(products)
        return FedMTLState(known, changes, products, omega)

    def _omega(self, products: Floats) -> Floats:
        """Omega for W with these products of its changes."""
        if self.keys.fedmtl_relations == "mean":
            return mean_relations(len(products))
        network = self.job.network
        start = without_statistics(network, network.initial)
        square = float(np.sum(start.astype(np.float64) ** 2))
        with_start = products[:, -1:]
        gram = products[:, :-1] + with_start + with_start.T + square
        return learned_relations(gram, self.keys.fedmtl_floor)

    def _check(self, strength: float) -> None:
        """SGD with momentum beta diverges on strength/2 |w - centre|^2 from 2 (1 + beta) on."""
        train, most = self.config.train, 2 * (1 + self.config.train.momentum)
        if train.optimizer == "sgd" and train.lr * strength >= most:
            raise ConfigError(
                f"fedmtl-lambda1: lr times the strongest pull is {train.lr * strength:.3g}, SGD "
                f"diverges from {most:g} on: lower fedmtl-lambda1, fedmtl-lambda2 or lr."
            )

    def accept(self, named: Arrays) -> FedMTLState:
        """Users begin with the model of the run's keys and seed, and nobody tells them another."""
        raise ModelError("fedmtl: initial_arrays cannot be given, users begin with the run's own.")

    def named_arrays(self) -> ArrayRecord:
        """W' in the order of the state's users, and Sigma, the pseudo-inverse of Omega."""
        models = self.state.changes + self.job.network.initial
        relations = np.linalg.pinv(self.state.omega, hermitian=True)
        return encode({"models": models, "relations": relations.astype(np.float32)})


def learned_relations(gram: Floats, floor: float) -> Floats:
    """Omega = Sigma^-1 of Sigma = (W'W)^(1/2) / tr((W'W)^(1/2)); `gram` is W'W."""
    import torch

    squares, v = (part.numpy() for part in torch.linalg.eigh(torch.from_numpy(gram)))
    singular = np.sqrt(np.maximum(squares, 0.0))
    singular = np.maximum(singular, max(floor * singular.max(), np.finfo(np.float32).tiny))
    omega: Floats = (v * (singular.sum() / singular)) @ v.T
    return (omega + omega.T) / 2


def mean_relations(m: int) -> Floats:
    """Omega = (I - 11'/m)^2, a product of matrices: a projection is its own square."""
    return np.eye(m) - 1.0 / m


def renewed(products: Floats, changes: Floats32, users: list[int], start: Floats32) -> Floats:
    """The products after the changes of some users; rows of users that are new are appended."""
    m = len(changes)
    out = np.zeros((m, m + 1))
    old = len(products)
    out[:old, :old], out[:old, -1] = products[:, :-1], products[:, -1]
    columns = product(changes, changes[users].T)
    out[users, :-1], out[:, users] = columns.T, columns
    out[users, -1] = changes[users].astype(np.float64) @ start
    return out


def with_mean(products: Floats) -> Floats:
    """The products with one more user, whose changes are the mean of the others'."""
    own, start = products[:, :-1], products[:, -1]
    mean = own.mean(axis=0)
    wide = np.block([[own, mean[:, None]], [mean[None], np.array([[mean.mean()]])]])
    return np.column_stack([wide, np.append(start, start.mean())])


def regulariser(
    changes: Floats32,
    start: Floats32,
    omega: Floats,
    users: list[int],
    lambdas: tuple[float, float],
) -> tuple[Floats32, Floats32]:
    """centre_i (users, P) and strength_i (users,) of the gradient in w_i, the others fixed.

    strength_i = 2 (lambda_1 Omega_ii + lambda_2),
    centre_i = -2 lambda_1 sum_{j != i} Omega_ij w_j / strength_i,  w_j = start + changes_j.
    """
    lambda1, lambda2 = lambdas
    rows = np.arange(len(users))
    others = omega[users]
    strength = 2.0 * (lambda1 * others[rows, users] + lambda2)
    others[rows, users] = 0.0
    share = np.divide(-2.0 * lambda1, strength, out=np.zeros_like(strength), where=strength > 0)
    weights = others * share[:, None]
    centre = product(weights.astype(np.float32), changes)
    centre += np.outer(weights.sum(axis=1), start).astype(np.float32)
    return centre, strength.astype(np.float32)


def product(a: Floats32, b: Floats32) -> Floats32:
    """a b by torch: it keeps to `torch-threads`, and is 80 times as fast for some shapes."""
    import torch

    result: Floats32 = (torch.from_numpy(a) @ torch.from_numpy(b)).numpy()
    return result
