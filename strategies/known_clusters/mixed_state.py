"""The keys of the mixed model, and the state of its server."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field

import numpy as np

from corsage.core.arrays import INFINITE, Array, Floats
from corsage.core.counts import Number
from corsage.core.keys import key
from corsage.solvers.known_clusters.newton_rounds import Pace, separated
from corsage.solvers.known_clusters.standard import Standard
from corsage.solvers.known_clusters.variances.covariance import Covariances
from corsage.solvers.known_clusters.variances.scoring import Fitted
from corsage.strategies.known_clusters.aside import Aside
from corsage.strategies.known_clusters.clusters.cohorts import ClusterNames
from corsage.strategies.known_clusters.clusters.strengths import (
    ClusterKeys,
    Strengths,
    tied,
    value_of,
)
from corsage.strategies.known_clusters.estimation import Estimates
from corsage.strategies.known_clusters.kept_sums import KeptSums
from corsage.strategies.known_clusters.paths import parents

AVERAGED, WITHHELD = (
    Number(name, low=0.0, whole=True, per_sample=1.0, optional=True)
    for name in ("averaged", "withheld")
)
"""The rows whose inputs are a group's mean in the sums that a cohort sends, and those in none."""
FOUND = "found"
"""mixed-grouping where nobody told the groups."""
ALL_COLUMNS = ("all",)
"""mixed-random where users differ in all coefficients."""
LARGEST_GAMMA = 1e3
"""An infinite gamma, where users do not differ, is this to them: steps need a bound."""


@dataclass(frozen=True)
class MixedModelKeys(ClusterKeys):
    """Keys of the mixed model."""

    title = "Mixed model"

    mixed_tolerance: float = key(
        1e-8,
        "ends when a round moves the models by less than this share of them (float32: 1e-5)",
        low=0.0,
    )
    mixed_em_rounds: int = key(
        20,
        "auto, but not with the squared loss, where users' sums are added up before they are sent "
        "(mixed-variances=summed): rounds of EM",
        low=1,
    )
    mixed_grouping: str = key(
        "auto",
        "known: the known clusters; all: everybody in one cluster; auto: the known clusters, or if "
        "nobody is in any, all; found: groups that users' sums show, if held-out records say that "
        "they pay, else one",
        choices=("auto", "known", "all", FOUND),
    )
    mixed_random: tuple[str, ...] = key(
        ALL_COLUMNS,
        "which coefficients differ between users: all, intercept (random intercepts), or names of "
        "columns, with intercept among them or not (intercept,Days); of a column of words all its "
        "levels",
    )
    mixed_variances: str = key(
        "auto",
        "gamma and lambda on auto, from each user's sums: one variance a level, one a coefficient "
        "(diagonal, as R's x || user), any covariance (full), or auto: by the likelihood of users "
        "that are left out; summed: one variance a level, from sums over each node's users alone",
        choices=("auto", "one", "diagonal", "full", "summed"),
    )
    mixed_likelihood: str = key(
        "auto",
        "gamma and lambda on auto, losses that are likelihoods (logistic, binomial, poisson, "
        "negative-binomial, gamma): users' effects are integrated out by quadrature (one random "
        "coefficient), by Laplace's approximation (several, and with clusters), or by neither "
        "(quasi: the penalised quasi-likelihood, logistic only); auto: the first that can be had",
        choices=("auto", "quadrature", "laplace", "quasi"),
    )
    offset_column: str = key(
        "", "losses that are likelihoods: input whose coefficient is 1 (the log of an exposure)"
    )
    weight_column: str = key(
        "",
        "losses that are likelihoods: input that weights its row's log likelihood (binomial: the "
        "trials; gamma: it multiplies the row's shape), with a coefficient of 0",
    )
    mixed_neighbours: str = key(
        "simulations",
        "gamma and lambda on auto: after the last round also one model for all, one a cluster, one "
        "a user, random intercepts alone and one centre are solved and judged, and one that is "
        "better is named; costs their exchanges",
        choices=("simulations", "always", "never"),
    )
    mixed_intervals: str = key(
        "auto",
        "squared loss, users' own sums: intervals of variances by the likelihood's profile, found "
        "at the server without an exchange: always, never, or auto: where that takes some seconds",
        choices=("auto", "always", "never"),
    )
    mixed_summary: str = key(
        "users",
        "asked after the last round: what standard errors need (federation), in simulations also "
        "each user's estimates (users), or nothing (none); devices send sums only",
        choices=("users", "federation", "none"),
    )
    mixed_paths: bool = key(
        True,
        "auto: clusters whose names are paths, a/b/c, are in units of further levels, a/b and a, "
        "each level with a variance of its own; false: names like any others",
    )
    mixed_aside: str = key(
        "devices",
        "squared loss, users' own sums, and logistic likelihoods of users that answer alone: who "
        "is not like the others counts in no centre and no variance, and is named; devices: there "
        "alone, and in a simulation, whose users cannot lie, all count and strengths on auto with "
        "the squared loss come with the names",
        choices=("devices", "always", "never"),
    )
    mixed_keep_sums: bool = key(
        False,
        "auto, squared loss: checkpoints hold the sums that each user sent, so that corsage forget "
        "can take one out",
    )

    @property
    def folded(self) -> bool:
        """True if the rows of a user are dealt into folds, of each of which sums are told."""
        return self.mixed_grouping == FOUND

    @property
    def held(self) -> dict[str, str]:
        """Columns whose coefficients are held, by the keys that name them."""
        return {"offset-column": self.offset_column, "weight-column": self.weight_column}


