"""Users whose likelihood is not like the others', under the logistic loss: they are set aside.

The search begins with a step of iterated least squares from the mean (y + 1/2) / 2, which is the
regression of +-log 3 on the inputs, each row of the weight 3/16. So what users send for it are sums
of plain squares, with y'y = 3/16 log(3)^2 a row, and they are held against the others' as those of
the squared loss are (unlike.py), but that nobody is set aside for little noise: who has records of
one class has none, as many honest users of real tables do.

What follows are log likelihoods l_i with slopes g_i and curvatures I_i. As estimates I_i^+ g_i, of
covariance I_i^+, they are held against a step of the others, which is the first score; the second
is of -l_i a record, beside the median user's. Both are rough away from the solution: it takes
`CUTS` times the cut. Second derivatives by strengths are not looked at.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from corsage.core.arrays import Bools, Floats, Ints
from corsage.solvers.known_clusters.blocks import Sums
from corsage.solvers.known_clusters.mixed_model import unpack
from corsage.solvers.known_clusters.variances.unlike import (
    SUSPECT,
    Expected,
    Own,
    Scores,
    apart_as_noise,
    even,
    normal,
    stands,
)
from corsage.solvers.known_clusters.variances.users_sums import Users
from corsage.strategies.known_clusters.aside import Aside, sets_aside
from corsage.strategies.known_clusters.clusters.cohorts import Cohort
from corsage.strategies.known_clusters.coins.conversation import Answer
from corsage.strategies.known_clusters.coins.impossible import FIRST_SCORE, FIRST_WEIGHT
from corsage.strategies.known_clusters.own_fit import OwnFit
from corsage.strategies.rounds.job import Job

if TYPE_CHECKING:
    from corsage.strategies.known_clusters.mixed_state import MixedModelKeys, MixedModelState

CUTS = 3.0
"""Of these; users who are honest have up to 1.9 on the way."""
LARGEST = 100.0
"""Times the median user's mean square of a column, beyond which it counts as that one's."""
BARELY_KNOWN = 1e-8
"""Of all curvature what a cluster of which nothing is known has."""


def guarded(job: Job, keys: MixedModelKeys, cohorts: Sequence[Cohort]) -> bool:
    """True if users are held against each other: each answers for itself alone."""
    alone = all(len(cohort.users) == 1 for cohort in cohorts)
    plain = job.loss == "logistic" and not any(keys.held.values())
    return alone and plain and keys.mixed_aside != "never" and sets_aside(job, keys)


class LikelihoodAside:
    """The users of a likelihood, of whom those that are not like the others are set aside.

    Parameters
    ----------
    job, keys, state : the mixed model's.
    varies : 1 for coefficients that differ between users (d,).
    answers : of users that are not set aside yet.
    """

    def __init__(
        self,
        job: Job,
        keys: MixedModelKeys,
        state: MixedModelState,
        varies: Floats,
        answers: Sequence[Answer],
    ) -> None:
        self.job, self.keys, self.state, self.varies = job, keys, state, varies
        self.answers, self.d = answers, len(varies)
        self.users = [answer.cohort.users[0] for answer in answers]
        self.clusters = [answer.cohort.cluster for answer in answers]
        members = job.members.everybody
        self.counts = np.array([members[user].train for user in self.users], np.float64)

    def look(self) -> None:
        """Set users aside by the sums for the first step."""
        sums = [np.concatenate([a.rows["heavy"], a.rows["pull"]]) for a in self.answers]
        squares = FIRST_WEIGHT * FIRST_SCORE**2 * self.counts[:, None]
        rows, names = np.concatenate([sums, squares], axis=1), list(dict.fromkeys(self.clusters))
        fit = OwnFit(self.job, self.keys, self.state, self.varies)
        fit.exact = fit.quiet = True
        fit.unlike(Users.of(rows, self.counts, self.clusters, self.users, names, self.d))

        self.bound()

    def bound(self) -> None:
        """No user's columns are so large that the units of all are its own."""
        squares = np.stack([unpack(answer.rows["squares"], self.d) for answer in self.answers])
        own = np.einsum("ncc->nc", squares) / np.maximum(self.counts, 1.0)[:, None]
        usual = np.median(own, axis=0)
        times = np.divide(own, usual, out=np.ones_like(own), where=usual > 0).max(1)
        for answer, factor in zip(self.answers, times, strict=True):
            if factor > LARGEST:
                answer.rows["squares"] = answer.rows["squares"] / factor

    def hold(self) -> None:
        """Set users aside by their likelihoods, too."""
        jets = np.stack([answer.rows["jets"][0] for answer in self.answers])
        m = round(((8 * jets.shape[1] + 1) ** 0.5 - 3) / 2)
        bend = -unpack(jets[:, 1 + m :], m)[:, : self.d, : self.d]
        cluster = np.unique(self.clusters, return_inverse=True)[1].ravel()
        steps = Steps(bend, jets[:, 1 : 1 + self.d], -jets[:, 0], self.counts, cluster)
        aside, found = stands(steps.suspects, steps.scored)
        far = aside & (found.size > CUTS * found.cut)
        if far.any():
            self.note(found, [self.users[row] for row in np.flatnonzero(far)])

    def note(self, found: Scores, far: list[str]) -> None:
        """Add users to those that are set aside; who was before keeps its scores."""
        known = self.state.aside
        old = [row for row, user in enumerate(known.users) if user in known.named]
        self.state.aside = Aside(
            [*(known.users[row] for row in old), *self.users],
            np.concatenate([known.between[old], found.between]),
            np.concatenate([known.within[old], found.within]),
            [*known.named, *far],
        )
        self.job.note(self.state.aside.note)


