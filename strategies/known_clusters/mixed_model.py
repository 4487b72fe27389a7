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

from collections.abc import Mapping
from functools import cached_property
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar, cast

from flwr.app import ArrayRecord

from corsage.core.arrays import Arrays
from corsage.core.errors import ConfigError
from corsage.core.keys import Keys
from corsage.core.replies import Replies
from corsage.core.wire import encode
from corsage.strategies.known_clusters.cohorts import KnownClusters
from corsage.strategies.known_clusters.conversation import evaluation_of
from corsage.strategies.known_clusters.mixed_solution import MixedSolution
from corsage.strategies.known_clusters.mixed_state import MixedModelKeys, MixedModelState
from corsage.strategies.known_clusters.strengths import Strengths
from corsage.strategies.rounds.base import Strategy
from corsage.strategies.rounds.federation import Federation
from corsage.strategies.rounds.results import Finding
from corsage.strategies.rounds.turns import Question, Script

if TYPE_CHECKING:
    from corsage.networks.network import Network

K = TypeVar("K", bound=MixedModelKeys)


class MixedModel(Strategy[K, MixedModelState]):
    """The server of the mixed model: w_j, wbar, and the strengths by cluster and coordinate."""

    name = "mixed-model"
    keys_class: ClassVar[type[Keys]] = MixedModelKeys

    @cached_property
    def clusters(self) -> KnownClusters:
        """Who is in which cluster."""
        together = self.keys.mixed_grouping == "all"
        return KnownClusters(self.federation, self.keys.known_missing, together)

    @property
    def solution(self) -> MixedSolution:
        """What rounds make of the state."""
        return MixedSolution(self.federation, self.clusters, self.keys, self.state)

    @classmethod
    def strengths(cls, federation: Federation) -> Script[tuple[Strengths, list[Finding]]]:
        """Strengths on auto of another method: (2.3) is solved at the same nodes on the way.

        What users keep of it is kept under a name of its own.
        """
        keys = cast(MixedModelKeys, federation.config.keys_of(cls.name))
        own = federation.beside(cls.name, "strengths")
        state = MixedModelState.of_size(federation.network.whole.stop)
        solution = MixedSolution(own, KnownClusters(own, keys.known_missing), keys, state)
        yield from solution.solved()
        return solution.typical(), state.estimates.findings()

    def initial(self, network: Network) -> MixedModelState:
        """The middle at zero; all else comes with the first round."""
        if not self.federation.convex:
            raise ConfigError(
                f"{self.name}: needs model=linear and a loss with one output (squared, huber, "
                f"logistic, squared-hinge), not model={self.config.model.model} with "
                f"loss={self.federation.loss}; async-l2gd takes any model."
            )
        return MixedModelState.of_size(network.whole.stop)

    def shared(self) -> Arrays:
        """Nothing goes to everybody: users get what is their cluster's."""
        return {}

    def opening(self) -> Script[None]:
        """Strengths that are given; those on auto come with the rounds."""
        if not self.state.strengths.lam:
            self.solution.begin()
        yield from ()

    def round(self, number: int) -> Script[Replies]:
        """One exchange of sums, w_j and wbar; after the last round users keep their models."""
        replies = yield from self.solution.round(number)
        self.clusters.note_trained(self.state.clusters)
        return replies

    def finished(self) -> bool:
        """Whether the last round changed nothing any more."""
        return self.state.done

    def evaluation(self, options: Mapping[str, Any]) -> Question:
        """Every user judges its own model, found from w_j; new users adapt."""
        solution, cohorts = self.solution, self.clusters.judged(self.state.clusters, options)
        return evaluation_of(self.federation, [solution.shown(c) for c in cohorts], options)

    def findings(self) -> list[Finding]:
        """How the solution was reached, and the variances."""
        return self.solution.findings()

    def named_arrays(self) -> ArrayRecord:
        """wbar, by the names of the model's parameters."""
        network = self.federation.network
        return encode(network.named(self.state.model, network.whole))
