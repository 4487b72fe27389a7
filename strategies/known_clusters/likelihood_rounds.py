"""Generalised mixed models by their marginal likelihood: rows stay at home, the server ascends.

In an exchange users are told beta and the roots of the covariances, integrate their own effects
out, and send the log marginal likelihood with its gradient and Hessian, summed over a cohort: one
sum is enough, of however many users (solvers/known_clusters/generalised). With known clusters the
server tells each its own model, and finds the effects of clusters, and of the units of levels above
them, from the same sums. Coefficients of an offset are held at 1, of weights at 0: both are columns
that every user has anyway.
"""

from __future__ import annotations

from dataclasses import replace
from functools import cached_property, partial
from typing import TYPE_CHECKING

import numpy as np

from corsage.core.arrays import Arrays, Floats, Ints
from corsage.core.errors import ConfigError
from corsage.core.messages.replies import Replies
from corsage.core.registry import LIKELIHOODS, attached
from corsage.solvers.known_clusters.generalised.ascent import Ascent
from corsage.solvers.known_clusters.generalised.levels import (
    FIRST_DEVIATION,
    NODES,
    Design,
    functions_of,
    layouts,
    numbers_of,
)
from corsage.solvers.known_clusters.mixed_model import unpack
from corsage.solvers.known_clusters.newton_rounds import NEWTON
from corsage.solvers.known_clusters.standard import Standard
from corsage.solvers.known_clusters.variances.covariance_fit import level_name
from corsage.solvers.known_clusters.variances.identified import (
    NOWHERE,
    Reasons,
    Shown,
    untold_by_sums,
)
from corsage.solvers.known_clusters.variances.shapes import DIAGONAL, FULL, ONE
from corsage.strategies.known_clusters.clusters.cohorts import Cohort, Present
from corsage.strategies.known_clusters.clusters.strengths import AUTO
from corsage.strategies.known_clusters.coins.conversation import (
    Answer,
    Request,
    ask_each,
    check_enough,
)
from corsage.strategies.known_clusters.coins.impossible import begin_fault, jets_fault
from corsage.strategies.known_clusters.likelihood_aside import LikelihoodAside, guarded
from corsage.strategies.known_clusters.likelihood_outcome import Outcome
from corsage.strategies.known_clusters.likelihood_search import LikelihoodState, unpacked
from corsage.strategies.known_clusters.paths import check_paths, tree_levels, units_above
from corsage.strategies.known_clusters.units import LATENT, LIKELIHOOD, NO_TOP, Units, held_columns
from corsage.strategies.rounds.job import Job
from corsage.strategies.rounds.turns import Script

if TYPE_CHECKING:
    from corsage.strategies.known_clusters.mixed_state import MixedModelKeys, MixedModelState

