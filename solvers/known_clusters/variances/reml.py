"""The variances behind gamma_j and lambda_j, by restricted maximum likelihood from sums.

In the hierarchical linear model of Lyu et al. 2022, (5.1), the best strengths are gamma_j = 1/s_j^2
and lambda_j = 1/sb^2 (Theorem 5.1): the variances of the users around w_j, and of the w_j. The
likelihood needs four sums a cluster for each rho_j = s_j^2/sigma^2 that is tried. So users answer
once, for all rho of a `RHO_GRID`. They are smooth enough in rho to be read between its values, so
the server then finds the best rho_j, sigma^2 and sb^2 among all numbers (`fit`). As P_j and q_j are
among the sums it has w_j, too: one round for variances and centres.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from corsage.core.arrays import Floats, Ints
from corsage.core.errors import ModelError
from corsage.solvers.known_clusters.columns import Columns
from corsage.solvers.known_clusters.likelihood import Level, between
from corsage.solvers.known_clusters.mixed_model import Centres, by_cluster, centres, pack, unpack
from corsage.solvers.known_clusters.variances.covariance import Covariances, covariances
from corsage.solvers.known_clusters.variances.identified import A_SUM, NOISE_WORDS, ONE_UNIT
from corsage.solvers.known_clusters.variances.ratios import Close, Profile

RHO_GRID: Floats = np.concatenate([[0.0], np.geomspace(1e-4, 1e2, 24)])
"""rho: none, and from 1e-4 to 100 by factors of 1.82, for features of a size of about 1.

