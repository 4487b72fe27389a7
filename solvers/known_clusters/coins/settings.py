"""The settings of Algorithm 1 of Lyu et al. 2022, and what is proved about them.

Probabilities of the steps and the shares tau_j, the rates A_i, B_i, c_i that they come to, the
constants of Theorem 3.5, and what cannot be.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from corsage.core.arrays import Array
from corsage.core.errors import ConfigError
from corsage.solvers.known_clusters.hierarchy import Hierarchy, pulls


@dataclass(frozen=True, eq=False)
class Parameters:
    """The settings of Algorithm 1.

    Parameters
    ----------
    eta : the step size.
    p0 : p_0, the probability of a global step.
    p : (k,) p_j, the probability of a step to the centre where there is no global one.
    tau : (k,) tau_j, the share of the pull to the centre that global steps take over.
    """

    eta: float
    p0: float
    p: Array
    tau: Array


class Rates(NamedTuple):
    """Lengths of the steps: A, B and c of every user, or of every cluster; the local step (k,)."""

    middle: Array
    centre: Array
    within: Array
    local: Array

    def of_clusters(self, hierarchy: Hierarchy) -> Rates:
        """A_j, B_j and c_j (k,), where gamma_i is the same in a cluster."""
        first = hierarchy.order[hierarchy.starts]
        return Rates(self.middle[first], self.centre[first], self.within[first], self.local)


def tau_of(p0: float, p: Array) -> Array:
    """tau_j = p_0/(p_0 + 2 (1 - p_0) p_j), Proposition 3.3; 1 where p_j = 0."""
    p = np.asarray(p, np.float64)
    tau = np.ones(p.shape)
    np.divide(p0, p0 + 2 * (1 - p0) * p, out=tau, where=p > 0)
    return tau


def probabilities(hierarchy: Hierarchy, smoothness: float) -> tuple[float, Array]:
    """p_0 and p_j (k,) of Corollary 3.6, for losses f_i that are L-smooth."""
    if not smoothness > 0:
        raise ConfigError(f"async-l2gd: smoothness L={smoothness:g} of the losses must be above 0.")
    c_1 = float((hierarchy.alpha * hierarchy.strongest).max())
    c_2 = float(((1 - hierarchy.alpha) * hierarchy.strongest).max())
    excess = max(c_2 - c_1, 0.0)
    p0 = 2 * c_1 / (2 * c_1 + excess + smoothness)
    return p0, np.full(hierarchy.k, excess / (excess + smoothness))


def expected_smoothness(hierarchy: Hierarchy, smoothness: float, p0: float, p: Array) -> float:
    """The constant of (3.3), for tau_j of Proposition 3.3.

    (3.3) takes alpha_j <= 1 for granted. For larger ones another term, which changes nothing for
    the others, keeps E|G(theta) - G(theta')|^2 <= 2 L D_F(theta, theta'): the pull to the centre
    has strength gamma_i (alpha_j + tau_j (1 - alpha_j)) in a global step.
    """
    _check_probabilities(p0, p)
    p, alpha, gamma = np.asarray(p, np.float64), hierarchy.alpha, hierarchy.strongest
    tau, inner = tau_of(p0, p), p0 + 2 * (1 - p0) * p
    return float(
        max(
            _over(2 * alpha * gamma, p0).max(),
            _over(2 * (1 - alpha) * gamma, inner).max(),
            smoothness / ((1 - p0) * (1 - p.max())),
            (
                _over(gamma * (alpha + tau * (1 - alpha)) ** 2, p0)
                + _over(gamma * ((1 - tau) * (1 - alpha)) ** 2, (1 - p0) * p)
            ).max(),
        )
    )


def largest_step(hierarchy: Hierarchy, smoothness: float, p0: float, p: Array) -> float:
    """eta = 1/(2 L), the largest step of Theorem 3.5, L that of (3.3)."""
    return 1 / (2 * expected_smoothness(hierarchy, smoothness, p0, p))


def check(parameters: Parameters, hierarchy: Hierarchy) -> None:
    """Refuse settings under which Algorithm 1 does not descend on (2.1)."""
    p_0, p, tau = parameters.p0, parameters.p, parameters.tau
    _check_probabilities(p_0, p)
    pull, outer = hierarchy.strongest > 0, hierarchy.alpha * hierarchy.strongest > 0
    inner = pull & (hierarchy.alpha != 1)
    refusals = (
        (not parameters.eta > 0, f"the step size eta={parameters.eta:g} must be above 0"),
        (not ((tau >= 0) & (tau <= 1)).all(), "every tau_j must be between 0 and 1"),
        (
            bool((inner & (p == 0) & (tau < 1)).any()),
            "p_j=0 leaves out the steps to the centre: set tau_j=1 there, or raise p_j",
        ),
        (
            p_0 == 0 and bool(outer.any()),
            "p_0=0 leaves out the pull to the middle: raise p_0, or set alpha (lambda) to 0",
        ),
        (
            p_0 == 0 and bool((inner & (tau > 0)).any()),
            "p_0=0 leaves out tau_j of the pull to the centre: set tau_j=0, or raise p_0",
        ),
    )
    for refused, why in refusals:
        if refused:
            raise ConfigError(f"async-l2gd: {why}.")


def _check_probabilities(p0: float, p: Array) -> None:
    """Refuse p_0 and p_j outside [0, 1)."""
    for name, values in (("p_0", np.asarray([p0])), ("p_j", np.asarray(p))):
        if not (fine := (values >= 0) & (values < 1)).all():
            raise ConfigError(
                f"async-l2gd: {name}={values[~fine][0]:g} must be from 0 to below 1, "
                "or no step is local: lower it."
            )


def rates(hierarchy: Hierarchy, parameters: Parameters) -> Rates:
    """A_i, B_i and c_i (n,) and the local step eta/((1 - p_0)(1 - p_j)) (k,)."""
    eta, p_0, p = parameters.eta, parameters.p0, np.asarray(parameters.p, np.float64)
    own, tau = hierarchy.cluster, parameters.tau[hierarchy.cluster]
    inner, outer = pulls(hierarchy)
    return Rates(
        _over(eta * outer, p_0),
        _over(eta * tau * inner, p_0),
        _over(eta * (1 - tau) * inner, (1 - p_0) * p[own]),
        eta / ((1 - p_0) * (1 - p)),
    )


def _over(part: Array, probability: Array | float) -> Array:
    """part/probability; 0 where the probability is 0: what never happens goes nowhere."""
    out = np.zeros(np.broadcast_shapes(np.shape(part), np.shape(probability)))
    return np.divide(part, probability, out=out, where=np.asarray(probability) > 0)
