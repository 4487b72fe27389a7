"""A marginal likelihood at its best place, as a run holds it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np

from corsage.core.arrays import Floats
from corsage.solvers.known_clusters.generalised.ascent import LEAST_GAIN, Ascent
from corsage.solvers.known_clusters.generalised.levels import Design, layouts, numbers_of
from corsage.solvers.known_clusters.newton_rounds import change, travelled
from corsage.solvers.known_clusters.variances.covariance_fit import (
    CovarianceFit,
    Generalised,
    level_name,
)
from corsage.solvers.known_clusters.variances.uncertainty import Likely
from corsage.strategies.known_clusters.likelihood_search import LikelihoodState
from corsage.strategies.known_clusters.linear_summary import NORMAL
from corsage.strategies.known_clusters.units import NO_TOP, Units

if TYPE_CHECKING:
    from corsage.strategies.known_clusters.mixed_state import MixedModelState

WALD = "95%, by the observed information of the marginal likelihood, of the variance's logarithm"
SMALL_DEVIATION = 1e-3
"""A deviation below this, in standard units, is 0: the likelihood hardly feels it."""


@dataclass(frozen=True)
class Outcome:
    """A place, and what follows from it.

    Parameters
    ----------
    design : from parameters to models.
    search : it; its best place is meant.
    how : the integral is computed, in words.
    effects : of each level above the users.
    curved : second derivatives of what each level's units said, in their models (k, d, d).
    units : the table's.
    latent : the variance of a row's latent score, where its family has one, else 0.
    """

    design: Design
    search: LikelihoodState
    how: str
    effects: list[Floats]
    curved: list[Floats]
    units: Units
    latent: float = 0.0

    @property
    def ascent(self) -> Ascent:
        """The search's."""
        return self.search.ascent

    @property
    def psi(self) -> Floats:
        """The parameters."""
        return self.ascent.at

    @property
    def aic(self) -> float:
        """Akaike's criterion."""
        return 2.0 * (len(self.psi) - int(self.design.dead.sum()) - self.ascent.value)

    @cached_property
    def roots(self) -> list[Floats]:
        """The roots of the covariances, users' first (P, r)."""
        return [self.design.root(self.psi, level) for level in range(1 + len(self.effects))]

    @cached_property
    def models(self) -> list[Floats]:
        """Those of the units of all levels, from the clusters up to that of all (k, d)."""
        return self.design.centres(self.psi, self.effects, self.search.parents)

    def as_shape(self, kind: str) -> Floats:
        """The parameters of another shape from which its search begins."""
        design, psi, r = self.design, self.psi, len(self.search.which)
        tau = []
        for told, span in zip(self.search.told, design.spans, strict=True):
            inner = layouts(self.search.kinds[0], r, told)
            tau.append(numbers_of(kind, np.einsum("krs,k->rs", inner, psi[span])))
        shape = psi[design.own - design.shaped : design.own]
        return np.concatenate([psi[: design.free], tau[0], shape, *tau[1:]])

    # As the state has it.

    def publish(self, state: MixedModelState) -> None:
        """Write models, covariances and how sure they are."""
        names, models = self.search.names, self.models
        places = [state.clusters.known.index(name) for name in names]
        own = models[0] if self.effects else np.tile(models[0], (len(names), 1))
        moved = own - state.w[places]
        state.change = change(travelled(moved, own))
        state.model, state.w[places] = models[-1][0], own
        state.above = [
            dict(zip(units, level, strict=True))
            for units, level in zip(self.search.above, models[1:-1], strict=True)
        ]
        state.estimates.covariance = fit = self.fit()
        state.around, state.covariance[places] = self.errors()
        state.unknown = np.zeros((len(state.model), 0))
        with np.errstate(divide="ignore", over="ignore"):
            state.used[places] = state.gamma[places] = 1 / np.diagonal(fit.users[0])
            state.lam[places] = 1 / np.diag(fit.clusters.sum(0))

    def fit(self) -> CovarianceFit:
        """The covariances."""
        d, design, which = len(self.design.start), self.design, self.search.which
        own = [self.sized(root) @ self.sized(root).T for root in self.roots]
        open_ = self.open()
        return CovarianceFit(
            kinds=[self.search.kinds[0]] * len(own),
            varying=[which[told > 0].tolist() for told in self.search.told],
            held=self.search.held,
            x=self.psi,
            units=self.search.standard,
            users=own[0][None],
            clusters=own[1][None] if self.effects else np.zeros((0, d, d)),
            above=own[2:],
            loglik=self.ascent.value,
            gain=self.ascent.gain,
            flat=LEAST_GAIN,
            fault=f"no top: it grows for ever along {', '.join(open_)}" if open_ else "",
            shares=self.shares(own),
            likely={} if open_ else dict(self.likely()),
            intervals=f"none: {NO_TOP}" if open_ else WALD,
            generalised=Generalised(
                self.how,
                float(self.psi[design.own - 1]) if design.shaped else 0.0,
                self.aic,
                {},
                open_,
                design.bound,
            ),
        )

    def shares(self, covariances: list[Floats]) -> list[float]:
        """Of a score's variance, of random intercepts."""
        if not self.latent or len(self.search.which) > 1:
            return []
        parts = [self.latent, *(float(np.trace(one)) for one in covariances)]
        return [part / sum(parts) for part in parts]

    def sized(self, root: Floats) -> Floats:
        """A root, 0 where the search has left next to nothing."""
        around = self.search.standard.matrix[:, self.search.which]
        inner = np.linalg.pinv(around) @ root
        there = np.linalg.norm(inner, axis=1) > SMALL_DEVIATION
        return np.asarray(around @ (inner * there[:, None]))

    def open(self) -> list[str]:
        """The names of what has no best value."""
        found, design = self.ascent.open, self.design
        endless = self.search.endless(design)
        if not found.any() and not endless:
            return []
        moved = np.abs(design.matrix) @ found[: design.free] > 0
        names = [name for name, away in zip(self.units.names, moved, strict=True) if away]
        names += ["the family's shape"] * (endless or bool(design.shaped and found[design.own - 1]))
        return names + [
            f"variances between {level_name(place)}"
            for place, span in enumerate(design.spans)
            if found[span].any()
        ]

    def likely(self) -> Iterator[tuple[str, Likely]]:
        """Errors and intervals of the variances, in the table's units."""
        search, sure = self.search, self.ascent.covariance
        around = self.units.matrix @ search.standard.matrix[:, search.which]
        for place, (told, span) in enumerate(zip(search.told, self.design.spans, strict=True)):
            inner = layouts(search.kinds[0], len(search.which), told)
            wide = self.units.matrix @ self.sized(self.roots[place])
            parts = np.einsum("pc,kcs->kps", around, inner)
            for number in search.which[told > 0].tolist():
                variance = float(wide[number] @ wide[number])
                slope = 2 * parts[:, number] @ wide[number]
                error = float(np.sqrt(max(slope @ sure[span, span] @ slope, 0.0)))
                if variance > 0:
                    name = f"{level_name(place)}: {self.units.names[number]}"
                    yield name, Likely(error, *interval(variance, error))

    def errors(self) -> tuple[Floats, Floats]:
        """Covariances of beta (d, d), and of each cluster's model given the data (k, d, d)."""
        free, matrix = self.design.free, self.design.matrix
        around = matrix @ self.ascent.covariance[:free, :free] @ matrix.T
        sure, eye = around[None], np.eye(len(matrix))
        for level in range(len(self.effects), 0, -1):
            root, curved = self.roots[level], self.curved[level - 1]
            bent = np.linalg.inv(np.eye(root.shape[1]) - root.T @ curved @ root)
            spread = root @ bent @ root.T
            along = eye + spread @ curved
            sure = along @ sure[self.search.parents[level - 1]] @ along.mT + spread
        return around, sure


def interval(variance: float, error: float) -> tuple[float, float]:
    """Wald's interval of the logarithm; of the deviation, from 0 on, where that says nothing."""
    if error < variance:
        reach = float(np.exp(NORMAL * error / variance))
        return variance / reach, variance * reach
    deviation = float(np.sqrt(variance))
    reach = NORMAL * error / (2 * deviation)
    return max(deviation - reach, 0.0) ** 2, (deviation + reach) ** 2