Between them the sums are known to 5e-5; with 18 values it is 5e-4, and variances to no 3 digits.
"""
ONE_CLUSTER: Floats = np.array(np.inf)
"""lambda of a single cluster, whose centre is the middle."""
ZOOMS, ZOOM_VALUES = 6, 9
"""Times that rho is looked for between its neighbours, and the number of values between them."""


@dataclass(frozen=True)
class RemlSums:
    """Sums over a cluster's users for each rho: they add over users and over nodes.

    Parameters
    ----------
    grid : rho (k, G), known to all: 0, then rising by a factor.
    p, q, yy, ld : the sums of `Level`, (k, G, d, d), (k, G, d), (k, G), (k, G).
    records, users : how many there are (k,).
    trace : of the sum of A_i, over the coefficients that vary (k,).
    """

    grid: Floats
    p: Floats
    q: Floats
    yy: Floats
    ld: Floats
    records: Floats
    users: Floats
    trace: Floats

    @property
    def level(self) -> Level:
        """The sums of which the likelihood is made."""
        return Level(self.p, self.q, self.yy, self.ld)

    def arrays(self) -> dict[str, Floats]:
        """The numbers that are sent and added up; all have the clusters as first axis."""
        sums = {name: getattr(self, name) for name in ("q", "yy", "ld", "records", "users")}
        return {"p": pack(self.p), **sums, "trace": self.trace}

    @classmethod
    def from_arrays(cls, arrays: Mapping[str, Floats], grid: Floats) -> RemlSums:
        """The sums from `arrays`, and the grid they are for: (G,), or (k, G)."""
        p = unpack(arrays["p"], arrays["q"].shape[-1])
        rows = np.broadcast_to(grid, arrays["yy"].shape)
        return cls(rows, **{**arrays, "p": p})

    @property
    def untold(self) -> str:
        """Why these sums do not tell the variance between users; empty: they do."""
        if self.users.sum() == 1:
            return ONE_UNIT.format("user")
        if (self.records == self.users).all():
            return A_SUM.format(NOISE_WORDS)
        return A_SUM.format("that between clusters") if (self.users == 1).all() else ""

    def held(self) -> RemlSums:
        """Those for rho = 0 alone: users do not differ."""
        first = {name: getattr(self, name)[:, :1] for name in ("grid", "p", "q", "yy", "ld")}
        return replace(self, **first)

    def __add__(self, other: RemlSums) -> RemlSums:
        if not np.array_equal(self.grid, other.grid):
            raise ModelError("variances: sums of two grids; send one grid to all nodes.")
        ours, theirs = self.arrays(), other.arrays()
        return RemlSums.from_arrays({name: ours[name] + theirs[name] for name in ours}, self.grid)


def level_sums(
    a: Floats,
    b: Floats,
    yy: Floats,
    counts: Ints,
    cluster: Ints,
    k: int,
    grid: Floats = RHO_GRID,
    varies: Floats | None = None,
) -> RemlSums:
    """The sums of a node's users: A_i = X_i'X_i, b_i = X_i'y_i, yy_i = y_i'y_i, m_i records.

    `cluster` (n,) are the users' clusters, `grid` is rho, (G,) or (k, G). `varies` (d,) is 1 for
    coefficients that differ between users, and 0 for others; None: all do.
    """
    rows = np.broadcast_to(grid, (k, np.shape(grid)[-1]))
    levels = []
    for j, ratios in enumerate(rows):
        own = np.flatnonzero(cluster == j)
        users = Columns.of(a[own], b[own], yy[own], varies).told()
        levels.append(Level(*map(np.stack, zip(*map(users.total, ratios), strict=True))))
    sums = map(np.stack, zip(*levels, strict=True))
    squares = np.diagonal(a, axis1=-2, axis2=-1)
    traces = (squares if varies is None else squares * varies).sum(-1)
    ends = (np.asarray(counts, np.float64), np.ones(len(b)), traces)
    return RemlSums(rows, *sums, *(by_cluster(part, cluster, k) for part in ends))


# The fit.


@dataclass(frozen=True)
class Variances:
    """A fitted model.

    Parameters
    ----------
    sigma2, user, cluster : sigma^2, s_j^2 (k,), sb^2.
    centres : w_j and wbar.
    loglik, aic : the restricted log likelihood, and Akaike's criterion from it.
    common : whether one s^2 was fitted for all clusters, or one for each.
    grid : the rho (k, G) that were sent.
    squares : mean squared length of a record's features that have varying coefficients, by the
        cluster that it is of; these add up to the mean over all records.
    covariances : of w_j (k, d, d) and of wbar (d, d), given the variances, over sigma^2.
    """

    sigma2: float
    user: Floats
    cluster: float
    centres: Centres
    loglik: float
    aic: float
    common: bool
    grid: Floats
    squares: Floats
    covariances: Covariances

    @property
    def gamma(self) -> Floats:
        """gamma_j = 1/s_j^2, for losses 1/(2 sigma^2) |X theta - y|^2, as in (5.2)."""
        return _inverse(self.user)

    @property
    def lam(self) -> float:
        """lambda = 1/sb^2, for losses 1/(2 sigma^2) |X theta - y|^2."""
        return float(_inverse(self.cluster))

    @property
    def at_end(self) -> bool:
        """True if the best rho of a cluster is at the upper end of its grid: it may be larger."""
        return bool((self.user > self.sigma2 * self.grid[:, -2:][:, 0]).any())

    @property
    def between(self) -> float:
        """sb^2 if there are clusters to differ: of a single one no data can tell, and it is 0."""
        return self.cluster if len(self.user) > 1 else 0.0

    @property
    def gamma_unit(self) -> Floats:
        """sigma^2/s_j^2, for losses 1/2 |X theta - y|^2."""
        return self.sigma2 * self.gamma

    @property
    def lambda_unit(self) -> float:
        """sigma^2/sb^2, for losses 1/2 |X theta - y|^2."""
        return self.sigma2 * self.lam


class Shares(NamedTuple):
    """Shares of the variance between the records of a user, its users, and clusters."""

    records: float
    users: float
    clusters: float


def shares(found: Variances) -> Shares:
    """Shares of the variance of a record around x'wbar: with an intercept only the usual ICCs.

    A user's x'(theta - w) has the variance s^2 |x|^2, which depends on the record: s^2 and sb^2
    count with the mean of |x|^2 over all records, in which the intercept's 1 is.
    """
    users = float(np.sum(found.squares * found.user))
    clusters = float(np.sum(found.squares) * found.between)
    return Shares(*(np.array([found.sigma2, users, clusters]) / (found.sigma2 + users + clusters)))


def fit(sums: RemlSums, *, common: bool | None = None, varies: Floats | None = None) -> Variances:
    """Restricted maximum likelihood over rho_j, sigma^2 and sb^2.

    `common`: one rho for all clusters, or one for each; None takes what AIC prefers (one for each
    if the grid is not the same for all clusters). `varies` as the sums were made with.
    """
    same = bool((sums.grid == sums.grid[0]).all())
    if common and not same:
        raise ModelError("variances: one rho for all, but a grid a cluster; send one grid.")
    model = Profile.of(sums.level, float(sums.records.sum()), varies)
    start = model.common()
    fits = [
        _search(sums, varies, model, start, common=one)
        for one in (True, False)
        if common in (one, None)
    ]
    return min(fits if same else fits[-1:], key=lambda found: found.aic)


def _search(
    sums: RemlSums,
    varies: Floats | None,
    model: Profile,
    start: tuple[Ints, float],
    *,
    common: bool,
) -> Variances:
    """The best rho_j on the grid, then between its neighbours, finer and finer."""
    records, rows, level = model.records, sums.grid, sums.level
    picks, tau = start if common else model.apart(*start)
    near = Close(level, records, varies)
    for _ in range(ZOOMS if rows.shape[1] > 1 else 0):
        rho = np.take_along_axis(rows, picks[:, None], 1)
        rows = np.stack([_around(row, pick) for row, pick in zip(rows, picks, strict=True)])
        level = between(sums.level, sums.grid, rows)
        near = Close(level, records, varies)
        picks, tau = (near.common if common else near.apart)(np.abs(rows - rho).argmin(1), tau)
    at = np.arange(len(picks)), picks
    best, found, sigma2 = (float(part[0]) for part in near.at(picks).best())
    lam = _inverse(best) if varies is None else np.where(varies > 0, _inverse(best), np.inf)
    tie = _rows(lam, len(picks)) if len(picks) > 1 else ONE_CLUSTER
    return Variances(
        sigma2=sigma2,
        user=sigma2 * rows[at],
        cluster=sigma2 * best,
        centres=centres(level.p[at], level.q[at], _rows(lam, len(picks))),
        loglik=-found / 2,
        aic=found + 2 * (3 if common else 2 + len(picks)),
        common=common,
        grid=sums.grid,
        squares=sums.trace / records,
        covariances=covariances(level.p[at], tie),
    )


def _rows(lam: Floats, k: int) -> Floats:
    """One number for all, or one row for each of k clusters."""
    return np.tile(lam, (k, 1)) if lam.ndim else lam


def _around(row: Floats, pick: int) -> Floats:
    """NEAR values of rho from the one below row[pick] to the one above; none below the first > 0.

    0 stays in as long as it is a neighbour.
    """
    low, high = row[max(pick - 1, 0)], row[min(pick + 1, len(row) - 1)]
    if low > 0:
        return np.geomspace(low, high, ZOOM_VALUES)
    return np.concatenate([[0.0], np.geomspace(row[max(pick, 1)], high, ZOOM_VALUES - 1)])


def refined_grid(found: Variances) -> Floats:
    """A grid (k, G) from a tenth of each rho_j to ten times it, for one more round.

    Only needed for many digits, or where rho_j is at an end of the first grid.
    """
    rho = (found.user / found.sigma2)[:, None]
    middle = np.where(rho > 0, rho, found.grid[:, 1:2] / 10)
    wide = middle * np.geomspace(0.1, 10, found.grid.shape[1] - 1)
    return np.concatenate([np.zeros_like(middle), wide], axis=1)


def _inverse(variance: ArrayLike) -> Floats:
    """1/variance, inf for 0."""
    with np.errstate(divide="ignore"):
        return np.asarray(1 / np.asarray(variance, np.float64))
