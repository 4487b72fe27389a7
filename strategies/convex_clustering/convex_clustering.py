"""Convex clustering: personal models whose clusters appear by themselves.

    min over x_1, ..., x_N of  P(X) = sum_i f_i(x_i) + lambda sum_{i<j} w_ij |x_i - x_j|

Armacki et al. 2022. lambda here is that of (6), (7), (9): twice that of (14), 2 N times that
of (3). A user only ever solves a proximal step of its f_i; all duals are at the server.

`convex-solver=pdmm` is Algorithm 1 on half the edges (pdmm.py), `dr` is Douglas-Rachford splitting
(splitting.py), which solves the penalty's part at the server and needs a tenth of the rounds, and
`newton` (newton.py) has quadratic models of all f_i there, and ends after five or six rounds. Every
`convex-certify-every` rounds (with newton: every one) two floats a user make a duality gap
(report.py); the run ends when it is below `convex-tolerance`. `fraction-train` is the
participation.

A user whose node has left is taken out of the problem; one that comes (again) begins at the mean.
What is said at the end is in report.py.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import numpy as np
from flwr.app import ArrayRecord

from corsage.core.arrays import Arrays, Bools, Floats
from corsage.core.messages.encoding import encode
from corsage.core.messages.replies import Replies, name_users
from corsage.core.messages.schema import Schema
from corsage.solvers.convex_clustering.couplings import Penalty
from corsage.solvers.convex_clustering.halves import Rules
from corsage.solvers.convex_clustering.newton import Newton
from corsage.solvers.convex_clustering.pdmm import Pdmm
from corsage.solvers.convex_clustering.splitting import Splitting
from corsage.solvers.convex_clustering.summary import Reading
from corsage.strategies.convex_clustering.graph import Graph
from corsage.strategies.convex_clustering.keys import (
    KNN,
    NEWTON,
    PDMM,
    ConvexClusteringKeys,
    rules_of,
    solver_of,
)
from corsage.strategies.convex_clustering.models import (
    check_convex,
    check_ridge,
    of_left_out,
    shown,
    to_choose_from,
)
from corsage.strategies.convex_clustering.opening import (
    Choice,
    Found,
    ask_facts,
    ask_local,
    ask_neighbours,
    check_bounded,
    check_classes,
    choose,
    name_free,
)
from corsage.strategies.convex_clustering.probing import heard, options_of, rows_of, template_of
from corsage.strategies.convex_clustering.questions import Questions, in_order
from corsage.strategies.convex_clustering.report import (
    Certificate,
    ClusterReport,
    Solved,
    certify,
    of_newton,
)
from corsage.strategies.rounds.base import Strategy
from corsage.strategies.rounds.outgoing import question_to
from corsage.strategies.rounds.results import Finding
from corsage.strategies.rounds.turns import Parcel, Question, Script

if TYPE_CHECKING:
    from corsage.networks.network import Network

Solver = Splitting | Pdmm | Newton
"""The state of a solver."""


@dataclass
class ConvexClusteringState:
    """The problem and where its solution stands.

    Parameters
    ----------
    graph : the users and whom the penalty joins; all rows are in the order of its users.
    choice : lambda, and how it was found.
    solver : X, the duals, and the solver's numbers; None before the first round, as lambda is.
    certificate : the last duality gap.
    reading, refit : the clusters, and each user's model of its cluster alone, after the last round.
    disproved : users whose answers were of no convex loss, and why; they are left out for good.
    """

    graph: Graph = field(default_factory=lambda: Graph([]))
    choice: Choice | None = None
    solver: Solver | None = None
    certificate: Certificate | None = None
    reading: Reading | None = None
    refit: Floats | None = None
    disproved: dict[str, str] = field(default_factory=dict)


class ConvexClustering(Strategy[ConvexClusteringKeys, ConvexClusteringState]):
    """The server of convex clustering: it holds all models, the duals, and the graph."""

    name = "convex-clustering"
    solves = True
    by_user = ("x",)
    own_steps = "users minimise"
    unprotected = "users' models are solved for together, nothing is averaged"
    no_server_step = unprotected
    untrained = own_steps

    def prepare(self) -> None:
        """Read the numbers among the keys, and make the parts."""
        self.keys.given  # noqa: B018 - a number, or a ConfigError
        rules_of(self.keys, self.config, 1)  # numbers, or a ConfigError
        self.questions = Questions(self.job)
        self.report = ClusterReport(self.questions, in_full=self.keys.convex_report)

    def initial(self, network: Network) -> ConvexClusteringState:
        """Nobody is in the problem."""
        check_convex(self.job, network)
        check_ridge(self.job, network)
        return ConvexClusteringState()

    @property
    def problem(self) -> Penalty:
        """The edges and lambda."""
        assert self.state.choice is not None  # `opening` is over
        return Penalty(self.state.choice.lam, self.state.graph.edges)

    @property
    def rules(self) -> Rules:
        """The solver's numbers that the keys give."""
        return rules_of(self.keys, self.config, len(self.members.users))

    @property
    def solver(self) -> Solver:
        """The solver's state."""
        assert self.state.solver is not None  # `opening` is over
        return self.state.solver

    @property
    def models(self) -> Floats:
        """X (N, d) of the users in the problem."""
        return self.solver.models

    # Before the first round.

    def opening(self) -> Script[None]:
        """Fix the graph, lambda, rho, and tau for the run."""
        faults = self.questions.disproof.faults
        if self.state.solver is not None:  # resumed
            faults |= self.state.disproved
            self.members.left_out |= faults.keys()
            self.state = replace(self.state, solver=self.state.solver.by_columns())
            return
        if self.keys.given == 0:
            self.job.note("convex-lambda=0: every user is alone")
        yield from self.questions.without_silent(self._fixed)
        self.members.left_out = set(faults)  # in rounds others may be heard again

    def _fixed(self) -> Script[None]:
        """The graph, lambda, rho and tau of the users that are there."""
        users, d = self.members.users, self.job.network.whole.stop
        name, graph = solver_of(self.keys, self.config, d), Graph(users)
        yield from check_classes(self.questions, users, d)
        if self.keys.convex_graph == KNN:
            graph = yield from ask_neighbours(self.questions, users, d, self.keys.convex_neighbours)
        found = Found(Choice(self.keys.given or 0.0))
        if self.keys.given is None:
            found = yield from choose(self.questions, graph, d)
        solver: Solver = yield from self._begun(name, graph, found)
        disproved = dict(self.questions.disproof.faults)
        self.state = ConvexClusteringState(graph, found.choice, solver, disproved=disproved)

    def _begun(self, name: str, graph: Graph, found: Found) -> Script[Solver]:
        """The solver's first numbers, of what is known and of what it takes more."""
        users, d = self.members.users, self.job.network.whole.stop
        problem = Penalty(found.choice.lam, graph.edges)
        if name == NEWTON:
            local = found.local or (yield from ask_local(self.questions, users, d))
            name_free(self.questions, users, local.coercive)
            yield from self._check(graph, local.coercive)
            return Newton.begin(problem, local, found.start)
        facts, held = yield from ask_facts(self.questions, users)
        yield from self._check(graph, held)
        if name == PDMM:
            return Pdmm.begin(problem, d, facts, self.rules)
        return Splitting.begin(problem, d, facts, self.rules)

    def _check(self, graph: Graph, held: Bools) -> Script[None]:
        """A given lambda has a solution, or the run ends here; one that was chosen has one."""
        if self.keys.given is not None:
            d = self.job.network.whole.stop
            yield from check_bounded(self.questions, graph, self.keys.given, d, held)

    # A round, as every strategy's: rows down, rows up.

    def round(self, number: int) -> Script[Replies]:
        """A round, anew from the opening without users that are disproved in it."""
        return (yield from self.questions.without_silent(lambda: self._round(number)))

    def _round(self, number: int) -> Script[Replies]:
        """A round of the users that are there, and from time to time its duality gap."""
        if self.questions.disproof.faults.keys() - self.state.disproved:
            self.state = ConvexClusteringState()
            yield from self.opening()
        self.enter(self.members.users)
        if isinstance(self.solver, Newton):
            return (yield from self.newton_round(self.solver, number))
        replies = yield from super().round(number)
        self.questions.count_failures(replies)
        if number % self.keys.convex_certify_every == 0:
            yield from self.certify(number)
        return replies

    def newton_round(self, solver: Newton, number: int) -> Script[Replies]:
        """One step of all users, and its duality gap."""
        users, problem = self.state.graph.users, self.problem
        run, probes = solver.step(problem, self.keys.convex_tolerance)
        template = template_of(len(probes), self.models.shape[1])
        parcel, schema = Parcel(rows=rows_of(probes)), Schema(template, tuple(template))
        options = {**self.train_options, **options_of(probes), "ask": "expand"}
        question = question_to(self.job, "train", users, parcel, schema, options, number)
        replies = in_order((yield question), users)
        self.job.accept(number, replies)
        self.questions.count_failures(replies)
        found = heard(self.questions, users, probes, replies)
        if len(replies.users) == len(users):
            solver = solver.after(run, found)
        else:
            solver = solver.after_some(run, found[0], self.state.graph.rows(replies.users))
        certificate = of_newton(solver, number)
        self.state = replace(self.state, solver=solver, certificate=certificate)
        self.job.count(question, replies)
        return replies

    def enter(self, users: list[str]) -> None:
        """Take the rows of users that left out of the problem, and give new ones a row."""
        graph = self.state.graph
        if users == graph.users:
            return
        if gone := [user for user in graph.users if user not in set(users)]:
            self.job.note(f"{name_users(gone)} gone: the problem is now that of the others")
        graph, moved = graph.with_users(users)
        solver = self.solver.moved(moved)
        self.state = replace(self.state, graph=graph, solver=solver)

    def shared(self) -> Arrays:
        """Nothing is the same for all."""
        return {}

    def send(self, users: list[str]) -> Parcel:
        """The points of the users' proximal steps: p_i and kappa_i."""
        rows, solver = self.state.graph.rows(users), self.solver
        assert not isinstance(solver, Newton)  # has rounds of its own
        p, kappa = solver.request(self.problem, self.rules, rows)
        return Parcel(rows={"p": p, "kappa": kappa})

    def template(self) -> Arrays:
        """A user sends x_i."""
        return {"x": np.zeros(self.models.shape[1])}

    def merge(self, replies: Replies) -> ConvexClusteringState:
        """The server's half of the round."""
        rows, x = self.state.graph.rows(replies.users), np.asarray(replies.rows["x"], np.float64)
        number, solver = self.progress.round + 1, self.solver
        assert not isinstance(solver, Newton)
        p, kappa = solver.request(self.problem, self.rules, rows)
        self.questions.hear_answers(
            self.state.graph.users, "prox", {"p": p, "kappa": kappa}, {}, replies
        )
        solver, note = solver.after(self.problem, self.rules, rows, x, number)
        if note:
            self.job.note(note)
        return replace(self.state, solver=solver)

    def certify(self, number: int) -> Script[None]:
        """The certificate of round `number`."""
        graph, lam = self.state.graph, self.problem.lam
        found = yield from certify(self.questions, graph, lam, self.solver, number)
        self.state = replace(self.state, certificate=found)

    def finished(self) -> bool:
        """True if the gap is small enough."""
        found = self.state.certificate
        return found is not None and found.within(self.keys.convex_tolerance)

    # After the last round.

    def closing(self) -> Script[None]:
        """Certify and read the models before the final results are made."""
        yield from self.questions.without_silent(self._read)

    def _read(self) -> Script[None]:
        """The certificate and the clusters of the users that are there."""
        self.state = replace(self.state, disproved=dict(self.questions.disproof.faults))
        self.enter(self.members.users)
        number, certificate = self.progress.round, self.state.certificate
        if certificate is None or certificate.round != number:
            yield from self.certify(number)
        if self.state.reading is None:
            reading, refit = yield from self.report.read(self.solved)
            self.state = replace(self.state, reading=reading, refit=refit)

    @property
    def solved(self) -> Solved:
        """The solution that is reported on."""
        state = self.state
        assert state.choice is not None  # `opening` is over
        known = None
        if isinstance(self.solver, Newton) and np.isfinite(self.solver.objective):
            known = self.solver.expansion
        return Solved(state.graph, state.choice, state.certificate, self.models, known)

    def findings(self) -> list[Finding]:
        """The certificate and the clusters, and who is left out of them."""
        aside = [
            (f"user {u}", f"{why}; it has its own model") for u, why in self.state.disproved.items()
        ]
        found = self.report.findings(self.solved, self.state.reading)
        return [*found, Finding("Left out for the rest of the run", aside)] if aside else found

    def extra_evaluations(self) -> dict[str, dict[str, Any]]:
        """The clusters' own models, without any pull between them."""
        state, found = self.state, dict[str, dict[str, Any]]()
        reading, choice = state.reading, state.choice or Choice(0.0)
        if (
            state.refit is not None
            and reading is not None
            and reading.clustered(choice.exchanges > 0)
        ):
            found[f"{self.name}+refit"] = {"refit": True}
        return found

    def user_clusters(self, row: str) -> dict[str, str]:
        """Each user's cluster, by its number."""
        reading, users = self.state.reading, self.state.graph.users
        labels = [] if reading is None else reading.labels
        return {user: str(c) for user, c in zip(users, labels, strict=False)}

    def show(self, users: list[str], options: Mapping[str, Any]) -> Parcel:
        """Each user's model; refitted ones, or all there are for new users to choose from."""
        if options.get("adapt"):
            return to_choose_from(self.models)
        models, state = self.models, self.state
        if options.get("refit") and state.refit is not None:
            models = state.refit
        return shown(self.state.graph.users, models, users)

    def evaluations(
        self, options: Mapping[str, Any], some: bool = False
    ) -> Iterable[Callable[[], Question]]:
        """Those of the problem, and those who are left out of it for good."""
        yield from super().evaluations(options, some)
        yield from of_left_out(self, self.questions.disproof.faults, options, some)

    def named_arrays(self) -> ArrayRecord:
        """The mean of all models, under the names that a Flower user expects."""
        network, solver = self.job.network, self.state.solver
        mean = np.zeros(network.whole.stop) if solver is None else solver.models.mean(0)
        return encode(network.named(mean.astype(np.float32)))
