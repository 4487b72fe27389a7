"""The mixed model at the users: their quadratics, what is left of these, and their own minimisers.

Lyu et al. 2022, (2.3); the formulas are those of solvers/known_clusters/mixed_model.py.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from corsage.clients.base import Evaluation
from corsage.clients.known_clusters.cohort import CohortClient, Rows
from corsage.core.arrays import Floats
from corsage.solvers.known_clusters.laplace import laplace_sums
from corsage.solvers.known_clusters.mixed_model import (
    ABOVE,
    EXACT,
    NEWTON,
    ClusterSums,
    damped,
    newton_message,
    personal,
    travelled,
)
from corsage.solvers.known_clusters.reml import level_sums


@dataclass(frozen=True)
class Quadratics:
    """1/2 x'A_i x - b_i'x of the cohort's users, up to constants."""

    a: Floats
    b: Floats


class MixedModelClient(CohortClient):
    """The users of the mixed model; each keeps its theta_i."""

    def step(self, config: dict[str, Any]) -> Rows:
        """theta_i from w_j, and P_i, q_i of the quadratics there, summed up."""
        theta = self._theta()
        now = self.quadratics(theta, str(config["as"]))
        numbers: dict[str, float] = {"moved": 0.0, "length": 0.0}
        arrays: dict[str, NDArray[Any]] = {}
        if config["em"]:
            arrays["em"] = np.zeros((2, theta.shape[1]))
        if config["moves"]:
            if config["em"]:
                arrays["em"] = self._expected(now)
            after = self._moved(theta, now, str(config["as"]))
            moved, length = travelled(after - theta, after)
            numbers = {"moved": float(moved), "length": float(length)}
            theta = after
            now = self.quadratics(theta, str(config["next"]))
        self.keep("theta", theta)
        users = np.zeros(len(theta), np.int64)
        sums = ClusterSums.of(now.a, now.b, self._ties("next"), users, 1)
        return {**arrays, "sums": sums.packed()[0]}, numbers

    def deliver(self, config: dict[str, Any]) -> Rows:
        """theta_i from the last w_j, to be kept."""
        self.keep("theta", self.models().cpu().numpy())
        return {}, {}

    def reml(self, config: dict[str, Any]) -> Rows:
        """The sums that the likelihood is made of, for every ratio rho."""
        whole = self.losses.quadratic()
        a, b, c = (part.double().cpu().numpy() for part in (whole.a, whole.b, whole.c))
        users, ratios = np.zeros(len(b), np.int64), np.asarray(config["ratios"])
        sums = level_sums(a, b, 2 * c, self.sizes, users, 1, ratios).arrays()
        return {name: rows[0] for name, rows in sums.items()}, {}

    def models(self) -> Tensor:
        """theta_i at the present w_j."""
        config = self.options
        theta, kind = self._theta(), str(config["as"])
        if not config["moves"]:
            return self.tensor(theta)
        return self.tensor(self._moved(theta, self.quadratics(theta, kind), kind))

    def adapt(self, parameters: list[NDArray[Any]], config: dict[str, Any]) -> Evaluation:
        """A new user minimises f_i + gamma/2 |theta - w_j|^2 with its cluster's w_j."""
        centre = self.tensor(self.rows["w"]).expand(len(self.users), -1)
        gamma = float(np.mean(self.rows["gamma"]))
        if not np.isfinite(gamma):
            return self.scored(centre)
        own = self.losses.prox(centre, gamma) if gamma else self.losses.minimise(start=centre)
        return self.scored(torch.where(own.isfinite(), own, centre))

    def quadratics(self, theta: Floats, kind: str) -> Quadratics:
        """A_i and b_i: of the squared loss itself; or of what others are near theta_i, or below."""
        losses, at = self.losses, self.tensor(theta)
        if kind == EXACT:
            whole = losses.quadratic()
            return Quadratics(whole.a.double().cpu().numpy(), whole.b.double().cpu().numpy())
        curved = losses.hessian(at) if kind == NEWTON else losses.above(at)
        hessian, gradient = (part.double().cpu().numpy() for part in (curved, losses.gradient(at)))
        return Quadratics(*newton_message(hessian, gradient, theta))

    def _theta(self) -> Floats:
        """The models that were kept; zeros at first."""
        kept = self.state.get("theta")
        start: Floats = np.zeros((len(self.users), self.network.whole.stop))
        return start if kept is None else np.asarray(kept, np.float64)

    def _moved(self, theta: Floats, now: Quadratics, kind: str) -> Floats:
        """theta_i <- S_i (b_i + gamma w_j).

        With other losses than the squared one theta_i is the minimiser itself, where gamma is one
        number and there is one: the next sums are then Newton's for w_j alone.
        """
        centre = np.broadcast_to(self.rows["w"], theta.shape)
        if kind == EXACT:
            return personal(now.a, now.b, self._ties("gamma"), centre)
        best = self._minimisers(theta, centre)
        found = np.isfinite(best).all(1, keepdims=True)
        if found.all():
            return best
        return np.where(found, best, theta + self._stepped(theta, now, centre, kind))

    def _stepped(self, theta: Floats, now: Quadratics, centre: Floats, kind: str) -> Floats:
        """The step to the quadratics' minimisers; with Newton's no score moves too far."""
        step = personal(now.a, now.b, self._ties("gamma"), centre) - theta
        if kind == ABOVE:
            return step
        scores = self.losses.predict(self.tensor(step)).abs().double().cpu().numpy()
        return damped(step, np.maximum.reduceat(scores, np.cumsum(self.sizes) - self.sizes))

    def _minimisers(self, theta: Floats, centre: Floats) -> Floats:
        """argmin f_i + gamma/2 |theta - w_j|^2; NaN where none is, or gamma is not one number."""
        gamma = self._ties("gamma")
        if gamma.ndim > 1 or not np.isfinite(gamma).all():
            return np.full(theta.shape, np.nan)
        start = self.tensor(theta)
        if (gamma > 0).all():
            found = self.losses.prox(self.tensor(centre), self.tensor(gamma), start=start)
        else:
            found = self.losses.minimise(start=start)
        return np.asarray(found.double().cpu().numpy())

    def _ties(self, name: str) -> Floats:
        """gamma of every user: one number each, or one a coordinate where these differ."""
        row = np.asarray(self.rows[name], np.float64)
        if (row == row[0]).all():
            return np.full(len(self.users), row[0])
        return np.tile(row, (len(self.users), 1))

    def _expected(self, now: Quadratics) -> Floats:
        """Sums of squares and spreads around w_j, for EM (2, d)."""
        n, d = now.b.shape
        centre = np.broadcast_to(self.rows["w"], (n, d))
        sure = np.broadcast_to(self.rows["covariance"], (n, d, d))
        gamma = np.tile(self.rows["gamma"], (n, 1))
        sums = laplace_sums(now.a, now.b, gamma, centre, sure, np.zeros(n, np.int64), 1)
        return np.stack([sums.squares[0], sums.spreads[0]])
