"""Async-AL2SGD+: accelerated, variance-reduced, for known clusters.

Lyu et al. 2022, Algorithm 2, with the unbiased estimator (solvers/known_clusters/katyusha.py): users keep z_i, y_i,
an anchor x_i and its gradient, and all renew their anchors together with probability rho.

As in Async-L2GD what needs no word from the users runs together. The server carries each cluster's
means of z, y, x and nabla f(x), which move as one user does, notes the means that aggregation steps
go to, and tells the users of them before their next local step or refresh. Clusters wait for each
other at global steps and refreshes. If gamma_i differs inside a cluster, the server carries every
user's z_i and y_i instead.

f_i must be convex with known curvature (model=linear); mu > 0 is the smallest one of f_i, or
`al2sgd-mu`. A user that comes late begins at its cluster's centre, and counts in full from the next
refresh on.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from flwr.serverapp import Grid

from corsage.app.cohorts import Cohort
from corsage.core.arrays import Arrays, Floats
from corsage.core.errors import ConfigError
from corsage.core.keys import key
from corsage.core.replies import Outcome
from corsage.networks.network import Network
from corsage.solvers.known_clusters.al2sgd_coalescing import Plan, advance, advance_means, plan
from corsage.solvers.known_clusters.async_al2sgd import refresh_coin
from corsage.solvers.known_clusters.coins import Coins, Walk
from corsage.solvers.known_clusters.katyusha import (
    Parameters2,
    Target,
    check,
    means_of,
    parameters,
)
from corsage.strategies.known_clusters.async_l2gd import timed
from corsage.strategies.known_clusters.coins import CoinKeys, number
from corsage.strategies.known_clusters.conversation import Request, Talk
from corsage.strategies.known_clusters.server_rows import Carried
from corsage.strategies.known_clusters.strengths import AUTO

FLOOR = 1e-4
"""mu of losses that are not strongly convex, as a share of L."""


@dataclass(frozen=True)
class AsyncAL2SGDKeys(CoinKeys):
    """Keys of Async-AL2SGD+."""

    title = "Async-AL2SGD+"

    al2sgd_rho: str = key(
        AUTO, "probability of a refresh of all anchors (rho), or auto: p_0 (1 - p_0)"
    )
    al2sgd_mu: str = key(
        AUTO, "strong convexity of the losses (mu), or auto: as it is, at least 1e-4 of L"
    )
    al2sgd_oracle: str = key(
        "full",
        "gradients of local steps: of all of a user's samples, or of one drawn at random, as in "
        "the paper",
        choices=("full", "sample"),
    )


class AsyncAL2SGD(Carried):
    """The server of Async-AL2SGD+: means of clusters (or users' rows), and what to tell of them."""

    name = "async-al2sgd"
    _told: tuple[Any, dict[int, list[float]]] = None, {}

    def initial(self, network: Network) -> Arrays:
        """theta^0 = 0."""
        if not self.convex:
            raise ConfigError(
                f"{self.name}: needs model=linear and a loss with one output (squared, huber, "
                f"logistic, squared-hinge), not model={self.config.model.model}; async-l2gd takes "
                "any model."
            )
        return {"model": np.zeros(network.whole.stop, np.float64)}

    @property
    def own_keys(self) -> AsyncAL2SGDKeys:
        """The keys of this method."""
        assert isinstance(self.keys, AsyncAL2SGDKeys)
        return self.keys

    # Settings.

    def fix(self, smoothness: float, convexity: float) -> dict[str, Any]:
        """The settings of Theorem 4.3; a step size that is given changes a_1 and b_2 with it."""
        keys = self.own_keys
        mu = number("al2sgd-mu", keys.al2sgd_mu, max(convexity, FLOOR * smoothness))
        rho = None if keys.al2sgd_rho == AUTO else number("al2sgd-rho", keys.al2sgd_rho, 0.0)
        self._theory = mu, rho
        fixed = super().fix(smoothness, convexity)
        p = np.array([fixed["p"].get(name, fixed["p"].get("", 0.0)) for name in self.here])
        settings = parameters(self.hierarchy, smoothness, mu, fixed["p0"], p, rho, fixed["eta"])
        check(settings, self.hierarchy)
        own = {what: getattr(settings, what) for what in ("rho", "a1", "a2", "b1", "b2")}
        return {**fixed, **own, "mu": mu}

    def safe_step(self, smoothness: float, p0: float, p: Floats) -> float:
        """eta = 1/(4 max(L_F, L)), Theorem 4.3."""
        mu, rho = self._theory
        return parameters(self.hierarchy, smoothness, mu, p0, p, rho).eta

    @property
    def settings(self) -> Parameters2:
        """The parameters of Algorithm 2."""
        base, fixed = self.parameters, self.state.scalars["settings"]
        more = {what: fixed[what] for what in ("rho", "a1", "a2", "b1", "b2")}
        return Parameters2(base.eta, base.network, base.cluster, base.tau, **more)

    def part(self, coins: Coins, first: int) -> Plan:
        """A stretch, which also ends with a refresh."""
        return plan(coins, refresh_coin(coins, self.settings.rho), first, self.iterations)

    def open(self, grid: Grid) -> None:
        """The first refresh: x = y = z = theta^0, and its gradients."""
        begun = "settings" in self.state.scalars
        super().open(grid)
        if not begun:
            self._begin_units()
            request = Request(self.cohorts[0], {}, {"ask": "begin"}, self._template("slope"))
            answers, self._renewed = self.ask_all(grid, request), list[int]()
            for name in self.here:
                own = [answer for answer in answers if answer.cohort.cluster == name]
                self._hear_all(own, ("slope",))
            self._settle_anchors()

    # A round.

    def talks(self, number: int) -> dict[str, Talk]:
        """The global steps of a plan, then each cluster's walk."""
        self._reach, self._renewed = 0.0, list[int]()
        self._begin_units()
        part = self.part(self.coins, self.state.scalars["iteration"])
        rows, here = self._rows(), self._places()
        if self._alone():
            rows, targets = advance(
                rows, self.settings, part.globals, lambda theta: means_of(self.hierarchy, theta)
            )
        else:
            rows, targets = advance_means(rows, self.settings, part.globals, self.hierarchy.weights)
        self._store(here, rows)
        for row, place in enumerate(here):
            self._note(place, [(near[row], middle) for near, middle in targets])
        self._longest = None
        first, groups, again = part.first + part.globals, self.cohorts_by_cluster(), part.refresh
        return {
            name: self._walk(j, groups[name], walk, first, again)
            for j, (name, walk) in enumerate(zip(self.here, part.walks, strict=True))
        }

    def settle(self, number: int, outcome: Outcome) -> None:
        """The plan is done; after a refresh the anchors of those who answered are new."""
        scalars, arrays = self.state.scalars, self.state.arrays
        part = self.part(self.coins, scalars["iteration"])
        scalars["iteration"] = part.last
        if part.refresh:
            scalars["refreshes"] = int(scalars.get("refreshes", 0)) + 1
            arrays["x"][self._renewed] = arrays["y"][self._renewed]
            self._settle_anchors()
        y = arrays["y"][self._places()]
        arrays["model"] = (
            self.hierarchy.means(y)[1] if self._alone() else self.hierarchy.weights @ y
        )
        self.watch(self._reach)

    def _walk(self, j: int, cohorts: list[Cohort], walk: Walk, first: int, refresh: bool) -> Talk:
        """One cluster's steps; a node that hosts all of it goes alone."""
        at, alone = first, len(cohorts) == 1
        pieces: list[Walk] = [walk] if alone else [(piece,) for piece in walk]
        for number_of, piece in enumerate(pieces or [()]):
            toward = piece[0][0] if piece else 0
            self._step_to_centre(j, cohorts, toward)
            todo = [(0, piece[0][1]), *piece[1:]] if piece else []
            last = number_of == max(len(pieces) - 1, 0)
            if any(k for _, k in todo) or (refresh and last):
                options = {"walk": timed(todo, at + toward), "refresh": refresh and last}
                kinds = ("z", "y", "slope") if refresh and last else ("z", "y")
                heard = yield [self._request(c, j, options, kinds) for c in cohorts]
                for answer in heard:
                    self._reach = max(self._reach, answer.metrics["reach"])
                self._hear_all(heard, kinds)
                self._count(cohorts, [k for _, k in todo], refresh=refresh and last)
            at += sum(r + k for r, k in piece)

    def _step_to_centre(self, j: int, cohorts: list[Cohort], steps: int) -> None:
        """Steps of one cluster's rows to their centre."""
        if not steps:
            return
        here = list(dict.fromkeys(map(self._place, cohorts)))
        row_of = {place: row for row, place in enumerate(self._places())}
        rows = np.array([row_of[place] for place in here])
        own = self._rows().pick(rows)
        targets: list[Target] = []
        if self._alone():
            shares = self.hierarchy.shares[rows]
            own, targets = advance(own, self.settings, steps, lambda theta: (shares @ theta, None))
        else:
            own, means = advance_means(own, self.settings, steps, None)
            targets = [(near[0], None) for near, _ in means]
        self._store(here, own)
        for place in here:
            self._note(place, targets)

    def _template(self, *kinds: str) -> Arrays:
        return dict.fromkeys(kinds, self.state.arrays["model"])

    def _request(
        self, cohort: Cohort, j: int, options: dict[str, Any], kinds: tuple[str, ...]
    ) -> Request:
        return Request(
            cohort,
            self.shown(cohort),
            {**self.told(cohort), **options},
            self._template(*kinds),
        )

    def _count(self, cohorts: list[Cohort], runs: list[int], *, refresh: bool) -> None:
        """A round trip: the means that were missed down, z and y up; a gradient in a refresh."""
        size, users = self.state.arrays["model"].nbytes, sum(len(c.users) for c in cohorts)
        trips = sum(k > 0 for k in runs) + (refresh and not (runs and runs[-1]))
        self.state.traffic.bytes_down += trips * users * 2 * size
        self.state.traffic.bytes_up += (2 * trips + refresh) * users * size
        self.state.traffic.messages += 2 * trips * users

    # What users are told.

    def shown(self, cohort: Cohort) -> Arrays:
        """Means to go to, the anchors' means, and where a new user begins."""
        arrays, d = self.state.arrays, len(self.state.arrays["model"])
        known = self._unit
        if self._longest is None:
            self._longest = max((len(arrays[f"targets {unit}"]) for unit in known), default=0)
        targets = np.full((self._longest + 1, 2 * d + 1), -1.0)  # rows of -1 make all as long
        name = cohort.name if self._alone() else cohort.cluster
        if name not in known:
            begin = self._centre(cohort) if known and self._alone() else arrays["model"]
            return {"targets": targets, "start": begin, "centre": begin, "middle": begin}
        place, own = known[name], arrays[f"targets {name}"]
        targets[: len(own)] = own
        return {
            "targets": targets,
            "start": arrays["y"][place],
            "centre": arrays["anchors" if self._alone() else "x"][place],
            "middle": arrays["anchor"],
        }

    def told(self, cohort: Cohort) -> dict[str, Any]:
        """The settings, and what (4.1) multiplies with at this cohort's users."""
        told: dict[str, Any] = {"gamma": self.typical_gamma(cohort)}
        name = cohort.name if self._alone() else cohort.cluster
        if name not in self._unit:
            return told
        if self._told[0] is not self.hierarchy:  # the same for as long as nobody comes or goes
            table = np.column_stack(self._rows().oracle).tolist()
            self._told = self.hierarchy, dict(zip(self._places(), table, strict=True))
        told["oracle"] = self._told[1][self._place(cohort)]
        names = ("eta", "rho", "a1", "a2", "b1", "b2")
        return {**told, "settings": {name: getattr(self.settings, name) for name in names}}

    def findings(self) -> list[dict[str, Any]]:
        """The settings, communications, and refreshes, which are rounds between clusters too."""
        found, scalars = super().findings(), self.state.scalars
        fixed, done = scalars["settings"], scalars["iteration"]
        found[0]["rows"] += [[what, f"{fixed[what]:.4g}"] for what in ("rho", "mu")]
        refreshes = f"{scalars.get('refreshes', 0):,} (expected {fixed['rho'] * done:,.1f})"
        found[1]["rows"].insert(1, ["refreshes, of all users", refreshes])
        return found
