"""The search for the most likely parameters, as far as a run is."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import numpy as np

from corsage.core.arrays import Floats
from corsage.solvers.known_clusters.generalised.ascent import Ascent
from corsage.solvers.known_clusters.generalised.levels import Design, Jets
from corsage.solvers.known_clusters.mixed_model import unpack
from corsage.solvers.known_clusters.standard import Standard

MOST_GAP = 1.0
"""Log likelihood that clusters' effects may be from their best for a look to count."""
CLUSTER_REACH = 1.0
"""No cluster's score moves by more in an exchange."""
MOST_SETTLING = 10
"""Exchanges in which clusters may come nearer to their best before a look is given up."""
SETTLED_GAP = 1e-6
"""The same, for a search to end."""


@dataclass(frozen=True)
class LikelihoodState:
    """The search, as far as it is.

    Parameters
    ----------
    standard : units in which coefficients are sought.
    fixed : coefficients that are held (d,), and `free`: 1 for those that are not.
    names : the clusters, in the order of the arrays' rows; one where there is but one level.
    kinds : shapes that are still to be tried, the present one first.
    ascent : the parameters.
    v : the clusters' effects at the place ahead (k, s); `settling`: exchanges since it was new.
    place, effects : where the clusters were asked at the best place, and with which effects.
    value, slope, bend : what they said there.
    gap : what their effects there were from the best.
    tried : Akaike's criterion of the shapes that were fitted.
    heard : the cohorts of which it is the likelihood.
    """

    standard: Standard
    fixed: Floats
    free: Floats
    names: list[str]
    kinds: list[str]
    ascent: Ascent
    v: Floats
    settling: int = 0
    place: Floats = field(default_factory=lambda: np.zeros((0, 0)))
    effects: Floats = field(default_factory=lambda: np.zeros((0, 0)))
    value: Floats = field(default_factory=lambda: np.zeros((0, 0)))
    slope: Floats = field(default_factory=lambda: np.zeros((0, 0, 0)))
    bend: Floats = field(default_factory=lambda: np.zeros((0, 0, 0, 0)))
    gap: float = 0.0
    tried: dict[str, float] = field(default_factory=dict)
    heard: list[str] = field(default_factory=list)

    @property
    def best(self) -> Jets:
        """The clusters' answers at the best place."""
        return Jets(self.value, self.slope, self.bend)

    @property
    def settled(self) -> bool:
        """True if the parameters and the clusters' effects are at their best."""
        return self.ascent.settled and self.gap < SETTLED_GAP

    def advanced(self, jets: Jets, design: Design) -> LikelihoodState:
        """The search after an exchange."""
        from corsage.solvers.known_clusters.generalised.joint import clusters_likelihood

        found = self
        if len(found.names) == 1:
            one = design.one_level(jets)
            ascent = found.ascent.look(float(one.value[0]), one.slope[0], one.bend[0])
            return replace(found, ascent=ascent, value=jets.value)
        psi = found.ascent.ahead
        tau = np.tile(design.tau(psi), (len(found.v), 1))
        place = np.concatenate([design.theta(psi) + found.v @ design.above_root(psi).T, tau], 1)
        here = clusters_likelihood(design, jets, place, found.v, psi)
        if here.gap > MOST_GAP and found.settling < MOST_SETTLING:
            v = nearer(found.v, here.v, design, psi)
            return replace(found, v=v, settling=found.settling + 1)
        ascent = found.ascent.look(
            float(here.jet.value), here.jet.slope, here.jet.bend, abs(found.gap)
        )
        if ascent.at is psi:
            found = replace(
                found, place=place, effects=found.v, gap=here.gap,
                value=jets.value, slope=jets.slope, bend=jets.bend,
            )  # fmt: skip
        ahead = clusters_likelihood(design, found.best, found.place, found.effects, ascent.ahead)
        v = nearer(found.effects, ahead.v, design, ascent.ahead)
        return replace(found, ascent=ascent, v=v, settling=0)


def nearer(v: Floats, goal: Floats, design: Design, psi: Floats) -> Floats:
    """Clusters' effects on the way to their goal, none of which moves too far."""
    step, root = goal - v, np.einsum("kcs,k->cs", design.above, psi[design.ends[1] :])
    far = np.linalg.norm(step @ root.T, axis=1)
    return np.asarray(v + step / np.maximum(far / CLUSTER_REACH, 1.0)[:, None])


def unpacked(rows: list[Floats], d: int, design: Design) -> Jets:
    """Values, gradients and Hessians of clusters; where there is one level their sum."""
    sums = np.stack(rows)
    m = d + len(design.basis) + design.shaped
    if not design.around.shape[1]:
        sums = sums.sum(0, keepdims=True)
    return Jets(sums[..., 0], sums[..., 1 : 1 + m], unpack(sums[..., 1 + m :], m))
