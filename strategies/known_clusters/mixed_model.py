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
from dataclasses import replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar, cast

from flwr.app import ArrayRecord

from corsage.core.arrays import Arrays
from corsage.core.keys import Keys
from corsage.core.messages.encoding import encode
from corsage.core.messages.replies import Replies
from corsage.core.registry import attached
from corsage.strategies.known_clusters.clusters.cohorts import KnownClusters
from corsage.strategies.known_clusters.clusters.strengths import Strengths
from corsage.strategies.known_clusters.coins.coin_keys import check_convex, check_mixed
from corsage.strategies.known_clusters.coins.conversation import evaluation_of, evaluations_of
from corsage.strategies.known_clusters.inference import inferred
from corsage.strategies.known_clusters.linear_summary import LinearSummary
from corsage.strategies.known_clusters.mixed_solution import MOST_COEFFICIENTS, MixedSolution
from corsage.strategies.known_clusters.mixed_state import (
    ALL_COLUMNS,
    FOUND,
    MixedModelKeys,
    MixedModelState,
)
from corsage.strategies.known_clusters.neighbours import Neighbours, compared
from corsage.strategies.known_clusters.units import held_columns, varying
from corsage.strategies.rounds.algorithm import EVALUATED_AT_ONCE
from corsage.strategies.rounds.base import Strategy
from corsage.strategies.rounds.job import Job
from corsage.strategies.rounds.results import Finding
from corsage.strategies.rounds.state import copied
from corsage.strategies.rounds.turns import Question, Script

if TYPE_CHECKING:
    from corsage.networks.network import Network


K = TypeVar("K", bound=MixedModelKeys)


def of_classes(job: Job) -> bool:
    """True if the loss is of one output a class."""
    return job.loss == "cross-entropy"


def solver(job: Job) -> type[MixedSolution]:
    """The solution of (2.3) for the loss of a job."""
    if not of_classes(job):
        return MixedSolution
    found: type[MixedSolution] = attached("classes").ClassesSolution
    return found


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
        """The users' clusters."""
        together = self.keys.mixed_grouping in ("all", FOUND) or self.ungrouped
        return KnownClusters(self.job, self.keys.known_missing, together)

    @property
    def ungrouped(self) -> bool:
        """True if clusters are left to the data, and nobody is in one."""
        if self.keys.mixed_grouping != "auto" or self.keys.known_missing:
            return False
        return not any(member.cluster for member in self.members.everybody.values())

    @property
    def solution(self) -> MixedSolution:
        """The rounds of the state as it is."""
        self.clusters.groups = self.state.groups.of
        return solver(self.job)(self.job, self.clusters, self.keys, self.state)

    @classmethod
    def strengths(cls, job: Job) -> Script[tuple[Strengths, list[Finding]]]:
        """Strengths on auto of another method: (2.3) is solved at the same nodes on the way.

        What users keep of it is kept under a name of its own.
        """
        given = cast(MixedModelKeys, job.config.keys_of(cls.name))
        keys = replace(
            given, mixed_random=ALL_COLUMNS, mixed_variances="summed"
        )  # these methods have one strength for all
        own = job.beside(cls.name, "strengths")
        state = MixedModelState.of_size(job.network.whole.stop)
        solution = MixedSolution(own, KnownClusters(own, keys.known_missing), keys, state)
        yield from solution.solved()
        return state.typical(), state.estimates.findings()

    def initial(self, network: Network) -> MixedModelState:
        """The middle at zero; all else comes with the first round."""
        check_convex(self.job)
        self.clusters.check()
        check_mixed(self.keys, self.config.model, self.job.loss)
        d = network.whole.stop // (self.job.agreed.num_classes if of_classes(self.job) else 1)
        varying(self.job, d, self.keys.mixed_random)
        held_columns(self.job, self.keys.held, d)
        return MixedModelState.of_size(network.whole.stop)

    def shared(self) -> Arrays:
        """Nothing goes to everybody: users get what is their cluster's."""
        return {}

    def opening(self) -> Script[None]:
        """Strengths that are given; those on auto come with the rounds."""
        if not self.state.strengths.lam:
            if self.keys.mixed_grouping == FOUND:
                yield from attached("found groups").looked_for(self.solution)
            if self.ungrouped:
                self.job.note("nobody is in a known cluster: there is one centre for all")
            self.solution.begin()
            if why := self.solution.unguarded:
                self.job.note(why)
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
        """True if the last round changed nothing any more."""
        return self.state.done

    def judged(self, replies: Replies) -> None:
        """Hold an evaluation: the last one is of the final models."""
        self.last = replies

    def closing(self) -> Script[None]:
        """Ask what standard errors need, and users for their estimates; judge the neighbours."""
        if of_classes(self.job):
            return
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
        return evaluations_of(self.job, cohorts, shown, options, EVALUATED_AT_ONCE)

    def user_clusters(self, row: str) -> dict[str, str]:
        """Each user's known cluster."""
        return self.solution.clusters.names()

    def findings(self) -> list[Finding]:
        """The course of the solution, the coefficients, and the variances."""
        found = self.solution.findings()
        if self.keys.mixed_grouping == FOUND:
            found += attached("found groups").findings(self.state.groups, self.solution.units)
        if self.neighbours is not None:
            found += self.neighbours.findings()
        if self.inference is not None:
            return [*found, *self.inference.findings()]
        if (
            of_classes(self.job)
            or self.keys.mixed_summary == "none"
            or self.solution.size <= MOST_COEFFICIENTS
        ):
            return found
        told = f"no summary of more than {MOST_COEFFICIENTS}; coefficients.csv has every user's"
        return [*found, Finding("coefficients", [(f"{self.solution.size:,}", told)])]

    def estimates(self) -> dict[str, Any] | None:
        """Coefficients, variances and users' estimates; how like the others users are."""
        if self.inference is None:
            return None
        aside = self.state.aside
        columns = aside.columns() if aside.users else {}
        if self.state.groups.of:
            columns |= attached("found groups").columns(self.state.groups)
        return {**self.inference.json(), "columns": columns}

    def named_arrays(self) -> ArrayRecord:
        """wbar, by the names of the model's parameters."""
        network = self.job.network
        return encode(network.named(self.state.model, network.whole))
