"""The solution of (2.3) by exchanges of sums: what the mixed model's server does in a round.

Lyu et al. 2022, (2.3), as solvers/known_clusters/mixed_model.py solves it. Users send P_i and q_i,
what is left of their losses when theta_i is minimised out, summed over a cluster; the server solves
for w_j and wbar, and users find theta_i from w_j. Once is enough for the squared loss. Other losses
are replaced by their quadratics at the present theta_i, and a few such rounds are Newton's method.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property, partial
from typing import TYPE_CHECKING

import numpy as np

from corsage.core.arrays import Arrays, Floats
from corsage.core.messages.replies import Replies
from corsage.core.registry import LIKELIHOODS, attached
from corsage.solvers.known_clusters.mixed_model import Centres, ClusterSums, centres
from corsage.solvers.known_clusters.newton_rounds import EXACT, NEWTON, change
from corsage.solvers.known_clusters.variances.covariance import centre_covariance, covariances
from corsage.strategies.known_clusters.aside import UNGUARDED, sets_aside, tested, unguarded
from corsage.strategies.known_clusters.clusters.cohorts import Cohort, KnownClusters, Present
from corsage.strategies.known_clusters.clusters.strengths import (
    AUTO,
    Strengths,
    given_strengths,
    settle,
    tied,
    ties,
)
from corsage.strategies.known_clusters.coins.conversation import (
    Answer,
    Request,
    ask_each,
    check_enough,
)
from corsage.strategies.known_clusters.coins.impossible import step_fault
from corsage.strategies.known_clusters.estimation import VarianceEstimation
from corsage.strategies.known_clusters.kept_sums import KeptSums
from corsage.strategies.known_clusters.own_sums import TRAVELLED, OwnSums, note_floor
from corsage.strategies.known_clusters.units import Units, held_columns, varying
from corsage.strategies.rounds.job import Job
from corsage.strategies.rounds.results import Finding
from corsage.strategies.rounds.turns import Script

if TYPE_CHECKING:
    from corsage.strategies.known_clusters.likelihood_rounds import Likelihood
    from corsage.strategies.known_clusters.mixed_state import MixedModelKeys, MixedModelState

SINGLE_CENTRE: Floats = np.array(np.inf)
"""lambda of a single cluster, which has nothing to be away from: its centre is the middle."""
MOST_COEFFICIENTS = 100
"""Models with more have no standard errors: covariances are of all coefficients by all."""
MOST_ROUNDS = 100
"""Rounds that strengths on auto of the coin-throwing methods may take."""
CONSISTENT = 1e-8
"""The share of a slope that may be rounding."""

SHORTEST = "of their best models the shortest"
ROWS_COUNT = "their rows count like all others"
LEANING = "what their rows leave open is as in their centre"
UNSETTLED = (
    "; not settled by num-rounds: a larger one goes on; where a user's classes can be told apart "
    "without error there is no end, and ridge=0.001 makes one"
)


class MixedSolution:
    """The rounds of the mixed model.

    Parameters
    ----------
    job, clusters : who takes part.
    keys : strengths, and when to end.
    state : what is found, and changed here.
    delivers : whether users keep their models at the end.
    """

    def __init__(
        self,
        job: Job,
        clusters: KnownClusters,
        keys: MixedModelKeys,
        state: MixedModelState,
        delivers: bool = True,
    ) -> None:
        self.job, self.clusters, self.keys, self.state = job, clusters, keys, state
        self.delivers = delivers
        self.exact = job.loss == "squared"
        self.estimation = VarianceEstimation(job, keys, state.estimates)
        self.own_sums = OwnSums(job, keys, state, self.varies)

    @cached_property
    def likelihood(self) -> Likelihood:
        """Rounds of the marginal likelihood, which only losses that have one come to."""
        rounds = attached("likelihood")
        found: Likelihood = rounds.Likelihood(self.job, self.keys, self.state, self.varies)
        return found

    @property
    def held(self) -> dict[str, int]:
        """The coefficients of an offset and of weights, which are known, by name."""
        return held_columns(self.job, self.keys.held, self.size)

    @property
    def present(self) -> Present:
        """The clusters that take part now."""
        return self.clusters.meet(self.state.clusters)

    @property
    def size(self) -> int:
        """d, the coefficients of a model."""
        return len(self.state.model)

    @property
    def varies(self) -> Floats | None:
        """1 for each coefficient that differs between users, else 0 (d,); None: all do."""
        varies = varying(self.job, self.size, self.keys.mixed_random)
        held = list(self.held.values())
        if not held:
            return varies
        every = np.ones(self.size) if varies is None else varies.copy()
        every[held] = 0.0
        return every

    @property
    def units(self) -> Units:
        """The names and units of the coefficients."""
        return Units.of(self.job, self.size)

    @property
    def records(self) -> int:
        """The training records of all who take part, and are not set aside."""
        members, aside = self.job.members.everybody, {*self.state.aside.named}
        users = (user for cohort in self.present.cohorts for user in cohort.users)
        return sum(members[user].train for user in users if user not in aside)

    @property
    def endless(self) -> str:
        """Why the likelihood has no top; empty: nothing is known against it."""
        return self.units.endless(self.state.endless, self.state.first)

    @property
    def looks(self) -> bool:
        """True if users are looked at one by one although it is their sum that is wanted."""
        wanted = tested(self.job, self.keys) and self.keys.known_gamma != "0"
        wanted = wanted and sets_aside(self.job, self.keys)
        return wanted and not unguarded(
            self.job, self.keys, self.own_sums.untold_sums(self.present)
        )

    @property
    def unguarded(self) -> str:
        """A line where a device that lies could own the run; empty: nothing."""
        searched = self.job.loss == "logistic" and self.keys.both_estimated
        if self.job.members.at_home or (searched and self.likelihood.guards(self.present)):
            return ""
        obstacle = self.own_sums.untold_sums(self.present)
        why = unguarded(self.job, self.keys, obstacle)
        return UNGUARDED.format(why) if why else ""

    @property
    def tolerance(self) -> float:
        """The change at which to end; float32 cannot tell less than 1e-5 of the models."""
        floor = 1e-5 if self.job.config.model.precision == "float32" else 0.0
        return max(self.keys.mixed_tolerance, floor)

    def estimates_in(self, number: int) -> bool:
        """True if a round estimates variances by EM."""
        estimated = self.keys.estimated and not self.own_sums.on
        return estimated and not self.exact and number <= self.keys.mixed_em_rounds

    def begin(self) -> None:
        """Strengths that are given; those on auto come with the rounds."""
        strengths = given_strengths(self.keys, Strengths(gamma={"": 1.0}, lam={"": 1.0}))
        settle(strengths, self.keys, self.state.clusters, self.present)
        self.state.strengths = strengths

    def round(self, number: int) -> Script[Replies]:
        """One exchange of sums, and the server's step; at the end models are delivered."""
        self.present.need_somebody(number)
        if self.state.groups.of:
            found: Replies = yield from attached("found groups").delivered(self)
            return found
        replies = None
        keys, loss = self.keys, self.job.loss
        asked = keys.both_estimated or keys.mixed_likelihood != AUTO or bool(self.held)
        if loss in LIKELIHOODS or (loss == "logistic" and asked):
            self.likelihood.decide(self.present)
        self.own_sums.decide(self.present)
        if self.state.estimates.likely:
            replies = yield from self.likelihood.round(self.present, number)
        elif self.own_sums.on:
            replies = yield from self.own_sums.round(self.present, number)
        elif self.looks:
            replies = yield from self._of_alike(number)
        elif self.exact and self.keys.estimated and number == 1:
            replies = yield from self._fitted(number)
        if replies is None:
            replies = yield from self._summed(number)
        if self.state.done and self.delivers:
            delivery = partial(self.shown, deliver=True)
            yield ask_each(self.job, self.present, delivery, counted=True)
        return replies

    def solved(self, most: int = MOST_ROUNDS) -> Script[None]:
        """All rounds, but no more than these."""
        self.begin()
        for number in range(1, most + 1):
            yield from self.round(number)
            if self.state.done:
                return

    # The squared loss, strengths on auto.

    def _fitted(self, number: int, sums: KeptSums | None = None) -> Script[Replies | None]:
        """Strengths from the first exchange; if both are on auto it solves (2.3) on the way."""
        state, keys, present = self.state, self.keys, self.present
        script = self.estimation.restricted_likelihood(
            present, self.varies, self.size, number, sums
        )
        found, names, replies = yield from script
        if keys.known_gamma == AUTO:
            gamma = np.broadcast_to(found.gamma_unit, len(names)).tolist()
            state.strengths.gamma = dict(zip(names, gamma, strict=True))
        if keys.known_lambda == AUTO:
            state.strengths.lam = {"": found.lambda_unit}
        if keys.known_gamma != keys.known_lambda:
            return None
        state.enter(self.varies)
        places = [state.clusters.known.index(name) for name in names]
        state.w[places], state.model = found.centres
        state.unsure(places, found.covariances)
        state.done = not replies.dropped
        return replies

    # The squared loss, from each user's sums: who is not like the others is set aside.

    def _of_alike(self, number: int) -> Script[Replies | None]:
        """Strengths on auto, and all centres, from the sums of users that are like the others."""
        state, present = self.state, self.present
        sums, _, replies = yield from self.own_sums.heard(present, number)
        if not sums.users:
            return replies
        self.own_sums.fit.alike(sums.in_order(sums.heard(present), self.size))
        sums = sums.without(*state.aside.named)
        if self.keys.estimated and number == 1:
            fitted = yield from self._fitted(number, sums)
            if fitted is not None:
                return replies
        state.enter(self.varies)
        found = {name: self._shrunk(sums, present.groups[name]) for name in sums.heard(present)}
        whole = [sum(own[1:], start=own[0]) for own in found.values()]
        places = [state.clusters.known.index(name) for name in found]
        p, q = np.concatenate([s.P for s in whole]), np.concatenate([s.q for s in whole])
        self._centred(places, p, q)
        out = {*state.aside.named}
        state.lean({c.cluster for c in present.cohorts if out & {*c.users}} - {*found})
        w, yy = state.w[places], float(sums.rows[:, -1].sum())
        state.aside.square = yy + float((((w[:, None] @ p)[:, 0] - 2 * q) * w).sum())
        state.quadratics, state.done = EXACT, not replies.dropped
        return replies

    def _shrunk(self, sums: KeptSums, cohorts: Sequence[Cohort]) -> list[ClusterSums]:
        """P and q of each cohort."""
        found = []
        for cohort in cohorts:
            own = sums.of_users(cohort.users)
            if own.users:
                a, b, _ = own.parts(self.size)
                tie = ties(self._rows(cohort)["next"], len(own.users))
                none = np.zeros(len(own.users), np.int64)
                sent = ClusterSums.of(a, b, tie, none, 1).packed()  # as nodes send theirs
                found.append(ClusterSums.unpacked(sent, self.size))
        return found

    # A round of sums.

    def _summed(self, number: int) -> Script[Replies]:
        """The sums of all clusters, and what follows from them."""
        self.state.enter(self.varies)
        question = partial(self._question, estimates=self.estimates_in(number))
        asked = ask_each(self.job, self.present, question, counted=True)
        replies = yield asked
        check_enough(self.job, number, replies)
        answers = {name: asked.found[name] for name in self.present.names if name in asked.found}
        self._solve(answers, number)
        every = [a for own in answers.values() for a in own]
        note_floor(self.job, every)
        self._judge(every, number, not replies.dropped)
        return replies

    def _question(self, cohort: Cohort, estimates: bool) -> Request:
        """The question to a cohort; those that know no centre yet stay where they are."""
        d, rows = self.size, self._rows(cohort)
        template = {"sums": np.zeros(d * (d + 1) // 2 + d)}
        if estimates:  # how sure w_j is, too
            rows["covariance"] = self.state.covariance[self.state.place(cohort.cluster)]
            template["em"] = np.zeros((2, d))
        known = bool(cohort.version(self.job.progress.versions))
        options = {"moves": known, "as": self.last, "next": self.next, "em": estimates}
        fault = partial(step_fault, gamma=rows["next"], users=len(cohort.users))
        return Request(cohort, rows, options, template, TRAVELLED, fault)

    def _solve(self, answers: dict[str, list[Answer]], number: int) -> None:
        """w_j and wbar from P_j and q_j; with EM also the next strengths."""
        state = self.state
        places = [state.clusters.known.index(name) for name in answers]
        lam = state.lam[places]
        sums = [added(own, self.size) for own in answers.values()]
        p, q = np.concatenate([s.P for s in sums]), np.concatenate([s.q for s in sums])
        middle = state.lam.any() and self.next == NEWTON  # without there is no model of all
        if self.job.loss == "logistic" and middle:
            state.look(p.sum(0), self.records)
        self._centred(places, p, q)
        if self.estimates_in(number):
            state.covariance[places], around = centre_covariance(p, lam)
            if number > 1:  # the first sums are around no centre
                clusters = p, q, lam
                self.estimation.step(state, places, answers.values(), clusters, around, self.varies)

    def _centred(self, places: list[int], p: Floats, q: Floats) -> None:
        """w_j and wbar, and how sure they are.

        From 0 with the squared loss, of which the least is meant, and where users have their own.
        """
        state = self.state
        lam, state.used = state.lam[places], state.gamma.copy()
        of_many = np.isinf(state.used[places]).all() and not np.isfinite(lam[lam > 0]).any()
        here = np.zeros_like(p[:, 0])
        if of_many and not self.exact:
            here = nearby(state.w[places], p, q, lam)
        found = solved_centres(p, q - (p @ here[..., None])[..., 0], lam)
        state.w[places], state.model = found.w + here, found.wbar + here.mean(0)
        if self.size <= MOST_COEFFICIENTS:
            state.unsure(places, covariances(p, even(lam) if len(p) > 1 else SINGLE_CENTRE))

    def _judge(self, answers: list[Answer], number: int, whole: bool) -> None:
        """Judge if there is more to do, and by which quadratics; who was silent is asked again.

        A step that was not Newton's must be a hundredth of the tolerance.
        """
        state, last = self.state, self.last
        moved = np.zeros(2)
        for answer in answers:
            moved += [answer.metrics["moved"], answer.metrics["length"]]
        state.quadratics, state.change = self.next, change(moved)
        settled = number > 1 and not self.estimates_in(number)
        if settled:
            state.pace = state.pace.after(state.change)
        enough = self.tolerance if last == NEWTON else self.tolerance / 100
        state.done = whole if self.exact else settled and state.change < enough
        state.done = state.done or state.endless.size > 0

    @property
    def last(self) -> str:
        """The kind of the last sums' quadratics."""
        return self.state.quadratics or self.next

    @property
    def next(self) -> str:
        """The kind of the next sums' quadratics."""
        return EXACT if self.exact else self.state.pace.kind

    # What users are told.

    def shown(self, cohort: Cohort, deliver: bool = False) -> Request:
        """The message from which a cohort finds its users' models, perhaps to be kept."""
        own = self.own_sums.kind if self.own_sums.on else self.last
        ask = {"ask": "deliver"} if deliver else {}
        options = {"moves": len(self.state.w) > 0, "as": own, **ask}
        return Request(cohort, self._rows(cohort), options)

    def _rows(self, cohort: Cohort) -> Arrays:
        """w_j, gamma_j of the sums that it came from, and of the next ones; or all groups."""
        if self.state.groups.of:
            return {"w": self.state.centre(cohort.cluster), **self.state.groups.arrays}
        if self.state.estimates.covariance.kinds:
            way = self.likelihood if self.state.estimates.likely else self.own_sums
            return way.rows(cohort)
        state, place = self.state, self.state.place(cohort.cluster)
        own = tied(state.strengths.typical_gamma(cohort), self.size, self.varies)
        if place is None:
            return {"w": state.model, "gamma": own, "next": own}
        if not {"", cohort.cluster} & set(state.strengths.gamma):
            return {"w": state.w[place], "gamma": own, "next": own}
        return {"w": state.w[place], "gamma": state.used[place], "next": state.gamma[place]}

    # What was found.

    def findings(self) -> list[Finding]:
        """The course of the solution, and the variances."""
        rows = [("rounds", f"{self.job.progress.round}"), *self._course()]
        units = self.units
        density = units.density(self.records)
        told = self.own_sums.findings(units, density)
        told = told or self.state.estimates.findings(units.label, density)
        rows += [("liars", why)] if (why := self.unguarded) else []
        return [Finding("solution", rows), *self.state.aside.findings(), *told]

    def _course(self) -> list[tuple[str, str]]:
        """The last round's step, and whether it was the end; users with fewer rows than d."""
        state, course = self.state, list[tuple[str, str]]()
        if not self.exact:
            ended = f"; {why}" if (why := self.endless) else "" if state.done else UNSETTLED
            course = [("last change of the models", f"{state.change:.1e}{ended}")]
        alone = state.used.size and not state.used.any()
        how = SHORTEST if alone else ROWS_COUNT if np.isinf(state.used).all() else LEANING
        return [*course, *self.job.members.few_rows(self.size, how)]


def nearby(here: Floats, p: Floats, q: Floats, lam: Floats) -> Floats:
    """From where models of many users are looked for (k, d): the nearest of many is taken.

    From where they are: quadratics that are flat in many directions would throw them to and fro.
    Not where a slope is left in such a direction.
    """
    rest = q - (p @ here[..., None])[..., 0]
    if np.isinf(lam).all():
        p, rest = p.sum(0)[None], rest.sum(0)[None]
    left = rest - (p @ np.linalg.pinv(p, hermitian=True) @ rest[..., None])[..., 0]
    flat = np.abs(left).max() > CONSISTENT * (np.abs(rest).max() + np.abs(q).max())
    return np.zeros_like(here) if flat else here


def added(answers: list[Answer], d: int) -> ClusterSums:
    """P_j and q_j of a cluster, from its cohorts."""
    sums = [ClusterSums.unpacked(answer.rows["sums"][None], d) for answer in answers]
    return sum(sums[1:], start=sums[0])


def solved_centres(p: Floats, q: Floats, lam: Floats) -> Centres:
    """w_j and wbar; only one number a cluster may be 0 or infinite, not one a coordinate."""
    return centres(p, q, even(lam))


def even(lam: Floats) -> Floats:
    """lambda (k, d) as one number for each cluster, if they are no others by coordinate."""
    return lam[:, 0] if bool((lam == lam[:, :1]).all()) else lam
