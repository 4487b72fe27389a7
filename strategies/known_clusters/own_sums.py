"""gamma and lambda on `auto`, as covariances of any shape: from each user's own sums.

A user sends the quadratic that its loss is, or is like at its present model: A_i, b_i and y'y, the
sums and nothing else, whatever shapes are tried. The server finds the most likely covariances, and
w_j and wbar on the way (own_fit.py). Once is all for the squared loss. With other losses users then
find their models from w_j and the covariance, and send their quadratics there: a few such
exchanges, until the slope of the likelihood is 0 where the last one ended.

Sums of each user are what a simulation has at home, and what a device with one user sends anyway.
A device with several keeps to their sum; then there is one variance a level, as estimation.py
finds it.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from corsage.core.arrays import Arrays, Floats
from corsage.core.counts import Number
from corsage.core.errors import ConfigError
from corsage.core.messages.replies import Replies
from corsage.solvers.known_clusters.newton_rounds import EXACT, NEWTON, change
from corsage.strategies.known_clusters.clusters.cohorts import Cohort, Present
from corsage.strategies.known_clusters.clusters.strengths import AUTO
from corsage.strategies.known_clusters.coins.conversation import (
    Answer,
    Request,
    ask_each,
    check_enough,
)
from corsage.strategies.known_clusters.coins.impossible import quadratic_fault
from corsage.strategies.known_clusters.covariance_table import CovarianceTable
from corsage.strategies.known_clusters.kept_sums import KeptSums
from corsage.strategies.known_clusters.mixed_state import AVERAGED, WITHHELD
from corsage.strategies.known_clusters.own_fit import OwnFit
from corsage.strategies.known_clusters.paths import check_paths, unit_models, units_above
from corsage.strategies.known_clusters.units import Units
from corsage.strategies.rounds.job import Job
from corsage.strategies.rounds.results import Finding
from corsage.strategies.rounds.turns import Script

if TYPE_CHECKING:
    from corsage.strategies.known_clusters.mixed_state import MixedModelKeys, MixedModelState

TRAVELLED = Number("moved", low=0.0), Number("length", low=0.0), AVERAGED, WITHHELD
"""The distance that a cohort's models moved, and their length: sums of squares; and counts."""
SUMMED, USERS = "summed", "users"
MOST_HELD = 40_000_000
"""Numbers of all users' sums that are held at once."""
MOST_WORK = 400_000_000
"""n d^3: what one look at all users takes."""
STANDING_STILL, STANDING_STILL_SINGLE = 1e-6, 1e-4
"""Models stand still if they move by less than this share of them; with float32."""


def note_floor(job: Job, answers: Sequence[Answer]) -> None:
    """Say what of the rows is not in the sums as it is."""
    averaged, held = (
        sum(a.metrics.get(n.name, 0.0) for a in answers) for n in (AVERAGED, WITHHELD)
    )
    if averaged or held:
        members = job.members.everybody
        rows = sum(members[user].train for a in answers for user in a.cohort.users)
        job.note(
            f"min-share: of {rows:,} rows {averaged:,.0f} are in the sums with the mean inputs of "
            f"some of their user, and {held:,.0f} of users with too few are not in them"
        )


