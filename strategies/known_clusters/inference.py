"""Questions after the last round: noise, and each user's estimate, for a `LinearSummary`.

Standard errors are those of best linear unbiased prediction, given the variances. Strengths that
are given are taken for the truth: gamma = sigma^2/s^2. With the logistic loss they are Laplace's
approximation. Other losses are no likelihoods, and have none.
"""

from __future__ import annotations

from dataclasses import asdict
from functools import partial
from itertools import combinations
from typing import Any, cast

import numpy as np

from corsage.core.arrays import Arrays, Floats
from corsage.core.registry import attached
from corsage.solvers.known_clusters.variances.covariance import unknown
from corsage.solvers.known_clusters.variances.covariance_fit import correlation, none
from corsage.solvers.known_clusters.variances.shape_choice import numbers
from corsage.solvers.known_clusters.variances.shapes import FULL
from corsage.solvers.known_clusters.variances.uncertainty import RECORDS, Likely
from corsage.strategies.known_clusters.clusters.cohorts import Cohort
from corsage.strategies.known_clusters.coins.conversation import Answer, Request, ask_each
from corsage.strategies.known_clusters.coins.impossible import summary_fault
from corsage.strategies.known_clusters.covariance_table import SUMS_OF_SEVERAL
from corsage.strategies.known_clusters.linear_summary import (
    ClusterEstimate,
    Coefficient,
    Component,
    Correlation,
    LinearSummary,
    UserEstimate,
    spreads,
)
from corsage.strategies.known_clusters.mixed_solution import MOST_COEFFICIENTS, MixedSolution
from corsage.strategies.known_clusters.units import FAMILY_LOSSES, LATENT, NO_TOP
from corsage.strategies.rounds.turns import Script

MOST_LISTED, MOST_ESTIMATES = 2000, 20_000
"""Of more users, or of more coefficients of all, nobody is asked: their models are in files."""
LEFT_OUT_CONSTANT = "left out: its column is constant"
SHARED = "not told from those of columns that it is a sum of; of the best values the shortest"
LOOKED_FOR = "groups were looked for in the same rows, which errors would have to know"
QUASI_ERRORS = "penalised quasi-likelihood, given the variances"
INFORMATION = "the observed information of the marginal likelihood ({})"


def inferred(solution: MixedSolution) -> Script[LinearSummary | None]:
    """The summary, after one exchange if users know what it needs.

    None if it is not wanted, or the model is too large.
    """
    if solution.keys.mixed_summary == "none" or solution.size > MOST_COEFFICIENTS:
        return None
    inference = Inference(solution)
    if not (inference.each or inference.residual):
        return inference.summary([])
    asked = ask_each(solution.job, solution.present, inference.question)
    yield asked
    return inference.summary([answer for own in asked.found.values() for answer in own])