@dataclass(frozen=True)
class Steps:
    """The users' likelihoods at one place.

    Parameters
    ----------
    bend, slope : I_i (n, d, d) and g_i (n, d).
    loss, counts : -l_i, and records (n,).
    cluster : each user's (n,).
    """

    bend: Floats
    slope: Floats
    loss: Floats
    counts: Floats
    cluster: Ints

    @property
    def own(self) -> Own:
        """I_i^+ g_i."""
        return Own.of(Sums.of(self.bend, self.slope, np.zeros(len(self.loss))), self.counts)

    def between(self, centre: Floats, sure: Floats, inside: Bools) -> Floats:
        """The first score around these steps of clusters."""
        expected = Expected(self.cluster, centre, sure, np.zeros_like(sure), 1.0)
        return even(normal(*self.own.between(expected, inside)), np.ones(len(self.loss), bool))

    @property
    def suspects(self) -> Bools:
        """Mark who is far from the median of the steps of its cluster (n,)."""
        own, k = self.own, self.cluster.max() + 1
        centre = np.zeros((k, self.slope.shape[1]))
        for place in range(k):
            if (some := own.full & (self.cluster == place)).any():
                centre[place] = np.median(own.estimate[some], axis=0)
        none = np.zeros(len(self.loss))
        found = self.between(centre, np.zeros((k, *self.bend.shape[1:])), none > 0)
        return Scores(found, none).beyond(SUSPECT)

    def scored(self, aside: Bools) -> Scores:
        """Everybody's scores by a step of those that are not aside."""
        k, d = self.cluster.max() + 1, self.slope.shape[1]
        least = (
            BARELY_KNOWN * max(float(np.trace(self.bend[~aside].sum(0))), BARELY_KNOWN) * np.eye(d)
        )
        whole, pull = np.tile(least, (k, 1, 1)), np.zeros((k, d))
        np.add.at(whole, self.cluster[~aside], self.bend[~aside])
        np.add.at(pull, self.cluster[~aside], self.slope[~aside])
        sure = np.asarray(np.linalg.inv(whole), np.float64)
        between = self.between(
            np.asarray((sure @ pull[..., None])[..., 0], np.float64), sure, ~aside
        )
        share = np.maximum(self.loss, 0.0) / np.maximum(self.counts, 1.0)
        ratio = share / max(float(np.median(share[~aside])), BARELY_KNOWN)
        return Scores(between, even(apart_as_noise(self.counts * ratio, self.counts), ~aside))
