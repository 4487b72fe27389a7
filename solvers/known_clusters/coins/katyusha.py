"""The steps of Async-AL2SGD+, Algorithm 2 of Lyu et al. 2022: settings, state and estimator.

L-Katyusha on (2.1) with the coins of Algorithm 1. Users keep z_i, y_i, an anchor x_i and
nabla f_i(x_i). In an iteration theta_i = a_1 z_i + a_2 x_i + (1 - a_1 - a_2) y_i, then, with g_i
the estimator of F's gradient at theta,

    y_i <- theta_i - eta g_i,   z_i <- b_1 z_i + (1 - b_1) theta_i - b_2 g_i.

g is nabla F(x) + G(theta) - G(x), G the oracle (3.2) with the same coins for both. (4.1) leaves out
G's pull to the centre in a global step, gamma_i tau_j (1 - alpha_j)/p_0 ((theta_i - thbar_j) -
(x_i - xbar_j)), and is biased; here it is in.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np

from corsage.core.arrays import Array, Ints
from corsage.core.errors import ConfigError
from corsage.solvers.known_clusters.coins import settings as l2gd_settings
from corsage.solvers.known_clusters.coins.settings import (
    Parameters,
    expected_smoothness,
    rates,
    tau_of,
)
from corsage.solvers.known_clusters.hierarchy import Gradient, Hierarchy, pulls

SampleGradient = Callable[[int, Array, Ints], Array]
"""Gradients of one sample of each user, the one of iteration t: t, rows (u, d), users (u,)."""
Target = tuple[Array, Array | None]
"""thbar_j and thbar of a global step; thbar_j and None of a step to the centre."""


@dataclass(frozen=True, eq=False)
class Momenta:
    """The numbers by which L-Katyusha moves: all that a user needs to know of the settings.

    Parameters
    ----------
    eta : the step size.
    a1, a2 : the weights of z_i and x_i in theta_i.
    b1, b2 : how z_i moves.
    """

    eta: float
    a1: float
    a2: float
    b1: float
    b2: float


LEAST_REFRESHES = 0.1
"""Refreshes for a round in the busiest cluster, at least."""


@dataclass(frozen=True, eq=False)
class KatyushaParameters(Parameters, Momenta):
    """The settings of Algorithm 2: those of Algorithm 1, the momenta, and the refreshes'.

    `rho` is the probability that the anchors x_i are renewed after an iteration.
    """

    rho: float


def parameters(
    hierarchy: Hierarchy,
    smoothness: float,
    mu: float,
    p0: float,
    p: Array,
    rho: float | None = None,
    eta: float | None = None,
) -> KatyushaParameters:
    """The settings of Theorem 4.3, for samples' losses that are L-smooth and mu-strongly convex.

    Losses that are not strongly convex need a small mu > 0 of the caller's: with it the method
    still goes to a minimiser, and the less mu, the longer are its momenta. rho is `thrifty` and
    eta the theorem's unless given; a_1, b_1 and b_2 follow eta.
    """
    if not mu > 0:
        raise ConfigError(
            f"async-al2sgd: mu={mu:g} is no strong convexity: add a ridge, or give a floor above 0."
        )
    expected = expected_smoothness(hierarchy, smoothness, p0, p)
    whole = smoothness + float((np.maximum(hierarchy.alpha, 1) * hierarchy.strongest).max())
    rho = thrifty(p0, p) if rho is None else rho
    if not 0 < rho <= 1:
        raise ConfigError(f"async-al2sgd: rho={rho:g} must be above 0 and at most 1.")
    eta = 1 / (4 * max(whole, expected)) if eta is None else eta
    a2 = expected / (2 * max(whole, expected))
    a1 = min(0.5, float(np.sqrt(eta * mu * max(0.5, a2 / rho))))
    b2 = 1 / max(2 * mu, 4 * a1 / eta)
    p = np.asarray(p, np.float64)
    return KatyushaParameters(
        p0=p0, p=p, tau=tau_of(p0, p), rho=rho, eta=eta, a1=a1, a2=a2, b1=1 - b2 * mu, b2=b2
    )


def thrifty(p0: float, p: Array) -> float:
    """rho = p_0 (1 - p_0): as many refreshes as rounds between clusters.

    Every refresh is a round of all users. Where p_0 = 0, as many as rounds in the busiest cluster.
    Where p_0 is next to nothing, as it is with a small lambda, a tenth of these at least: else
    anchors stay at the start, and momenta pull to there.
    """
    p = np.asarray(p, np.float64)
    busiest = float((p * (1 - p)).max())
    return max(p0 * (1 - p0), LEAST_REFRESHES * busiest) if p0 else busiest


def check(settings: KatyushaParameters, hierarchy: Hierarchy) -> None:
    """Refuse settings under which Algorithm 2 does not descend on (2.1)."""
    l2gd_settings.check(settings, hierarchy)
    a1, a2 = settings.a1, settings.a2
    if not (0 < a1 < 1 and 0 < a2 < 1 and a1 + a2 <= 1):
        raise ConfigError(
            f"async-al2sgd: a_1={a1:g}, a_2={a2:g} must be above 0 and at most 1 in sum."
        )
    if not (0 < settings.rho <= 1 and settings.b1 > 0 and settings.b2 > 0):
        raise ConfigError("async-al2sgd: rho must be above 0 and at most 1, b_1 and b_2 above 0.")


class Oracle(NamedTuple):
    """The factors of (4.1), one a row."""

    inner: Array
    outer: Array
    middle: Array
    centre: Array
    within: Array
    local: Array

    @classmethod
    def of_users(cls, hierarchy: Hierarchy, settings: Parameters) -> Oracle:
        """(1 - alpha_j) gamma_i, alpha_j gamma_i, and the rates of (3.2), eta = 1 (n,)."""
        rate = rates(hierarchy, replace(settings, eta=1.0))
        local = rate.local[hierarchy.cluster]
        return cls(*pulls(hierarchy), rate.middle, rate.centre, rate.within, local)

    def pick(self, users: Ints) -> Oracle:
        """Of some of the rows."""
        return Oracle(*(values[users] for values in self))


@dataclass(frozen=True, eq=False)
class Rows:
    """Some users, and all that they know; or clusters' centres, which move like users.

    Parameters
    ----------
    z, y, x, slope : (u, d) z_i, y_i, x_i and nabla f_i(x_i).
    centre : (u, d) xbar_j of each row's cluster; (d,): of all rows'.
    middle : (d,) xbar.
    oracle : what (4.1) multiplies with.
    """

    z: Array
    y: Array
    x: Array
    slope: Array
    centre: Array
    middle: Array
    oracle: Oracle

    def theta(self, settings: Momenta) -> Array:
        """theta_i, where the gradient is estimated."""
        a1, a2 = settings.a1, settings.a2
        return np.asarray(a1 * self.z + a2 * self.x + (1 - a1 - a2) * self.y)

    def pick(self, users: Ints) -> Rows:
        """Some of the rows, whose centres are rows too."""
        z, y, x = self.z[users], self.y[users], self.x[users]
        slope, centre = self.slope[users], self.centre[users]
        return Rows(z, y, x, slope, centre, self.middle, self.oracle.pick(users))

    def put(self, users: Ints, moved: Rows) -> Rows:
        """All rows, some of which have moved: their z and y are taken over."""
        z, y = self.z.copy(), self.y.copy()
        z[users], y[users] = moved.z, moved.y
        return replace(self, z=z, y=y)

    def move(self, theta: Array, g: Array, settings: Momenta) -> Rows:
        """The rows after a step along the estimate g."""
        b1, kind = settings.b1, self.y.dtype
        y = (theta - settings.eta * g).astype(kind)
        z = (b1 * self.z + (1 - b1) * theta - settings.b2 * g).astype(kind)
        return replace(self, y=y, z=z)


def anchored(rows: Rows) -> Array:
    """The gradient of (2.1) at x, the first line of (4.1)."""
    x, oracle = rows.x, rows.oracle
    outer = oracle.outer[:, None] * (x - rows.middle)
    return np.asarray(rows.slope + outer + oracle.inner[:, None] * (x - rows.centre))


def pull_estimate(rows: Rows, theta: Array, target: Target) -> Array:
    """g_i where theta_i is pulled: (4.1), with the pull to the centre in a global step."""
    (centre, middle), oracle = target, rows.oracle
    toward = (theta - centre) - (rows.x - rows.centre)
    if middle is None:
        return np.asarray(anchored(rows) + oracle.within[:, None] * toward)
    across = (theta - middle) - (rows.x - rows.middle)
    pull = oracle.middle[:, None] * across + oracle.centre[:, None] * toward
    return np.asarray(anchored(rows) + pull)


def local_estimate(rows: Rows, difference: Array) -> Array:
    """g_i in a local step, from nabla f_il(theta_i) - nabla f_il(x_i) of the drawn samples l."""
    return np.asarray(anchored(rows) + rows.oracle.local[:, None] * difference)


def begin(
    start: Array, gradient: Gradient, hierarchy: Hierarchy, settings: KatyushaParameters
) -> Rows:
    """x = y = z = start (n, d)."""
    oracle = Oracle.of_users(hierarchy, settings)
    blank = np.empty_like(start)
    return refreshed(Rows(start, start, blank, blank, blank, blank[0], oracle), gradient, hierarchy)


def refreshed(rows: Rows, gradient: Gradient, hierarchy: Hierarchy) -> Rows:
    """All users (n, d) with new anchors: x_i = y_i, its gradient, and the means of the new x."""
    x, kind = rows.y, rows.y.dtype
    centres, middle = hierarchy.means(x)
    slope = gradient(x, np.arange(hierarchy.n))
    near = centres[hierarchy.cluster].astype(kind)
    return replace(rows, x=x, slope=slope, centre=near, middle=middle.astype(kind))


def local_step(
    rows: Rows,
    settings: Momenta,
    t: int,
    gradient: Gradient,
    sample: SampleGradient | None,
    users: Ints,
) -> Rows:
    """A local step of some users in iteration t; `sample` None: on all their samples."""
    theta = rows.theta(settings)
    if sample is None:
        difference = gradient(theta, users) - rows.slope
    else:
        difference = sample(t, theta, users) - sample(t, rows.x, users)
    return rows.move(theta, local_estimate(rows, difference), settings)


def pull_step(rows: Rows, settings: Momenta, theta: Array, target: Target) -> Rows:
    """A global step, or one to the centre."""
    return rows.move(theta, pull_estimate(rows, theta, target), settings)


def means_of(hierarchy: Hierarchy, theta: Array) -> Target:
    """Each user's centre (n, d), and the middle."""
    centres, middle = hierarchy.means(theta)
    return centres[hierarchy.cluster], middle
