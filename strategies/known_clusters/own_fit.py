"""The most likely covariances from each user's own sums, and all centres: a step of the server's.

The covariances of users and clusters are found by scoring.py, their shapes by the likelihood of
users that were left out (shape_choice.py). Before, users are held against the others (unlike.py),
and variances that the data do not tell are held at 0 (identified.py).
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

import numpy as np

from corsage.core.arrays import Bools, Floats
from corsage.solvers.known_clusters.likelihood import noiseless
from corsage.solvers.known_clusters.standard import Standard
from corsage.solvers.known_clusters.tree import Tree
from corsage.solvers.known_clusters.variances.covariance_fit import CovarianceFit, again, level_name
from corsage.solvers.known_clusters.variances.identified import NOWHERE, holding, untold
from corsage.solvers.known_clusters.variances.scoring import BLIND, Fitted
from corsage.solvers.known_clusters.variances.shape_choice import Judged, chosen, part
from corsage.solvers.known_clusters.variances.shapes import DIAGONAL, ONE
from corsage.solvers.known_clusters.variances.uncertainty import (
    LONG_WORK,
    Asked,
    Likely,
    uncertain,
    work,
)
from corsage.solvers.known_clusters.variances.unlike import Expected, Scores, near, stands, suspects
from corsage.solvers.known_clusters.variances.users_sums import Users, explained
from corsage.strategies.known_clusters.aside import Aside, sets_aside, tested
from corsage.strategies.known_clusters.clusters.strengths import AUTO
from corsage.strategies.known_clusters.covariance_table import (
    APPROXIMATE,
    LEFT_OUT,
    NOT_ASKED,
    NOT_CONVERGED,
    PROFILE,
    RESTRICTED_PROFILE,
    SOME_PAIRS,
    in_words,
)
from corsage.strategies.known_clusters.estimation import NOISELESS
from corsage.strategies.known_clusters.paths import tree_levels, units_above
from corsage.strategies.known_clusters.units import LATENT, Units
from corsage.strategies.rounds.job import Job

if TYPE_CHECKING:
    from corsage.strategies.known_clusters.mixed_state import MixedModelKeys, MixedModelState

CHOICE = 3
"""The exchange in which shapes are chosen, where quadratics follow the models."""
SETTLED_GAIN, SETTLED_GAIN_SINGLE = 1e-9, 1e-3
"""The likelihood's slope is 0 if following it would gain less; with float32."""
SLOW = 25
"""Exchanges after which steps are halved: quadratics of some losses jump back and forth."""


