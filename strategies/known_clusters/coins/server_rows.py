"""The rows of z, y, x and nabla f(x) that the server of Async-AL2SGD+ holds and moves alone.

A row is a cluster's: its means move as one user does where gamma_i is the same in the cluster. If
gamma_i differs inside a cluster, a row is a user's. The server steps on with its rows, and notes
the means that aggregation steps went to; the users of a row catch up when they next answer.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from functools import cached_property, partial

import numpy as np

from corsage.core.arrays import Floats, Ints
from corsage.solvers.known_clusters.coins.al2sgd_coalescing import Missed, advance, advance_means
from corsage.solvers.known_clusters.coins.katyusha import (
    KatyushaParameters,
    Momenta,
    Oracle,
    Rows,
    Target,
    means_of,
)
from corsage.strategies.known_clusters.clusters.cohorts import Cohort
from corsage.strategies.known_clusters.coins.coin_keys import CoinState
from corsage.strategies.known_clusters.coins.conversation import Answer
from corsage.strategies.known_clusters.coins.schedule import CoinSchedule


@dataclass
class AsyncAL2SGDState(CoinState):
    """The state of Async-AL2SGD+'s server.

    Parameters
    ----------
    momenta, rho, mu : what is fixed at the start besides the settings of all coin methods.
    names : whose each row is: a cluster's, or a user's where users differ in gamma.
    z, y, x, slope : z, y, x and nabla f(x) (rows, d).
    xbar_j : the mean of x over each row's cluster (rows, d).
    xbar : the mean of x over all users (d,).
    missed : by name, the aggregation steps since the users of a row last answered.
    begun, refreshes : whether the first gradients are known; how often all x were renewed since.
    """

    momenta: Momenta = Momenta(0.0, 0.0, 0.0, 0.0, 0.0)
    rho: float = 0.0
    mu: float = 0.0
    names: list[str] = field(default_factory=list)
    z: Floats = field(default_factory=lambda: np.empty((0, 0)))
    y: Floats = field(default_factory=lambda: np.empty((0, 0)))
    x: Floats = field(default_factory=lambda: np.empty((0, 0)))
    slope: Floats = field(default_factory=lambda: np.empty((0, 0)))
    xbar_j: Floats = field(default_factory=lambda: np.empty((0, 0)))
    xbar: Floats = field(default_factory=lambda: np.empty(0))
    missed: dict[str, Missed] = field(default_factory=dict)
    begun: bool = False
    refreshes: int = 0

    @classmethod
    def beginning(cls, d: int) -> AsyncAL2SGDState:
        """thbar = theta^0 = 0, and nothing else."""
        none, zero = np.empty((0, d)), np.zeros(d)
        return cls(zero, z=none, y=none, x=none, slope=none, xbar_j=none, xbar=zero)


class ServerRows:
    """The rows in one round.

    Parameters
    ----------
    schedule : who takes part, and with which coins and steps.
    state : where the rows are; they are changed here.

    Attributes
    ----------
    apart : whether rows are users', and not clusters'.
    renewed : the rows whose users have new gradients, of a refresh in this round.
    """

    def __init__(self, schedule: CoinSchedule, state: AsyncAL2SGDState) -> None:
        self.schedule, self.state = schedule, state
        self.apart = bool(state.clusters.apart)
        self.renewed: list[int] = []
        self._longest = max((len(m.means) for m in state.missed.values()), default=0)

    @cached_property
    def settings(self) -> KatyushaParameters:
        """The parameters of Algorithm 2 for the clusters that train now."""
        base, state = self.schedule.parameters, self.state
        own = vars(state.momenta)
        return KatyushaParameters(p0=base.p0, p=base.p, tau=base.tau, rho=state.rho, **own)

    @property
    def oracle(self) -> Oracle:
        """The factors of (4.1), for the rows of those that train now."""

        def made() -> Oracle:
            hierarchy = self.schedule.hierarchy
            users = Oracle.of_users(hierarchy, self.settings)
            return users if self.apart else users.pick(hierarchy.order[hierarchy.starts])

        return self.schedule.present.prepared.get("oracle", made)

    # Whose rows.

    def name_of(self, cohort: Cohort) -> str:
        """The owner of a cohort's row."""
        return cohort.name if self.apart else cohort.cluster

    @cached_property
    def row_of(self) -> dict[str, int]:
        """The row of each name."""
        return {name: row for row, name in enumerate(self.state.names)}

    @cached_property
    def here(self) -> Ints:
        """The rows of those that train now, in the order of the hierarchy."""
        present = self.schedule.present
        names = [cohort.name for cohort in present.cohorts] if self.apart else present.names
        return np.array([self.row_of[name] for name in names])

    def of_cluster(self, j: int) -> Ints:
        """Places in `here` of the rows of cluster j."""
        return self.schedule.hierarchy.members(j) if self.apart else np.array([j])

    def enter(self) -> None:
        """Rows for all clusters, or users, that are new: at the middle, or at their centre."""
        state, cohorts = self.state, self.schedule.present.cohorts
        if self.apart:
            starts = {c.name: self.start_of(c) for c in cohorts if c.name not in self.row_of}
        else:
            new = [name for name in state.clusters.known if name not in self.row_of]
            starts = dict.fromkeys(new, state.model)
        if not starts:
            return
        rows = np.stack(list(starts.values()))
        state.z, state.y = np.concatenate([state.z, rows]), np.concatenate([state.y, rows])
        state.x, state.xbar_j = (np.concatenate([own, rows]) for own in (state.x, state.xbar_j))
        state.slope = np.concatenate([state.slope, np.zeros_like(rows)])
        state.names = [*state.names, *starts]
        state.missed |= {name: Missed.none(len(state.model)) for name in starts}
        del self.row_of  # there are more now

    def start_of(self, cohort: Cohort) -> Floats:
        """The start of new users: the middle, or their cluster's centre if rows are users'."""
        mates = [
            mate
            for mate in self.schedule.present.cohorts
            if self.apart and mate.cluster == cohort.cluster and mate.name in self.row_of
        ]
        if not mates:
            return self.state.model
        gamma = np.array([self.state.strengths.typical_gamma(mate) for mate in mates])
        weights = gamma if gamma.any() else np.ones(len(gamma))
        y = self.state.y[[self.row_of[mate.name] for mate in mates]]
        return np.asarray(weights @ y / weights.sum())

    # Steps that need no word from the users.

    def rows(self) -> Rows:
        """The rows of those that train now, as Algorithm 2 moves them."""
        own, here = self.state, self.here
        z, y, x, slope = (rows[here] for rows in (own.z, own.y, own.x, own.slope))
        return Rows(z, y, x, slope, own.xbar_j[here], own.xbar, self.oracle)

    def global_steps(self, steps: int) -> None:
        """Iterations with xi_0 = 1, of all rows."""
        hierarchy, settings = self.schedule.hierarchy, self.settings
        if self.apart:
            rows, targets = advance(self.rows(), settings, steps, partial(means_of, hierarchy))
        else:
            rows, targets = advance_means(self.rows(), settings, steps, hierarchy.weights)
        self._store(self.here, rows)
        for place, row in enumerate(self.here):
            self._note(row, [(centres[place], middle) for centres, middle in targets])

    def steps_to_centre(self, j: int, steps: int) -> None:
        """Iterations with xi_0 = 0 and xi_j = 1, of the rows of cluster j."""
        if not steps:
            return
        places, settings = self.of_cluster(j), self.settings
        own, targets = self.rows().pick(places), list[Target]()
        if self.apart:
            shares = self.schedule.hierarchy.shares[places]
            own, targets = advance(own, settings, steps, lambda theta: (shares @ theta, None))
        else:
            own, means = advance_means(own, settings, steps, None)
            targets = [(centre[0], None) for centre, _ in means]
        self._store(self.here[places], own)
        for row in self.here[places]:
            self._note(row, targets)

    def missed(self, cohort: Cohort) -> Missed:
        """The steps that users have to catch up with; all records are of one length."""
        none = Missed.none(len(self.state.model))
        own = self.state.missed.get(self.name_of(cohort), none)
        return Missed(own.padded(max(self._longest, 1)), own.is_global)

    def _store(self, rows: Ints, moved: Rows) -> None:
        self.state.z[rows], self.state.y[rows] = moved.z, moved.y

    def _note(self, row: int, targets: Sequence[Target]) -> None:
        """Means that aggregation steps went to; users hear of them later."""
        name, missed = self.state.names[row], self.state.missed
        missed[name] = missed[name].and_then(targets)
        self._longest = max(self._longest, len(missed[name].means))

    # What users tell.

    def hear(self, answers: Sequence[Answer], kinds: Iterable[str]) -> None:
        """Rows of users, or means of cohorts averaged; all steps up to here are known to them."""
        state, names = self.state, [self.name_of(answer.cohort) for answer in answers]
        rows, sizes = [self.row_of[name] for name in names], [len(a.cohort.users) for a in answers]
        for kind in kinds:
            of_all, own = getattr(state, kind), np.stack([answer.rows[kind] for answer in answers])
            if self.apart or len(answers) == 1:
                of_all[rows] = own
            else:
                weights = np.array(sizes, np.float64)
                of_all[rows[0]] = weights @ own / weights.sum()
        if "slope" in kinds:
            self.renewed += sorted(set(rows))
        state.missed |= {name: Missed.none(len(state.model)) for name in names}

    def refresh(self) -> None:
        """x <- y of those who answered, and the means of the new x."""
        self.state.refreshes += 1
        self.state.x[self.renewed] = self.state.y[self.renewed]
        self.settle_anchors()

    def settle_anchors(self) -> None:
        """xbar_j and xbar, of the anchors x that there are now."""
        state, hierarchy, x = self.state, self.schedule.hierarchy, self.state.x[self.here]
        if self.apart:
            centres, state.xbar = hierarchy.means(x)
            state.xbar_j[self.here] = centres[hierarchy.cluster]
        else:
            state.xbar_j, state.xbar = state.x.copy(), hierarchy.weights @ x

    def middle(self) -> Floats:
        """The middle of y."""
        hierarchy, y = self.schedule.hierarchy, self.state.y[self.here]
        return hierarchy.means(y)[1] if self.apart else np.asarray(hierarchy.weights @ y)
