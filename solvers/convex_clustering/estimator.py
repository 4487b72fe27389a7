"""Convex clustering of points as a scikit-learn estimator, with its path, its tree and a proof."""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from numbers import Integral, Real
from typing import TYPE_CHECKING, Any, Self

import numpy as np
from scipy.cluster.hierarchy import dendrogram
from sklearn.base import BaseEstimator, ClusterMixin
from sklearn.exceptions import ConvergenceWarning
from sklearn.utils._param_validation import Interval, StrOptions
from sklearn.utils.validation import check_is_fitted, validate_data

from corsage.core.arrays import Floats, Ints
from corsage.solvers.convex_clustering.exact.edges import Edges, norms
from corsage.solvers.convex_clustering.exact.partition import proved
from corsage.solvers.convex_clustering.exact.sum_of_norms import Solution, fit, path
from corsage.solvers.convex_clustering.reading import in_order

if TYPE_CHECKING:
    from matplotlib.axes import Axes

AUTO = "auto"
COUNT, LEAST_SHARE = 40, 1e-3
"""Number of lambda of a path, and its smallest as a share of the largest."""
SMALLEST_GROUP = 3
"""Points that make a cluster where lambda is looked for."""
DOUBLINGS = 40
"""Doublings of lambda until all that is joined is one."""
FINEST = 1e-14
"""The smallest gap that rounding allows."""
FARTHEST = 200.0
"""No weight is below exp of minus this: with less of one, nothing could be told."""
HUGE = 1e15
"""A lambda beyond which solvers lose their digits, in units of the points' spread."""
LOOSELY_SOLVED = (
    "convex clustering: the relative duality gap is {:.1e}, not tol={:g}: clusters may be others"
)


@dataclass(frozen=True)
class Unit:
    """Points around their mean and at most about 1 long: solvers are at home with these.

    The problem is the same there, but for lambda, which is a length. All factors are powers of 2,
    so that nothing is rounded but the means.

    Parameters
    ----------
    mean : of the points, in units of 2^large (d,).
    large, small : points / 2^large are at most 1; less their mean they are at most 2^small.
    """

    mean: Floats
    large: int
    small: int

    @classmethod
    def of(cls, points: Floats) -> Unit:
        """From the points (n, d)."""
        large = power(points)
        inside = np.ldexp(points, -large)
        mean = inside.mean(0)
        return cls(mean, large, power(inside - mean))

    def inward(self, points: Floats) -> Floats:
        """Points in these units."""
        return np.asarray(np.ldexp(np.ldexp(points, -self.large) - self.mean, -self.small))

    def outward(self, points: Floats) -> Floats:
        """The inverse."""
        return np.asarray(np.ldexp(np.ldexp(points, self.small) + self.mean, self.large))

    def length(self, lam: Any, sign: int = 1) -> Any:
        """Lambda in the points' units; with sign -1 in these."""
        with np.errstate(over="ignore"):
            return np.ldexp(np.ldexp(lam, sign * self.small), sign * self.large)


def power(values: Floats) -> int:
    """The least n with |values| < 2^n; 0 if all are 0."""
    return int(np.frexp(np.abs(values).max())[1])


@dataclass(frozen=True)
class Path:
    """The solutions along lambda, from all in one down to nearly the points.

    Parameters
    ----------
    lams : the lambda, falling (L,).
    centres : the points' centres (L, n, d).
    labels : their clusters (L, n).
    """

    lams: Floats
    centres: Floats
    labels: Ints

    @property
    def clusters(self) -> Ints:
        """The number of clusters at each lambda (L,)."""
        return np.asarray(self.labels.max(1) + 1, np.int64)


