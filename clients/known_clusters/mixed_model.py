"""The mixed model at the users: their quadratics, what is left of these, and their own minimisers.

Lyu et al. 2022, (2.3); the formulas are those of solvers/known_clusters/mixed_model.py.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import torch

from corsage.clients.base import Got, Models, Sent
from corsage.clients.convex import Answer
from corsage.clients.known_clusters.cohort import CohortClient
from corsage.core.arrays import Array, Arrays, Floats
from corsage.core.asked import Takes, flag, floats, listed, number, text, word
from corsage.networks.batches import Examples
from corsage.solvers.known_clusters.laplace import laplace_sums
from corsage.solvers.known_clusters.mixed_model import ClusterSums, personal
from corsage.solvers.known_clusters.newton_rounds import (
    ABOVE,
    EXACT,
    NEWTON,
    damped,
    newton_message,
    travelled,
)
from corsage.solvers.known_clusters.reml import level_sums
from corsage.strategies.known_clusters.mixed_model import MixedModelKeys


@dataclass(frozen=True)
class Quadratics:
    """1/2 x'A_i x - b_i'x of the cohort's users, up to constants."""

    a: Floats
    b: Floats


class MixedModelClient(CohortClient[MixedModelKeys]):
    """The users of the mixed model; each keeps its theta_i."""

    takes = Takes(
        rows={
            **{name: floats("P") for name in ("w", "gamma", "next")},
            "covariance": floats("P", "P"),
        },
        options={
            "ask": text(40),
            "moves": flag,
            "em": flag,
            "as": word(EXACT, NEWTON, ABOVE),
            "next": word(EXACT, NEWTON, ABOVE),
            "ratios": listed(number(0), 100),
        },
        squares=100,
    )

    def answers(self) -> Mapping[str, Answer]:
        """Sums for a round, the last w_j, and sums for the likelihood."""
        return {"step": self.step, "deliver": self.deliver, "reml": self.likelihood_sums}

    def step(self, got: Got) -> Sent:
        """theta_i from w_j, and P_i, q_i of the quadratics there, summed up."""
        options, theta, length = got.options, self.theta(), (0.0, 0.0)
        now = self.quadratics(theta, options["as"])
        sums: dict[str, Array] = {"em": np.zeros((2, theta.shape[1]))} if options["em"] else {}
        if options["moves"]:
            if options["em"]:
                sums["em"] = self.expected(now, got.rows)
            after = self.moved(theta, now, options["as"], got.rows)
            length, theta = tuple(travelled(after - theta, after)), after
            now = self.quadratics(theta, options["next"])
        users = np.zeros(len(theta), np.int64)
        own = ClusterSums.of(now.a, now.b, self.ties(got.rows["next"]), users, 1)
        metrics = {"moved": np.array(length[0]), "length": np.array(length[1])}
        return Sent({}, {**sums, "sums": own.packed()[0]}, {"theta": theta}, metrics)

    def deliver(self, got: Got) -> Sent:
        """theta_i from the last w_j, to be kept."""
        return Sent(keep={"theta": self.models(got).whole})

    def likelihood_sums(self, got: Got) -> Sent:
        """The sums that the likelihood is made of, for every ratio rho."""
        whole = self.losses.quadratic()
        a, b, c = (part.double().cpu().numpy() for part in (whole.a, whole.b, whole.c))
        users, ratios = np.zeros(len(b), np.int64), np.asarray(got.options["ratios"])
        sums = level_sums(a, b, 2 * c, self.sizes, users, 1, ratios).arrays()
        return Sent(rows={name: rows[0] for name, rows in sums.items()})

    def models(self, got: Got) -> Models:
        """theta_i at the present w_j."""
        theta, kind = self.theta(), got.options["as"]
        if got.options["moves"]:
            theta = self.moved(theta, self.quadratics(theta, kind), kind, got.rows)
        return Models(self.tensor(theta).cpu().numpy())

    def adapt(self, got: Got, data: Examples, epochs: int) -> Models:
        """A new user minimises f_i + gamma/2 |theta - w_j|^2 with its cluster's w_j."""
        centre = self.tensor(got.rows["w"]).expand(len(self.users), -1)
        gamma = float(np.mean(got.rows["gamma"]))
        if not np.isfinite(gamma):
            return Models(centre.cpu().numpy())
        own = self.losses.prox(centre, gamma) if gamma else self.losses.minimise(start=centre)
        return Models(torch.where(own.isfinite(), own, centre).cpu().numpy())

    def quadratics(self, theta: Floats, kind: str) -> Quadratics:
        """A_i and b_i: of the squared loss itself; or of what others are near theta_i, or below."""
        losses, at = self.losses, self.tensor(theta)
        if kind == EXACT:
            whole = losses.quadratic()
            return Quadratics(whole.a.double().cpu().numpy(), whole.b.double().cpu().numpy())
        curved = losses.hessian(at) if kind == NEWTON else losses.above(at)
        hessian, gradient = (part.double().cpu().numpy() for part in (curved, losses.gradient(at)))
        return Quadratics(*newton_message(hessian, gradient, theta))

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
        start = self.tensor(theta)
        if (gamma > 0).all():
            found = self.losses.prox(self.tensor(centre), self.tensor(gamma), start=start)
        else:
            found = self.losses.minimise(start=start)
        return np.asarray(found.double().cpu().numpy())

    def ties(self, gamma: Array) -> Floats:
        """gamma (d,) of every user: one number each, or one a coordinate where these differ."""
        row = np.asarray(gamma, np.float64)
        if (row == row[0]).all():
            return np.full(len(self.users), row[0])
        return np.tile(row, (len(self.users), 1))

    def expected(self, now: Quadratics, rows: Arrays) -> Floats:
        """Sums of squares and spreads around w_j, for EM (2, d)."""
        n, d = now.b.shape
        centre = np.broadcast_to(rows["w"], (n, d))
        sure = np.broadcast_to(rows["covariance"], (n, d, d))
        gamma = np.tile(rows["gamma"], (n, 1))
        sums = laplace_sums(now.a, now.b, gamma, centre, sure, np.zeros(n, np.int64), 1)
        return np.stack([sums.squares[0], sums.spreads[0]])