QUADRATURE, LAPLACE, QUASI = "quadrature", "laplace", "quasi"
SHAPED = LIKELIHOODS[2:]
"""Losses with a shape of their own, which is estimated."""
AT_BOUND = (
    "the family's shape grows without bound: counts scatter no more than loss=poisson says, which "
    "is the same model with one number less"
)
LONGEST = 2e9
"""Nanoseconds that users may work in an exchange unless they are asked to, about."""
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
        self.units, self.columns = Units.of(job, self.d), held_columns(job, keys.held, self.d)
        self.varies = np.ones(self.d) if varies is None else varies

    # Whether it is wanted.

    def decide(self, present: Present) -> None:
        """Choose this way, once for a run, if the loss is a likelihood; say what is in the way."""
        if self.state.estimates.way:
            return
        if not (obstacle := self.obstacle(present)):
            self.state.estimates.way = LIKELIHOOD
            if self.keys.mixed_paths:
                check_paths(present.names)
        elif self.job.loss != "logistic" or self.columns:
            raise ConfigError(f"loss={self.job.loss}: by its likelihood alone, and {obstacle}.")
        elif self.keys.mixed_likelihood in (QUADRATURE, LAPLACE):
            raise ConfigError(f"mixed-likelihood={self.keys.mixed_likelihood}: {obstacle}.")
        elif self.keys.both_estimated and (
            self.keys.mixed_likelihood == self.keys.mixed_variances == AUTO
        ):
            self.job.note(f"penalised quasi-likelihood (mixed-likelihood=quasi): {obstacle}")

    def obstacle(self, present: Present) -> str:
        """The reason why the likelihood cannot be had; empty: it can."""
        keys, several = self.keys, len(self.levels(present))
        least, wanted = len(self.varies) + 1 + several, keys.mixed_likelihood
        bare = not self.job.config.model.intercept and self.columns
        obstacles = (
            (wanted == QUASI, "mixed-likelihood=quasi asks for less"),
            (not keys.both_estimated, "one of known-gamma and known-lambda is given"),
            (keys.mixed_variances == "summed", "mixed-variances=summed asks for EM"),
            (bare, "offset-column and weight-column need an intercept"),
            (
                wanted == QUADRATURE and (several > 0 or self.varies.sum() > 1),
                "quadrature is for one random coefficient of users on one level",
            ),
            (
                wanted == AUTO and self.job.loss == "logistic" and self.long,
                "it would take long with so many rows; mixed-likelihood=laplace asks for it",
            ),
            (least > MOST_LIKELY, f"{least} parameters are more than {MOST_LIKELY}"),
        )
        return next((words for there, words in obstacles if there), "")

    def levels(self, present: Present) -> list[list[str]]:
        """The units of the levels that there are above the users, but for the last, of one."""
        if len(present.names) == 1:
            return []
        return [present.names, *(units_above(present.names) if self.keys.mixed_paths else [])]

    @property
    def long(self) -> bool:
        """True if users would work for long in an exchange, by what their sums took."""
        users, r, d = self.job.members.users, int(self.varies.sum()), len(self.varies)
        rows = sum(self.job.members.everybody[user].train for user in users)
        m = min(d + r * (r + 1) // 2, MOST_LIKELY)
        each, places = 0.4 * d**2 * functions_of(r), max(NODES if r == 1 else 0, 3)
        return rows * (100 * places + each) + 40 * len(users) * m**2 * max(places, r**2) > LONGEST

    @property
    def nodes(self) -> int:
        """Nodes of the quadrature; 0: Laplace's approximation."""
        one = self.varies.sum() == 1 and not self.search.effects
        return NODES if one and self.keys.mixed_likelihood != LAPLACE else 0

    # A round.

    def round(self, present: Present, number: int) -> Script[Replies]:
        """One exchange, and a step."""
        question = self.question if self.begun(present) else self.first
        asked = ask_each(self.job, present, question, counted=True)
        replies = yield asked
        check_enough(self.job, number, replies)
        answers = {name: asked.found.get(name, []) for name in present.names}
        self.check_rows([answer for own in answers.values() for answer in own])
        answers = self.alike(answers, present)
        heard = [answer.cohort.name for own in answers.values() for answer in own]
        if not heard:
            return replies
        rows = next(own[0].rows for own in answers.values() if own)
        sums = [
            {what: sum((a.rows[what] for a in own), np.zeros_like(rows[what])) for what in rows}
            for own in answers.values()
        ]
        if not self.begun(present):
            self.begin(sums, present)
            return replies
        if heard != self.search.heard:  # a likelihood of others: what is known is not of it
            ahead = Ascent(self.search.ascent.ahead)
            self.keep(replace(self.search, ascent=ahead, heard=heard))
        self.step(sums)
        self.state.done &= not replies.dropped
        return replies

    def begun(self, present: Present) -> bool:
        """True if a search is on, among these clusters."""
        return bool(self.state.likelihood.plain) and self.search.names == present.names

    def guards(self, present: Present) -> bool:
        """True if who is not like the others is set aside."""
        return not self.obstacle(present) and guarded(self.job, self.keys, present.cohorts)

    def alike(self, answers: dict[str, list[Answer]], present: Present) -> dict[str, list[Answer]]:
        """The answers of users that are like the others."""

        def kept() -> dict[str, list[Answer]]:
            out = {*self.state.aside.named}
            return {
                name: [answer for answer in own if not out.issuperset(answer.cohort.users)]
                for name, own in answers.items()
            }

        some = [answer for own in kept().values() for answer in own]
        if some and guarded(self.job, self.keys, present.cohorts):
            found = LikelihoodAside(self.job, self.keys, self.state, self.varies, some)
            (found.hold if self.begun(present) else found.look)()
        return kept()

    def counted(self, present: Present) -> list[str]:
        """The users that are not set aside."""
        out = {*self.state.aside.named}
        return [u for cohort in present.cohorts for u in cohort.users if u not in out]

    def told(self) -> Arrays:
        """The row's weights as a model of the inputs, if there are any."""
        if not self.keys.weight_column:
            return {}
        place = self.columns[self.keys.weight_column]
        return {"weights": in_its_unit(self.units.matrix, place)}

    def first(self, cohort: Cohort) -> Request:
        """The question for the sums of squares that a search begins with."""
        d, half = self.d, np.zeros(self.d * (self.d + 1) // 2)
        template = {"squares": half, "heavy": half, "pull": half[:d], "within": np.zeros((2, d))}
        if self.job.members.at_home:
            template["fault"] = np.zeros(4)
        rows = {"w": self.state.model, **self.told()}
        if self.keys.offset_column:
            place = self.columns[self.keys.offset_column]
            rows["offset"] = in_its_unit(self.units.matrix, place)
        found = Request(cohort, rows, {"ask": "likelihood-begin"}, template)
        if self.job.loss != "logistic" or self.columns:
            return found
        counts = [self.job.members.everybody[user].train for user in cohort.users]
        return replace(found, fault=partial(begin_fault, d=self.d, counts=counts))

    def check_rows(self, answers: list[Answer]) -> None:
        """Refuse rows that the family does not have, of users that are at home."""
        for answer in answers:
            rule, place, row, value = answer.rows.get("fault", np.zeros(4))
            rules = attached("families").rules(self.job.loss)
            if rule not in range(1, 1 + len(rules)) or not 0 <= place < len(answer.cohort.users):
                continue  # there is none, or a liar says so
            what, wanted = rules[int(rule) - 1]
            prepared = self.job.agreed.preparation
            label = "label" if prepared is None else prepared.label.name
            named = {"label": label, **{key[:6]: name for key, name in self.keys.held.items()}}
            user = answer.cohort.users[int(place)]
            raise ConfigError(
                f"user {user}, training row {int(row) + 1}{self.line(user, named[what], value)}: "
                f"{named[what]} is {value:.6g}; {what}s of loss={self.job.loss} are {wanted}."
            )

    def line(self, user: str, column: str, value: float) -> str:
        """The line of a file in which a user has this, in words; empty if there is none."""
        from corsage.datasets.csvfile import line_of
        from corsage.datasets.shared_keys import CsvKeys

        keys = self.job.config.data
        if not isinstance(keys, CsvKeys):
            return ""
        number = line_of(keys, user, column, value)
        return f" ({keys.data_file}, line {number})" if number else ""

    def question(self, cohort: Cohort) -> Request:
        """The question for a likelihood with its derivatives."""
        found = self.search
        design, psi = self.design, found.ascent.ahead
        models, c = design.centres(psi, found.effects, found.parents)[0], design.around.shape[1]
        theta = models[found.names.index(cohort.cluster)]
        rows = {"w": theta, "tau": design.tau(psi), "basis": design.basis, **self.told()}
        if c:
            rows["around"] = design.around
        m = self.d + len(rows["tau"])
        template = {"jets": np.zeros((functions_of(c), 1 + m + m * (m + 1) // 2))}
        options = {"ask": "likelihood", "nodes": self.nodes}
        records = sum(self.job.members.everybody[u].train for u in cohort.users)
        fault = partial(
            jets_fault, d=self.d, discrete=self.job.loss != "gamma", around=c,
            records=records if self.job.loss == "logistic" and not self.columns else 0,
        )  # fmt: skip
        return Request(cohort, rows, options, template, fault=fault)

    # The server's step.

    @cached_property
    def search(self) -> LikelihoodState:
        """The search that is on."""
        return LikelihoodState.of(self.state.likelihood)

    def keep(self, search: LikelihoodState) -> None:
        """Go on with a search, and remember it."""
        self.search, self.state.likelihood = search, search.kept()

    @property
    def design(self) -> Design:
        """The way from the parameters of the present shape to what users are told."""
        return self.search.design(self.job.loss in SHAPED)

    def begin(self, sums: list[Arrays], present: Present) -> None:
        """Standard units, and where the search begins: a step of iterated least squares."""
        squares, heavy, pull = (
            np.sum([one[what] for one in sums], axis=0) for what in ("squares", "heavy", "pull")
        )
        squares, heavy = unpack(squares, self.d), unpack(heavy, self.d)
        users = self.job.members.everybody
        records = float(sum(users[u].train for u in self.counted(present)))
        intercept = self.job.config.model.intercept
        standard = Standard.of(squares, np.zeros(self.d), records, intercept)
        fixed, free = np.zeros(self.d), standard.sound.copy()
        for name, place in self.columns.items():
            free[place] = 0.0
            fixed[place] = float(name == self.keys.offset_column) / self.units.matrix[place, place]
        own = standard.matrix[:, free > 0]
        beta = np.linalg.lstsq(own.T @ heavy @ own, own.T @ (pull - heavy @ fixed), rcond=1e-10)[0]
        which, levels = np.flatnonzero(self.varies * standard.sound), self.levels(present)
        everybody = np.zeros(1, np.int64)
        parents = [one.parent for one in tree_levels(everybody, present.names, levels[1:])[1:]]
        held = self.held(sums, parents, present, standard)
        told: list[Floats] = [1.0 - np.isin(which, [*own]).astype(np.float64) for own in held]
        kinds = self.kinds(len(which), int(free.sum()), len(levels))
        inner = FIRST_DEVIATION * np.eye(len(which))
        tau = [numbers_of(kinds[0], inner) for _ in told]
        shape = np.zeros(int(self.job.loss in SHAPED))
        effects: list[Floats] = [np.zeros((len(level), len(which))) for level in levels]
        names = Units.of(self.job, self.d).names
        reasons = {
            f"{level_name(place)}: {names[c]}": why
            for place, own in enumerate(held)
            for c, why in own.items()
        }
        self.keep(LikelihoodState(
            standard, fixed, free, list(present.names), levels[1:], parents, which, told, reasons,
            kinds, Ascent(np.concatenate([beta, tau[0], shape, *tau[1:]])), effects,
        ))  # fmt: skip
        self.state.enter(self.varies)

    def held(
        self, sums: list[Arrays], parents: list[Ints], present: Present, standard: Standard
    ) -> list[Reasons]:
        """Why variances of a level are held at 0, by coefficient: the data do not tell them."""
        within = np.sum([one["within"] for one in sums], axis=0)
        users = self.counted(present)
        squares = np.stack([unpack(one["squares"], self.d) for one in sums])
        shown = [Shown(within[0], within[1], len(users))]
        for parent in parents:
            shown.append(Shown.of(squares))
            squares = np.stack([squares[parent == unit].sum(0) for unit in range(parent.max() + 1)])
        members = self.job.members.everybody
        scatter = self.job.loss != "logistic" or any(members[user].train > 1 for user in users)
        wanted, intercept = np.flatnonzero(self.varies), self.job.config.model.intercept
        names = Units.of(self.job, self.d).names
        found = untold_by_sums(shown, squares.sum(0), wanted, names, intercept, scatter)
        constant = dict.fromkeys(np.flatnonzero(self.varies > standard.sound).tolist(), NOWHERE)
        return [{**own, **constant} for own in found]

    def kinds(self, which: int, free: int, above: int) -> list[str]:
        """The shapes that are to be tried."""
        wanted = self.keys.mixed_variances
        if wanted != AUTO or which == 1:
            return [ONE if which == 1 else wanted]
        sizes = {kind: len(layouts(kind, which)) * (1 + above) for kind in (ONE, DIAGONAL, FULL)}
        return [kind for kind, size in sizes.items() if kind == ONE or free + size <= MOST_LIKELY]

    def step(self, sums: list[Arrays]) -> None:
        """The next place; the state as it is at the best one, if no better shape was fitted."""
        found = self.search.advanced(
            unpacked([one["jets"] for one in sums], self.d, self.design), self.design
        )
        self.keep(found)
        self.state.quadratics, self.state.done = NEWTON, False
        if not len(found.ascent.at):
            return
        if self.job.loss == "negative-binomial" and found.endless(self.design):
            self.hold_shape()
            return
        outcome = self.outcome()
        if not found.tried:
            outcome.publish(self.state)
        beaten = outcome.aic >= min(found.tried.values(), default=np.inf)
        if found.settled(self.design) or (beaten and found.ascent.looks >= MOST_TRIED):
            self.conclude(outcome)

    def hold_shape(self) -> None:
        """Go on with the shape at its bound, where counts are Poisson's."""
        found = self.search
        psi = found.ascent.at.copy()
        psi[self.design.own - 1] = attached("families").MOST_SHAPE
        self.keep(replace(found, ascent=Ascent(psi), bound=True, settling=0))

    def conclude(self, outcome: Outcome) -> None:
        """Keep this shape if it is the best so far, and turn to the next."""
        found = self.search
        least = min(found.tried.values(), default=np.inf)
        tried = {**found.tried, found.kinds[0]: outcome.aic}
        if outcome.aic < least:
            outcome.publish(self.state)
        rest = found.kinds[1:]
        self.state.done = not rest
        generalised = self.state.estimates.covariance.generalised
        if not rest and (open_ := generalised.open):
            self.job.note(
                f"{NO_TOP}, and there are no errors: it grows for ever along {', '.join(open_)}"
            )
        generalised.tried = tried
        if not rest:
            if generalised.bound:
                self.job.note(AT_BOUND)
            self.keep(replace(found, tried=tried))
            return
        ascent, v = Ascent(outcome.as_shape(rest[0])), outcome.effects
        self.keep(replace(found, kinds=rest, tried=tried, ascent=ascent, effects=v, settling=0))

    def outcome(self) -> Outcome:
        """The parameters at the best place, as a run holds them."""
        found, design = self.search, self.design
        effects, curved = found.effects, list[Floats]()
        if effects:
            from corsage.solvers.known_clusters.generalised.joint import integrated

            here = integrated(
                design, found.best, found.place, found.there, found.parents, found.ascent.at
            )
            effects, curved = here.effects, here.curved
        how = f"{self.nodes}-point adaptive quadrature" if self.nodes else "Laplace's approximation"
        latent = LATENT if self.job.loss in ("logistic", "binomial") else 0.0
        return Outcome(design, found, how, effects, curved, self.units, latent)

    def rows(self, cohort: Cohort) -> Arrays:
        """The centre of a cohort, the root of its users' covariance, the shape and the weights."""
        fit = self.state.estimates.covariance
        shown = {"w": self.state.centre(cohort.cluster), "root": fit.root(cohort.cluster)}
        return {**shown, "shape": np.array(fit.generalised.shape), **self.told()}


def in_its_unit(matrix: Floats, place: int) -> Floats:
    """A column in the table's unit, as a model of the inputs and the intercept's 1.

    Coefficients in the table's units are matrix theta: a row of inputs is matrix' that of columns.
    """
    return np.asarray(np.linalg.solve(matrix, np.eye(len(matrix))[place]))