class ConvexClustering(ClusterMixin, BaseEstimator):  # type: ignore[misc]
    """Sum-of-norms clustering: min 1/2 sum |x_i - a_i|^2 + lam sum w_ij |x_i - x_j|.

    Points whose centres x_i become equal are a cluster; nobody says how many there are.

    Parameters
    ----------
    lam : the weight of the penalty; "auto": the largest of the longest stretch of log(lam) on which
        the clusters, more than one and at most half the points, stay as many, but for strays.
    n_neighbors : pairs are those of which one is among the other's so many nearest; None: all.
    gamma : w_ij = exp(-gamma |a_i - a_j|^2/s^2), s^2 the mean of |a_i - a_j|^2 over the pairs.
    tol : the relative duality gap to reach.

    Attributes
    ----------
    labels_ : the cluster of each point, 0 that of the first.
    centers_ : the clusters' centres (K, d).
    lam_ : lambda.
    path_ : the solutions along lambda (`Path`); computed when it is first asked for.
    certificate_ : at most by that share of it is the objective above its minimum.
    partition_certified_ : the clusters are proved to be the minimum's, too.
    """

    _parameter_constraints: dict[str, Any] = {  # noqa: RUF012 - as scikit-learn has it
        "lam": [StrOptions({AUTO}), Interval(Real, 0, None, closed="left")],
        "n_neighbors": [None, Interval(Integral, 1, None, closed="left")],
        "gamma": [Interval(Real, 0, None, closed="left")],
        "tol": [Interval(Real, FINEST, None, closed="left")],
    }

    def __init__(
        self,
        lam: float | str = AUTO,
        *,
        n_neighbors: int | None = 10,
        gamma: float = 1.0,
        tol: float = 1e-6,
    ) -> None:
        self.lam, self.n_neighbors, self.gamma, self.tol = lam, n_neighbors, gamma, tol

    def fit(self, X: Any, y: None = None) -> Self:  # noqa: N803 - as scikit-learn has it
        """Cluster the rows of X (n, d); y is not looked at."""
        self._validate_params()
        points = validate_data(self, X, dtype=np.float64, ensure_min_samples=2)
        self._unit = Unit.of(points)
        self._points = self._unit.inward(points)
        self._graph = self._joined(self._points)
        self._path: Path | None = None
        self.lam_ = stable(self.path_) if self.lam == AUTO else float(self.lam)
        lam = min(float(self._unit.length(self.lam_, -1)), HUGE)
        found = fit(self._points, lam, self._graph, tolerance=self.tol)
        found = proved(self._points, found, self._graph)
        self.partition_certified_ = bool(found.partition_certified)
        self.labels_, self.certificate_ = clusters_of(found), found.relative_gap
        first = np.unique(self.labels_, return_index=True)[1]
        self.centers_ = self._unit.outward(found.x[first])
        if not found.certified:
            warnings.warn(LOOSELY_SOLVED.format(self.certificate_, self.tol), ConvergenceWarning, 2)
        return self

    @property
    def path_(self) -> Path:
        """The solutions along lambda."""
        check_is_fitted(self, "_points")
        if self._path is None:
            inner = along(self._points, self._graph, self.tol)
            centres = self._unit.outward(inner.centres)
            self._path = Path(self._unit.length(inner.lams), centres, inner.labels)
        return self._path

    @property
    def merges_(self) -> Floats:
        """The tree of the path, as scipy's linkage (n - 1, 4): heights are lambda."""
        return tree(self.path_)

    def plot_path(self, ax: Axes | None = None) -> Axes:
        """The centres as lambda grows, along the points' two main directions."""
        axes, found = axes_or_new(ax), self.path_
        directions = np.linalg.svd(self._points, full_matrices=False)[2][:2]
        mean = self._unit.outward(np.zeros(self._points.shape[1]))
        places = (found.centres - mean) @ directions.T
        flat = places if places.shape[2] == 2 else np.insert(places, 1, 0.0, axis=2)
        for i, label in enumerate(self.labels_):
            axes.plot(flat[:, i, 0], flat[:, i, 1], color=f"C{label % 10}", lw=0.8, alpha=0.6)
            axes.plot(*flat[-1, i], "o", color=f"C{label % 10}", ms=3)
        axes.set_title(f"{found.clusters[0]} to {found.clusters[-1]} clusters along lambda")
        return axes

    def plot_dendrogram(self, ax: Axes | None = None) -> Axes:
        """The tree of the path; the line is at this lambda."""
        axes = axes_or_new(ax)
        dendrogram(
            self.merges_, ax=axes, color_threshold=self.lam_, no_labels=len(self.labels_) > 60
        )
        axes.set_yscale("log")
        axes.set_ylim(self.path_.lams[-1] / 2, self.path_.lams[0] * 2)
        axes.axhline(max(self.lam_, self.path_.lams[-1] / 2), color="0.5", lw=0.8, ls="--")
        axes.set_ylabel("lambda")
        return axes

    def _joined(self, points: Floats) -> Edges:
        """The graph of the penalty."""
        n, some = len(points), self.n_neighbors
        nearby = some is not None and some < n - 1
        pairs = Edges.knn(points, int(some or 1)) if nearby else Edges.all_pairs(n)
        apart, tiny = np.square(pairs.differences(points)).sum(1), np.finfo(np.float64).tiny
        w = np.exp(-np.minimum(self.gamma * (apart / max(float(apart.mean()), tiny)), FARTHEST))
        return Edges(pairs.i, pairs.j, w, n)


