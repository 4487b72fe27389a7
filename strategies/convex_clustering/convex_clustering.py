"""Convex clustering: personal models whose clusters appear by themselves.

    min over x_1, ..., x_N of  P(X) = sum_i f_i(x_i) + lambda sum_{i<j} w_ij |x_i - x_j|

Armacki et al. 2022. lambda here is that of (6), (7), (9): twice that of (14), 2 N times that
of (3). A user only ever solves a proximal step of its f_i; all duals are at the server.

`convex-solver=pdmm` is Algorithm 1 on half the edges (solvers/convex_clustering/pdmm.py), `dr` is Douglas-Rachford
splitting (solvers/convex_clustering/splitting.py), which solves the penalty's part at the server and needs a tenth of
the rounds. Every `convex-certify-every` rounds two floats a user make a duality gap; the run ends
when it is below `convex-tolerance`. `fraction-train` is the participation.

A user whose node has left is taken out of the problem; one that comes (again) begins at the mean.
What is reported at the end is in strategies/convex_clustering/report.py.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from flwr.app import ConfigRecord
from flwr.serverapp import Grid
from numpy.typing import NDArray

from corsage.clients.convex_clustering.convex_clustering import is_convex_module
from corsage.core.arrays import Arrays, Floats
from corsage.core.errors import ConfigError
from corsage.core.keys import Keys, key
from corsage.core.replies import Outcome, name_users
from corsage.networks.network import Network
from corsage.networks.zoo import ZOO
from corsage.solvers.convex_clustering import pdmm, splitting
from corsage.solvers.convex_clustering.certificate import edge_terms, feasible
from corsage.solvers.convex_clustering.edges import norms
from corsage.strategies.convex_clustering.graph import Joined
from corsage.strategies.rounds.base import Strategy

AUTO = "auto"
ALONE = 1e-7
"""rho as a share of the curvature where nothing pulls: proximal steps are then whole ones."""


@dataclass(frozen=True)
class ConvexClusteringKeys(Keys):
    """Keys of convex clustering."""

    title = "Convex clustering"

    convex_lambda: str = key(
        AUTO,
        "weight of the penalty: a number, auto (least loss on held-out samples), or clusters (best "
        "clusters, one if they do not pay); the last two ask the users many times before round 1",
    )
    convex_solver: str = key(
        "dr", "dr: splitting with the penalty solved at the server; pdmm: the paper's Algorithm 1",
        choices=("dr", "pdmm"),
    )  # fmt: skip
    convex_graph: str = key(
        "all", "whom the penalty joins: all pairs, or knn: neighbours of the local models",
        choices=("all", "knn"),
    )  # fmt: skip
    convex_neighbours: int = key(10, "knn: neighbours of each user", low=1)
    convex_tolerance: float = key(1e-6, "relative duality gap at which to end", low=1e-14)
    convex_certify_every: int = key(5, "rounds between duality gaps", low=1)
    convex_report: bool = key(
        True, "at the end ask for what it takes to read, certify and refit the clusters (some "
        "hundred exchanges)"
    )  # fmt: skip
    convex_rho: str = key(AUTO, "rho of the solver: a number, or auto: from the users' curvature")
    convex_relax: float = key(
        splitting.RELAX, "dr: how much of a step s_i takes (relax)", low=0.01, high=1.99
    )
    convex_tau: str = key(AUTO, "pdmm: share of a dual step (tau), or auto: min(1, p_P/p_D)/3")
    convex_nu: float = key(2 / 3, "pdmm: how far the damped dual goes back (nu)", low=1e-3, high=1)
    convex_eta: float = key(0.0, "pdmm: weight of the distance to the last iterate (eta)", low=0.0)
    convex_pairs: float = key(
        0.0, "pdmm: share of the pairs updated in a round (p_D); 0: that of the users", low=0.0,
        high=1.0,
    )  # fmt: skip


class ConvexClustering(Joined):
    """The server of convex clustering: models, duals and the graph."""

    name = "convex-clustering"

    @property
    def own_keys(self) -> ConvexClusteringKeys:
        """The keys of this method."""
        assert isinstance(self.keys, ConvexClusteringKeys)
        return self.keys

    @property
    def kept(self) -> tuple[tuple[str, ...], tuple[str, ...]]:
        """Arrays with a row a user, and with a row an edge."""
        return (("x",), ("z", "mu", "muh")) if self.by_pdmm else (("s", "y"), ("mu",))

    @property
    def by_pdmm(self) -> bool:
        """Whether the solver is Algorithm 1."""
        return self.own_keys.convex_solver == "pdmm"

    # The problem.

    def initial(self, network: Network) -> Arrays:
        """x_i = 0 for all users, not the local models."""
        check_convex(self, network)
        self.state.scalars["users"] = []
        return {"model": np.zeros(network.whole.stop, np.float64)}

    def open(self, grid: Grid) -> None:
        """What is fixed for the run: the graph, rho, lambda."""
        self._grid, scalars = grid, self.state.scalars
        if "lambda" in scalars:
            return
        given = self._given_lambda()
        self.enter(self.users)
        facts = self.ask("facts", {}, {}, {}).metrics
        scalars |= {what: float(facts[what].mean()) for what in ("curvature", "slope")}
        best = zip(self.users, facts["coercive"], strict=True)
        alone = [user for user, has_one in best if not has_one]
        if alone:
            self.note(
                f"{name_users(alone)} without a best model of their own (samples of one class, or "
                "classes that a line separates, without a ridge): the penalty alone holds them"
            )
        if self.own_keys.convex_graph == "knn":
            self.join_neighbours(self.own_keys.convex_neighbours)
        scalars["lambda"] = self.choose_lambda() if given is None else given
        scalars["rho"] = self._first_rho()
        if self.by_pdmm:
            scalars["tau"] = self._first_tau()

    def _given_lambda(self) -> float | None:
        """lambda as a number, or None if it is to be found."""
        text = self.own_keys.convex_lambda
        if text in (AUTO, "clusters"):
            return None
        value = number("convex-lambda", text)
        if value == 0:
            self.note("convex-lambda=0: every user is alone")
        return value

    def _first_rho(self) -> float:
        if self.own_keys.convex_rho != AUTO:
            return number("convex-rho", self.own_keys.convex_rho, above=True)
        scalars = self.state.scalars
        if self.by_pdmm:
            return pdmm.start_rho(scalars["curvature"], len(self.users))
        edges = self.edges
        degree = 2 * float(edges.w.sum()) / max(edges.n, 1)
        pull = scalars["lambda"] * degree
        if pull == 0:
            return ALONE * float(scalars["curvature"])
        return splitting.start_rho(scalars["curvature"], scalars["slope"], pull)

    def _first_tau(self) -> float:
        if self.own_keys.convex_tau != AUTO:
            return number("convex-tau", self.own_keys.convex_tau, above=True)
        return pdmm.default_tau(self.config.federation.fraction_train, self.pairs_share)

    @property
    def pairs_share(self) -> float:
        """p_D."""
        return self.own_keys.convex_pairs or self.config.federation.fraction_train

    def _one(self, *names: str) -> Arrays:
        """What one user answers: a model under each of the names."""
        return {name: np.zeros(len(self.state.arrays["model"])) for name in names}

    # A round, as every strategy's: rows down, rows up.

    def choose(self, number: int, users: list[str]) -> list[str]:
        """S_P: the users of a round, who must be in the problem."""
        self.enter(users)
        return super().choose(number, users)

    def send(self, users: list[str]) -> tuple[Arrays, Arrays]:
        """What each user's proximal step is taken from: p_i and kappa_i."""
        if not users:
            return {}, {}
        scalars, rows = self.state.scalars, self._rows_of(users)
        if self.by_pdmm:
            p, kappa = pdmm.centres(
                self._pdmm, self.edges, scalars["rho"], self.own_keys.convex_eta, rows
            )
        else:
            p = splitting.request(self._dr, rows)
            kappa = np.full(len(users), scalars["rho"])
        return {}, {"p": p, "kappa": kappa}

    def template(self) -> Arrays:
        """A user sends x_i."""
        return self._one("x")

    def merge(self, outcome: Outcome) -> Arrays:
        """The server's half of the round."""
        rows, found = self._rows_of(outcome.users), np.asarray(outcome.rows["x"], np.float64)
        if self.by_pdmm:
            self._absorb(rows, found)
        else:
            lam, rho = self.state.scalars["lambda"], self.state.scalars["rho"]
            relax = self.own_keys.convex_relax
            moved = splitting.update(self._dr, rows, found, self.edges, lam, rho, relax)
            self.state.arrays |= {"s": moved.s, "y": moved.y, "mu": moved.duals}
        self.state.arrays["model"] = self.models.mean(0)
        return self.state.arrays

    def _absorb(self, rows: NDArray[np.int64], found: Floats) -> None:
        """(17) to (19), then rho is balanced and tau guarded."""
        scalars, edges, number_of = self.state.scalars, self.edges, self.state.round + 1
        share = self.pairs_share
        settings = pdmm.Settings(
            scalars["rho"], scalars["tau"], self.own_keys.convex_nu, self.own_keys.convex_eta
        )
        before = self._pdmm
        pairs = pdmm.chosen_pairs(self.config.run.seed, number_of, edges, share)
        after = pdmm.absorb(before, rows, found, edges, scalars["lambda"], settings, pairs)
        self.state.arrays |= {"x": after.x, "z": after.z, "mu": after.mu, "muh": after.muh}
        left = pdmm.residuals(before, after, edges, settings.rho, share)
        if self.own_keys.convex_rho == AUTO and number_of % pdmm.BALANCE_EVERY == 0:
            scalars["rho"] = pdmm.balanced(settings.rho, left.primal, left.dual)
        first_rounds = number_of * self.config.federation.fraction_train <= 2
        largest = max(scalars.get("broken", 0.0), left.broken)
        reference = largest if first_rounds else scalars.get("broken", largest)
        tau, scalars["broken"] = pdmm.guard(settings.tau, reference, left.broken)
        if tau < settings.tau:
            self.note(f"round {number_of}: the residual grew tenfold, tau is now {tau:.3g}")
        scalars["tau"] = tau

    @property
    def _pdmm(self) -> pdmm.PdmmState:
        return pdmm.PdmmState(*(self.state.arrays[what] for what in ("x", "z", "mu", "muh")))

    @property
    def _dr(self) -> splitting.DrState:
        return splitting.DrState(*(self.state.arrays[what] for what in ("s", "y", "mu")))

    @property
    def models(self) -> Floats:
        """X (N, d) of the users in the problem."""
        return np.asarray(self.state.arrays["x" if self.by_pdmm else "y"])

    def _rows_of(self, users: list[str]) -> NDArray[np.int64]:
        place = {user: row for row, user in enumerate(self.state.scalars["users"])}
        return np.array([place[user] for user in users])

    # Evaluation, and the certificate.

    def show(self, users: list[str], options: Mapping[str, Any]) -> tuple[Arrays, Arrays]:
        """Each user's model; refitted ones, or all there are for new users to choose from."""
        if not users:
            return {}, {}
        if options.get("adapt"):
            known = np.unique(self.models, axis=0)
            return {}, {"known": np.tile(known, (len(users), 1, 1))}
        what = self.state.arrays["refit"] if options.get("refit") else self.models
        return {}, {"x": what[self._rows_of(users)]}

    def _train(self, grid: Grid, number: int, config: ConfigRecord) -> Outcome:
        """A round, and from time to time its duality gap."""
        outcome = super()._train(grid, number, config)
        if number % self.own_keys.convex_certify_every == 0:
            self.certify()
            self._last = outcome
        return outcome

    def certify(self) -> None:
        """The duality gap, if all users answer: the certificate of P(X)."""
        edges, scalars = self.edges, self.state.scalars
        radius = scalars["lambda"] * edges.w
        mu, x = feasible(self.state.arrays["mu"], radius), self.models
        rows = {"x": x, "v": edges.adjoint(mu)}
        found = self.ask("slack", rows, {}, {}, strict=False)
        scalars["certified-round"] = self.state.round
        if len(found.users) < len(x):
            scalars |= {"gap": None, "relative": None, "value": None}
            return
        metrics, apart = found.metrics, edges.differences(x)
        excess = np.maximum(metrics["here"] - metrics["least"], 0.0)
        gap = float(excess.sum() + edge_terms(apart, mu, radius).sum())
        penalty = float((radius * norms(apart)).sum())
        size = float(np.abs(metrics["value"]).sum()) + penalty
        known = bool((metrics["found"] > 0).all())
        scalars["value"] = float(metrics["value"].sum()) + penalty
        scalars["gap"] = gap if known else None
        scalars["relative"] = gap / max(size, np.finfo(np.float64).tiny) if known else None

    def finished(self) -> bool:
        """Whether the gap is small enough."""
        relative = self.state.scalars.get("relative")
        return relative is not None and relative <= self.own_keys.convex_tolerance


def check_convex(strategy: Strategy, network: Network) -> None:
    """Refuse models that are known not to be convex; one's own may be."""
    model = strategy.config.model.model
    if is_convex_module(network.module):
        return
    if model in ZOO:
        raise ConfigError(f"{strategy.name}: model={model} is not convex; set model=linear.")
    strategy.note(f"model={model}: if its losses are not convex, the certificate is not valid")


def number(name: str, text: str, above: bool = False) -> float:
    """A key that is a number from 0 on, or above it."""
    try:
        value = float(text)
    except ValueError:
        raise ConfigError(f"{name}={text}: not a number, and none of its words.") from None
    if not np.isfinite(value) or value < 0 or (above and value == 0):
        limit = "above 0" if above else "at least 0"
        raise ConfigError(f"{name}={text}: must be finite and {limit}.")
    return value
