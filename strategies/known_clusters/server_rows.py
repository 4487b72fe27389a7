"""What the server of Async-AL2SGD+ carries: one row a cluster, or one a user.

`state.arrays` has z, y, x and nabla f(x) of every unit, and under `targets NAME` the means that
aggregation steps went to since the unit's users last answered: near (d), middle (d), and whether
there is a middle. A unit is a cluster; where gamma_i differs inside clusters it is a user.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from corsage.app.cohorts import Cohort
from corsage.core.arrays import Floats
from corsage.solvers.known_clusters.katyusha import Oracle, Parameters2, Rows, Target
from corsage.strategies.known_clusters.coins import Coined
from corsage.strategies.known_clusters.conversation import Answer


class Carried(Coined):
    """A method with coins whose server moves rows without asking."""

    _units: dict[str, int] = {}  # noqa: RUF012 - replaced, never changed
    _longest: int | None = None
    _renewed: list[int]

    @property
    def settings(self) -> Parameters2:
        """The parameters of the algorithm."""
        raise NotImplementedError

    def _begin_units(self) -> None:
        """Rows for all clusters, or users, that are new: at the middle."""
        arrays, d = self.state.arrays, len(self.state.arrays["model"])
        names = [c.name for c in self.cohorts] if self._alone() else self.clusters
        known = self.state.scalars.setdefault("units", [])
        new = [name for name in names if name not in self._unit]
        if not new:
            return
        starts = [arrays["model"] for _ in new]
        if self._alone() and known:
            starts = [self._centre(c) for c in self.cohorts if c.name not in self._unit]
        zeros = np.zeros((len(new), d))
        for what, rows in (("z", starts), ("y", starts), ("x", starts), ("slope", zeros)):
            arrays[what] = np.stack([*arrays.get(what, []), *rows])
        if "anchors" in arrays:
            arrays["anchors"] = np.stack([*arrays["anchors"], *starts])
        for name in new:
            arrays[f"targets {name}"] = np.empty((0, 2 * d + 1))
        known.extend(new)

    def _centre(self, cohort: Cohort) -> Floats:
        """The centre of the y of a cluster whose users are told apart; else the middle."""
        units, arrays = self._unit, self.state.arrays
        others = [
            (units[other.name], self.typical_gamma(other))
            for other in self.cohorts
            if other.cluster == cohort.cluster and other.name in units
        ]
        if not others:
            return arrays["model"]
        rows, gamma = zip(*others, strict=True)
        weights = np.array(gamma) if any(gamma) else np.ones(len(gamma))
        return np.asarray(weights @ arrays["y"][list(rows)] / weights.sum())

    @property
    def _unit(self) -> dict[str, int]:
        """The row of each cluster, or user; there only get more."""
        units = self.state.scalars.get("units", [])
        if len(self._units) != len(units):
            self._units = {name: row for row, name in enumerate(units)}
        return self._units

    def _place(self, cohort: Cohort) -> int:
        return self._unit[cohort.name if self._alone() else cohort.cluster]

    def _places(self) -> list[int]:
        """The rows of those that are here now, in the order of the hierarchy."""
        names = [c.name for c in self.cohorts] if self._alone() else self.here
        return [self._unit[name] for name in names]

    def _rows(self) -> Rows:
        """The rows as Algorithm 2 moves them."""
        arrays, here, hierarchy = self.state.arrays, self._places(), self.hierarchy
        z, y, x, slope = (arrays[what][here] for what in ("z", "y", "x", "slope"))
        oracle = Oracle.of_users(hierarchy, self.settings)
        if self._alone():
            return Rows(z, y, x, slope, arrays["anchors"][here], arrays["anchor"], oracle)
        own = oracle.pick(hierarchy.order[hierarchy.starts])
        return Rows(z, y, x, slope, x, arrays["anchor"], own)

    def _store(self, places: Sequence[int], rows: Rows) -> None:
        self.state.arrays["z"][places], self.state.arrays["y"][places] = rows.z, rows.y

    def _settle_anchors(self) -> None:
        """xbar_j and xbar, of the anchors that there are now."""
        arrays, here = self.state.arrays, self._places()
        x = arrays["x"][here]
        if self._alone():
            centres, arrays["anchor"] = self.hierarchy.means(x)
            arrays["anchors"] = np.zeros_like(arrays["x"])
            arrays["anchors"][here] = centres[self.hierarchy.cluster]
        else:
            arrays["anchor"] = self.hierarchy.weights @ x

    def _note(self, place: int, targets: list[Target]) -> None:
        """Means that aggregation steps went to; users hear of them later."""
        units, d = self.state.scalars["units"], len(self.state.arrays["model"])
        what = f"targets {units[place]}"
        rows = [
            np.concatenate([near, near * 0 if middle is None else middle, [middle is not None]])
            for near, middle in targets
        ]
        old = self.state.arrays[what]
        self.state.arrays[what] = np.concatenate([old, np.reshape(rows, (len(rows), 2 * d + 1))])
        if self._longest is not None:
            self._longest = max(self._longest, len(old) + len(rows))

    def _hear(self, answer: Answer, kinds: tuple[str, ...]) -> None:
        """A user's rows, or the means of a cohort that is a whole cluster."""
        place = self._place(answer.cohort)
        for what in kinds:
            self.state.arrays[what][place] = answer.rows[what]

    def _hear_all(self, heard: list[Answer], kinds: tuple[str, ...]) -> None:
        """Rows of users, or means of cohorts averaged; all targets up to here are known to them."""
        arrays, units = self.state.arrays, self.state.scalars["units"]
        if not heard:
            return
        if self._alone() or len(heard) == 1:
            for answer in heard:
                self._hear(answer, kinds)
        else:
            sizes = np.array([len(answer.cohort.users) for answer in heard], np.float64)
            place = self._place(heard[0].cohort)
            for what in kinds:
                rows = np.stack([answer.rows[what] for answer in heard])
                arrays[what][place] = sizes @ rows / sizes.sum()
        for place in sorted({self._place(answer.cohort) for answer in heard}):
            self._renewed += [place] if "slope" in kinds else []
            arrays[f"targets {units[place]}"] = arrays[f"targets {units[place]}"][:0]