class OwnSums:
    """Rounds in which users send their own sums.

    Parameters
    ----------
    job, keys, state : the mixed model's.
    varies : 1 for coefficients that differ between users (d,); None: all do.
    """

    def __init__(
        self,
        job: Job,
        keys: MixedModelKeys,
        state: MixedModelState,
        varies: Floats | None,
    ) -> None:
        self.job, self.keys, self.state, self.varies = job, keys, state, varies
        self.exact = job.loss == "squared"
        self.fit = OwnFit(job, keys, state, varies)

    # Whether it can be done.

    def decide(self, present: Present) -> None:
        """Choose the way to estimate variances, once for a run; note what is in the way."""
        if self.state.estimates.way or not self.keys.estimated:
            return
        obstacle = self.obstacle(present)
        if self.keys.mixed_paths:
            check_paths(present.names)
            if obstacle and units_above(present.names):
                self.job.note(f"clusters are in the middle, not in units above: {obstacle}")
        self.state.estimates.way = SUMMED if obstacle else USERS
        if obstacle and self.keys.mixed_variances not in (AUTO, SUMMED):
            raise ConfigError(f"mixed-variances={self.keys.mixed_variances}: {obstacle}.")
        if obstacle and self.exact and self.some_columns:
            named = ",".join(self.keys.mixed_random)
            raise ConfigError(
                f"mixed-random={named}: takes variances from each user's sums, or numbers for both "
                f"strengths: {obstacle}."
            )
        if obstacle and self.keys.mixed_variances == AUTO and self.keys.both_estimated:
            self.job.note(f"one variance a level, for features as they are: {obstacle}")

    @property
    def some_columns(self) -> bool:
        """True if not all coefficients differ, and others than the intercept alone do."""
        return self.varies is not None and (self.varies.sum() != 1 or not self.varies[-1])

    @property
    def on(self) -> bool:
        """True if users send their own sums."""
        return self.state.estimates.way == USERS

    def obstacle(self, present: Present) -> str:
        """Why users do not send sums of their own; empty: they do."""
        if not self.keys.both_estimated:
            return "one of known-gamma and known-lambda is given"
        if self.keys.mixed_variances == SUMMED:
            return "asked for"
        return self.untold_sums(present)

    def untold_sums(self, present: Present) -> str:
        """Why users cannot send sums of their own; empty: they can."""
        d, users = len(self.state.model), sum(len(c.users) for c in present.cohorts)
        if users * d**2 > 2 * MOST_HELD or users * d**3 > MOST_WORK:
            return f"{users:,} users with {d:,} coefficients are too many for sums of each"
        if not self.job.members.at_home and any(len(c.users) > 1 for c in present.cohorts):
            return "a device has several users of one cluster, and tells no more than their sum"
        return ""

    # A round.

    def round(self, present: Present, number: int) -> Script[Replies]:
        """One exchange of sums, and the most likely covariances.

        With the squared loss sums that are kept of all users are what they would send again.
        """
        sums, moved, replies = yield from self.heard(present, number)
        if sums.users:
            self.step(sums, present, moved, not replies.dropped, number)
        return replies

    def heard(self, present: Present, number: int) -> Script[tuple[KeptSums, Floats, Replies]]:
        """The sums of who answers, and how far their models moved."""
        if self.exact and self.state.at_hand.are_of(present):
            known = self.state.heard = self.state.at_hand
            return known, np.zeros(2), Replies(users=list(known.users))
        asked = ask_each(self.job, present, self.question, counted=True)
        replies = yield asked
        check_enough(self.job, number, replies)
        answers = [answer for name in present.names for answer in asked.found.get(name, [])]
        if not answers:
            return KeptSums(), np.zeros(2), replies
        note_floor(self.job, answers)
        members = self.job.members.everybody
        sums = KeptSums.of(answers, lambda user: members[user].train)
        if self.on and self.exact:
            self.state.heard = sums.worth_keeping()
            if self.keys.mixed_keep_sums:
                self.state.sums = self.state.heard
        moved = np.sum([[a.metrics["moved"], a.metrics["length"]] for a in answers], axis=0)
        return sums, moved, replies

    def step(
        self, sums: KeptSums, present: Present, moved: Floats, whole: bool, number: int
    ) -> None:
        """The server's step, from these sums; `whole`: everybody's."""
        self.state.enter(self.varies)
        self.fit.solve(sums.in_order(sums.heard(present), len(self.state.model)), number)
        self.judge(moved, whole)

    def question(self, cohort: Cohort) -> Request:
        """The sums of each of a cohort's users, after a step of theirs if there is a centre."""
        d, users = len(self.state.model), len(cohort.users)
        template = {"sums": np.zeros((users, d * (d + 1) // 2 + d + 1))}
        known = bool(cohort.version(self.job.progress.versions))
        moves = known and not self.exact and len(self.state.w) > 0
        options: dict[str, Any] = {"ask": "quadratics", "moves": moves, "as": self.kind}
        if users > 1:
            options["each"] = True
        rows = self.rows(cohort) if moves else {}
        members = self.job.members.everybody
        intercept = self.job.config.model.intercept
        counts = [members[user].train for user in cohort.users] if intercept else []
        fault = partial(quadratic_fault, d=d, counts=counts, exact=self.exact)
        return Request(cohort, rows, options, template, TRAVELLED, fault, each=True)

    @property
    def kind(self) -> str:
        """The kind of users' quadratics."""
        return EXACT if self.exact else NEWTON

    def rows(self, cohort: Cohort) -> Arrays:
        """The centre of a cohort, and the root of its users' covariance over sigma^2."""
        w = self.state.centre(cohort.cluster)
        return {"w": w, "root": self.state.estimates.covariance.root(cohort.cluster)}

    def findings(self, units: Units, density: float) -> list[Finding]:
        """The fit; `density` is what the data's units make of the log likelihood."""
        fit = self.state.estimates.covariance
        if not fit.kinds:
            return []
        varies = np.ones(len(self.state.model)) if self.varies is None else self.varies
        table = CovarianceTable(
            fit, units.names, units.matrix, units.label, density, varies, self.exact,
            units.endless(self.state.endless, self.state.first),
        )  # fmt: skip
        return [*table.findings(), *unit_models(self.state.above, units)]

    # Whether there is more to do.

    def judge(self, moved: Floats, whole: bool) -> None:
        """Judge if there is more to do; who was not heard is asked again.

        `moved`: squares of how far all models moved, and of how long they are.
        """
        state = self.state
        state.change, state.quadratics = change(moved), self.kind
        still = state.change < max(self.keys.mixed_tolerance, self.least) or self.exact
        state.done = (whole and still and self.settled) or state.endless.size > 0

    @property
    def settled(self) -> bool:
        """True if the slope of the likelihood is 0, at the models that the users have."""
        fit, free = self.state.estimates.covariance, self.keys.mixed_variances == AUTO
        return self.exact or (fit.converged and bool(fit.held_out or not free))

    @property
    def least(self) -> float:
        """The change that is none."""
        return STANDING_STILL_SINGLE if self.fit.single else STANDING_STILL
