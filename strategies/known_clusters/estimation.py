"""gamma and lambda on `auto`: how the users' sums become variances, and variances strengths.

Lyu et al. 2022, Theorem 5.1: gamma_j = 1/s_j^2, lambda = 1/sb^2, in units of the noise. With the
squared loss restricted maximum likelihood (variances/reml.py), one exchange and
`known-refine` more; with others EM (variances/covariance.py), a step a round.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from corsage.core.arrays import Arrays, Floats
from corsage.core.errors import RoundFailed
from corsage.core.messages.replies import Replies
from corsage.solvers.known_clusters.likelihood import noiseless
from corsage.solvers.known_clusters.variances.covariance import (
    LaplaceSums,
    laplace_sums,
    laplace_variances,
)
from corsage.solvers.known_clusters.variances.covariance_fit import CovarianceFit
from corsage.solvers.known_clusters.variances.reml import (
    RHO_GRID,
    RemlSums,
    Variances,
    fit,
    level_sums,
    refined_grid,
    shares,
)
from corsage.strategies.known_clusters.clusters.cohorts import Cohort, Present
from corsage.strategies.known_clusters.clusters.strengths import AUTO, ClusterKeys
from corsage.strategies.known_clusters.coins.conversation import (
    Answer,
    Request,
    ask_each,
    check_enough,
)
from corsage.strategies.known_clusters.coins.impossible import likelihood_fault
from corsage.strategies.known_clusters.kept_sums import KeptSums
from corsage.strategies.known_clusters.units import LIKELIHOOD
from corsage.strategies.rounds.job import Job
from corsage.strategies.rounds.results import Finding
from corsage.strategies.rounds.turns import Script

if TYPE_CHECKING:
    from corsage.strategies.known_clusters.mixed_state import MixedModelState

NOISELESS = (
    "there is no top: the labels are explained to the last digit, so there is no variance between "
    "records to measure anything by"
)
HELD = "not told by these data, held at 0: {}"
ZERO_NOISE = "0, to rounding"
WIDER = 4
"""Exchanges more at most, where users differ so much that the best ratio is beyond the grid."""
BEYOND_GRID = (
    "users differ a million times as much as the records of each: the variance between records is "
    "next to nothing, and no more is known of it"
)
EM_STANDSTILL = 1e-3
"""Steps of EM that change variances by less than this share are none: it is slow, not done."""
SMALLEST_VARIANCE = 1e-6
"""Variances that EM finds below this are taken for this: strengths stay finite."""


@dataclass
class LikelihoodFit:
    """A fit by restricted maximum likelihood.

    Parameters
    ----------
    sigma2 : sigma^2, between records.
    user : s_j^2 by cluster; `common`: it is one for all.
    cluster : sb^2, between clusters.
    shares : of sigma^2, s^2 and sb^2 in the variance.
    middle : wbar.
    loglik, aic : the restricted log likelihood, and Akaike's criterion.
    fault : why the likelihood has no top; empty: nothing is known against it.
    held : why s_j^2 is 0 and was not estimated; empty: it was.
    """

    sigma2: float
    user: dict[str, float]
    cluster: float
    shares: list[float]
    middle: list[float]
    loglik: float
    aic: float
    common: bool
    held: str = ""
    fault: str = ""

    @classmethod
    def of(cls, found: Variances, names: list[str], held: str = "") -> LikelihoodFit:
        """A fit to the sums of these clusters."""
        user = np.broadcast_to(found.user, len(names)).tolist()
        return cls(
            sigma2=found.sigma2,
            user=dict(zip(names, user, strict=True)),
            cluster=found.between,
            shares=[float(share) for share in shares(found)],
            middle=found.centres.wbar.tolist(),
            loglik=found.loglik,
            aic=found.aic,
            common=found.common,
            held=held,
        )

    def table(self, unit: float = 1.0, density: float = 0.0) -> Finding:
        """The fit as rows of text, as a mixed-model package prints it.

        `unit` is the label's, and `density` what that makes of the log likelihood.
        """
        records, users, clusters = (f"{100 * share:.2f}% of the variance" for share in self.shares)
        spread = [unit**2 * value for value in self.user.values()]
        user = f"{spread[0]:.5g}" if self.common else f"{min(spread):.4g} to {max(spread):.4g}"
        how = "one for all clusters" if self.common else "one for each cluster"
        between_users = f"{user}, {users} ({how}, by AIC)"
        between_clusters = [
            ("between clusters (sb^2)", f"{unit**2 * self.cluster:.5g}, {clusters}")
        ]
        if len(spread) == 1:
            between_users, between_clusters = f"{user}, {users}", []
        if self.held:
            between_users = HELD.format(self.held)
        rows = [
            ("between records (sigma^2)", f"{unit**2 * self.sigma2:.5g}, {records}"),
            ("between users (s^2)", between_users),
            *between_clusters,
            ("log likelihood", f"{self.loglik + density:.3f} (AIC {self.aic - 2 * density:.3f})"),
        ]
        if self.fault:
            rows = [
                ("between records (sigma^2)", ZERO_NOISE),
                *rows[1:],
                ("the likelihood", self.fault),
            ]
        return Finding("variances (restricted maximum likelihood)", rows)


@dataclass
class Estimates:
    """The estimates behind strengths on auto.

    Parameters
    ----------
    way : from the sums of each user, or from those of cohorts; empty before the first round.
    covariance : of any shape, from each user's sums.
    fitted : by restricted maximum likelihood, with the squared loss, from sums of cohorts.
    spread : variances by coordinate between `users` and between `clusters`, by EM, with others.
    moved : the largest share by which EM's last step changed one of them.
    """

    way: str = ""
    covariance: CovarianceFit = field(default_factory=CovarianceFit)
    fitted: LikelihoodFit | None = None
    spread: dict[str, list[float]] = field(default_factory=dict)
    moved: float = 0.0

    @property
    def likely(self) -> bool:
        """True if it is the marginal likelihood."""
        return self.way == LIKELIHOOD

    def note(self, level: str, variances: Floats) -> None:
        """A step of EM for the users or the clusters; the users' comes first."""
        before = np.array(self.spread.get(level, 2 * variances))  # nothing to go by: all of it
        share = float(np.max(np.abs(variances - before) / variances))
        self.moved = share if level == "users" else max(self.moved, share)
        self.spread[level] = variances.tolist()

    @property
    def em(self) -> str:
        """The progress of EM, in words."""
        if self.moved < EM_STANDSTILL:
            return "stands still"
        return (
            f"not converged: its last step changed a variance by {100 * self.moved:.2g}%; more "
            "mixed-em-rounds go on, and mixed-variances=auto converges where users send their own "
            "sums"
        )

    def findings(self, unit: float = 1.0, density: float = 0.0) -> list[Finding]:
        """Variances and shares; `unit` and `density` are those of `table`."""
        if self.fitted is not None:
            return [self.fitted.table(unit, density)]
        if self.spread:
            title = "variances by coefficient (penalised quasi-likelihood)"
            rows = [(name, numbers(values)) for name, values in self.spread.items()]
            return [Finding(title, rows), Finding("EM", [("variances", self.em)])]
        return []


