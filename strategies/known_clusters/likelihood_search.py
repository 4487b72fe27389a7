"""The search for the most likely parameters, as far as a run is."""

from __future__ import annotations

import json
from dataclasses import dataclass, field, replace

import numpy as np

from corsage.core.arrays import Floats, Ints
from corsage.solvers.known_clusters.generalised.ascent import Ascent
from corsage.solvers.known_clusters.generalised.levels import Design, Jets, layouts
from corsage.solvers.known_clusters.mixed_model import unpack
from corsage.solvers.known_clusters.standard import Standard
from corsage.strategies.known_clusters.mixed_state import Search
from corsage.strategies.rounds.state import restored, stored

MOST_GAP = 1.0
"""Log likelihood that clusters' effects may be from their best for a look to count."""
CLUSTER_REACH = 1.0
"""No cluster's score moves by more in an exchange."""
MOST_SETTLING = 10
"""Exchanges in which clusters may come nearer to their best before a look is given up."""
SETTLED_GAP = 1e-6
"""The same, for a search to end."""
ENDLESS_SHAPE = 20.0
"""The logarithm of a shape beyond which rows have no scatter: theirs is a 20,000th of the mean."""


@dataclass(frozen=True)
class LikelihoodState:
    """The search, as far as it is.

    Parameters
    ----------
    standard : units in which coefficients are sought.
    fixed : coefficients that are held (d,), and `free`: 1 for those that are not.
    names : the clusters, in the order of the arrays' rows; one where there is but one level.
    above : the units of the levels above them, and `parents`: of each level's units those above.
    which : the coefficients that may differ, and `told`: 1 for those that do, level by level (r,).
    held : why others do not.
    kinds : shapes that are still to be tried, the present one first.
    ascent : the parameters.
    effects : those of each level at the place ahead (k, r); `settling`: exchanges since it was new.
    place, there : where the clusters were asked at the best place, and with which effects.
    value, slope, bend : what they said there.
    gap : what their effects there were from the best.
    bound : whether the family's shape is at its bound.
    tried : Akaike's criterion of the shapes that were fitted.
    heard : the cohorts of which it is the likelihood.
    """

    standard: Standard
    fixed: Floats
    free: Floats
    names: list[str]
    above: list[list[str]]
    parents: list[Ints]
    which: Ints
    told: list[Floats]
    held: dict[str, str]
    kinds: list[str]
    ascent: Ascent
    effects: list[Floats]
    settling: int = 0
    place: Floats = field(default_factory=lambda: np.zeros((0, 0)))
    there: list[Floats] = field(default_factory=list)
    value: Floats = field(default_factory=lambda: np.zeros((0, 0)))
    slope: Floats = field(default_factory=lambda: np.zeros((0, 0, 0)))
    bend: Floats = field(default_factory=lambda: np.zeros((0, 0, 0, 0)))
    gap: float = 0.0
    bound: bool = False
    tried: dict[str, float] = field(default_factory=dict)
    heard: list[str] = field(default_factory=list)

    @classmethod
    def of(cls, kept: Search) -> LikelihoodState:
        """As a run keeps it."""
        return restored(cls, json.loads(kept.plain), kept.arrays)

    def kept(self) -> Search:
        """For a run to keep."""
        plain, arrays = stored(self)
        return Search(json.dumps(plain), arrays)

    @property
    def best(self) -> Jets:
        """The clusters' answers at the best place."""
        return Jets(self.value, self.slope, self.bend)

    def settled(self, design: Design) -> bool:
        """True if the parameters and the clusters' effects are at their best, or have none."""
        return (self.ascent.settled and self.gap < SETTLED_GAP) or self.endless(design)

    def endless(self, design: Design) -> bool:
        """True if the family's shape grows for ever."""
        there, place = len(self.ascent.at), design.own - 1
        if not there or not design.shaped or design.bound:
            return False
        found = self.ascent.at[place]
        return bool(found > ENDLESS_SHAPE or (found > 0 and self.ascent.open[place]))

    def design(self, shaped: bool) -> Design:
        """The way from the parameters of the present shape to what users are told."""
        around = self.standard.matrix[:, self.which]
        own, *above = (layouts(self.kinds[0], len(self.which), told) for told in self.told)
        return Design(
            self.standard.matrix[:, self.free > 0], self.fixed,
            np.einsum("pc,kcr->kpr", around, own), around if above else around[:, :0], above,
            shaped, self.bound,
        )  # fmt: skip

    def advanced(self, jets: Jets, design: Design) -> LikelihoodState:
        """The search after an exchange."""
        from corsage.solvers.known_clusters.generalised.joint import integrated

        found = self
        if not self.effects:
            one = design.living(design.whole(jets))
            ascent = found.ascent.look(float(one.value[0]), one.slope[0], one.bend[0])
            return replace(found, ascent=ascent, value=jets.value)
        psi = found.ascent.ahead
        models = design.centres(psi, found.effects, found.parents)[0]
        place = np.concatenate([models, np.tile(design.tau(psi), (len(models), 1))], 1)
        here = integrated(design, jets, place, found.effects, found.parents, psi)
        if here.gap > MOST_GAP and found.settling < MOST_SETTLING:
            effects = nearer(found.effects, here.effects, design, psi)
            return replace(found, effects=effects, settling=found.settling + 1)
        ascent = found.ascent.look(
            float(here.jet.value), here.jet.slope, here.jet.bend, abs(found.gap)
        )
        if ascent.at is psi:
            found = replace(
                found, place=place, there=found.effects, gap=here.gap,
                value=jets.value, slope=jets.slope, bend=jets.bend,
            )  # fmt: skip
        ahead = integrated(
            design, found.best, found.place, found.there, found.parents, ascent.ahead
        )
        effects = nearer(found.there, ahead.effects, design, ascent.ahead)
        return replace(found, ascent=ascent, effects=effects, settling=0)


def nearer(effects: list[Floats], goals: list[Floats], design: Design, psi: Floats) -> list[Floats]:
    """Clusters' effects on the way to their goals, none of which moves too far."""
    found = []
    for level, (v, goal) in enumerate(zip(effects, goals, strict=True)):
        root = np.einsum("kcs,k->cs", design.above[level], psi[design.spans[level + 1]])
        far = np.linalg.norm((goal - v) @ root.T, axis=1)
        found.append(v + (goal - v) / np.maximum(far / CLUSTER_REACH, 1.0)[:, None])
    return found


def unpacked(rows: list[Floats], d: int, design: Design) -> Jets:
    """Values, gradients and Hessians of clusters; where there is one level their sum."""
    sums = np.stack(rows)
    m = d + len(design.basis) + design.shaped
    if not design.above:
        sums = sums.sum(0, keepdims=True)
    return Jets(sums[..., 0], sums[..., 1 : 1 + m], unpack(sums[..., 1 + m :], m))
