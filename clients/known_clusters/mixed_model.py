"""The mixed model at the users: their quadratics, what is left of these, and their own minimisers.

Lyu et al. 2022, (2.3); the formulas are those of solvers/known_clusters/mixed_model.py.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from corsage.clients.base import Got, Models, Sent
from corsage.clients.convex import Answer, one_output
from corsage.clients.known_clusters.floored import FlooredClient
from corsage.core.arrays import Array, Arrays, Floats
from corsage.core.messages.asked import Takes, floats, ints
from corsage.core.messages.encoding import as_sent
from corsage.core.messages.fields import Flag, Listed, OneOf, Real, Text, Whole
from corsage.core.registry import attached
from corsage.networks.batches import Examples
from corsage.solvers.known_clusters.absorbed import rooted_models, rooted_prediction
from corsage.solvers.known_clusters.mixed_model import ClusterSums, pack, personal, unpack
from corsage.solvers.known_clusters.newton_rounds import (
    ABOVE,
    EXACT,
    NEWTON,
    damped,
    newton_message,
    travelled,
)
from corsage.solvers.known_clusters.variances.covariance import laplace_sums, prediction
from corsage.solvers.known_clusters.variances.reml import level_sums
from corsage.solvers.losses.linear_losses import LinearLosses
from corsage.strategies.known_clusters.clusters.strengths import ties


@dataclass(frozen=True)
class Quadratics:
    """1/2 x'A_i x - b_i'x of the cohort's users, up to constants."""

    a: Floats
    b: Floats


NEWCOMER_STEPS = 50
"""Newton's steps of a new user whose coefficients are tied differently."""


