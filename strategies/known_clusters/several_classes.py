"""The mixed model of several classes: (2.3) with the multinomial loss, by sums of slopes.

A user's loss is no quadratic, and its curvature would be of all pairs of classes and columns. So
users minimise over their own deviations and send what is left and its slope in w_j (solvers/
known_clusters/multinomial.py), summed over a cluster, and the server goes down along these sums:
some dozens of exchanges, all of them in one round.

Strengths on auto are those by which records that users leave out are told best: of slopes and of
intercepts, for users in clusters and for clusters, and rho of wbar, without which a model of many
coefficients tells all records of all users apart and grows without end. Candidates are solved side
by side in the same exchanges, one strength after the other. Infinite strengths and 0 have a rho,
too: `exact-global`, `exact-cluster` and `exact-local` (there it is a ridge) are no models without
one. Where both strengths are numbers, or `ridge` is, (2.3) is solved as it is.
"""

from __future__ import annotations

import json
from dataclasses import asdict, replace
from functools import partial

import numpy as np

from corsage.core.arrays import Arrays, Floats
from corsage.core.errors import ConfigError, ModelError
from corsage.core.messages.replies import Replies
from corsage.solvers.known_clusters.centre_descent import Centres, Descent
from corsage.solvers.known_clusters.multinomial import NO_FOLD
from corsage.strategies.known_clusters.aside import UNGUARDED
from corsage.strategies.known_clusters.class_descent import (
    MOST_DESCENT_EXCHANGES,
    STRENGTH_GRID,
    Candidate,
    Descents,
    Scale,
    Shape,
    Strength,
    Told,
)
from corsage.strategies.known_clusters.clusters.cohorts import Cohort
from corsage.strategies.known_clusters.clusters.strengths import AUTO
from corsage.strategies.known_clusters.coins.conversation import Request, ask_each
from corsage.strategies.known_clusters.mixed_solution import MixedSolution
from corsage.strategies.known_clusters.mixed_state import Search
from corsage.strategies.known_clusters.units import varying
from corsage.strategies.rounds.results import Finding
from corsage.strategies.rounds.turns import Script

LEFT_OUT_FOLDS = 2
"""The folds that are left out for it, one by one."""
ROUGH_SLOPE = 0.02
"""The share of the first slope at which a candidate is judged."""
UNSETTLED_CLASSES = "; not settled: weak strengths take long, and a user that lies for ever"
ENDLESS_CLASSES = (
    "known-gamma, known-lambda: all users' classes can be told apart without error, so the centres "
    "grow without end and are where the descent stopped; ridge=0.001 makes a minimum"
)
MOST_ROUGH_EXCHANGES = 200
"""Exchanges of candidates for a strength; honest users take some twenty."""
CHECKED_EVERY = 100
"""Exchanges of a descent between looks at whether it has an end."""