class VarianceEstimation:
    """Estimates the strengths that are on auto.

    Parameters
    ----------
    job, keys : who is asked, and what is on auto.
    estimates : where it is noted what they were estimated from.
    """

    def __init__(self, job: Job, keys: ClusterKeys, estimates: Estimates) -> None:
        self.job, self.keys, self.estimates = job, keys, estimates

    # The squared loss: restricted maximum likelihood.

    def restricted_likelihood(
        self,
        present: Present,
        varies: Floats | None,
        d: int,
        number: int,
        known: KeptSums | None = None,
    ) -> Script[tuple[Variances, list[str], Replies]]:
        """The fit, its clusters, and the replies; users differ in what `varies`.

        `known` are users' own sums: then nobody is asked.
        """
        ratios = dict.fromkeys(present.names, RHO_GRID)
        for exchange in range(1 + self.keys.known_refine + WIDER):
            if known is not None:
                sums, names = added(known, present, ratios, d, varies)
                replies = Replies(users=known.users)
            else:
                sums, names, replies = yield from self._sums(
                    present, ratios, d, number, varies is not None
                )
            why = sums.untold
            found = fit(sums.held() if why else sums, varies=varies, common=True if why else None)
            if why:
                break
            ratios |= zip(names, refined_grid(found), strict=True)
            if exchange >= self.keys.known_refine and not found.at_end:
                break
        else:
            self.job.note(BEYOND_GRID)
        self.estimates.fitted = LikelihoodFit.of(found, names, why)
        yy, mean = float(sums.yy[:, 0].sum()), 0.0
        if self.job.config.model.intercept:
            mean = float(sums.q[:, 0, -1].sum() ** 2 / sums.p[:, 0, -1, -1].sum())
        if noiseless(found.sigma2 * float(sums.records.sum()), yy - mean, yy):
            self.estimates.fitted.fault = NOISELESS
        return found, names, replies

    def _sums(
        self, present: Present, row: Mapping[str, Floats], d: int, number: int, intercepts: bool
    ) -> Script[tuple[RemlSums, list[str], Replies]]:
        """The sums of each cluster of which somebody answers, added up over its cohorts.

        They are for its `row` of ratios rho (G,). Of a cluster that is silent nothing is known, and
        it is asked again.
        """
        template = reml_template(len(RHO_GRID), d)

        def request(cohort: Cohort) -> Request:
            options: dict[str, Any] = {"ask": "reml", "ratios": row[cohort.cluster].tolist()}
            if intercepts:
                options["intercepts"] = True
            records = sum(self.job.members.everybody[u].train for u in cohort.users)
            fault = partial(likelihood_fault, records=records, users=len(cohort.users))
            return Request(cohort, {}, options, template, fault=fault)

        asked = ask_each(self.job, present, request, counted=True)
        replies = yield asked
        check_enough(self.job, number, replies)
        names = [name for name in present.names if name in asked.found]
        if not names:
            raise RoundFailed(f"round {number}: nobody answered.")
        sums = {
            what: np.stack([np.sum([a.rows[what] for a in asked.found[n]], axis=0) for n in names])
            for what in template
        }
        ratios = np.stack([row[name] for name in names])
        return RemlSums.from_arrays(sums, ratios), names, replies

    # Other losses: EM.

    def step(
        self,
        state: MixedModelState,
        places: list[int],
        answers: Iterable[list[Answer]],
        clusters: tuple[Floats, Floats, Floats],
        around: Floats,
        varies: Floats | None,
    ) -> None:
        """A step of EM: gamma and lambda of the next sums, those that are on auto.

        `answers` of the clusters at `places`; P_j, q_j and lambda_j of these `clusters`; the
        covariance `around` wbar; which coefficients vary.
        """
        free = slice(None) if varies is None else varies > 0
        if self.keys.known_gamma == AUTO:
            gamma = self.expected_gamma(list(map(spread, answers)), free)
            state.gamma[np.ix_(np.array(places), np.arange(len(state.model))[free])] = gamma
        if self.keys.known_lambda == AUTO and len(places) > 1:
            state.lam[:, free] = self.expected_lambda(*clusters, state.model, around, free)

    def expected_gamma(self, parts: list[LaplaceSums], free: Any = slice(None)) -> Floats:
        """gamma by `free` coordinate from the users' squares and spreads: one for all clusters."""
        names = ("squares", "spreads", "users")
        sums = LaplaceSums(*(np.concatenate([getattr(p, n) for p in parts]) for n in names))
        variances = np.maximum(laplace_variances(sums)[free], SMALLEST_VARIANCE)
        self.estimates.note("users", variances)
        return np.asarray(1 / variances)

    def expected_lambda(
        self,
        p: Floats,
        q: Floats,
        lam: Floats,
        middle: Floats,
        around: Floats,
        free: Any = slice(None),
    ) -> Floats:
        """lambda by `free` coordinate: clusters are to wbar what users are to w_j."""
        k = len(p)
        centres, covariances = np.broadcast_to(middle, q.shape), np.broadcast_to(around, p.shape)
        sums = laplace_sums(p, q, lam, centres, covariances, np.zeros(k, np.int64), 1)
        variances = np.maximum(laplace_variances(sums)[free], SMALLEST_VARIANCE)
        self.estimates.note("clusters", variances)
        return np.asarray(1 / variances)