class OwnFit:
    """Steps from users' own sums, which are written into the state.

    Parameters
    ----------
    job, keys, state : the mixed model's.
    varies : 1 for coefficients that differ between users (d,); None: all do.

    Attributes
    ----------
    exact : whether sums are those of a regression.
    quiet : whether users may have no noise: labels of one class have none.
    """

    def __init__(
        self, job: Job, keys: MixedModelKeys, state: MixedModelState, varies: Floats | None
    ) -> None:
        self.job, self.keys, self.state, self.varies = job, keys, state, varies
        self.exact = job.loss == "squared"
        self.quiet = False

    def solve(self, everybody: Users, number: int) -> None:
        """The most likely covariances, and all centres."""
        users = self.alike(everybody)
        names = users.names
        units = self.units(users)
        varies = units.sound if self.varies is None else units.sound * self.varies
        tree, held = self.told(planted(users, units, self.keys, self.exact).thinned(), varies)
        parts = tree.users
        found, tried = self.fitted(tree, users, varies, number)
        shares = explained(tree, found) if self.exact else self.latent(found)
        before = self.state.estimates.covariance
        fit = CovarianceFit.of(found, units, names, shares, float(parts.yy.sum()))
        fit.held = held
        fit.held_out, fit.refused = before.held_out, before.refused
        if tried:
            fit.held_out = {in_words(one.shapes): one.total for one in tried if not one.refused}
            fit.refused = {in_words(one.shapes): one.refused for one in tried if one.refused}
        fit.gain = found.gain if self.exact else found.first
        fit.flat = max(BLIND, found.rounding) if self.exact else self.flat
        if self.exact and noiseless(
            found.found.middle.square, float(parts.yy.sum()), users.total()[2]
        ):
            fit.fault = NOISELESS
        if self.job.loss == "logistic":
            self.state.look(users.total()[0], float(users.counts.sum()))
        fit.likely, fit.intervals = self.uncertain(tree, found, fit, varies)
        self.state.estimates.covariance = fit
        self.state.remember(found, units, names, above(self.keys, names))
        self.state.lean({*everybody.names} - {*names})

    def fitted(
        self, tree: Tree, users: Users, varies: Floats, number: int
    ) -> tuple[Fitted, list[Judged]]:
        """The most likely covariances, and the shapes that were tried if they were chosen now."""
        before, kind = self.state.estimates.covariance, self.keys.mixed_variances
        if kind == AUTO and not before.held_out and (self.exact or number >= CHOICE):
            drawn = users.drawn(self.job.config.run.seed)
            return chosen(tree, drawn, np.flatnonzero(varies), self.flat)
        kind = ONE if kind == AUTO else kind
        return again(tree, before, kind, users.names, varies, number >= SLOW), []

    def units(self, users: Users) -> Standard:
        """Standard units: those of the first exchange, for then all users were at one model."""
        known = self.state.estimates.covariance
        if known.kinds:
            return known.units
        square, slope, _ = users.total()
        slope = slope if self.exact else np.zeros(len(self.state.model))
        records, intercept = float(users.counts.sum()), self.job.config.model.intercept
        zero = Units.of(self.job, len(slope)).matrix[-1] if self.at_zero else None
        return Standard.of(square, slope, records, intercept, zero)

    @property
    def at_zero(self) -> bool:
        """True if features are around their 0 and not their means, as those of R's models are.

        It makes no difference to a full covariance, but where intercepts do not differ.
        """
        meet = self.varies is not None and not self.varies[-1]
        return self.job.config.model.intercept and (meet or self.keys.mixed_variances == DIAGONAL)

    def latent(self, found: Fitted) -> list[float]:
        """Shares on the scale of scores, of random intercepts under the logistic loss."""
        if self.varies is None or self.varies.sum() > 1 or self.job.loss != "logistic":
            return []
        parts = [LATENT, *(float(np.trace(one.mean(0))) for one in found.covariances)]
        return [part / sum(parts) for part in parts]

    @property
    def single(self) -> bool:
        """True if users compute in float32."""
        return self.job.config.model.precision == "float32"

    @property
    def flat(self) -> float:
        """The gain that is none."""
        return SETTLED_GAIN_SINGLE if self.single else SETTLED_GAIN

    # Who is set aside.

    def alike(self, users: Users) -> Users:
        """The users that are like the others, in clusters of which there is one."""
        known = self.state.aside
        if known.settled:
            aside = np.isin(users.users, known.named)
        elif tested(self.job, self.keys):
            aside = self.unlike(users)
        else:
            return users
        return users.at(~aside) if aside.any() else users

    def unlike(self, users: Users) -> Bools:
        """Mark those who are not like the others, and say so; nobody where all count anyway."""
        known = self.state.aside
        begin = suspects(users.plain(), users.counts, users.cluster, len(users.names))
        aside, scores = stands(begin, partial(self.scored, users))
        far, out = (
            [users.users[row] for row in np.flatnonzero(aside)],
            sets_aside(self.job, self.keys),
        )
        self.state.aside = Aside.of(users.users, scores, far, out)
        if far and far != (known.named or known.unlike):
            self.job.note(self.state.aside.note)
        return aside & out

    def scored(self, users: Users, aside: Bools) -> Scores:
        """Everybody's scores by a fit to those that are not set aside, one variance a number."""
        kept = np.flatnonzero(~aside)
        units = self.units(users.at(~aside))
        whole = planted(users, units, self.keys, self.exact)
        varies = units.sound if self.varies is None else units.sound * self.varies
        tree, _ = self.told(part(whole, kept), varies)
        found = near(tree, np.flatnonzero(varies))
        scores = Scores.of(whole.users, users.counts, Expected.of(found, whole.levels[0]), ~aside)
        return replace(scores, within=np.maximum(scores.within, 0.0)) if self.quiet else scores

    # What the data do not tell, and how sure the rest is.

    def told(self, tree: Tree, varies: Floats) -> tuple[Tree, dict[str, str]]:
        """The tree without variances that its data do not tell, and why they do not.

        That is seen while all users are at one model: records weigh differently where losses are no
        squares, and that would tell nothing but their weights.
        """
        before, d = self.state.estimates.covariance, len(varies)
        if not self.exact and len(before.varying) == len(tree.levels):
            return holding(
                tree, [np.isin(np.arange(d), own) for own in before.varying]
            ), before.held
        names = Units.of(self.job, d).names
        intercept = self.job.config.model.intercept
        found = untold(tree, np.flatnonzero(varies), names, intercept)
        wanted = np.ones(d) if self.varies is None else self.varies
        constant = dict.fromkeys(np.flatnonzero(wanted > varies).tolist(), NOWHERE)
        held = {
            f"{level_name(place)}: {names[c]}": why
            for place, own in enumerate(found)
            for c, why in {**constant, **own}.items()
        }
        return holding(tree, [~np.isin(np.arange(d), [*own]) for own in found]), held

    def uncertain(
        self, tree: Tree, found: Fitted, fit: CovarianceFit, varies: Floats
    ) -> tuple[dict[str, Likely], str]:
        """The variances' errors and intervals, and how they were found; or nothing, and why not."""
        if not self.exact:
            return {}, APPROXIMATE
        if self.keys.mixed_intervals == "never":
            return {}, NOT_ASKED
        if not fit.converged:
            return {}, NOT_CONVERGED
        always = self.keys.mixed_intervals == "always"
        if not always and work(tree, found, False) > LONG_WORK:
            return {}, LEFT_OUT
        units = Units.of(self.job, len(varies))
        matrix = units.matrix @ fit.units.matrix
        pairs = always or work(tree, found, True) <= LONG_WORK
        asked = Asked([*fit.levels], units.names, matrix, units.label, pairs)
        likely, restricted = uncertain(tree, found, asked)
        how = RESTRICTED_PROFILE if restricted else PROFILE
        return likely, how if pairs else f"{how}; {SOME_PAIRS}"


def above(keys: MixedModelKeys, names: list[str]) -> list[list[str]]:
    """The units of each level above these clusters."""
    return units_above(names) if keys.mixed_paths else []


def planted(users: Users, units: Standard, keys: MixedModelKeys, exact: bool) -> Tree:
    """The users' sums in standard units, and the levels above them."""
    levels = tree_levels(users.cluster, users.names, above(keys, users.names))
    return Tree(users.sums(units), levels, users.counts, None if exact else 1.0)