class MixedModelClient(FlooredClient):
    """The users of the mixed model; each keeps its theta_i."""

    takes = Takes(  # not `each`: of a device's users only sums go up
        rows={
            **{name: floats("P") for name in ("w", "gamma", "next")},
            "covariance": floats("P", "P"),
            "map": floats("P", "P"),
            "root": floats("P", "P"),
            "tau": floats("K"),
            "basis": floats("K", "P", "K"),
            "around": floats("P", "K"),
            "weights": floats("P"),
            "offset": floats("P"),
            "shape": floats(),
            "middles": floats("K", "P"),
            "odds": floats("K"),
            "start": floats("P"),
            **{name: floats() for name in ("noise", "scale")},
            "own": floats("P", "P"),
            "centres": floats("K", "P"),
            "folds": ints("K"),
            "pulls": floats("K", "K"),
            "ridges": floats("K"),
        },
        options={
            "ask": Text(40),
            "moves": Flag(),
            "em": Flag(),
            "intercepts": Flag(),
            "as": OneOf((EXACT, NEWTON, ABOVE)),
            "next": OneOf((EXACT, NEWTON, ABOVE)),
            "ratios": Listed(Real(0), 100),
            "nodes": Whole(0, 25),
        },
        at_home=("each",),
        squares=100,
    )

    def answers(self) -> Mapping[str, Answer]:
        """Sums for a round, the last w_j, sums for the likelihood, and what errors come from."""
        return {
            "step": self.step,
            "quadratics": self.own_quadratics,
            "deliver": self.deliver,
            "reml": self.likelihood_sums,
            "fold-sums": lambda got: attached("groups at home").fold_sums(self, got),
            "summary": self.summary,
            "classes-begin": lambda got: of_classes().begin(self, got),
            "classes": lambda got: of_classes().sums(self, got),
            "likelihood-begin": lambda got: marginal().begin(self, got),
            "likelihood": lambda got: marginal().likelihood(self, got),
        }

    def step(self, got: Got) -> Sent:
        """theta_i from w_j, and P_i, q_i of the quadratics there, summed up."""
        options, theta, length = got.options, self.theta(), (0.0, 0.0)
        kind, sums = options["as"], dict[str, Array]()
        if options["em"]:
            sums["em"] = np.zeros((2, theta.shape[1]))
        if options["moves"]:
            if options["em"]:
                sums["em"] = self.expected(self.told(theta, kind), got.rows)
            after = self.moved(theta, self.quadratics(theta, kind), kind, got.rows)
            length, theta, kind = tuple(travelled(after - theta, after)), after, options["next"]
        now = self.told(theta, kind)
        users = np.zeros(len(theta), np.int64)
        own = ClusterSums.of(now.a, now.b, self.ties(got.rows["next"]), users, 1)
        metrics = {"moved": np.array(length[0]), "length": np.array(length[1]), **self.floored}
        return Sent({}, {**sums, "sums": own.packed()[0]}, {"theta": theta}, metrics)

    def own_quadratics(self, got: Got) -> Sent:
        """theta_i from w_j and the covariance, and A_i, b_i, y'y of the quadratics there.

        A device with several users sends their sum: `each` is for simulations.
        """
        kind, theta = got.options["as"], self.theta()
        after = self.rooted(theta, kind, got.rows) if got.options["moves"] else theta
        rows = self.told_squares if kind == EXACT else packed(self.told(after, kind))
        sums = rows if got.options.get("each") else rows.sum(0, keepdims=True)
        moved, length = travelled(after - theta, after)
        metrics = {"moved": np.array(moved), "length": np.array(length), **self.floored}
        return Sent({}, {"sums": sums}, {"theta": after}, metrics)

    def deliver(self, got: Got) -> Sent:
        """theta_i from the last w_j, to be kept."""
        return Sent(keep={"theta": self.models(got).whole})

    def likelihood_sums(self, got: Got) -> Sent:
        """The sums that the likelihood is made of, for every ratio rho."""
        whole, yy = self.told(self.theta(), EXACT), self.told_squares[:, -1]
        users, ratios = np.zeros(len(yy), np.int64), np.asarray(got.options["ratios"])
        varies = last_only(whole.b.shape[1]) if got.options.get("intercepts") else None
        sizes = self.sizes if self.floor < 2 else self.sizes * self.shared.some
        sums = level_sums(whole.a, whole.b, yy, sizes, users, 1, ratios, varies).arrays()
        return Sent(rows={name: rows[0] for name, rows in sums.items()})

    def summary(self, got: Got) -> Sent:
        """Squares that are left, and each user's estimate, in units of the noise."""
        theta = np.asarray(self.models(got).whole, np.float64)
        exact, centre = self.network.criterion.name == "squared", got.rows["w"]
        if "shape" in got.rows:
            now = Quadratics(*marginal().curved(self, theta, got.rows))
        else:
            now = self.quadratics(theta, EXACT if exact else NEWTON)
        rank = np.linalg.matrix_rank(now.a, hermitian=True)
        square = 2 * self.losses.value(self.tensor(theta)).sum().item() if exact else 0.0
        if "shape" in got.rows:
            square = marginal().pearson(self, theta, got.rows)
        elif "root" not in got.rows:
            square += held_back(theta - centre, self.ties(got.rows["gamma"]))
        sums: dict[str, Array] = {"square": np.array(square), "rank": np.array(float(rank.sum()))}
        if not got.options.get("each"):
            return Sent(rows=sums)
        sure, matrix = got.rows["covariance"], got.rows["map"]
        if "root" in got.rows:
            known = rooted_prediction(now.a, now.b, got.rows["root"], sure)
            free = np.tile(got.rows["root"].any(1).astype(np.float64), (len(theta), 1))
        else:
            gamma = self.ties(got.rows["gamma"])
            known = prediction(now.a, gamma, sure)
            free = np.isfinite(gamma if gamma.ndim > 1 else gamma[:, None]) * np.ones(theta.shape)
        found = user_estimates(now, centre, known, free, matrix)
        return Sent(rows={**sums, "theta": theta, **found})

    def models(self, got: Got) -> Models:
        """theta_i at the present w_j."""
        if self.network.criterion.name == "cross-entropy":
            return Models(of_classes().models(self, got).whole)
        theta, kind = self.theta(), got.options["as"]
        if got.options["moves"] and "root" in got.rows:
            return Models(self.tensor(self.rooted(theta, kind, got.rows)).cpu().numpy())
        if got.options["moves"]:
            theta = self.moved(theta, self.quadratics(theta, kind), kind, got.rows)
        return Models(self.tensor(theta).cpu().numpy())

    def adapt(self, got: Got, data: Examples, epochs: int) -> Models:
        """A new user minimises f_i + gamma/2 |theta - w_j|^2 with its cluster's w_j."""
        if self.network.criterion.name == "cross-entropy":
            return Models(of_classes().models(self, got).whole)
        centre = self.tensor(got.rows["w"]).expand(len(self.users), -1)
        if "root" in got.rows:
            kind = EXACT if self.network.criterion.name == "squared" else NEWTON
            return Models(self.tensor(self.rooted(self.theta(), kind, got.rows)).cpu().numpy())
        if (ties := self.ties(got.rows["gamma"])).ndim > 1:
            return Models(self.tensor(self.settled(got.rows, ties)).cpu().numpy())
        gamma = float(np.mean(got.rows["gamma"]))
        if not np.isfinite(gamma):
            return Models(centre.cpu().numpy())
        own = self.losses.prox(centre, gamma) if gamma else self.losses.minimise(start=centre)
        return Models(torch.where(own.isfinite(), own, centre).cpu().numpy())

    def rooted(self, theta: Floats, kind: str, rows: Arrays) -> Floats:
        """argmin f_i(w_j + L u) + |u|^2/2, from theta on."""
        root, w = rows["root"], np.asarray(rows["w"], np.float64)
        if "odds" in rows:
            return np.asarray(attached("groups at home").models(self, rows))
        if "shape" in rows:
            return np.asarray(marginal().modes(self, rows))
        if kind == EXACT:
            now = self.quadratics(theta, kind)
            return rooted_models(now.a, now.b, root, np.broadcast_to(w, theta.shape))
        centre = self.tensor(w).expand(theta.shape)
        found = self.losses.rooted(self.tensor(root), centre, self.tensor(theta))
        return np.asarray(found.double().cpu().numpy())

    def settled(self, rows: Arrays, ties: Floats) -> Floats:
        """argmin f_i + the ties by coordinate to w_j, by Newton's steps."""
        exact = self.network.criterion.name == "squared"
        theta = np.array(np.broadcast_to(rows["w"], ties.shape), np.float64)
        for _ in range(1 if exact else NEWCOMER_STEPS):
            now = self.quadratics(theta, EXACT if exact else NEWTON)
            step = personal(now.a, now.b, ties, np.broadcast_to(rows["w"], theta.shape)) - theta
            theta = theta + (step if exact else self.shortened(step))
        return theta

    def quadratics(self, theta: Floats, kind: str) -> Quadratics:
        """A_i and b_i: of the squared loss itself; or of what others are near theta_i, or below."""
        if kind == EXACT:
            return unpacked(self.squares)
        return self.near(self.losses, theta, kind)

    def near(self, losses: LinearLosses, theta: Floats, kind: str) -> Quadratics:
        """A_i and b_i of what losses are like near theta_i."""
        at = self.tensor(theta)
        curved = losses.hessian(at) if kind == NEWTON else losses.above(at)
        hessian, gradient = (part.double().cpu().numpy() for part in (curved, losses.gradient(at)))
        return Quadratics(*newton_message(hessian, gradient, theta))

    @property
    def squares(self) -> Floats:
        """A_i, b_i and y'y of the squared loss; prepared once a node."""
        return self.prepared("squares", lambda: squares_of(self.losses))

    # What may be told of the rows.

    def told(self, theta: Floats, kind: str) -> Quadratics:
        """A_i and b_i as they are sent: of rows none of which stands out; 0 of too few."""
        if kind == EXACT:
            return unpacked(self.told_squares)
        if self.floor < 2:
            return self.quadratics(theta, kind)
        near, some = self.near(self.told_losses, theta, kind), self.shared.some
        return Quadratics(near.a * some[:, None, None], near.b * some[:, None])

    @property
    def told_squares(self) -> Floats:
        """A_i, b_i and y'y of the squared loss, as they are sent."""
        if self.floor < 2:
            return self.squares

        def made() -> Floats:
            return squares_of(self.told_losses) * self.shared.some[:, None]

        return self.prepared(("told squares", self.floor), made)

    @property
    def losses(self) -> LinearLosses:
        """f_i; of the squared loss not kept: its sums are all that is asked for again."""
        if self.network.criterion.name == "squared":
            return one_output(self.losses_on(self.train_data(self.limits)))
        return one_output(super().losses)

    def theta(self) -> Floats:
        """The models that were kept; zeros at first."""
        start: Floats = np.zeros((len(self.users), self.network.whole.stop))
        return np.asarray(self.state.get("theta", start), np.float64)

    def moved(self, theta: Floats, now: Quadratics, kind: str, rows: Arrays) -> Floats:
        """theta_i <- S_i (b_i + gamma w_j).

        With other losses than the squared one theta_i is the minimiser itself, where gamma is one
        number and there is one: the next sums are then Newton's for w_j alone.
        """
        centre, gamma = np.broadcast_to(rows["w"], theta.shape), self.ties(rows["gamma"])
        if kind == EXACT:
            return personal(now.a, now.b, gamma, centre)
        best = self.minimisers(theta, centre, gamma)
        found = np.isfinite(best).all(1, keepdims=True)
        if found.all():
            return best
        step = personal(now.a, now.b, gamma, centre) - theta
        return np.where(found, best, theta + (step if kind == ABOVE else self.shortened(step)))

    def shortened(self, step: Floats) -> Floats:
        """Newton steps with which no score moves too far."""
        scores = self.losses.predict(self.tensor(step)).abs().double().cpu().numpy()
        return damped(step, np.maximum.reduceat(scores, np.cumsum(self.sizes) - self.sizes))

    def minimisers(self, theta: Floats, centre: Floats, gamma: Floats) -> Floats:
        """argmin f_i + gamma/2 |theta - w_j|^2; NaN where none is, or gamma is not one number."""
        if gamma.ndim > 1 or not np.isfinite(gamma).all():
            return np.full(theta.shape, np.nan)
        if not (gamma > 0).all():
            return self.least
        start, tie = self.tensor(theta), self.tensor(gamma)
        found = self.losses.prox(self.tensor(centre), tie, start=start)
        return np.asarray(found.double().cpu().numpy())

    @property
    def least(self) -> Floats:
        """argmin f_i, NaN where none is: no centre changes it, so it is prepared once a node.

        Users without one take long to tell, and would in each round.
        """

        def made() -> Floats:
            return np.asarray(self.losses.minimise().double().cpu().numpy())

        return self.prepared("least", made)

    def ties(self, gamma: Array) -> Floats:
        """gamma (d,) of every user: one number each, or one a coordinate where these differ."""
        return ties(gamma, len(self.users))

    def expected(self, now: Quadratics, rows: Arrays) -> Floats:
        """Sums of squares and spreads around w_j, for EM (2, d)."""
        n, d = now.b.shape
        centre = np.broadcast_to(rows["w"], (n, d))
        sure = np.broadcast_to(rows["covariance"], (n, d, d))
        gamma = np.tile(rows["gamma"], (n, 1))
        sums = laplace_sums(now.a, now.b, gamma, centre, sure, np.zeros(n, np.int64), 1)
        return np.stack([sums.squares[0], sums.spreads[0]])