def along(points: Floats, edges: Edges, tolerance: float) -> Path:
    """The path, from the first lambda at which each piece of the graph is one cluster."""
    top = highest(points, edges, tolerance)
    lams = np.geomspace(top, LEAST_SHARE * top, COUNT)
    found = list(path(points, lams.tolist(), edges, tolerance))
    labels = np.stack([clusters_of(each) for each in found])
    return Path(lams, np.stack([each.x for each in found]), labels)


def highest(points: Floats, edges: Edges, tolerance: float) -> float:
    """A lambda at which there are as few clusters as there can be, at most twice the least one."""
    wanted = len(np.unique(means(points, edges), axis=0))
    pull = 2 * float(edges.w.sum()) / len(points) + 1
    lam = float(norms(points - points.mean(0)).max()) / pull or 1.0
    for _ in range(DOUBLINGS):
        if clusters_of(fit(points, lam, edges, tolerance=tolerance)).max() + 1 <= wanted:
            break
        lam *= 2
    return lam


def means(points: Floats, edges: Edges) -> Floats:
    """The mean of each connected piece, for its points."""
    pieces = edges.components()
    sums = np.zeros((int(pieces.max()) + 1, points.shape[1]))
    np.add.at(sums, pieces, points)
    return np.asarray((sums / np.bincount(pieces)[:, None])[pieces])


def clusters_of(found: Solution) -> Ints:
    """Points with equal centres; an edge between them is not needed."""
    return in_order(found.labels)


def stable(found: Path) -> float:
    """The largest lambda of the longest stretch with one number of clusters, but for strays.

    Strays are points in clusters of fewer than SMALLEST_GROUP; they are the last to join others.
    """
    n = found.labels.shape[1]
    least = min(SMALLEST_GROUP, max(n // 4, 1))
    counts = np.array([int((np.bincount(own) >= least).sum()) for own in found.labels])
    starts = np.flatnonzero(np.diff(counts, prepend=-1))
    ends = np.append(starts[1:], len(counts))
    fine = (counts[starts] > 1) & (found.clusters[starts] <= max(n // 2, 2))
    if not fine.any():
        return float(found.lams[0])
    return float(found.lams[starts[int(np.argmax(np.where(fine, ends - starts, -1)))]])


def tree(found: Path) -> Floats:
    """Scipy's linkage: clusters are joined at the least lambda at which they are one."""
    n = found.labels.shape[1]
    name, size = np.arange(n), np.ones(2 * n - 1)
    rows: list[list[float]] = []
    levels = list(zip(found.lams[::-1], found.labels[::-1], strict=True))
    levels.append((2 * found.lams[0], np.zeros(n, np.int64)))  # pieces that no edge joins
    for lam, labels in levels:
        for label in range(int(labels.max()) + 1):
            inside = np.unique(name[labels == label])
            while len(inside) > 1:
                new = n + len(rows)
                size[new] = size[inside[0]] + size[inside[1]]
                rows.append([inside[0], inside[1], lam, size[new]])
                name[np.isin(name, inside[:2])] = new
                inside = np.append(inside[2:], new)
    return np.asarray(rows, np.float64)


def axes_or_new(ax: Axes | None) -> Axes:
    """The axes that are given, or the current ones."""
    if ax is not None:
        return ax
    from matplotlib import pyplot

    return pyplot.gca()
