"""The path of convex clustering of points, and the partition that it holds.

A cluster is what stays one over a long stretch of log lambda. Inside a set of points, the longest
stretch on which as many clusters, all large, hold nearly all of it is a split, if it is longer than
what a single cluster of as many points shows (`STRETCHES`); then each part is a set of its own.
Chance has longer stretches on a line than in the plane. A thin or bent band of points is nearly a
line, so that its stretches are held against those of as many dimensions as the graph says it has.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from scipy.interpolate import RegularGridInterpolator
from scipy.sparse import csr_array
from scipy.sparse.csgraph import dijkstra
from scipy.spatial import KDTree

from corsage.core.arrays import Floats, Ints
from corsage.solvers.convex_clustering.exact.edges import Edges, norms
from corsage.solvers.convex_clustering.exact.sum_of_norms import path
from corsage.solvers.convex_clustering.reading import in_order

LOG_STEP = 0.25
"""Between the logarithms of two lambda of the path."""
BOTTOM, MOSTLY_ALONE = 0.2, 0.8
"""The share of points that could join at the least lambda, and of those that are alone there."""
TOP_MARGIN = 4
"""The largest lambda by that of the proof: up to there a tolerance leaves strays nearly joined."""
SMALLEST_CLUSTER, SHARE_OF_ALL = 5, 1 / 30
"""A cluster has at least so many points, and at least that share of all."""
COVERED = 0.85
"""The share of a set that its clusters hold; the others are strays."""
OF_ABOVE, MOST_ABOVE = 0.4, 6.0
"""A split's stretch is at least that share of the stretch of the split above it; this counts for no
more, and for as much between pieces of the graph."""
BEGUN_AT, CLOSE_BY, FAR = 100, 0.1, 0.4
"""Points from which ways along the graph are measured at most; the shares of all ways that are as
long as the two lengths between which the dimension is read."""
ROUND_BLOB, LARGE_PART = 1.7, 0.25
"""The dimension that is so read of a round or square cluster in the plane, where a line has 1; the
share of a set from which on the dimension of a part counts."""
SIZES, DIMENSIONS = (50, 200, 500), (1, 2, 3, 5, 10)
STRETCHES = (
    (7.75, 7.75, 7.75),
    (1.6, 1.75, 1.75),
    (1.25, 0.75, 0.75),
    (0.25, 0.25, 0.25),
    (0.25, 0.25, 0.25),
)
"""Longest stretches in one cluster, Gaussian or uniform, that 5% of draws exceed, by dimension and
size, as `python -m corsage.experiments convex-clustering-partition --part table` prints them: 20
draws each (50 points on a line 40, 500 in the plane 10). Not measured, but put in from the nearest
of the row, or the row above: 200 and 500 points on a line, 500 in 3 dimensions, 200 and 500 in 5,
any in 10."""


@dataclass(frozen=True)
class Path:
    """The solutions along lambda, from one cluster a piece of the graph down to nearly the points.

    Parameters
    ----------
    lams : the lambda, falling (L,).
    centres : the points' centres (L, n, d).
    labels : their clusters (L, n).
    gaps : the relative duality gaps (L,).
    """

    lams: Floats
    centres: Floats
    labels: Ints
    gaps: Floats

    @property
    def clusters(self) -> Ints:
        """The number of clusters at each lambda (L,)."""
        return np.asarray(self.labels.max(1) + 1, np.int64)

    def tree(self, equal: Ints) -> Floats:
        """Scipy's linkage: clusters are joined at the least lambda at which they are one.

        Points that are `equal` are joined at 0, pieces that no edge joins at twice the largest.
        """
        n = self.labels.shape[1]
        name, size = np.arange(n), np.ones(2 * n - 1)
        rows: list[list[float]] = []
        above = [*zip(self.lams[::-1], self.labels[::-1], strict=True)]
        everybody = (2 * self.lams[0], np.zeros(n, np.int64))
        for lam, labels in [(0.0, equal), *above, everybody]:
            for label in range(int(labels.max()) + 1):
                inside = np.unique(name[labels == label])
                while len(inside) > 1:
                    new = n + len(rows)
                    size[new] = size[inside[0]] + size[inside[1]]
                    rows.append([inside[0], inside[1], lam, size[new]])
                    name[np.isin(name, inside[:2])] = new
                    inside = np.append(inside[2:], new)
        return np.asarray(rows, np.float64)


def along(points: Floats, edges: Edges, tolerance: float) -> Path:
    """The path, anchored at both ends: each piece of the graph is one, and most points are alone.

    At the top a flow proves that there is nothing to come. Below it starts where a fifth of the
    points could join a neighbour if there were none but these two.
    """
    top, bottom = ends(points, edges)
    distinct, pieces = len(np.unique(points, axis=0)), int(edges.components().max()) + 1
    while True:
        count = max(int(np.ceil(np.log(top / bottom) / LOG_STEP)), 1) + 1
        lams = bottom * np.exp(LOG_STEP * np.arange(count))[::-1]
        found = list(path(points, lams.tolist(), edges, tolerance))
        labels = np.stack([in_order(each.labels) for each in found])
        if labels[-1].max() + 1 >= MOSTLY_ALONE * distinct or count == 2:
            break
        bottom /= 4
    last = max(int(np.flatnonzero(labels.max(1) + 1 <= pieces).max(initial=0)), 0)
    kept = slice(last, None)
    centres = np.stack([each.x for each in found[kept]])
    gaps = np.array([each.relative_gap for each in found[kept]])
    return Path(lams[kept], centres, labels[kept], gaps)


def ends(points: Floats, edges: Edges) -> tuple[float, float]:
    """A lambda at which each piece is one cluster, and one at which few points are joined."""
    even = Edges(edges.i, edges.j, np.sqrt(edges.w), edges.n)
    flow = even.carry(points - means(points, edges))
    top = TOP_MARGIN * float((norms(flow) / edges.w).max(initial=0.0))
    reach = norms(edges.differences(points)) / (2 * edges.w)
    nearest = np.full(edges.n, np.inf)
    for own in (edges.i, edges.j):
        np.minimum.at(nearest, own, reach)
    apart = nearest[(nearest > 0) & np.isfinite(nearest)]
    if not top > 0 or not len(apart):
        return 1.0, 1.0  # all points of each piece are equal
    bottom = float(np.quantile(apart, BOTTOM))
    return max(top, bottom), bottom


def means(points: Floats, edges: Edges) -> Floats:
    """The mean of each connected piece, for its points."""
    pieces = edges.components()
    sums = np.zeros((int(pieces.max()) + 1, points.shape[1]))
    np.add.at(sums, pieces, points)
    return np.asarray((sums / np.bincount(pieces)[:, None])[pieces])


@dataclass(frozen=True)
class Split:
    """The longest stretch inside a set.

    Parameters
    ----------
    length : in log lambda; 0 if there is none.
    middle : the lambda in the middle of it, as a place on the path.
    """

    length: float = 0.0
    middle: int = 0


def longest(labels: Ints, least: float, most: int | None = None) -> Split:
    """The longest stretch with one number of clusters, 2 to `most`, that hold nearly the whole set.

    labels : the set's part of those of a path (L, m).
    least : points of a cluster.
    """
    counts = np.zeros(len(labels), np.int64)
    for place, row in enumerate(labels):
        sizes = np.bincount(row)
        large = sizes >= least
        if sizes[large].sum() >= COVERED * len(row):
            counts[place] = large.sum()
    counts[(counts < 2) | (counts > (most or len(labels[0])))] = 0
    starts = np.flatnonzero(np.diff(counts, prepend=-1))
    lengths = np.where(counts[starts] > 0, np.diff(starts, append=len(counts)), 0)
    best = int(np.argmax(lengths))
    return Split(LOG_STEP * float(lengths[best]), int(starts[best] + lengths[best] // 2))


def dimension(points: Floats, edges: Edges, own: Ints) -> float:
    """About the dimension of a set, along the graph: a bent band has that of a line.

    Between two lengths, the number of points that a way of such a length leads to grows as that
    power of it. The points' own dimension where there are no such ways.
    """
    d, place = float(points.shape[1]), np.full(edges.n, -1)
    place[own] = np.arange(len(own))
    i, j = place[edges.i], place[edges.j]
    inside = (i >= 0) & (j >= 0)
    lengths = norms(edges.differences(points))[inside]
    graph = csr_array((lengths, (i[inside], j[inside])), shape=(len(own), len(own)))
    begun = np.linspace(0, len(own) - 1, min(len(own), BEGUN_AT)).astype(np.int64)
    ways = dijkstra(graph, directed=False, indices=begun)
    ways = ways[(ways > 0) & np.isfinite(ways)]
    if not len(ways):
        return d
    near, far = np.quantile(ways, (CLOSE_BY, FAR))
    if not near < far:
        return d
    grown = float(np.log(FAR / CLOSE_BY) / np.log(far / near))
    return float(np.clip(1 + (grown - 1) / (ROUND_BLOB - 1), 1.0, d))


def largest_dimension(points: Floats, edges: Edges, parts: Sequence[Ints]) -> float:
    """Of the parts of a set that are not small: no part of a line is more than a line."""
    least = LARGE_PART * sum(map(len, parts))
    large = [part for part in parts if len(part) >= least] or [max(parts, key=len)]
    return max(dimension(points, edges, part) for part in large)


def threshold(n: int, d: float) -> float:
    """A stretch that a single cluster of n points in d dimensions hardly exceeds."""
    grid = np.log(DIMENSIONS), np.log(SIZES)
    place = [np.clip(np.log(v), axis[0], axis[-1]) for v, axis in zip((d, n), grid, strict=True)]
    return float(RegularGridInterpolator(grid, np.array(STRETCHES))(place)[0])


@dataclass(frozen=True)
class Partition:
    """Clusters that were read off a path.

    Parameters
    ----------
    labels : the cluster of each point (n,).
    lam : the largest lambda at which a split was read; infinite if pieces of the graph are all.
    """

    labels: Ints
    lam: float


def stable(found: Path, points: Floats, edges: Edges) -> Partition:
    """The clusters that stay long enough, from the pieces of the graph on down."""
    pieces, least = large_pieces(points, edges)
    first = MOST_ABOVE if pieces.any() else 0.0
    waiting, final, lams = [(own, first) for own in members(pieces)], list[Ints](), [np.inf]
    while waiting:
        own, above = waiting.pop()
        split = longest(found.labels[:, own], least)
        bar = max(threshold(len(own), points.shape[1]), OF_ABOVE * min(above, MOST_ABOVE))
        parts = gathered(points, own, found.labels[split.middle, own], least)
        if split.length > bar:  # ways along the graph are measured only where it matters
            bar = max(bar, threshold(len(own), largest_dimension(points, edges, parts)))
        if split.length <= bar:
            final.append(own)
            continue
        waiting += [(part, split.length) for part in parts]
        lams.append(float(found.lams[split.middle]))
    return Partition(labels_of(final, len(points)), largest(lams))


def cut(found: Path, points: Floats, edges: Edges, wanted: int) -> Partition:
    """So many clusters: the splits of the longest stretches; of small parts where need be."""
    pieces, least = large_pieces(points, edges)
    parts, lams = joined(points, members(pieces), wanted), [np.inf]
    equal = in_order(np.unique(points, axis=0, return_inverse=True)[1])
    labels = np.concatenate([found.labels, equal[None]])
    while len(parts) < wanted:
        most = wanted - len(parts) + 1
        splits = [longest(labels[:, own], least, most) for own in parts]
        chosen = int(np.argmax([split.length for split in splits]))
        split, own = splits[chosen], parts[chosen]
        if split.length > 0:
            parts[chosen : chosen + 1] = gathered(points, own, labels[split.middle, own], least)
            lams.append(float(np.append(found.lams, 0.0)[split.middle]))
        elif least > 1:
            least = max(least / 2, 1.0)
        else:
            own = max(parts, key=lambda part: len(np.unique(equal[part])))
            parts = [part for part in parts if part is not own]
            first = equal[own] == equal[own[0]]
            parts += [own[first], own[~first]]
    return Partition(labels_of(parts, len(points)), largest(lams))


def largest(lams: Sequence[float]) -> float:
    """The largest but the first; the first if it is alone."""
    return max(lams[1:], default=lams[0])


def large_pieces(points: Floats, edges: Edges) -> tuple[Ints, float]:
    """The pieces of the graph that are clusters, strays with the nearest; points of a cluster."""
    pieces = edges.components()
    least = max(SMALLEST_CLUSTER, SHARE_OF_ALL * len(points))
    least = min(least, float(np.bincount(pieces).max()))
    return labels_of(gathered(points, np.arange(len(points)), pieces, least), len(points)), least


def gathered(points: Floats, own: Ints, labels: Ints, least: float) -> list[Ints]:
    """The large clusters of a set, each with the strays that are nearest to one of its points."""
    large = (np.bincount(labels) >= least)[labels]
    found = labels.copy()
    if not large.all():
        nearest = KDTree(points[own[large]]).query(points[own[~large]])[1]
        found[~large] = labels[large][nearest]
    return [own[found == label] for label in np.unique(found)]


def joined(points: Floats, parts: list[Ints], most: int) -> list[Ints]:
    """At most so many parts: those whose points come nearest to each other become one."""
    while len(parts) > most:
        gaps = np.full((len(parts), len(parts)), np.inf)
        for a, b in zip(*np.triu_indices(len(parts), 1), strict=True):
            gaps[a, b] = KDTree(points[parts[a]]).query(points[parts[b]])[0].min()
        a, b = np.unravel_index(int(np.argmin(gaps)), gaps.shape)
        parts[a] = np.concatenate([parts[a], parts.pop(int(b))])
    return parts


def members(labels: Ints) -> list[Ints]:
    """The points of each cluster."""
    return [np.flatnonzero(labels == label) for label in range(int(labels.max()) + 1)]


def labels_of(parts: list[Ints], n: int) -> Ints:
    """The number of each point's part, 0 that of the first point."""
    found = np.empty(n, np.int64)
    for label, own in enumerate(parts):
        found[own] = label
    return in_order(found)