def marginal() -> Any:
    """Users' part in a marginal likelihood, which attaches."""
    return attached("likelihood at home")


def of_classes() -> Any:
    """Users' part under the multinomial loss, which attaches."""
    return attached("classes at home")


def packed(own: Quadratics, yy: Floats | None = None) -> Floats:
    """A_i's upper half, b_i, and y'y if there is one (n, d(d+1)/2 + d + 1)."""
    last = np.zeros(len(own.b)) if yy is None else yy
    return np.concatenate([pack(own.a), own.b, last[:, None]], axis=1)


def squares_of(losses: LinearLosses) -> Floats:
    """A_i, b_i and y'y of squared losses, with the digits that are sent."""
    whole = losses.quadratic()
    a, b, c = (part.double().cpu().numpy() for part in (whole.a, whole.b, whole.c))
    return np.asarray(as_sent(packed(Quadratics(a, b), 2 * c)[None])[0])


def unpacked(squares: Floats) -> Quadratics:
    """A_i and b_i of such rows."""
    d = int(np.sqrt(2 * squares.shape[1])) - 1
    return Quadratics(unpack(squares[:, : -d - 1], d), squares[:, -d - 1 : -1])


def last_only(d: int) -> Floats:
    """1 for the intercept, which is last, and 0 for all other coefficients."""
    return np.append(np.zeros(d - 1), 1.0)


