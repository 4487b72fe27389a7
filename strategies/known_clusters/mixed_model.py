"""The mixed model: the exact minimiser for known clusters, from sums, without a step size.

Lyu et al. 2022, (2.3):

    min over theta, w, wbar of  sum_i f_i(theta_i) + gamma_i/2 |theta_i - w_j|^2
                                + sum_j lambda_j/2 |w_j - wbar|^2.

A round is one exchange of sums (mixed_solution.py): one is all for the squared loss, other losses
take a few, which are Newton's method. gamma_i and lambda_j on `auto` come out of the same exchanges
(estimation.py).

With some of its keys fixed it is another method: `exact-cluster` has one model for each known
cluster (gamma = inf, lambda = 0: the oracle of Armacki et al. 2022, section V), `exact-global` one
for all users (gamma = lambda = inf: single model in section 6.1; (1) of Armacki et al.), and
`exact-local` one for each user alone, the shortest minimiser of f_i (gamma = 0: locally trained;
(2) of Armacki et al.). Where a user's logistic loss has no minimiser, as its classes can be told
apart, its model grows until num-rounds.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar, cast

import numpy as np
from flwr.app import ArrayRecord

from corsage.core.arrays import INFINITE, Array, Arrays, Floats
from corsage.core.keys import Keys, key
from corsage.core.messages.encoding import encode
from corsage.core.messages.replies import Replies
from corsage.solvers.known_clusters.newton_rounds import Pace
from corsage.strategies.known_clusters.clusters.cohorts import ClusterNames, KnownClusters
from corsage.strategies.known_clusters.clusters.strengths import (
    ClusterKeys,
    Strengths,
    tied,
    value_of,
)
from corsage.strategies.known_clusters.coins.checks import check_convex, check_mixed
from corsage.strategies.known_clusters.coins.conversation import (
    evaluation_of,
    evaluations_of,
)
from corsage.strategies.known_clusters.estimation import Estimates
from corsage.strategies.known_clusters.inference import inferred
from corsage.strategies.known_clusters.kept_sums import KeptSums
from corsage.strategies.known_clusters.linear_summary import LinearSummary
from corsage.strategies.known_clusters.mixed_solution import MOST_COEFFICIENTS, MixedSolution
from corsage.strategies.known_clusters.neighbours import Neighbours, compared
from corsage.strategies.known_clusters.paths import parents
from corsage.strategies.rounds.algorithm import AT_ONCE
from corsage.strategies.rounds.base import Strategy
from corsage.strategies.rounds.job import Job
from corsage.strategies.rounds.results import Finding
from corsage.strategies.rounds.state import copied
from corsage.strategies.rounds.turns import Question, Script

if TYPE_CHECKING:
    from corsage.networks.network import Network


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
        "nobody is in any, all",
        choices=("auto", "known", "all"),
    )
    mixed_random: str = key(
        "all",
        "which coefficients differ between users: all, or the intercept alone (random intercepts)",
        choices=("all", "intercept"),
    )
    mixed_variances: str = key(
        "auto",
        "gamma and lambda on auto, from each user's sums: one variance a level, one a coefficient "
        "(diagonal), any covariance (full), or auto: by the likelihood of users that are left out; "
        "summed: one variance a level, from sums over the users of each node alone",
        choices=("auto", "one", "diagonal", "full", "summed"),
    )
    mixed_neighbours: str = key(
        "simulations",
        "gamma and lambda on auto: after the last round also one model for all, one a cluster and "
        "one a user are solved and judged, and one that is better is named; costs their exchanges",
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
    mixed_keep_sums: bool = key(
        True,
        "auto, squared loss: checkpoints hold the sums that each user sent, so that corsage forget "
        "can take one out",
    )


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
    clusters, strengths : the clusters, and the strengths as they are given or estimated.
    estimates : what those on auto were estimated from.
    sums : those that each user sent, where they are kept.
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
    clusters: ClusterNames = field(default_factory=ClusterNames)
    strengths: Strengths = field(default_factory=Strengths)
    estimates: Estimates = field(default_factory=Estimates)
    sums: KeptSums = field(default_factory=KeptSums)
    quadratics: str = ""
    pace: Pace = field(default_factory=Pace)
    change: float = 0.0
    done: bool = False

    @classmethod
    def of_size(cls, d: int) -> MixedModelState:
        """The middle at zero; all else comes with the first round."""
        none = np.zeros((0, d))
        covariance, around = np.zeros((0, d, d)), np.zeros((0, 0))
        return cls(np.zeros(d), none, none, none, none, covariance, around, np.zeros((d, 0)))

    def enter(self, varies: Floats | None = None) -> None:
        """What there is to know of a cluster when it is new, by coordinate.

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

    def place(self, cluster: str) -> int | None:
        """The row of a cluster; None if it is not part of the problem."""
        known = self.clusters.known[: len(self.w)]
        return known.index(cluster) if cluster in known else None

    def centre(self, cluster: str) -> Floats:
        """w_j; of a cluster that came later the model of the unit that it is in, or wbar."""
        if (place := self.place(cluster)) is not None:
            return np.asarray(self.w[place])
        known = {name: model for level in self.above for name, model in level.items()}
        units = [known[unit] for unit in parents(cluster) if unit in known]
        return units[0] if units else np.asarray(self.model)


