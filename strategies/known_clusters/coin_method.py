"""The base of the coin-throwing methods: Async-L2GD and Async-AL2SGD+.

Lyu et al. 2022. A round is a stretch of iterations, up to the next one for which clusters wait for
each other. All users take part: (2.1) is a sum over all of them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any, NoReturn, TypeVar

from flwr.app import ArrayRecord

from corsage.core.arrays import Arrays
from corsage.core.errors import ConfigError, RoundFailed
from corsage.core.replies import Replies
from corsage.core.wire import encode
from corsage.solvers.known_clusters.coins import Stretch, stretch
from corsage.solvers.known_clusters.hierarchy import Hierarchy
from corsage.solvers.known_clusters.settings import largest_step
from corsage.strategies.known_clusters.cohorts import Cohort, KnownClusters
from corsage.strategies.known_clusters.coins import (
    CoinKeys,
    CoinState,
    check_end,
    fixed_settings,
    spelled,
)
from corsage.strategies.known_clusters.conversation import (
    Request,
    ask_each,
    check_enough,
    evaluation_of,
)
from corsage.strategies.known_clusters.mixed_solution import estimated_strengths
from corsage.strategies.known_clusters.schedule import CoinSchedule, hierarchy_of
from corsage.strategies.known_clusters.strengths import Strengths, given_strengths, settle
from corsage.strategies.rounds.base import Strategy
from corsage.strategies.rounds.federation import Federation
from corsage.strategies.rounds.results import Finding
from corsage.strategies.rounds.turns import Question, Script

K = TypeVar("K", bound=CoinKeys)
S = TypeVar("S", bound=CoinState)
FAR = 1e8
"""A model this far out, in units of the first round's, has diverged."""


class CoinMethod(Strategy[K, S]):
    """A method whose iterations are told by coins."""

    # What a method overrides, besides `initial` and `round`.

    def fix(self, hierarchy: Hierarchy, smoothness: float, convexity: float) -> None:
        """Fix the settings of the run, for losses with the constants L and mu."""
        safe_step = partial(largest_step, hierarchy, smoothness)
        names = self.clusters.meet(self.state.clusters).names
        self.state.settings = fixed_settings(self.keys, names, hierarchy, smoothness, safe_step)

    def part(self, schedule: CoinSchedule, first: int) -> Stretch:
        """The iterations of the round that begins at `first`."""
        return stretch(schedule.coins, first, self.keys.iterations)

    def shown(self, cohorts: Sequence[Cohort]) -> list[Request]:
        """What cohorts need to find their users' models, for an evaluation."""
        raise NotImplementedError

    # The parts.

    @cached_property
    def clusters(self) -> KnownClusters:
        """Who is in which cluster."""
        return KnownClusters(self.federation, self.keys.known_missing, all_apart=True)

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
        """The strengths; then, from L and mu of the losses, p_0, p_j, tau_j and eta."""
        state, keys = self.state, self.keys
        if state.settings.eta:
            return
        yield from settled_strengths(self.federation, keys, state, self.clusters)
        smoothness, convexity = yield from loss_constants(self.federation, self.clusters, state)
        hierarchy = hierarchy_of(self.clusters.meet(state.clusters), state.strengths)
        self.fix(hierarchy, smoothness, convexity)
        eta, safe = state.settings.eta, state.settings.safe
        if eta > safe:
            text = f"known-eta={eta:g} is above {safe:.3g}, the largest step that is safe"
            self.federation.note(text)
        check_end(self.name, state.settings.p0, keys.iterations)

    def length(self, rounds: int) -> int:
        """With `known-iterations` as many rounds as these take."""
        end, first, left = self.keys.iterations, self.state.iteration, 0
        if end is None:
            return rounds
        schedule = self.schedule
        while first < end:
            first, left = self.part(schedule, first).last, left + 1
        return self.progress.round + left

    def finished(self) -> bool:
        """Whether all iterations are done."""
        end = self.keys.iterations
        return end is not None and self.state.iteration >= end

    def evaluation(self, options: Mapping[str, Any]) -> Question:
        """Every user judges its own model; new users adapt."""
        cohorts = self.clusters.judged(self.state.clusters, options)
        return evaluation_of(self.federation, self.shown(cohorts), options)

    def findings(self) -> list[Finding]:
        """The settings, and communications: expected and counted."""
        state, strengths = self.state, self.state.strengths
        rows = [
            ("iterations", f"{state.iteration:,}"),
            ("gamma_i", spelled({**strengths.gamma, **strengths.users})),
            ("lambda_j", spelled(strengths.lam)),
            *state.settings.texts(),
        ]
        communications = self.schedule.communications(state.iteration)
        found = [Finding("settings", rows), Finding("communications", communications)]
        return [*found, *state.estimates.findings()]

    def named_arrays(self) -> ArrayRecord:
        """thbar, by the names of the model's parameters."""
        network = self.federation.network
        return encode(network.named(self.state.model, network.whole))


@dataclass(frozen=True)
class StepCheck:
    """Notices steps that are too long: models run away, or are not finite any more."""

    federation: Federation
    state: CoinState

    def check(self, number: int, replies: Replies) -> None:
        """RoundFailed if too few users answered; what is not finite may be no fault of theirs."""
        settings = self.state.settings
        long = settings.eta > settings.safe or not self.federation.convex
        if long and any("not finite" in why for why in replies.dropped.values()):
            self._fail()
        check_enough(self.federation, number, replies)

    def watch(self, reach: float) -> None:
        """RoundFailed if `reach`, the largest norm of a user's model, is far out."""
        self.state.reach = self.state.reach or max(reach, 1.0)
        if reach > FAR * self.state.reach:
            self._fail()

    def _fail(self) -> NoReturn:
        """Say which step would be safe."""
        settings, federation = self.state.settings, self.federation
        what = f"known-eta={settings.eta:g} is too long a step"
        if federation.convex:
            what += f", {settings.safe:.3g} is the largest safe one"
        else:
            what += f" for lr={federation.config.train.lr:g}: lower one of them"
        place = self.state.iteration
        raise RoundFailed(f"{federation.name} diverged after iteration {place}: {what}.")


def settled_strengths(
    federation: Federation, keys: CoinKeys, state: CoinState, clusters: KnownClusters
) -> Script[None]:
    """gamma and lambda as they are given, or estimated as the mixed model does."""
    found = Strengths()
    if keys.estimated:
        if not federation.convex:
            raise ConfigError(
                f"known-gamma={keys.known_gamma} known-lambda={keys.known_lambda}: auto is for "
                "model=linear with a loss of one output; give numbers."
            )
        found, state.estimates = yield from estimated_strengths(federation)
    state.strengths = given_strengths(keys, found)
    settle(state.strengths, keys, state.clusters, clusters.meet(state.clusters))


def loss_constants(
    federation: Federation, clusters: KnownClusters, state: CoinState
) -> Script[tuple[float, float]]:
    """L and mu of the losses. A torch model's are not known: lr stands for 1/(2 L)."""
    present = clusters.meet(state.clusters)
    asked = ask_each(federation, present, lambda c: Request(c, options={"ask": "facts"}))
    replies = yield asked
    StepCheck(federation, state).check(federation.progress.round, replies)
    if not federation.convex:
        return 1 / (2 * federation.config.train.lr), 0.0
    facts = [answer.metrics for answers in asked.found.values() for answer in answers]
    return max(f["smoothness"] for f in facts), min(f["convexity"] for f in facts)
