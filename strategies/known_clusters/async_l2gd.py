"""Async-L2GD: a coin for the network, and a coin for each known cluster.

Lyu et al. 2022, Algorithm 1, on their objective (2.1), as solvers/known_clusters/async_l2gd.py has it: global steps
towards the middle and the centres, steps to a cluster's centre, and local steps.

All coins are drawn up front, and what needs no word from the users runs together. A round is a run
of global steps, which is an affine map theta_i <- rho_j theta_i + v_j a cluster, and then each
cluster's own walk to the next global step, for which alone clusters wait for each other. The server
keeps the centres and each cluster's map until its users next learn; then they hear of it, do their
local steps, and send their mean. A node that hosts a whole cluster walks alone.

If gamma_i differs inside a cluster, centres do not stand still while users come closer: then the
users' models are rows at the server, which does all steps but the local ones.

A user whose reply is missing stays where it is; one that comes late, or lost its model, begins at
its cluster's centre. Models that are not linear: lr stands for 1/(2 L), local steps are of SGD.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from corsage.app.cohorts import Cohort
from corsage.core.arrays import Arrays
from corsage.core.replies import Outcome
from corsage.networks.network import Network
from corsage.solvers.known_clusters.async_l2gd import (
    Affine,
    compose,
    global_map,
    replay_global,
    replay_within,
    within_map,
)
from corsage.solvers.known_clusters.coins import Stretch, Walk
from corsage.solvers.known_clusters.settings import rates
from corsage.strategies.known_clusters.coins import Coined, CoinKeys
from corsage.strategies.known_clusters.conversation import Answer, Request, Talk


@dataclass(frozen=True)
class AsyncL2GDKeys(CoinKeys):
    """Keys of Async-L2GD: those of all methods with coins for known clusters."""


class AsyncL2GD(Coined):
    """The server of Async-L2GD: its place in the coins, the centres, and maps to be told."""

    name = "async-l2gd"
    _rows: dict[str, int] = {}  # noqa: RUF012 - replaced, never changed

    def initial(self, network: Network) -> Arrays:
        """theta^0: zero for a linear model, as in the paper; else the model of the seed."""
        start = network.initial.astype(self.config.model.precision if self.convex else np.float32)
        return {"model": np.zeros_like(start) if self.convex else start}

    def talks(self, number: int) -> dict[str, Talk]:
        """The global steps of a stretch at once, then each cluster's walk."""
        part = self.part(self.coins, self.state.scalars["iteration"])
        self._reach = 0.0
        self._open_clusters()
        if self._alone():
            return self._told_apart(part)
        self._global_steps(part.globals)
        first, groups = part.first + part.globals, self.cohorts_by_cluster()
        return {
            name: self._walk(j, groups[name], walk, first)
            for j, (name, walk) in enumerate(zip(self.here, part.walks, strict=True))
        }

    def settle(self, number: int, outcome: Outcome) -> None:
        """The stretch is done: where the coins stand, and the middle."""
        scalars, arrays = self.state.scalars, self.state.arrays
        part = self.part(self.coins, scalars["iteration"])
        scalars["iteration"] = part.last
        if self._alone():
            near = self.hierarchy.centres(arrays["theta"][self._rows_of_users()])
            arrays["centres"][self._places] = near
        middle = self.hierarchy.weights @ arrays["centres"][self._places]
        arrays["model"] = middle.astype(arrays["model"].dtype)
        self.watch(self._reach)

    def shown(self, cohort: Cohort) -> Arrays:
        """The map that the cohort was not told yet, or where a new one begins."""
        if cohort.cluster not in self.clusters or "centres" not in self.state.arrays:
            return self._row(Affine(0.0, self.state.arrays["model"]))
        if cohort.name in self._row_of:
            return self._row(Affine(0.0, self.state.arrays["theta"][self._row_of[cohort.name]]))
        return self._row(self._pending(self.clusters.index(cohort.cluster), cohort))

    def told(self, cohort: Cohort) -> dict[str, Any]:
        """The pull of new users to where they begin."""
        return {"gamma": self.typical_gamma(cohort)}

    # Clusters whose users share a gamma: centres and maps.

    @property
    def _places(self) -> list[int]:
        """The numbers of the clusters that have users now."""
        return [self.clusters.index(name) for name in self.here]

    def _open_clusters(self) -> None:
        """Clusters that are new begin at the middle."""
        arrays = self.state.arrays
        middle = arrays["model"].astype(np.float64)
        centres = arrays.get("centres", np.empty((0, len(middle))))
        new = len(self.clusters) - len(centres)
        arrays["centres"] = np.concatenate([centres, np.tile(middle, (new, 1))])
        arrays["rho"] = np.concatenate([arrays.get("rho", np.empty(0)), np.zeros(new)])
        maps = arrays.get("v", np.empty((0, len(middle))))
        arrays["v"] = np.concatenate([maps, np.tile(middle, (new, 1))])

    def _global_steps(self, steps: int) -> None:
        """Line 7, `steps` times, for all clusters: centres move, maps grow."""
        if not steps:
            return
        arrays, here = self.state.arrays, self._places
        rate = rates(self.hierarchy, self.parameters).of_clusters(self.hierarchy)
        rho, v, moved = global_map(
            arrays["centres"][here], self.hierarchy.weights, rate.middle, rate.centre, steps
        )
        told = compose(Affine(arrays["rho"][here], arrays["v"][here]), Affine(rho, v))
        arrays["rho"][here], arrays["v"][here], arrays["centres"][here] = told.rho, told.v, moved

    def _walk(self, j: int, cohorts: list[Cohort], walk: Walk, first: int) -> Talk:
        """One cluster's steps until the next global one; a node that hosts all of it goes alone."""
        arrays, place, at = self.state.arrays, self._places[j], first
        rate = rates(self.hierarchy, self.parameters).of_clusters(self.hierarchy)
        c, local = float(rate.within[j]), float(rate.local[j])
        pieces = [walk] if len(cohorts) == 1 else [(piece,) for piece in walk]
        for piece in pieces:
            toward = piece[0][0] if piece else 0
            now = Affine(arrays["rho"][place], arrays["v"][place])
            now = compose(now, within_map(arrays["centres"][place], c, toward))
            arrays["rho"][place], arrays["v"][place] = now
            alone = [(0, piece[0][1]), *piece[1:]] if piece else []
            if any(k for _, k in alone):
                options = {"walk": timed(alone, at + toward), "step": local, "pull": c}
                heard = yield [self._request(cohort, place, options) for cohort in cohorts]
                arrays["centres"][place] = self._mean(heard)
                arrays["rho"][place], arrays["v"][place] = 1.0, 0.0
                self._count(cohorts, trips=sum(k > 0 for _, k in alone))
            at += sum(r + k for r, k in piece)

    def _request(self, cohort: Cohort, place: int, options: dict[str, Any]) -> Request:
        """The map, and what to do then."""
        template = {"mean": self.state.arrays["model"]}
        return Request(cohort, self._row(self._pending(place, cohort)), options, template)

    def _pending(self, place: int, cohort: Cohort) -> Affine:
        """A cluster's map; a cohort without models begins at the centre."""
        arrays = self.state.arrays
        if not self.state.versions.get(cohort.name):
            return Affine(0.0, arrays["centres"][place])
        return Affine(arrays["rho"][place], arrays["v"][place])

    def _row(self, told: Affine) -> Arrays:
        dtype = self.state.arrays["model"].dtype
        return {"rho": np.asarray(told.rho, dtype), "v": np.asarray(told.v, dtype)}

    def _mean(self, heard: list[Answer]) -> NDArray[np.float64]:
        """The centre, out of the cohorts' means."""
        sizes = np.array([len(answer.cohort.users) for answer in heard], np.float64)
        self._reach = max(self._reach, *(answer.metrics["reach"] for answer in heard))
        means = np.stack([answer.rows["mean"] for answer in heard]).astype(np.float64)
        return np.asarray(sizes @ means / sizes.sum())

    def _count(self, cohorts: list[Cohort], trips: int) -> None:
        """A round trip is a vector and a number down, a vector up, for every user."""
        size, users = self.state.arrays["model"].nbytes, sum(len(c.users) for c in cohorts)
        self.state.traffic.bytes_down += trips * users * (size + 8)
        self.state.traffic.bytes_up += trips * users * size
        self.state.traffic.messages += 2 * trips * users

    # Clusters whose users differ in gamma: models as rows at the server.

    def _told_apart(self, part: Stretch) -> dict[str, Talk]:
        """The walks of all clusters, after the global steps on all users' rows."""
        here, theta = self._rows_of_users(), self.state.arrays["theta"]
        theta[here] = replay_global(theta[here], self.hierarchy, self.parameters, part.globals)
        first, groups = part.first + part.globals, self.cohorts_by_cluster()
        return {
            name: self._walk_apart(j, groups[name], walk, first)
            for j, (name, walk) in enumerate(zip(self.here, part.walks, strict=True))
        }

    def _rows_of_users(self) -> list[int]:
        """The rows of theta of the cohorts that are here; new users begin at the centre."""
        arrays, known = self.state.arrays, self._row_of
        new = [cohort for cohort in self.cohorts if cohort.name not in known]
        if new:
            starts = arrays["centres"][[self.clusters.index(cohort.cluster) for cohort in new]]
            arrays["theta"] = np.concatenate([arrays.get("theta", starts[:0]), starts])
            self.state.scalars["users"] = [*known, *(cohort.name for cohort in new)]
        return [self._row_of[cohort.name] for cohort in self.cohorts]

    @property
    def _row_of(self) -> dict[str, int]:
        """Each user's row of theta; it only gets more."""
        users = self.state.scalars.get("users", [])
        if len(self._rows) != len(users):
            self._rows = {user: row for row, user in enumerate(users)}
        return self._rows

    def _walk_apart(self, j: int, cohorts: list[Cohort], walk: Walk, first: int) -> Talk:
        """One cluster's steps; local ones are asked for, user by user."""
        theta, hierarchy = self.state.arrays["theta"], self.hierarchy
        members, rate = hierarchy.members(j), rates(hierarchy, self.parameters)
        rows, at = np.array(self._rows_of_users())[members], first
        place = {c.name: int(row) for c, row in zip(cohorts, rows, strict=True)}
        for r, k in walk:
            theta[rows] = replay_within(
                theta[rows], hierarchy.gamma[members], rate.within[members], r
            )
            if k:
                options = {"walk": timed([(0, k)], at + r), "step": float(rate.local[j])}
                heard = yield [
                    Request(
                        cohort,
                        self._row(Affine(0.0, theta[place[cohort.name]])),
                        {**options, "pull": 0.0},
                        {"mean": self.state.arrays["model"]},
                    )
                    for cohort in cohorts
                ]
                for answer in heard:
                    theta[place[answer.cohort.name]] = answer.rows["mean"]
                    self._reach = max(self._reach, answer.metrics["reach"])
                self._count(cohorts, trips=1)
            at += r + k


def timed(walk: Walk | list[tuple[int, int]], first: int) -> str:
    """A walk with the iteration in which each of its runs of local steps begins, as JSON."""
    steps = []
    for r, k in walk:
        steps.append((r, k, first + r))
        first += r + k
    return json.dumps(steps)
