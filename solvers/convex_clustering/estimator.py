"""Convex clustering of points as a scikit-learn estimator, with its path, its tree and a proof."""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from numbers import Integral, Real
from typing import TYPE_CHECKING, Any, Self

import numpy as np
from scipy.cluster.hierarchy import dendrogram
from scipy.spatial import KDTree
from sklearn.base import BaseEstimator, ClusterMixin
from sklearn.exceptions import ConvergenceWarning
from sklearn.utils._param_validation import Interval, StrOptions
from sklearn.utils.validation import check_is_fitted, validate_data

from corsage.core.arrays import Floats, Ints
from corsage.solvers.convex_clustering.exact.edges import Edges
from corsage.solvers.convex_clustering.exact.partition import proved
from corsage.solvers.convex_clustering.exact.sum_of_norms import fit
from corsage.solvers.convex_clustering.points_path import Path, along, cut, means, stable
from corsage.solvers.convex_clustering.reading import in_order

if TYPE_CHECKING:
    from matplotlib.axes import Axes

AUTO = "auto"
FINEST = 1e-14
"""The smallest gap that rounding allows."""
FARTHEST = 15.0
"""No weight is below exp of minus this: a stray would keep the path from its end."""
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


class ConvexClustering(ClusterMixin, BaseEstimator):  # type: ignore[misc]
    """Sum-of-norms clustering: min 1/2 sum |x_i - a_i|^2 + lam sum w_ij |x_i - x_j|.

    Points whose centres x_i become equal are a cluster; nobody says how many there are.

    Parameters
    ----------
    lam : the weight of the penalty; inf: one cluster for each piece of the graph. "auto": clusters
        are read off the path, each at its own lambda: those that stay longer than chance lets them.
    n_clusters : so many are read off the path; with lam="auto" only.
    n_neighbors : pairs are those of which one is among the other's so many nearest; None: all.
    gamma : w_ij = exp(-gamma |a_i - a_j|^2/s^2), s^2 the mean of |a_i - a_j|^2 over the pairs.
    tol : the relative duality gap to reach.

    Attributes
    ----------
    labels_ : the cluster of each point, 0 that of the first.
    cluster_centers_ : those of the solution at lam; of clusters off the path their means (K, d).
    lam_ : lambda; of clusters off the path the largest at which one was told from another.
    path_ : the solutions along lambda (`Path`); computed when it is first asked for.
    certificate_ : at most by that share of it is the objective above its minimum, at lam or on all
        of the path.
    partition_certified_ : the clusters at lam are proved to be the minimum's; None of clusters off
        the path, which are of no single lambda.
    """

    _parameter_constraints: dict[str, Any] = {  # noqa: RUF012 - as scikit-learn has it
        "lam": [StrOptions({AUTO}), Interval(Real, 0, None, closed="both")],
        "n_clusters": [None, Interval(Integral, 1, None, closed="left")],
        "n_neighbors": [None, Interval(Integral, 1, None, closed="left")],
        "gamma": [Interval(Real, 0, None, closed="left")],
        "tol": [Interval(Real, FINEST, None, closed="left")],
    }

    def __init__(
        self,
        lam: float | str = AUTO,
        *,
        n_clusters: int | None = None,
        n_neighbors: int | None = 10,
        gamma: float = 3.0,
        tol: float = 1e-6,
    ) -> None:
        self.lam, self.n_clusters, self.tol = lam, n_clusters, tol
        self.n_neighbors, self.gamma = n_neighbors, gamma

    def fit(self, X: Any, y: None = None) -> Self:  # noqa: N803 - as scikit-learn has it
        """Cluster the rows of X (n, d); y is not looked at."""
        self._validate_params()
        points = validate_data(self, X, dtype=np.float64, ensure_min_samples=2)
        self._unit = Unit.of(points)
        self._points = self._unit.inward(points)
        self._graph = self._joined(self._points)
        self._path: Path | None = None
        self.partition_certified_: bool | None = None
        self._refuse()
        centres = self._off_the_path() if self.lam == AUTO else self._at(float(self.lam))
        self.cluster_centers_ = self._unit.outward(centres)
        if not self.certificate_ <= self.tol:
            warnings.warn(LOOSELY_SOLVED.format(self.certificate_, self.tol), ConvergenceWarning, 2)
        return self

    def predict(self, X: Any) -> Ints:  # noqa: N803 - as scikit-learn has it
        """The cluster of the nearest of the points that were clustered: clusters may be bent."""
        check_is_fitted(self, "labels_")
        points = validate_data(self, X, dtype=np.float64, reset=False)
        nearest = KDTree(self._points).query(self._unit.inward(points))[1]
        return np.asarray(self.labels_[nearest])

    def _refuse(self) -> None:
        """Refuse what is no problem."""
        wanted, distinct = self.n_clusters, len(np.unique(self._points, axis=0))
        if wanted is None:
            return
        if self.lam != AUTO:
            raise ValueError("n_clusters is read off the path: with it, lam must be 'auto'.")
        if wanted > distinct:
            raise ValueError(f"n_clusters={wanted}: there are {distinct} different points only.")

    def _off_the_path(self) -> Floats:
        """Clusters that last, or as many as are wanted; their means."""
        found = self._inner()
        chosen = (
            stable(found, self._points, self._graph)
            if self.n_clusters is None
            else cut(found, self._points, self._graph, self.n_clusters)
        )
        self.labels_, self.lam_ = chosen.labels, float(self._unit.length(chosen.lam))
        self.certificate_ = float(found.gaps.max())
        count = np.arange(chosen.labels.max() + 1)
        return np.stack([self._points[self.labels_ == label].mean(0) for label in count])

    def _at(self, lam: float) -> Floats:
        """The solution at a lambda; its clusters' centres."""
        self.lam_ = lam
        if np.isinf(lam):
            self.labels_, self.certificate_ = self._graph.components(), 0.0
            self.partition_certified_ = True
            return means(self._points, self._graph)[np.unique(self.labels_, return_index=True)[1]]
        inner = min(float(self._unit.length(lam, -1)), HUGE)
        found = fit(self._points, inner, self._graph, tolerance=self.tol)
        found = proved(self._points, found, self._graph)
        self.partition_certified_ = found.partition_certified
        self.labels_, self.certificate_ = in_order(found.labels), found.relative_gap
        return found.x[np.unique(self.labels_, return_index=True)[1]]

    def _inner(self) -> Path:
        """The path in the solvers' units."""
        if self._path is None:
            self._path = along(self._points, self._graph, self.tol)
        return self._path

    @property
    def path_(self) -> Path:
        """The solutions along lambda."""
        check_is_fitted(self, "_points")
        inner = self._inner()
        lams, centres = self._unit.length(inner.lams), self._unit.outward(inner.centres)
        return Path(lams, centres, inner.labels, inner.gaps)

    @property
    def merges_(self) -> Floats:
        """The tree of the path, as scipy's linkage (n - 1, 4): heights are lambda, 0 at points."""
        return self.path_.tree(in_order(np.unique(self._points, axis=0, return_inverse=True)[1]))

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


def axes_or_new(ax: Axes | None) -> Axes:
    """The axes that are given, or the current ones."""
    if ax is not None:
        return ax
    from matplotlib import pyplot

    return pyplot.gca()
