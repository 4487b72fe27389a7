"""Every user's own sums, as the server of the mixed model keeps them.

With the squared loss they are all that a fit is made of. A user is forgotten by taking its row out:
the fit to the others' is the one of a run that it was never in.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from corsage.core.arrays import Floats
from corsage.core.errors import ConfigError
from corsage.core.tables.preparation import Preparation
from corsage.solvers.known_clusters.mixed_model import pack, unpack
from corsage.solvers.known_clusters.variances.users_sums import Users
from corsage.strategies.known_clusters.clusters.cohorts import Present
from corsage.strategies.known_clusters.coins.conversation import Answer

MOST_KEPT = 10_000_000
"""Numbers of all users' sums that checkpoints hold."""


@dataclass
class KeptSums:
    """A row for each user.

    Parameters
    ----------
    users, clusters : who they are, and each one's cluster.
    counts : each one's training records (n,).
    rows : A_i (its upper half), b_i and y'y (n, d(d+1)/2 + d + 1).
    folds : the same of the rows in each fold, where they were asked for.
    """

    users: list[str] = field(default_factory=list)
    clusters: list[str] = field(default_factory=list)
    counts: Floats = field(default_factory=lambda: np.zeros(0))
    rows: Floats = field(default_factory=lambda: np.zeros((0, 0)))
    folds: list[KeptSums] = field(default_factory=list)

    @classmethod
    def of(cls, answers: Sequence[Answer], train: Callable[[str], int]) -> KeptSums:
        """From the cohorts' answers; `train` says how many records a user has."""
        cohorts = [answer.cohort for answer in answers]
        if not cohorts:
            return cls()
        users = [user for cohort in cohorts for user in cohort.users]
        clusters = [cohort.cluster for cohort in cohorts for _ in cohort.users]
        counts = np.fromiter(map(train, users), np.float64, len(users))
        rows = np.concatenate([answer.rows["sums"] for answer in answers])
        return cls(users, clusters, counts * rows.any(1), rows)  # of too few rows nothing is sent

    def are_of(self, present: Present) -> bool:
        """True if they are those of all users that are there, in the clusters that they are in."""
        there = {user: cohort.cluster for cohort in present.cohorts for user in cohort.users}
        return bool(there) and there == dict(zip(self.users, self.clusters, strict=True))

    def in_order(self, names: list[str], d: int) -> Users:
        """The same in the order of the clusters `names`."""
        return Users.of(self.rows, self.counts, self.clusters, self.users, names, d)

    def heard(self, present: Present) -> list[str]:
        """The clusters of which there are any, in their order."""
        there = set(self.clusters)
        return [name for name in present.names if name in there]

    def parts(self, d: int) -> tuple[Floats, Floats, Floats]:
        """A (n, d, d), b (n, d) and y'y (n,)."""
        return unpack(self.rows[:, : -d - 1], d), self.rows[:, -d - 1 : -1], self.rows[:, -1]

    def worth_keeping(self) -> KeptSums:
        """These, or none if they are too many for every checkpoint."""
        return self if self.rows.size <= MOST_KEPT else KeptSums()

    def moved(self, clusters: Mapping[str, str]) -> KeptSums:
        """The same of users that are in other clusters."""
        return replace(self, clusters=[clusters.get(user, "") for user in self.users])

    def without(self, *users: str) -> KeptSums:
        """Those of the others."""
        return self.of_users({*self.users} - {*users})

    def of_users(self, some: Collection[str]) -> KeptSums:
        """Those of some users."""
        some = {*some}
        kept = [place for place, name in enumerate(self.users) if name in some]
        users, clusters = (
            [names[place] for place in kept] for names in (self.users, self.clusters)
        )
        folds = [fold.of_users(some) for fold in self.folds]
        return KeptSums(users, clusters, self.counts[kept], self.rows[kept], folds)

    def prepared(self, before: Preparation | None, now: Preparation | None) -> KeptSums:
        """The sums of the same records, whose columns are shifted and scaled in another way."""
        if before == now or before is None or now is None:
            return self
        check_alike(before, now)
        d = int(np.sqrt(2 * self.rows.shape[1])) - 1
        inputs = len(before.features)
        a, b, yy = self.parts(d)
        matrix = np.eye(d)  # what is z in the old units is matrix @ z in the new ones
        scale, shift = (
            np.array([getattr(p, n) for p in (before, now)]) for n in ("scale", "shift")
        )
        matrix[range(inputs), range(inputs)] = scale[1] / scale[0]
        times = before.label.scale / now.label.scale
        plus = (before.label.mean - now.label.mean) / now.label.scale
        move = (shift[0] - shift[1]) * scale[1]
        if inputs < d:  # the last coefficient is the intercept's: its z is 1
            matrix[:inputs, -1] = move
            yy = times**2 * yy + 2 * times * plus * b[:, -1] + plus**2 * a[:, -1, -1]
            b = times * b + plus * a[:, :, -1]
        elif move.any() or plus:
            raise ConfigError("scale: without an intercept sums cannot be shifted; scale=none can.")
        else:
            yy, b = times**2 * yy, times * b
        parts = [pack(matrix @ a @ matrix.T), b @ matrix.T, yy[:, None]]
        folds = [fold.prepared(before, now) for fold in self.folds]
        return replace(self, rows=np.concatenate(parts, axis=1), folds=folds)


def check_alike(before: Preparation, now: Preparation) -> None:
    """Refuse sums of other columns: no shift makes one into the other."""
    unfilled = now.missing == "refuse"  # then there are no gaps
    for old, new in zip(before.columns, now.columns, strict=False):
        if new != (replace(old, fill=new.fill) if unfilled else old):
            raise ConfigError(
                f"column {old.name}: a word of it, or what stands for its gaps, came from this "
                "user; the others' sums do not say what the columns would be without."
            )
    if (before.scaling, before.names) != (now.scaling, now.names):
        raise ConfigError("the table has other columns without this user: start a new run.")
