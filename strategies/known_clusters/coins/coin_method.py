"""The base of the coin-throwing methods: Async-L2GD and Async-AL2SGD+.

Lyu et al. 2022. A round is a stretch of iterations, up to the next one for which clusters wait for
each other. All users take part: (2.1) is a sum over all of them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from functools import cached_property, partial
from typing import Any, TypeVar

from flwr.app import ArrayRecord

from corsage.core.arrays import Arrays
from corsage.core.errors import ConfigError
from corsage.core.messages.encoding import encode
from corsage.core.messages.replies import Replies
from corsage.core.registry import found
from corsage.solvers.known_clusters.coins.flips import Stretch, stretch
from corsage.solvers.known_clusters.coins.settings import largest_step
from corsage.solvers.known_clusters.hierarchy import Hierarchy
from corsage.strategies.known_clusters.clusters.cohorts import KnownClusters
from corsage.strategies.known_clusters.clusters.strengths import Strengths, given_strengths, settle
from corsage.strategies.known_clusters.coins.coin_keys import (
    CoinKeys,
    CoinState,
    check_coins,
    check_end,
    fixed_settings,
    spelled,
)
from corsage.strategies.known_clusters.coins.coin_server import (
    CoinServer,
    StepCheck,
    loss_constants,
)
from corsage.strategies.known_clusters.coins.conversation import (
    Conversation,
    evaluation_of,
    evaluations_of,
)
from corsage.strategies.known_clusters.coins.schedule import CoinSchedule, hierarchy_of
from corsage.strategies.rounds.algorithm import EVALUATED_AT_ONCE
from corsage.strategies.rounds.base import Strategy
from corsage.strategies.rounds.job import Job
from corsage.strategies.rounds.results import Finding
from corsage.strategies.rounds.state import copied
from corsage.strategies.rounds.turns import Question, Script

K = TypeVar("K", bound=CoinKeys)
S = TypeVar("S", bound=CoinState)


class CoinMethod(Strategy[K, S]):
    """A method whose iterations are told by coins."""

    own_steps = "coins draw its steps"
    solves = True
    draws = False
    by_cohort = True
    unprotected = "nodes take the means of their clusters themselves, step by step"
    no_server_step = unprotected

    # What a method overrides, besides `initial`.

    @property
    def server(self) -> CoinServer[S]:
        """The server's part: steps that it makes alone, its questions, and its messages."""
        raise NotImplementedError

    def fix(self, hierarchy: Hierarchy, smoothness: float, convexity: float) -> None:
        """Fix the settings of the run, for losses with the constants L and mu."""
        safe_step = partial(largest_step, hierarchy, smoothness)
        names = self.clusters.meet(self.state.clusters).names
        self.state.settings = fixed_settings(self.keys, names, hierarchy, smoothness, safe_step)

    def part(self, schedule: CoinSchedule, first: int) -> Stretch:
        """The iterations of the round that begins at `first`."""
        return stretch(schedule.coins, first, self.keys.iterations)

    def check_keys(self) -> None:
        """Refuse keys that cannot be meant, before the first message."""
        job = self.job
        check_coins(self.keys, self.config.model, job.loss, job.convex)
        estimated = self.keys.estimated and job.loss == "cross-entropy"
        if not self.config.train.lr and (estimated or not job.convex):
            raise ConfigError(f"{self.name}: lr=0 stands for endless pulls: set it above 0.")
        self.clusters.check()

    # The parts.

    @cached_property
    def clusters(self) -> KnownClusters:
        """The users' clusters."""
        return KnownClusters(self.job, self.keys.known_missing, all_apart=True)

    @property
    def schedule(self) -> CoinSchedule:
        """The coins and steps of the clusters that train now."""
        state, present = self.state, self.clusters.meet(self.state.clusters)

        def made() -> CoinSchedule:
            hierarchy = hierarchy_of(present, state.strengths)
            return CoinSchedule(self.config.run.seed, present, hierarchy, state.settings)

        return present.prepared.get("schedule", made)

    # The rounds.

    def shared(self) -> Arrays:
        """Nothing goes to everybody: users get what is their cluster's."""
        return {}

    def opening(self) -> Script[None]:
        """The settings, and what the server asks besides before the first round."""
        if not self.state.settings.eta:
            yield from self._settled()
        yield from self.server.opening()

    def _settled(self) -> Script[None]:
        """The strengths; then, from L and mu of the losses, p_0, p_j, tau_j and eta."""
        state, keys, clusters = self.state, self.keys, self.clusters
        strengths = Strengths()
        if keys.estimated and self.job.convex and self.job.loss != "cross-entropy":
            strengths, state.estimates = yield from estimated_strengths(self.job)
        elif keys.estimated:
            strengths = strengths_of_rate(self.config.train.lr)
        state.strengths = given_strengths(keys, strengths)
        settle(state.strengths, keys, state.clusters, clusters.meet(state.clusters))
        smoothness, convexity = yield from loss_constants(self.job, clusters, state)
        hierarchy = hierarchy_of(clusters.meet(state.clusters), state.strengths)
        self.fix(hierarchy, smoothness, convexity)
        eta, safe = state.settings.eta, state.settings.safe
        if eta > safe:
            text = f"known-eta={eta:g} is above {safe:.3g}, the largest step that is safe"
            self.job.note(text)
        check_end(self.name, state.settings.p0, keys.iterations)

    def snapshot(self) -> S:
        """A copy: steps write into the state."""
        return copied(self.state)

    def round(self, number: int) -> Script[Replies]:
        """A stretch: global steps, which are the server's alone, then each cluster's walk."""
        schedule, state, server = self.schedule, self.state, self.server
        schedule.present.need_somebody(number)
        part, check = self.part(schedule, state.iteration), StepCheck(self.job, state)
        server.enter()
        server.global_steps(part.globals)
        replies = yield Conversation(self.job, server.walks(part))
        check.check(number, replies, len(schedule.present.cohorts))
        state.iteration = part.last
        server.end_round(part)
        check.remember(server.reaches)
        return replies

    def note_trained(self, replies: Replies) -> None:
        """Cohorts are noted as a whole, and once."""
        self.clusters.note_trained(self.state.clusters)

    def length(self, rounds: int) -> int:
        """With `known-iterations` as many rounds as these take."""
        end, first = self.keys.iterations, self.state.iteration
        if end is None:
            return rounds
        schedule = self.schedule
        left: dict[int, int] = schedule.present.prepared.get("rounds left", dict)
        if first not in left:  # it is asked after every round: the coins are thrown once
            starts = [first]
            while starts[-1] < end:
                starts.append(self.part(schedule, starts[-1]).last)
            left.update({start: number for number, start in enumerate(reversed(starts))})
        return self.progress.round + left[first]

    def finished(self) -> bool:
        """True if all iterations are done."""
        end = self.keys.iterations
        return end is not None and self.state.iteration >= end

    def evaluation(self, options: Mapping[str, Any], users: list[str] | None = None) -> Question:
        """Every user judges its own model; new users adapt."""
        shown = self.server.shown
        cohorts = self.clusters.of_evaluation(self.state.clusters, options)
        return evaluation_of(self.job, [shown(cohort) for cohort in cohorts], options)

    def evaluations(
        self, options: Mapping[str, Any], some: bool = False
    ) -> Iterable[Callable[[], Question]]:
        """The same, some cohorts at a time."""
        shown = self.server.shown
        cohorts = self.clusters.of_evaluation(self.state.clusters, options)
        return evaluations_of(self.job, cohorts, shown, options, EVALUATED_AT_ONCE)

    def user_clusters(self, row: str) -> dict[str, str]:
        """Each user's known cluster."""
        return self.clusters.names()

    def findings(self) -> list[Finding]:
        """The settings, and communications: expected and counted."""
        state, strengths = self.state, self.state.strengths
        rows = [
            ("iterations", f"{state.iteration:,}"),
            ("gamma_i", spelled({**strengths.gamma, **strengths.users})),
            ("lambda_j", spelled(strengths.lam)),
            *state.settings.texts(),
        ]
        communications = Finding("communications", self.schedule.communications(state.iteration))
        aside = [(f"user {name}", "its cluster's centre is without it") for name in state.aside]
        far = [Finding("Set aside: far from all others", aside)] if aside else []
        return [Finding("settings", rows), communications, *state.estimates, *far]

    def named_arrays(self) -> ArrayRecord:
        """thbar, by the names of the model's parameters."""
        network = self.job.network
        return encode(network.named(self.state.model, network.whole))


def strengths_of_rate(lr: float) -> Strengths:
    """Strengths on auto of models whose variances nobody can estimate: a tenth of L = 1/(2 lr).

    A step then goes a twentieth of the way to the centre whatever the rate is, and by Corollary 3.6
    one in about a hundred waits for the network. A round has as many steps, whatever others do.
    """
    tenth = {"": 1 / (20 * lr)}
    return Strengths(gamma=tenth, lam=dict(tenth))


def estimated_strengths(job: Job) -> Script[tuple[Strengths, list[Finding]]]:
    """Strengths on auto are the mixed model's, which solves the problem on the way."""
    solver: type[Any] = found("mixed-model", "strategies")
    estimates: Script[tuple[Strengths, list[Finding]]] = solver.strengths(job)
    return (yield from estimates)