def spread(answers: list[Answer]) -> LaplaceSums:
    """A cluster's users around their centre, from its cohorts."""
    em = np.sum([answer.rows["em"] for answer in answers], axis=0)
    users = float(sum(len(answer.cohort.users) for answer in answers))
    return LaplaceSums(em[:1], em[1:], np.array([users]))


def added(
    known: KeptSums, present: Present, row: Mapping[str, Floats], d: int, varies: Floats | None
) -> tuple[RemlSums, list[str]]:
    """The sums of each cluster, from users' own, added up as nodes would."""
    names, found = known.heard(present), list[RemlSums]()
    for name in names:
        cohorts = (known.of_users(cohort.users) for cohort in present.groups[name])
        whole = [
            level_sums(
                *own.parts(d), own.counts.astype(np.int64), np.zeros(len(own.users), np.int64), 1,
                row[name], varies,
            )
            for own in cohorts if own.users
        ]  # fmt: skip
        found.append(sum(whole[1:], start=whole[0]))
    arrays = [one.arrays() for one in found]
    sums = {what: np.concatenate([own[what] for own in arrays]) for what in arrays[0]}
    return RemlSums.from_arrays(sums, np.stack([row[name] for name in names])), names


def reml_template(size: int, d: int) -> Arrays:
    """The sums of `RemlSums` for so many ratios, of one cluster."""
    shapes: dict[str, tuple[int, ...]] = {
        "p": (size, d * (d + 1) // 2), "q": (size, d), "yy": (size,), "ld": (size,),
        "records": (), "users": (), "trace": (),
    }  # fmt: skip
    return {name: np.zeros(shape) for name, shape in shapes.items()}


def numbers(values: list[float]) -> str:
    """Some numbers in one line."""
    words = [f"{value:.4g}" for value in values[:8]]
    return ", ".join(words) + (f", ... ({len(values)} in all)" if len(values) > 8 else "")