K = TypeVar("K", bound=MixedModelKeys)


class MixedModel(Strategy[K, MixedModelState]):
    """The server of the mixed model: w_j, wbar, and the strengths by cluster and coordinate."""

    name = "mixed-model"
    own_steps = "it is solved exactly"
    solves = True
    draws = False
    by_cohort = True
    unprotected = "users send sums that are solved, nothing is averaged"
    no_server_step = unprotected
    untrained = own_steps
    keys_class: ClassVar[type[Keys]] = MixedModelKeys
    inference: LinearSummary | None = None  # found in the closing, again after a crash
    neighbours: Neighbours | None = None
    last: Replies | None = None  # the last evaluation

    @cached_property
    def clusters(self) -> KnownClusters:
        """Who is in which cluster."""
        together = self.keys.mixed_grouping == "all" or self.ungrouped
        return KnownClusters(self.job, self.keys.known_missing, together)

    @property
    def ungrouped(self) -> bool:
        """Whether clusters are left to the data, and nobody is in one."""
        if self.keys.mixed_grouping != "auto" or self.keys.known_missing:
            return False
        return not any(member.cluster for member in self.members.everybody.values())

    @property
    def solution(self) -> MixedSolution:
        """What rounds make of the state."""
        return MixedSolution(self.job, self.clusters, self.keys, self.state)

    @classmethod
    def strengths(cls, job: Job) -> Script[tuple[Strengths, list[Finding]]]:
        """Strengths on auto of another method: (2.3) is solved at the same nodes on the way.

        What users keep of it is kept under a name of its own.
        """
        given = cast(MixedModelKeys, job.config.keys_of(cls.name))
        keys = replace(
            given, mixed_random="all", mixed_variances="summed"
        )  # these methods have one strength for all
        own = job.beside(cls.name, "strengths")
        state = MixedModelState.of_size(job.network.whole.stop)
        solution = MixedSolution(own, KnownClusters(own, keys.known_missing), keys, state)
        yield from solution.solved()
        return solution.typical(), state.estimates.findings()

    def initial(self, network: Network) -> MixedModelState:
        """The middle at zero; all else comes with the first round."""
        check_convex(self.job)
        self.clusters.check()
        check_mixed(self.keys, self.config.model, self.job.loss)
        return MixedModelState.of_size(network.whole.stop)

    def shared(self) -> Arrays:
        """Nothing goes to everybody: users get what is their cluster's."""
        return {}

    def opening(self) -> Script[None]:
        """Strengths that are given; those on auto come with the rounds."""
        if not self.state.strengths.lam:
            if self.ungrouped:
                self.job.note("nobody is in a known cluster: there is one centre for all")
            self.solution.begin()
        yield from ()

    def snapshot(self) -> MixedModelState:
        """A copy: rounds write into the state."""
        return copied(self.state)

    def round(self, number: int) -> Script[Replies]:
        """One exchange of sums, w_j and wbar; after the last round users keep their models."""
        replies = yield from self.solution.round(number)
        self.clusters.note_trained(self.state.clusters)
        return replies

    def finished(self) -> bool:
        """Whether the last round changed nothing any more."""
        return self.state.done

    def judged(self, replies: Replies) -> None:
        """Hold an evaluation: the last one is of the final models."""
        self.last = replies

    def closing(self) -> Script[None]:
        """Ask what standard errors need, and users for their estimates; judge the neighbours."""
        self.inference = yield from inferred(self.solution)
        self.neighbours = yield from compared(self.solution, self.last)
        if self.neighbours is not None and self.neighbours.told:
            self.job.note(f"use {self.neighbours.told}")

    def evaluation(self, options: Mapping[str, Any], users: list[str] | None = None) -> Question:
        """Every user judges its own model; new users adapt."""
        shown = self.solution.shown
        cohorts = self.clusters.of_evaluation(self.state.clusters, options)
        return evaluation_of(self.job, [shown(cohort) for cohort in cohorts], options)

    def evaluations(
        self, options: Mapping[str, Any], some: bool = False
    ) -> Iterable[Callable[[], Question]]:
        """The same, some cohorts at a time."""
        shown = self.solution.shown
        cohorts = self.clusters.of_evaluation(self.state.clusters, options)
        return evaluations_of(self.job, cohorts, shown, options, AT_ONCE)

    def user_clusters(self, row: str) -> dict[str, str]:
        """Each user's known cluster."""
        return self.clusters.names()

    def findings(self) -> list[Finding]:
        """How the solution was reached, the coefficients, and the variances."""
        found = self.solution.findings()
        if self.neighbours is not None:
            found += self.neighbours.findings()
        if self.inference is not None:
            return [*found, *self.inference.findings()]
        if self.keys.mixed_summary == "none" or self.solution.size <= MOST_COEFFICIENTS:
            return found
        told = f"no summary of more than {MOST_COEFFICIENTS}; coefficients.csv has every user's"
        return [*found, Finding("coefficients", [(f"{self.solution.size:,}", told)])]

    def estimates(self) -> dict[str, Any] | None:
        """Coefficients, variances and users' estimates."""
        return None if self.inference is None else self.inference.json()

    def named_arrays(self) -> ArrayRecord:
        """wbar, by the names of the model's parameters."""
        network = self.job.network
        return encode(network.named(self.state.model, network.whole))