class ClassesSolution(MixedSolution):
    """The mixed model's solution under the multinomial loss: all in one round."""

    @property
    def shape(self) -> Shape:
        """Of a model."""
        return Shape(self.size, int(self.job.agreed.num_classes), self.intercept)

    @property
    def d(self) -> int:
        """Coefficients of one class."""
        return self.shape.d

    @property
    def looks(self) -> bool:
        """Slopes of one user tell nothing of whether it is like the others."""
        return False

    @property
    def unguarded(self) -> str:
        """A line where devices send: slopes of a liar cannot be told from others'."""
        why = "several classes: users send slopes"
        return "" if self.job.members.at_home else UNGUARDED.format(why)

    @property
    def varies(self) -> Floats:
        """1 for each coefficient of a class that differs between users, else 0 (d,)."""
        varies = varying(self.job, self.d, self.keys.mixed_random)
        return np.ones(self.d) if varies is None else varies

    @property
    def ends(self) -> bool:
        """True if a strength is 0 or infinite."""
        lam = [*self.state.strengths.lam.values()] if len(self.present.names) > 1 else []
        given = [*self.state.strengths.gamma.values(), *self.state.strengths.users.values(), *lam]
        return any(value in {0.0, np.inf} for value in given)

    def begin(self) -> None:
        """Strengths that are given; others come with the round."""
        super().begin()
        if len({*self.state.strengths.lam.values()}) > 1:
            raise ConfigError(
                f"known-lambda={self.keys.known_lambda}: several classes take one number for all "
                "clusters, or auto."
            )

    def round(self, number: int) -> Script[Replies]:
        """Strengths on auto, all centres, and the delivery of models."""
        self.present.need_somebody(number)
        self.state.enter(None)
        rounds = Descents(self.job, self.present, self.shape)
        replies = yield from rounds.begin()
        self._name_classes_of_nobody(rounds.weights)
        scale = Scale.of(rounds.squares.sum(0), self.intercept, self._share)
        strength, best = self._given(scale), list[Candidate]()
        for name in self._searched(strength):
            best = yield from self._better(name, rounds, scale, strength, best)
            strength = best[0].strength
        final = self._candidate(rounds, scale, strength, NO_FOLD, *best[:1])
        yield from self._descended(rounds, final, self._told(scale))
        self._found(final, scale, rounds.names)
        self.state.done = len(rounds.asked.cohorts) == len(self.present.cohorts)
        if self.delivers:
            delivery = partial(self.shown, deliver=True)
            yield ask_each(self.job, self.present, delivery, counted=True)
        return replies

    def _name_classes_of_nobody(self, weights: Floats) -> None:
        """Say which classes nobody has a record of; without rho or ridge there is no minimum."""
        if not (none := np.flatnonzero(weights <= 0)).size:
            return
        who = f"no user has a record of class {', '.join(map(str, none.tolist()))}"
        if not (self.keys.estimated or self.ends or self.job.config.model.ridge):
            raise ModelError(
                f"{self.job.name}: {who}, whose scores would fall for ever: number the classes "
                "from 0 on without gaps, or set ridge=0.001."
            )
        self.job.note(f"{who}: models have scores of it all the same")

    def _descended(self, rounds: Descents, final: Candidate, told: Told) -> Script[None]:
        """Go down to the end, if there is one: given strengths without a ridge may have none."""
        may_fall = not (final.centres.rho.any() or self.job.config.model.ridge)
        for _ in range(MOST_DESCENT_EXCHANGES // CHECKED_EVERY):
            yield from rounds.descend([final], told, self.enough, CHECKED_EVERY)
            if may_fall and (yield from rounds.falls(final, told)):
                self.job.note(ENDLESS_CLASSES)
                return
            if final.over(self.enough):
                return
        self.job.note(f"{MOST_DESCENT_EXCHANGES} exchanges{UNSETTLED_CLASSES}")

    @property
    def intercept(self) -> bool:
        """True if models have an intercept."""
        return self.job.config.model.intercept

    @property
    def enough(self) -> float:
        """The share of the first slope that ends a descent: what is left goes by its square."""
        return float(np.sqrt(self.tolerance))

    @property
    def _share(self) -> float:
        """The weight of a record in the sums."""
        users = sum(len(cohort.users) for cohort in self.present.cohorts)
        return users / self.records if self.job.config.model.loss_scale == "mean" else 1.0

    def _given(self, scale: Scale) -> Strength:
        """The strengths that were given, and where those on auto begin."""
        keys, given = self.keys, self.state.strengths
        found = Strength(rho=0.0 if self.job.config.model.ridge else Strength.rho)
        if not (keys.estimated or self.ends):
            found = replace(found, rho=0.0)
        if keys.known_gamma != AUTO:
            slopes, intercepts = scale.told(float(np.mean([*given.gamma.values()] or [1.0])))
            found = replace(found, slopes=slopes, intercepts=intercepts)
        if not self.varies[: self.d - self.intercept].any():
            found = replace(found, slopes=np.inf)
        if not (self.intercept and self.varies[-1]):
            found = replace(found, intercepts=np.inf)
        if keys.known_lambda != AUTO and len(self.present.names) > 1:
            slopes, intercepts = scale.told(next(iter(given.lam.values())))
            found = replace(found, cluster_slopes=slopes, cluster_intercepts=intercepts)
        return found

    def _searched(self, begin: Strength) -> list[str]:
        """The strengths that are looked for, in this order."""
        names, varies = ["rho"] * (begin.rho > 0), self.varies
        if self.keys.known_gamma == AUTO:
            names += ["intercepts"] * bool(self.intercept and varies[-1])
            names += ["slopes"] * bool(varies[: self.d - self.intercept].any())
        if self.keys.known_lambda == AUTO and len(self.present.names) > 1:
            names += ["cluster_intercepts"] * self.intercept + ["cluster_slopes"]
        return names

    def _better(
        self, name: str, rounds: Descents, scale: Scale, strength: Strength, before: list[Candidate]
    ) -> Script[list[Candidate]]:
        """The best value of one strength, by left-out records: a candidate a fold."""
        tried = [replace(strength, **{name: value}) for value in STRENGTH_GRID[name]]
        found = [
            [
                self._candidate(rounds, scale, s, f, *before[f : f + 1])
                for f in range(LEFT_OUT_FOLDS)
            ]
            for s in tried
        ]
        together = [one for own in found for one in own]
        yield from rounds.descend(together, self._told(scale), ROUGH_SLOPE, MOST_ROUGH_EXCHANGES)
        held = np.array([[one.held for one in own] for own in found]).sum(1)
        return found[int(np.argmin(held[:, 0] / np.maximum(held[:, 1], 1.0)))]

    def _candidate(
        self, rounds: Descents, scale: Scale, strength: Strength, fold: int, *start: Candidate
    ) -> Candidate:
        """A problem, from 0 on, or from where another one ended."""
        every = np.ones(self.d)
        lam = scale.raw(strength.cluster_slopes, strength.cluster_intercepts, every, self.intercept)
        rho = scale.raw(strength.rho, strength.rho, every, self.intercept)
        lam = lam if len(rounds.squares) > 1 else np.full(self.d, np.inf)
        centres = Centres(rounds.squares, lam, rho, self.shape.classes)
        descent = Descent(np.zeros(centres.size))
        for one in start:
            there = centres.vector(*one.centres.models(one.descent.at))
            descent = Descent(there, one.descent.first)
        return Candidate(strength, centres, descent, fold)

    def _found(self, final: Candidate, scale: Scale, names: list[str]) -> None:
        """Write what was found into the state."""
        state, places = self.state, [self.state.clusters.known.index(name) for name in names]
        w, wbar = final.centres.models(final.descent.at)
        state.w[places], state.model = self.shape.flat(w), self.shape.flat(wbar[None])[0]
        strength, every = final.strength, np.ones(self.d)
        pulls = scale.raw(strength.slopes, strength.intercepts, self.varies, self.intercept)
        lam = scale.raw(strength.cluster_slopes, strength.cluster_intercepts, every, self.intercept)
        state.gamma[places] = state.used[places] = self._spread(pulls)
        state.lam[places] = self._spread(lam)
        state.classes = Search(json.dumps({**asdict(strength), "scale": [*scale]}))
        state.change = final.descent.left

    def _spread(self, strengths: Floats) -> Floats:
        """Strengths by coefficient (d,), of all classes (P,)."""
        return np.asarray(self.shape.flat(np.tile(strengths[:, None], self.shape.classes)[None])[0])

    # What was found.

    def findings(self) -> list[Finding]:
        """The course of the descent, and the strengths."""
        state, said = self.state, json.loads(self.state.classes.plain or "{}")
        if not said:
            return []
        rows = [
            ("loss", f"cross-entropy of {self.shape.classes} classes (multinomial)"),
            ("exchanges", f"{self.job.progress.exchange}"),
            ("slope that is left", f"{state.change:.1e} of the first one{self._unsettled}"),
        ]
        rows += [("liars", why)] if (why := self.unguarded) else []
        scale = Scale(*said.pop("scale"))
        return [
            Finding("solution", rows),
            Finding("strengths", self._table(Strength(**said), scale)),
        ]

    @property
    def _unsettled(self) -> str:
        """The reason why some is left."""
        return UNSETTLED_CLASSES if self.state.change > self.enough else ""

    def _table(self, strength: Strength, scale: Scale) -> list[tuple[str, str]]:
        """The strengths as they are in (2.3), and where they are from."""
        searched = self._searched(self._given(scale))
        parts = [
            ("gamma, slopes", "slopes", scale.slopes),
            ("gamma, intercepts", "intercepts", scale.intercepts),
            ("lambda, slopes", "cluster_slopes", scale.slopes),
            ("lambda, intercepts", "cluster_intercepts", scale.intercepts),
            ("rho of the middle", "rho", scale.slopes),
        ]
        if len(self.present.names) == 1:
            del parts[2:4]
        if not self.intercept:
            parts = [part for part in parts if "intercepts" not in part[1]]
        rows = []
        for label, name, unit in parts:
            how = ", by left-out records" if name in searched else ", given"
            rows.append((label, f"{getattr(strength, name) * unit:.3g}{how}"))
        return rows

    # What users are told.

    def _told(self, scale: Scale) -> Told:
        """The pulls and the ridge of a cohort's users, of strengths in these units."""
        return partial(self._strengths, scale=scale)

    def _strengths(self, cohort: Cohort, strength: Strength, scale: Scale) -> tuple[Floats, float]:
        """The pulls of a cohort's users by coefficient (d,), and the ridge of their losses."""
        slopes, intercepts = strength.slopes, strength.intercepts
        if self.keys.known_gamma != AUTO:
            slopes, intercepts = scale.told(self.state.strengths.typical_gamma(cohort))
        pulls = scale.raw(slopes, intercepts, self.varies, self.intercept)
        ridge = self.job.config.model.ridge
        return pulls, ridge if pulls.any() else max(ridge, strength.rho * scale.slopes)

    def _rows(self, cohort: Cohort) -> Arrays:
        """w_j, the pulls towards it, and the ridge."""
        place, said = self.state.place(cohort.cluster), json.loads(self.state.classes.plain or "{}")
        if not said:
            return {
                "w": self.state.model,
                "pulls": np.full((1, self.d), np.inf),
                "ridges": np.zeros(1),
            }
        scale = Scale(*said.pop("scale"))
        pulls, ridge = self._strengths(cohort, Strength(**said), scale)
        w = self.state.model if place is None else self.state.w[place]
        return {"w": w, "pulls": pulls[None], "ridges": np.array([ridge])}

    def shown(self, cohort: Cohort, deliver: bool = False) -> Request:
        """The message from which a cohort finds its users' models, perhaps to be kept."""
        return Request(cohort, self._rows(cohort), {"ask": "deliver"} if deliver else {})
