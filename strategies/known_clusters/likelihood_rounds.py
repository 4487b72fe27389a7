"""Generalised mixed models by their marginal likelihood: rows stay at home, the server ascends.

In an exchange users are told beta and the roots of the covariances, integrate their own effects
out, and send the log marginal likelihood with its gradient and Hessian, summed over a cohort: one
sum is enough, of however many users (solvers/known_clusters/generalised). With known clusters the
server tells each its own model, and finds the clusters' effects from the same sums. Coefficients of
an offset are held at 1, of weights at 0: both are columns that every user has anyway.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

import numpy as np

from corsage.core.arrays import Arrays, Floats, Ints
from corsage.core.errors import ConfigError
from corsage.core.messages.replies import Replies
from corsage.core.registry import LIKELIHOODS
from corsage.solvers.known_clusters.generalised.ascent import Ascent
from corsage.solvers.known_clusters.generalised.levels import NODES, Design, functions_of
from corsage.solvers.known_clusters.generalised.shapes import FIRST_DEVIATION, layouts, numbers_of
from corsage.solvers.known_clusters.mixed_model import unpack
from corsage.solvers.known_clusters.newton_rounds import NEWTON
from corsage.solvers.known_clusters.standard import Standard
from corsage.solvers.known_clusters.variances.shapes import DIAGONAL, FULL, ONE
from corsage.strategies.known_clusters.clusters.cohorts import Cohort, Present
from corsage.strategies.known_clusters.clusters.strengths import AUTO
from corsage.strategies.known_clusters.coins.conversation import Request, ask_each, check_enough
from corsage.strategies.known_clusters.coins.impossible import jets_fault
from corsage.strategies.known_clusters.likelihood_outcome import NO_TOP, Outcome
from corsage.strategies.known_clusters.likelihood_search import LikelihoodState, unpacked
from corsage.strategies.known_clusters.paths import units_above
from corsage.strategies.known_clusters.units import LATENT, Units
from corsage.strategies.rounds.job import Job
from corsage.strategies.rounds.turns import Script

if TYPE_CHECKING:
    from corsage.strategies.known_clusters.mixed_state import MixedModelKeys, MixedModelState

QUADRATURE, LAPLACE, QUASI = "quadrature", "laplace", "quasi"
SHAPED = LIKELIHOODS[2:]
"""Losses with a shape of their own, which is estimated."""
LIKELIHOOD = "likelihood"
"""The way of `Estimates` by which variances are found here."""
FAMILY_LOSSES = ("logistic", *LIKELIHOODS)
MOST_LOOKS = 100_000_000
"""Numbers that users may look at in an exchange unless they are asked to: some CPU seconds."""
MOST_TRIED = 15
"""Looks after which a shape is given up that is still worse than another one."""
MOST_LIKELY = 60
"""Parameters of a likelihood: users send their squares."""


class Likelihood:
    """Rounds of the marginal likelihood.

    Parameters
    ----------
    job, keys, state : the mixed model's.
    varies : 1 for coefficients that differ between users (d,); None: all do.
    """

    def __init__(
        self, job: Job, keys: MixedModelKeys, state: MixedModelState, varies: Floats | None
    ) -> None:
        self.job, self.keys, self.state = job, keys, state
        self.d = len(state.model)
        self.units, self.columns = Units.of(job, self.d), held_columns(job, keys, self.d)
        self.varies = np.ones(self.d) if varies is None else varies

    # Whether it is wanted.

    def decide(self, present: Present) -> None:
        """Choose this way, once for a run, if the loss is a likelihood; say what is in the way."""
        if self.state.estimates.way or self.job.loss not in FAMILY_LOSSES:
            return
        if not (obstacle := self.obstacle(present)):
            self.state.estimates.way = LIKELIHOOD
        elif self.job.loss != "logistic" or self.columns:
            raise ConfigError(f"loss={self.job.loss}: by its likelihood alone, and {obstacle}.")
        elif self.keys.mixed_likelihood in (QUADRATURE, LAPLACE):
            raise ConfigError(f"mixed-likelihood={self.keys.mixed_likelihood}: {obstacle}.")
        elif self.keys.both_estimated and (
            self.keys.mixed_likelihood == self.keys.mixed_variances == AUTO
        ):
            self.job.note(f"penalised quasi-likelihood (mixed-likelihood=quasi): {obstacle}")

    @property
    def on(self) -> bool:
        """True if this is the way."""
        return self.state.estimates.way == LIKELIHOOD

    def obstacle(self, present: Present) -> str:
        """The reason why the likelihood cannot be had; empty: it can."""
        keys, several = self.keys, len(present.names) > 1
        least, wanted = len(self.varies) + 1 + several, keys.mixed_likelihood
        bare = not self.job.config.model.intercept and self.columns
        obstacles = (
            (wanted == QUASI, "mixed-likelihood=quasi asks for less"),
            (not keys.both_estimated, "one of known-gamma and known-lambda is given"),
            (keys.mixed_variances == "summed", "mixed-variances=summed asks for EM"),
            (
                keys.mixed_paths and bool(units_above(present.names)),
                "there are levels above the clusters",
            ),
            (bare, "offset-column and weight-column need an intercept"),
            (
                wanted == QUADRATURE and (several or self.varies.sum() > 1),
                "quadrature is for one random coefficient of users on one level",
            ),
            (
                wanted == AUTO and self.job.loss == "logistic" and self.work(several) > MOST_LOOKS,
                "it would take long with so many rows; mixed-likelihood=laplace asks for it",
            ),
            (least > MOST_LIKELY, f"{least} parameters are more than {MOST_LIKELY}"),
        )
        return next((words for there, words in obstacles if there), "")

    def work(self, several: bool) -> int:
        """Numbers that all users look at in an exchange."""
        members, r = self.job.members.everybody, int(self.varies.sum())
        rows = sum(members[user].train for user in self.job.members.users)
        m = min(len(self.varies) + r * (r + 1) // 2, MOST_LIKELY) + r
        return rows * m * functions_of(r if several else 0) * max(r, NODES if r == 1 else 1)

    @property
    def nodes(self) -> int:
        """Nodes of the quadrature; 0: Laplace's approximation."""
        state, single = self.state.likelihood, self.varies.sum() == 1
        one = single and state is not None and len(state.names) == 1
        return NODES if one and self.keys.mixed_likelihood != LAPLACE else 0

    # A round.

    def round(self, present: Present, number: int) -> Script[Replies]:
        """One exchange, and a step."""
        question = self.first if self.state.likelihood is None else self.question
        asked = ask_each(self.job, present, question, counted=True)
        replies = yield asked
        check_enough(self.job, number, replies)
        answers = {name: asked.found.get(name, []) for name in present.names}
        heard = [answer.cohort.name for own in answers.values() for answer in own]
        if not heard:
            return replies
        rows = next(own[0].rows for own in answers.values() if own)
        sums = [
            {what: sum((a.rows[what] for a in own), np.zeros_like(rows[what])) for what in rows}
            for own in answers.values()
        ]
        if self.state.likelihood is None:
            self.begin(sums, present)
            return replies
        if heard != self.search.heard:  # a likelihood of others: what is known is not of it
            ahead = Ascent(self.search.ascent.ahead)
            self.state.likelihood = replace(self.search, ascent=ahead, heard=heard)
        self.step(sums)
        self.state.done &= not replies.dropped
        return replies

    def told(self) -> Arrays:
        """The row's weights as a model of the inputs, if there are any."""
        if not self.keys.weight_column:
            return {}
        place = self.columns[self.keys.weight_column]
        return {"weights": in_its_unit(self.units.matrix, place)}

    def first(self, cohort: Cohort) -> Request:
        """The question for the sums of squares that a search begins with."""
        half = np.zeros(self.d * (self.d + 1) // 2)
        template = {"squares": half, "heavy": half, "pull": np.zeros(self.d)}
        return Request(cohort, self.told(), {"ask": "likelihood-begin"}, template)

    def question(self, cohort: Cohort) -> Request:
        """The question for a likelihood with its derivatives."""
        found = self.search
        design, psi = self.design, found.ascent.ahead
        theta = design.theta(psi)
        if self.two:
            theta = theta + design.above_root(psi) @ found.v[found.names.index(cohort.cluster)]
        rows = {"w": theta, "tau": design.tau(psi), "basis": design.basis, **self.told()}
        if self.two:
            rows["around"] = design.around
        m, c = self.d + len(rows["tau"]), design.around.shape[1]
        template = {"jets": np.zeros((functions_of(c), 1 + m + m * (m + 1) // 2))}
        options = {"ask": "likelihood", "nodes": self.nodes}
        records = sum(self.job.members.everybody[u].train for u in cohort.users)
        fault = partial(
            jets_fault, d=self.d, discrete=self.job.loss != "gamma", two=self.two,
            records=records if self.job.loss == "logistic" and not self.columns else 0,
        )  # fmt: skip
        return Request(cohort, rows, options, template, fault=fault)

    # The server's step.

    @property
    def search(self) -> LikelihoodState:
        """The search that is on."""
        assert self.state.likelihood is not None
        return self.state.likelihood

    @property
    def two(self) -> bool:
        """True if clusters differ, too."""
        return len(self.search.names) > 1

    @property
    def which(self) -> Ints:
        """The coefficients that differ between users, constant columns aside."""
        return np.flatnonzero(self.varies * self.search.standard.sound)

    @property
    def design(self) -> Design:
        """The way from the parameters of the present shape to what users are told."""
        found, which = self.search, self.which
        matrix = found.standard.matrix
        inner = layouts(found.kinds[0], len(which))
        around = matrix[:, which]
        basis = np.einsum("pc,kcr->kpr", around, inner)
        none: Floats = np.zeros((self.d, 0))
        return Design(
            matrix[:, found.free > 0], found.fixed, basis,
            around if self.two else none, inner if self.two else inner[:0],
            self.job.loss in SHAPED,
        )  # fmt: skip

    def begin(self, sums: list[Arrays], present: Present) -> None:
        """Standard units, and where the search begins: a step of iterated least squares."""
        squares, heavy, pull = (
            np.sum([one[what] for one in sums], axis=0) for what in ("squares", "heavy", "pull")
        )
        squares, heavy = unpack(squares, self.d), unpack(heavy, self.d)
        users = self.job.members.everybody
        records = float(sum(users[u].train for c in present.cohorts for u in c.users))
        intercept = self.job.config.model.intercept
        standard = Standard.of(squares, np.zeros(self.d), records, intercept)
        fixed, free = np.zeros(self.d), standard.sound.copy()
        for name, place in self.columns.items():
            free[place] = 0.0
            fixed[place] = float(name == self.keys.offset_column) / self.units.matrix[place, place]
        own = standard.matrix[:, free > 0]
        beta = np.linalg.lstsq(own.T @ heavy @ own, own.T @ (pull - heavy @ fixed), rcond=1e-10)[0]
        which, names = int((self.varies * standard.sound).sum()), list(present.names)
        kinds = self.kinds(which, int(free.sum()), len(names) > 1)
        tau = numbers_of(kinds[0], FIRST_DEVIATION * np.eye(which))
        shape = np.zeros(int(self.job.loss in SHAPED))
        psi = np.concatenate([beta, tau, shape, tau if len(names) > 1 else []])
        v: Floats = np.zeros((len(names), which))
        begun = LikelihoodState(standard, fixed, free, names, kinds, Ascent(psi), v)
        self.state.likelihood = begun
        self.state.enter(self.varies)

    def kinds(self, which: int, free: int, two: bool) -> list[str]:
        """The shapes that are to be tried."""
        wanted = self.keys.mixed_variances
        if wanted != AUTO or which == 1:
            return [ONE if which == 1 else wanted]
        sizes = {kind: len(layouts(kind, which)) * (1 + two) for kind in (ONE, DIAGONAL, FULL)}
        return [kind for kind, size in sizes.items() if kind == ONE or free + size <= MOST_LIKELY]

    def step(self, sums: list[Arrays]) -> None:
        """The next place; the state as it is at the best one, if no better shape was fitted."""
        found = self.search.advanced(
            unpacked([one["jets"] for one in sums], self.d, self.design), self.design
        )
        self.state.likelihood = found
        self.state.quadratics, self.state.done = NEWTON, False
        if not len(found.ascent.at):
            return
        outcome = self.outcome()
        if not found.tried:
            outcome.publish(self.state)
        beaten = outcome.aic >= min(found.tried.values(), default=np.inf)
        if found.settled or (beaten and found.ascent.looks >= MOST_TRIED):
            self.conclude(outcome)

    def conclude(self, outcome: Outcome) -> None:
        """Keep this shape if it is the best so far, and turn to the next."""
        found = self.search
        least = min(found.tried.values(), default=np.inf)
        tried = {**found.tried, found.kinds[0]: outcome.aic}
        if outcome.aic < least:
            outcome.publish(self.state)
        rest = found.kinds[1:]
        self.state.done = not rest
        if not rest and (open_ := self.state.estimates.covariance.generalised.open):
            self.job.note(
                f"{NO_TOP}, and there are no errors: it grows for ever along {', '.join(open_)}"
            )
        self.state.estimates.covariance.generalised.tried = tried
        if not rest:
            self.state.likelihood = replace(found, tried=tried)
            return
        psi = outcome.as_shape(rest[0])
        self.state.likelihood = replace(
            found, kinds=rest, tried=tried, ascent=Ascent(psi), v=outcome.v, settling=0
        )

    def outcome(self) -> Outcome:
        """The parameters at the best place, as a run holds them."""
        found, design = self.search, self.design
        v = found.v
        if self.two:
            from corsage.solvers.known_clusters.generalised.joint import clusters_likelihood

            at = found.ascent.at
            v = clusters_likelihood(design, found.best, found.place, found.effects, at).v
        how = f"{self.nodes}-point adaptive quadrature" if self.nodes else "Laplace's approximation"
        return Outcome(
            design, found.standard, found.ascent, found.kinds[0], how, found.names, found.best, v,
            self.which, self.units, LATENT if self.job.loss in ("logistic", "binomial") else 0.0,
        )  # fmt: skip

    def rows(self, cohort: Cohort) -> Arrays:
        """The centre of a cohort, the root of its users' covariance, the shape and the weights."""
        fit = self.state.estimates.covariance
        shown = {"w": self.state.centre(cohort.cluster), "root": fit.root(cohort.cluster)}
        return {**shown, "shape": np.array(fit.generalised.shape), **self.told()}


def held_columns(job: Job, keys: MixedModelKeys, d: int) -> dict[str, int]:
    """The places of the offset's and the weights' columns among the coefficients, by name."""
    found = dict[str, int]()
    for key, name in (("offset", keys.offset_column), ("weight", keys.weight_column)):
        if not name:
            continue
        if name not in (names := Units.of(job, d).names[:-1]):
            raise ConfigError(f"{key}-column={name}: the input has no column of that name.")
        if job.loss not in FAMILY_LOSSES:
            losses = ", ".join(FAMILY_LOSSES)
            raise ConfigError(f"{key}-column={name}: for loss={losses}, not loss={job.loss}.")
        found[name] = names.index(name)
    return found


def in_its_unit(matrix: Floats, place: int) -> Floats:
    """A column in the table's unit, as a model of the inputs and the intercept's 1.

    Coefficients in the table's units are matrix theta: a row of inputs is matrix' that of columns.
    """
    return np.asarray(np.linalg.solve(matrix, np.eye(len(matrix))[place]))
