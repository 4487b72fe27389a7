"""A marginal likelihood at its best place, as a run holds it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from corsage.core.arrays import Floats, Ints
from corsage.solvers.known_clusters.generalised.ascent import LEAST_GAIN, Ascent
from corsage.solvers.known_clusters.generalised.levels import Design, Jets
from corsage.solvers.known_clusters.generalised.shapes import layouts, numbers_of
from corsage.solvers.known_clusters.newton_rounds import change, travelled
from corsage.solvers.known_clusters.standard import Standard
from corsage.solvers.known_clusters.variances.covariance_fit import (
    CovarianceFit,
    Generalised,
    level_name,
)
from corsage.solvers.known_clusters.variances.uncertainty import Likely
from corsage.strategies.known_clusters.linear_summary import NORMAL
from corsage.strategies.known_clusters.units import Units

if TYPE_CHECKING:
    from corsage.strategies.known_clusters.mixed_state import MixedModelState

WALD = "95%, by the observed information of the marginal likelihood, of the variance's logarithm"
SMALL_DEVIATION = 1e-3
"""A deviation below this, in standard units, is 0: the likelihood hardly feels it."""
NO_TOP = "the likelihood has no top"


@dataclass(frozen=True)
class Outcome:
    """A place, and what follows from it.

    Parameters
    ----------
    design : from parameters to models.
    standard : the units of coefficients.
    ascent : the search; its best place is meant.
    kind, how : the shape of covariances, and how the integral is computed, in words.
    names, jets, v : the clusters, what they said, and their effects.
    varies : which coefficients differ.
    units : the table's.
    latent : the variance of a row's latent score, where its family has one, else 0.
    """

    design: Design
    standard: Standard
    ascent: Ascent
    kind: str
    how: str
    names: list[str]
    jets: Jets
    v: Floats
    varies: Ints
    units: Units
    latent: float = 0.0

    @property
    def psi(self) -> Floats:
        """The parameters."""
        return self.ascent.at

    @property
    def aic(self) -> float:
        """Akaike's criterion."""
        return 2.0 * (len(self.psi) - self.ascent.value)

    @property
    def two(self) -> bool:
        """True if clusters differ, too."""
        return len(self.design.above) > 0

    @property
    def roots(self) -> list[Floats]:
        """The roots of the covariances, users' first (d, r)."""
        found = [self.design.root(self.psi)]
        return [*found, self.design.above_root(self.psi)] if self.two else found

    @property
    def models(self) -> Floats:
        """theta_j of each cluster."""
        theta = self.design.theta(self.psi)
        if not self.two:
            return np.tile(theta, (len(self.names), 1))
        return np.asarray(theta + self.v @ self.roots[1].T)

    def as_shape(self, kind: str) -> Floats:
        """The parameters of another shape from which its search begins."""
        free, own, _ = self.design.ends
        shape = self.psi[own - 1 : own] if self.design.shaped else self.psi[:0]
        parts = [self.psi[free : own - self.design.shaped], self.psi[own:]][: 1 + self.two]
        inner = layouts(self.kind, len(self.varies))
        tau = [numbers_of(kind, np.einsum("krs,k->rs", inner, part)) for part in parts]
        return np.concatenate([self.psi[:free], tau[0], shape, *tau[1:]])

    # As the state has it.

    def publish(self, state: MixedModelState) -> None:
        """Write models, covariances and how sure they are."""
        places = [state.clusters.known.index(name) for name in self.names]
        moved = self.models - state.w[places]
        state.change = change(travelled(moved, self.models))
        state.model, state.w[places] = self.design.theta(self.psi), self.models
        state.estimates.covariance = fit = self.fit()
        state.around, state.covariance[places] = self.errors()
        state.unknown = np.zeros((len(state.model), 0))
        with np.errstate(divide="ignore", over="ignore"):
            state.used[places] = state.gamma[places] = 1 / np.diagonal(fit.users[0])
            state.lam[places] = 1 / np.diag(fit.clusters.sum(0))

    def fit(self) -> CovarianceFit:
        """The covariances."""
        d = len(self.design.start)
        own = [self.sized(root) @ self.sized(root).T for root in self.roots]
        end, open_ = self.design.ends[1], self.open()
        shape = float(self.psi[end - 1]) if self.design.shaped else 0.0
        return CovarianceFit(
            kinds=[self.kind] * len(own),
            x=self.psi,
            units=self.standard,
            users=own[0][None],
            clusters=own[1][None] if self.two else np.zeros((0, d, d)),
            varying=[np.asarray(self.varies).tolist()] * len(own),
            loglik=self.ascent.value,
            gain=self.ascent.gain,
            flat=LEAST_GAIN,
            fault=f"no top: it grows for ever along {', '.join(open_)}" if open_ else "",
            shares=self.shares(own),
            likely={} if open_ else dict(self.likely()),
            intervals=f"none: {NO_TOP}" if open_ else WALD,
            generalised=Generalised(self.how, shape, self.aic, {}, open_),
        )

    def shares(self, covariances: list[Floats]) -> list[float]:
        """Of a score's variance, of random intercepts."""
        if not self.latent or len(self.varies) > 1:
            return []
        parts = [self.latent, *(float(np.trace(one)) for one in covariances)]
        return [part / sum(parts) for part in parts]

    def sized(self, root: Floats) -> Floats:
        """A root, 0 where the search has left next to nothing."""
        inner = np.linalg.pinv(self.standard.matrix[:, self.varies]) @ root
        return root if np.abs(inner).max(initial=0.0) > SMALL_DEVIATION else np.zeros_like(root)

    def open(self) -> list[str]:
        """The names of what has no best value."""
        found = self.ascent.open
        if not found.any():
            return []
        free, own, _ = self.design.ends
        moved = np.abs(self.design.matrix) @ found[:free] > 0
        names = [name for name, away in zip(self.units.names, moved, strict=True) if away]
        names += ["variances between users"] * bool(found[free : own - self.design.shaped].any())
        names += ["the family's shape"] * bool(self.design.shaped and found[own - 1])
        return names + ["variances between clusters"] * bool(found[own:].any())

    def likely(self) -> list[tuple[str, Likely]]:
        """Errors and intervals of the variances, in the table's units."""
        free, own, end = self.design.ends
        sure, found = self.ascent.covariance, list[tuple[str, Likely]]()
        around = self.standard.matrix[:, self.varies]
        inner = np.einsum("pc,kcs->kps", around, layouts(self.kind, len(self.varies)))
        spans = [slice(free, own - self.design.shaped), slice(own, end)]
        for place, root in enumerate(self.roots):
            wide, parts = self.units.matrix @ root, self.units.matrix @ inner
            for number in self.varies if self.sized(root).any() else []:
                variance = float(wide[number] @ wide[number])
                slope = 2 * parts[:, number] @ wide[number]
                error = float(np.sqrt(max(slope @ sure[spans[place], spans[place]] @ slope, 0.0)))
                if variance > 0:
                    name = f"{level_name(place)}: {self.units.names[number]}"
                    found.append((name, Likely(error, *interval(variance, error))))
        return found

    def errors(self) -> tuple[Floats, Floats]:
        """Covariances of beta (d, d), and of each cluster's model given the data (k, d, d)."""
        free = self.design.ends[0]
        inner = self.ascent.covariance[:free, :free]
        matrix = self.design.matrix
        around = matrix @ inner @ matrix.T
        if not self.two:
            return around, np.tile(around, (len(self.names), 1, 1))
        root, d = self.roots[1], len(matrix)
        curved = self.jets.bend[:, 0, :d, :d]
        bent = np.linalg.inv(np.eye(root.shape[1]) - root.T @ curved @ root)
        along = matrix + root @ bent @ root.T @ curved @ matrix
        return around, along @ inner @ along.mT + root @ bent @ root.T


def interval(variance: float, error: float) -> tuple[float, float]:
    """Wald's interval of the logarithm; of the deviation, from 0 on, where that says nothing."""
    if error < variance:
        reach = float(np.exp(NORMAL * error / variance))
        return variance / reach, variance * reach
    deviation = float(np.sqrt(variance))
    reach = NORMAL * error / (2 * deviation)
    return max(deviation - reach, 0.0) ** 2, (deviation + reach) ** 2