def held_back(away: Floats, gamma: Floats) -> float:
    """sum gamma |theta_i - w_j|^2; an infinite tie that holds costs nothing."""
    tie = gamma if gamma.ndim > 1 else gamma[:, None]
    with np.errstate(invalid="ignore"):
        return float(np.where(np.isfinite(tie), tie * np.square(away), 0.0).sum())


def user_estimates(
    now: Quadratics, centre: Floats, known: tuple[Floats, Floats], free: Floats, map: Floats
) -> dict[str, Array]:
    """Own estimates, prediction errors under `map` in units of the noise, and shrinkage.

    `known` are the covariances of predictions and the weights of own data. A user's own estimate is
    that of its rows alone, over the coefficients that are `free`: not tied to the centre for good.
    """
    (covariance, weight), count = known, free.sum(1)
    inner = free[:, :, None] * now.a * free[:, None, :]
    rest = free * (now.b - now.a @ centre)
    own = centre + (np.linalg.pinv(inner, hermitian=True) @ rest[..., None])[..., 0]
    told = (count > 0) & (np.linalg.matrix_rank(inner, hermitian=True) == count)
    share = np.trace(weight, axis1=1, axis2=2) / np.maximum(count, 1)
    spread = np.diagonal(map @ covariance @ map.T, axis1=1, axis2=2)
    return {
        "own": np.where(told[:, None], own, 0.0),
        "se": np.sqrt(np.maximum(spread, 0.0)),
        "known": told.astype(np.float64),
        "shrinkage": np.clip(1 - share, 0.0, 1.0),
    }