@dataclass
class Search:
    """A state of an attachment, as only that can read it."""

    plain: str = ""
    arrays: dict[str, Array] = field(default_factory=dict)


@dataclass
class FoundGroups(Search):
    """The same of groups: `arrays` are all that users make their models of.

    Parameters
    ----------
    of : the group of each user; empty where there is one centre.
    """

    of: dict[str, str] = field(default_factory=dict)


@dataclass
class MixedModelState:
    """(2.3), as far as it is solved; rows are the clusters' in the order of their numbers.

    Parameters
    ----------
    model : wbar (d,).
    w : w_j (k, d).
    above : of each level above the clusters, from below, the models of its units by name.
    gamma, lam : gamma_j and lambda_j by coordinate (k, d), of the next sums.
    used : gamma_j of the sums that w_j came from (k, d).
    covariance, around : of w_j (k, d, d) and of wbar (d, d) given the data, in units of the noise;
        of many coefficients only where EM estimates the strengths.
    unknown : directions of wbar that the data leave open (d, r).
    first : the curvature of all losses at the first models (d, d), of the logistic loss.
    endless : directions in which classes are told apart without error (d, r): there is no top.
    clusters, strengths : the clusters, and the strengths as they are given or estimated.
    estimates : what those on auto were estimated from.
    likelihood : the search for the most likely parameters, of losses that are likelihoods.
    groups : the groups that were found, where they were looked for.
    classes : the strengths of several classes.
    sums : those that each user sent, where they are kept.
    aside : how like the others users' sums are, and who is set aside.
    quadratics : what the quadratics of the last sums were; empty before the first.
    pace : which ones are next.
    change : how far the last round moved the models, as a share of them.
    done : whether the last round changed nothing any more.
    """

    model: Array
    w: Floats
    gamma: Floats = field(metadata=INFINITE)
    lam: Floats = field(metadata=INFINITE)
    used: Floats = field(metadata=INFINITE)
    covariance: Floats
    around: Floats
    unknown: Floats
    above: list[dict[str, Floats]] = field(default_factory=list)
    first: Floats = field(default_factory=lambda: np.zeros((0, 0)))
    endless: Floats = field(default_factory=lambda: np.zeros((0, 0)))
    clusters: ClusterNames = field(default_factory=ClusterNames)
    strengths: Strengths = field(default_factory=Strengths)
    estimates: Estimates = field(default_factory=Estimates)
    likelihood: Search = field(default_factory=Search)
    groups: FoundGroups = field(default_factory=FoundGroups)
    classes: Search = field(default_factory=Search)
    sums: KeptSums = field(default_factory=KeptSums)
    aside: Aside = field(default_factory=Aside)
    quadratics: str = ""
    pace: Pace = field(default_factory=Pace)
    change: float = 0.0
    done: bool = False

    def __post_init__(self) -> None:
        self.heard = KeptSums()  # of this process's last exchange: no field, so in no checkpoint

    @property
    def at_hand(self) -> KeptSums:
        """The users' sums of the last exchange, or those that a checkpoint had."""
        return self.heard if self.heard.users else self.sums

    @classmethod
    def of_size(cls, d: int) -> MixedModelState:
        """The middle at zero; all else comes with the first round."""
        none = np.zeros((0, d))
        covariance, around = np.zeros((0, d, d)), np.zeros((0, 0))
        return cls(np.zeros(d), none, none, none, none, covariance, around, np.zeros((d, 0)))

    def enter(self, varies: Floats | None = None) -> None:
        """Give clusters that are new their rows, by coordinate.

        Coefficients that do not `vary` are tied without end.
        """
        d, new = len(self.model), self.clusters.known[len(self.w) :]
        if not new:
            return
        known = self.strengths.gamma or self.strengths.users
        gamma = np.stack([tied(value_of(known, name), d, varies) for name in new])
        lam = np.stack([tied(value_of(self.strengths.lam, name), d, varies) for name in new])
        self.w = np.concatenate([self.w, np.tile(self.model, (len(new), 1))])
        self.gamma = np.concatenate([self.gamma, gamma])
        self.used = np.concatenate([self.used, gamma])
        self.lam = np.concatenate([self.lam, lam])
        self.covariance = np.concatenate([self.covariance, np.zeros((len(new), d, d))])

    def look(self, curvature: Floats, records: float) -> None:
        """See by the curvature (d, d) of all losses if any coefficient grows without end."""
        if self.first.size:
            self.endless = separated(curvature, self.first, records)
        else:
            self.first = curvature

    def typical(self) -> Strengths:
        """gamma and lambda by cluster, of the mean variance of the coordinates; gamma bounded."""

        def bounded(rows: Floats) -> dict[str, float]:
            with np.errstate(divide="ignore"):  # no variance: endless, and bounded
                values = np.minimum(1 / np.mean(1 / rows, axis=1), LARGEST_GAMMA)
            return dict(zip(self.clusters.known, values.tolist(), strict=True))

        return Strengths(gamma=bounded(self.gamma), lam=bounded(self.lam))

    def unsure(self, places: list[int], found: Covariances) -> None:
        """Take over how sure centres are."""
        self.covariance[places] = found.w
        self.around, self.unknown = found.wbar, found.unknown

    def place(self, cluster: str) -> int | None:
        """The row of a cluster; None if it is not part of the problem."""
        known = self.clusters.known[: len(self.w)]
        return known.index(cluster) if cluster in known else None

    def centre(self, cluster: str) -> Floats:
        """w_j; of a cluster that came later the model of the unit that it is in, or wbar."""
        if (place := self.place(cluster)) is not None:
            return np.asarray(self.w[place])
        return self.unit(cluster)

    def unit(self, cluster: str) -> Floats:
        """The model of the unit that a cluster is in, or wbar."""
        known = {name: model for level in self.above for name, model in level.items()}
        units = [known[unit] for unit in parents(cluster) if unit in known]
        return units[0] if units else np.asarray(self.model)

    def lean(self, clusters: Collection[str]) -> None:
        """Clusters of which everybody is set aside are as the units that they are in."""
        fit = self.estimates.covariance
        for place in map(self.clusters.known.index, clusters):
            self.w[place] = self.unit(self.clusters.known[place])
            if self.around.size:
                between = fit.clusters.sum(0) / fit.sigma2 if fit.kinds else 0.0
                self.covariance[place] = self.around + between

    def remember(
        self, found: Fitted, units: Standard, names: list[str], above: list[list[str]]
    ) -> None:
        """Centres, how sure they are, and strengths by coordinate, of these clusters.

        Of the units `above` them, level by level, their models.
        """
        places = [self.clusters.known.index(name) for name in names]
        known, fit = found.found.known_above(), self.estimates.covariance
        self.w[places] = units.models(known[0].mean)
        self.model = units.models(known[-1].mean[0])
        self.above = [
            dict(zip(level, units.models(own.mean), strict=True))
            for level, own in zip(above, known[1:-1], strict=True)
        ]
        self.covariance[places] = units.covariances(known[0].covariance)
        self.around = units.covariances(known[-1].covariance[0])
        self.unknown = units.matrix @ (units.sound[:, None] * found.found.middle.unknown)
        with np.errstate(divide="ignore", over="ignore"):
            users = np.broadcast_to(fit.users, (len(names), *fit.users.shape[1:]))
            self.used[places] = self.gamma[places] = fit.sigma2 / np.diagonal(users, 0, 1, 2)
            self.lam[places] = fit.sigma2 / np.diag(fit.clusters.sum(0))