class Inference:
    """From a solution, and what nodes say of it, to a summary."""

    def __init__(self, solution: MixedSolution) -> None:
        self.solution, self.state = solution, solution.state
        self.covariance = solution.state.estimates.covariance
        self.units, self.fitted = solution.units, solution.state.estimates.fitted
        users = sum(len(cohort.users) for cohort in solution.present.cohorts)
        few = users <= MOST_LISTED and users * solution.size <= MOST_ESTIMATES
        wanted = solution.keys.mixed_summary == "users" and solution.job.members.at_home
        self.each, self.left_out = wanted and few, users if wanted and not few else 0
        model = solution.job.config.model
        self.loss, self.varies = solution.job.loss, solution.varies
        self.whole = model.loss_scale != "mean" and not model.ridge
        self.grouped = bool(self.state.groups.of)
        found = self.fitted is not None or bool(self.covariance.kinds) or self.grouped
        self.each &= self.loss == "squared" or not self.grouped
        self.generalised = self.covariance.generalised
        self.residual = self.loss == "squared" and self.whole and not found  # sigma^2 is of those
        self.residual |= bool(self.generalised.how)  # and so is overdispersion

    # The question.

    def question(self, cohort: Cohort) -> Request:
        """The question to a cohort."""
        shown, place = self.solution.shown(cohort), self.state.place(cohort.cluster)
        d, n = self.solution.size, len(cohort.users)
        sure: Floats = np.zeros((d, d)) if place is None else self.state.covariance[place]
        rows = {**shown.rows, "covariance": sure, "map": self.units.matrix}
        options = {**shown.options, "ask": "summary", "each": self.each}
        fault = partial(summary_fault, most=n * d)
        return Request(cohort, rows, options, template(n, d, self.each), fault=fault)

    # The summary.

    def summary(self, answers: list[Answer]) -> LinearSummary:
        """All that is known."""
        noise, why = self._noise(answers)
        names = [self.units.names[n] for n in self._varying]
        return LinearSummary(
            self._coefficients(noise),
            self._variances(noise),
            self._users(answers, noise),
            [] if self._one_model else names,
            why,
            self.units.told,
            self.left_out,
            self._clusters(noise),
            self._correlations(),
            self.covariance.intervals or (SUMS_OF_SEVERAL if self.fitted is not None else ""),
            spreads(self.state, noise, self.loss == "squared"),
            self._dispersion(answers),
            self._likelihood(),
        )

    def _dispersion(self, answers: list[Answer]) -> float | None:
        """Pearson's chi^2 over its degrees of freedom, where rows have a variance of their own."""
        if not self.generalised.how or self.generalised.open or self.loss == "logistic":
            return None
        members = self.solution.job.members.everybody
        records = sum(members[user].train for answer in answers for user in answer.cohort.users)
        free = records - len(self.units.names) + len(self.solution.held)
        return sum(float(answer.rows["square"]) for answer in answers) / free if free > 0 else None

    def _likelihood(self) -> dict[str, Any]:
        """The restricted log likelihood of the table as it is, and the model that it is of."""
        fit = self.covariance
        if not fit.kinds or self.loss != "squared":
            return {}
        levels = zip(fit.levels, fit.kinds, fit.varying, strict=True)
        at_zero, names = self.solution.own_sums.fit.at_zero, self.units.names
        return {
            "loglik": fit.loglik + self.units.density(self.solution.records),
            "records": self.solution.records,
            "squares": fit.squares * self.units.label**2,
            "fixed": names,
            "levels": {
                level: {
                    "shape": kind,
                    "varying": [names[n] for n in which],
                    "at_zero": at_zero,
                }
                for level, kind, which in levels
            },
            "apart": len(fit.names),
            "numbers": 1 + numbers(fit.shapes(len(names))),
            "converged": fit.converged,
        }

    @property
    def _which(self) -> list[int]:
        """The coefficients that differ between users."""
        varies, d = self.varies, len(self.units.names)
        return list(range(d)) if varies is None else np.flatnonzero(varies).tolist()

    @property
    def _varying(self) -> list[int]:
        """The same but for those that are held, as the data do not tell their variances."""
        return self.covariance.varying[0] if self.covariance.kinds else self._which

    @property
    def _one_model(self) -> bool:
        """True if users do not differ from their clusters."""
        return bool(np.isinf(self.state.used).all())

    @property
    def _alone(self) -> bool:
        """True if nothing ties users: there is no model of all."""
        return bool(self.state.used.size) and not self.state.used.any()

    @property
    def _apart(self) -> bool:
        """True if nothing ties the clusters."""
        return not self.state.lam.any() and len(self.state.w) > 1

    def _noise(self, answers: list[Answer]) -> tuple[float | None, str]:
        """sigma^2 in the model's units, if standard errors can be given; how, or why not."""
        likelihood = self.loss in ("squared", *FAMILY_LOSSES)
        if not likelihood or not self.whole:
            of = "losses" if likelihood else f"loss={self.loss}"
            end = (
                "are no likelihood with loss-scale=mean or a ridge"
                if likelihood
                else "is no likelihood"
            )
            return None, f"none: {of} {end}"
        if self.generalised.how:
            return self._information()
        if why := self._unsettled:
            return None, f"none: {why}"
        if self.loss == "logistic":
            return 1.0, "maximum likelihood" if self._one_model or self._alone else QUASI_ERRORS
        fitted = self.fitted or (self.covariance if self.covariance.kinds else None)
        if fitted is not None:
            return fitted.sigma2, "given the variances"
        return self._residual(answers)

    def _information(self) -> tuple[float | None, str]:
        """Of a marginal likelihood, if it has a top."""
        if self.generalised.open:
            return None, f"none: {NO_TOP}: {', '.join(self.generalised.open)}"
        end = "" if self.state.done else "; not at its top: more num-rounds"
        return 1.0, INFORMATION.format(self.generalised.how) + end

    @property
    def _unsettled(self) -> str:
        """Why these are not the likeliest models, or not those alone; empty: they are."""
        if self.grouped:
            return LOOKED_FOR
        if self.loss == "squared":
            if why := self.fitted.fault if self.fitted else self.covariance.fault:
                return why
            settled = not self.covariance.kinds or self.covariance.converged
            return "" if settled else "the likelihood has not converged"
        return self.solution.endless or ("" if self.state.done else "the models are not settled")

    def _residual(self, answers: list[Answer]) -> tuple[float | None, str]:
        """sigma^2 from residuals, where strengths were given: gamma = sigma^2/s^2."""
        expected = sum(len(cohort.users) for cohort in self.solution.present.cohorts)
        heard = [user for answer in answers for user in answer.cohort.users]
        if len(heard) < expected:
            return None, "none: not all users answered after the last round"
        state, aside = self.state, self.state.aside
        free = self.solution.records - self._fixed(answers)
        if free <= 0:
            return None, "none: no more rows than coefficients"
        tie = np.where(np.isfinite(state.lam), state.lam, 0.0)
        ties = np.sum(tie * np.square(state.w - state.model))
        square = sum(float(answer.rows["square"]) for answer in answers) + float(ties)
        square = aside.square if aside.named else square
        if self._apart:
            return square / free, "none for the mean of clusters that are fitted apart"
        given = "" if self._one_model or self._alone else ", given gamma and lambda"
        return square / free, f"least squares, {free:,} degrees of freedom{given}"

    def _fixed(self, answers: list[Answer]) -> int:
        """Coefficients that are estimated without any pull."""
        if self._alone:
            return round(sum(float(answer.rows["rank"]) for answer in answers))
        if not self.state.lam.any():
            return int(np.linalg.matrix_rank(self.state.covariance, hermitian=True).sum())
        return int(np.linalg.matrix_rank(self.state.around, hermitian=True))

    def _coefficients(self, noise: float | None) -> list[Coefficient]:
        """Those of wbar; where clusters have nothing in common wbar is their mean, without se."""
        if self._alone:
            return []
        values = self.units.estimate(self.state.model)
        pairs = list(zip(self.units.names, values.tolist(), strict=True))
        pairs = [pair for pair in pairs if pair[0] != self.solution.keys.weight_column]
        if noise is None or self._apart or self.state.around.shape != self.units.matrix.shape:
            return [Coefficient(name, value) for name, value in pairs]
        errors = self.units.by_name(self.units.errors(noise * self.state.around))
        open_ = self.units.open(self.state.unknown)
        constant = 1 - self.covariance.units.sound if self.covariance.kinds else 0 * values
        untold = {
            name: LEFT_OUT_CONSTANT if left_out else SHARED
            for name, unsure, left_out in zip(self.units.names, open_, constant, strict=True)
            if unsure or left_out
        }
        held = {*untold, self.solution.keys.offset_column}
        return [
            Coefficient(n, value, None if n in held else errors[n], untold.get(n, ""))
            for n, value in pairs
        ]

    def _clusters(self, noise: float | None) -> dict[str, ClusterEstimate]:
        """Their w_j; none where clusters do not differ, or are very many."""
        state, units = self.state, self.units
        same = self._alone or bool(np.isinf(state.lam).all())
        if same or not 1 < len(state.w) <= MOST_LISTED or state.w.size > MOST_ESTIMATES:
            return {}
        found = {}
        for name, w, sure in zip(state.clusters.known, state.w, state.covariance, strict=False):
            errors = None
            if noise is not None and not (self._apart and unknown(sure).shape[1]):
                errors = self._told(units.errors(noise * sure))
            found[name] = ClusterEstimate(units.by_name(units.estimate(w)), errors)
        return found

    def _told(self, errors: Floats) -> dict[str, float | None]:
        """Errors by name; None where the data leave wbar open, and so all that leans on it."""
        found: dict[str, float | None] = dict(self.units.by_name(errors))
        if self._alone or self._apart:
            return found
        open_ = zip(found, self.units.open(self.state.unknown), strict=True)
        return {**found, **{name: None for name, unsure in open_ if unsure}}

    def _variances(self, noise: float | None) -> list[Component]:
        """From records to clusters, in the label's unit."""
        unit, fitted = self.units.label**2, self.fitted
        if self.grouped:
            of_groups = attached("found groups").variances(self.state.groups, self.units)
            return cast(list[Component], of_groups)
        if fitted is not None:
            levels = ("residual", "user", "cluster")[: 3 if len(self.state.w) > 1 else 2]
            user = float(np.mean(list(fitted.user.values())))
            values = (fitted.sigma2, user, fitted.cluster)
            held = {"user": fitted.held}
            return [
                Component(level, value * unit, share, value == 0.0, held=held.get(level, ""))
                for level, value, share in zip(levels, values, fitted.shares, strict=False)
            ]
        if self.covariance.kinds:
            return self._covariances()
        if spread := self.state.estimates.spread:
            return self._latent(spread)
        if noise is None or self.loss != "squared":
            return []
        return [Component("residual", noise * unit)]

    def _covariances(self) -> list[Component]:
        """Of each level, by coefficient where several vary; in the data's units."""
        fit, units, which = self.covariance, self.units, self._which
        shares: list[float | None] = [*fit.shares] or [None] * (1 + len(fit.levels))
        noise = fit.sigma2 * units.label**2 if self.loss == "squared" else LATENT
        found = []
        if shares[0] is not None:
            found.append(Component("residual", noise, shares[0], **self._sure(RECORDS)))
        for share, (level, covariance) in zip(shares[1:], fit.levels.items(), strict=False):
            own, sizes = units.matrix @ covariance @ units.matrix.T, fit.sizes(units.matrix)
            if len(which) == 1:
                n = which[0]
                value, what = float(own[n, n]), f"{level}: {units.names[n]}"
                found.append(Component(level[:-1], value, share, value == 0.0, **self._sure(what)))
                continue
            if share is not None and shares[0]:
                found.append(Component(level[:-1], noise * share / shares[0], share))
            found += [
                Component(
                    f"{level[:-1]}: {units.names[n]}",
                    float(own[n, n]),
                    at_boundary=none(own, n, sizes),
                    **self._sure(f"{level}: {units.names[n]}"),
                )
                for n in which
            ]
        return found

    def _sure(self, what: str) -> dict[str, Any]:
        """A variance's standard error and interval; why it is held at 0, if it is."""
        fit = self.covariance
        return {**asdict(fit.likely.get(what, Likely())), "held": fit.held.get(what, "")}

    def _correlations(self) -> list[Correlation]:
        """Of all pairs of each level with a full covariance."""
        fit, found = self.covariance, list[Correlation]()
        if FULL not in fit.kinds:
            return found
        names, matrix = self.units.names, self.units.matrix
        sizes = fit.sizes(matrix)
        for kind, which, (level, own) in zip(
            fit.kinds, fit.varying, fit.levels.items(), strict=False
        ):
            covariance = matrix @ own @ matrix.T
            there = [n for n in which if kind == FULL and not none(covariance, n, sizes)]
            for one, other in combinations(there, 2):
                sure = fit.likely.get(f"{level}: {names[one]}, {names[other]}", Likely())
                pair = names[one], names[other], correlation(covariance, one, other)
                found.append(Correlation(level[:-1], *pair, sure.low, sure.high))
        return found

    def _latent(self, spread: dict[str, list[float]]) -> list[Component]:
        """By coefficient; of random intercepts with their share in the variance of a score."""
        names = [self.units.names[n] for n in self._which]
        lists = {what[:-1]: values for what, values in spread.items()}
        if self.varies is None or len(names) > 1:
            return [
                Component(f"{what}: {name}", value)
                for what, values in lists.items()
                for name, value in zip(names, values, strict=True)
            ]
        total = LATENT + sum(values[0] for values in lists.values())
        found = [Component("residual", LATENT, LATENT / total)]
        return found + [Component(w, v[0], v[0] / total) for w, v in lists.items()]

    def _users(self, answers: list[Answer], noise: float | None) -> dict[str, UserEstimate]:
        """Each user's."""
        if not self.each:
            return {}
        return {
            user: self._user(answer.rows, row, noise)
            for answer in answers
            for row, user in enumerate(answer.cohort.users)
        }

    def _user(self, rows: Arrays, row: int, noise: float | None) -> UserEstimate:
        """One user's."""
        units, known = self.units, bool(rows["known"][row])
        errors = None
        if noise is not None and (known or not self._alone):
            errors = self._told(np.sqrt(noise) * rows["se"][row])
        own = units.by_name(units.estimate(rows["own"][row])) if known else None
        estimate = units.by_name(units.estimate(rows["theta"][row]))
        return UserEstimate(estimate, own, errors, float(rows["shrinkage"][row]))


def template(users: int, d: int, each: bool) -> dict[str, Any]:
    """The form of an answer of a cohort of so many users."""
    sums = {"square": np.zeros(()), "rank": np.zeros(())}
    if not each:
        return sums
    wide = {name: np.zeros((users, d)) for name in ("theta", "own", "se")}
    return {**sums, **wide, "known": np.zeros(users), "shrinkage": np.zeros(users)}
