"""When the sum-of-norms problem recovers a partition: section III of Armacki et al. 2022.

A partition is `labels` (N,), the cluster 0..K-1 of each user. All lam are canonical, that of
P(X) = sum_i f_i(x_i) + lam sum_{i<j} w_ij |x_i - x_j|. Theorems 1 and 2 are sufficient and far
from tight; the flow test is exact.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from corsage.core.arrays import Floats, Ints
from corsage.solvers.convex_clustering.exact.certificate import Problem
from corsage.solvers.convex_clustering.exact.edges import Edges, norms
from corsage.solvers.convex_clustering.exact.merged import Merged
from corsage.solvers.convex_clustering.exact.partition import LEFT_OVER, REDUCED_GAP, passes, proved
from corsage.solvers.convex_clustering.exact.sum_of_norms import costs_of, fit, prox
from corsage.solvers.losses.convex import Losses

DISTINCT = 1e-7
"""Cluster models nearer than this share of the largest are one."""
DIGITS = 1e-7
"""Relative width at which the bisection for a window ends."""
STRIDE, TINIEST = 1.05, 1e-6
"""First factor of the search for a window's ends, and where there is none: 0 or infinity."""
TINY = float(np.finfo(np.float64).tiny)


@dataclass(frozen=True)
class Reduced:
    """A solution of (5).

    Parameters
    ----------
    labels : the partition (N,).
    w : the clusters' models (K, d).
    r : r_kl of (8) on the edges between users of different clusters, 0 on the others (E, d).
    """

    labels: Ints
    w: Floats
    r: Floats

    @property
    def x(self) -> Floats:
        """The models of all users, as in (11)."""
        return np.asarray(self.w[self.labels])

    @property
    def distinct(self) -> bool:
        """True if no two clusters have the same model."""
        k, m = np.triu_indices(len(self.w), 1)
        nearest = norms(self.w[k] - self.w[m]).min(initial=np.inf)
        return bool(nearest > DISTINCT * norms(self.w).max())


def reduced(losses: Losses, labels: Ints, lam: float, edges: Edges) -> Reduced:
    """Solve (5): one model a cluster, weights n_k n_l (or the sums of w_ij)."""
    count = int(labels.max()) + 1
    between = edges.merged(labels, count)
    solved = fit(Merged(losses, labels), lam, between, tolerance=REDUCED_GAP)
    unit = solved.mu / (lam * between.w)[:, None]
    first, second = labels[edges.i], labels[edges.j]
    across = first != second
    codes = np.minimum(first, second) * count + np.maximum(first, second)
    r = np.zeros((len(edges), losses.d), order="F")
    place = np.searchsorted(between.codes, codes[across])
    r[across] = np.where(first < second, 1.0, -1.0)[across, None] * unit[place]
    return Reduced(labels, solved.x, r)


@dataclass(frozen=True)
class Known:
    """Gradients of all users at some points, known before; by the bytes of the points."""

    found: Mapping[bytes, Floats]
    device: str = "cpu"

    def gradient(self, x: Tensor) -> Tensor:
        """nabla f_i(x_i)."""
        return torch.from_numpy(self.found[np.ascontiguousarray(x.numpy()).tobytes()].copy())


Gradients = Losses | Known


# Bounds on lam where all pairs of users have the weight 1.


def theorem1(losses: Gradients, labels: Ints, w: Floats) -> float:
    """The right side of (6): with lam at least that, the partition is a solution."""
    bounds = [
        np.linalg.norm(own[:, None] - own, axis=-1).max() / len(own)
        for own in _by_cluster(gradients(losses, w[labels]), labels)
    ]
    return float(max(bounds))


def theorem2(losses: Gradients, labels: Ints, w: Floats) -> float:
    """The right side of (13): with lam below that, no two clusters are one.

    Both gradients of a difference are at one point, the model of one of the two clusters.
    """
    sizes, least = np.bincount(labels), np.inf
    for k, own in enumerate(w):
        at_k = gradients(losses, np.broadcast_to(own, (len(labels), len(own))))
        means = np.stack([each.mean(0) for each in _by_cluster(at_k, labels)])
        others = np.delete(means, k, axis=0) - means[k]
        least = min(least, norms(others).min(initial=np.inf))
    return float(least / (2 * max(len(labels) - int(sizes.min()), TINY)))


def necessary(losses: Gradients, labels: Ints, w: Floats) -> float:
    """max |grad f_i(w_k) - mean over k|/(n_k - 1): with a smaller lam it is no solution."""
    bounds = [
        norms(own - own.mean(0)).max() / (len(own) - 1)
        for own in _by_cluster(gradients(losses, w[labels]), labels)
        if len(own) > 1
    ]
    return float(max(bounds, default=0.0))


def gradients(losses: Gradients, x: Floats) -> Floats:
    """nabla f_i(x_i), (N, d)."""
    at = torch.from_numpy(np.array(x)).to(losses.device)
    return np.asarray(losses.gradient(at).cpu().numpy())


def _by_cluster(own: Floats, labels: Ints) -> list[Floats]:
    """The rows of each cluster's users."""
    return [own[labels == k] for k in range(int(labels.max()) + 1)]


# The exact test.


@dataclass(frozen=True)
class Flow:
    """A flow of the users' gradients over the edges inside clusters.

    Parameters
    ----------
    left : the largest |prox_{lam Omega}(q)_i| of a cluster, as a share of the largest gradient.
    mu : duals of the whole problem (E, d), |mu_ij| <= lam w_ij.
    """

    left: float
    mu: Floats

    @property
    def optimal(self) -> bool:
        """True if the models are a solution: nothing is left over."""
        return self.left <= LEFT_OVER


def flow(losses: Losses, solved: Reduced, lam: float, edges: Edges) -> Flow:
    """True if prox_{lam Omega}(q) = 0 in each cluster, with q what its inner edges must carry.

    q_i = -(grad f_i(w_k) + lam sum_{l != k} n_l r_kl), the sum over users j of other clusters.
    """
    mu = lam * edges.w[:, None] * solved.r
    own = gradients(losses, solved.x)
    q = -(own + edges.adjoint(mu))
    force = max(float(norms(own).max()), lam * float(edges.w.sum()) / edges.n, TINY)
    inside, left = solved.labels[edges.i] == solved.labels[edges.j], 0.0
    for k in range(len(solved.w)):
        members = np.flatnonzero(solved.labels == k)
        at = inside & (solved.labels[edges.i] == k)
        ends = np.searchsorted(members, np.stack([edges.i[at], edges.j[at]]))
        inner = Edges(ends[0], ends[1], edges.w[at], len(members))
        need = q[members] - q[members].mean(0)  # the mean is 0 but for what (5) is solved to
        rest, mu[at] = prox(need, lam, inner)
        left = max(left, float(norms(rest).max()))
    return Flow(left / force, mu)


def recovers(losses: Losses, labels: Ints, lam: float, edges: Edges) -> bool:
    """True if the solution at lam is this partition, with different models for its clusters."""
    solved = reduced(losses, labels, lam, edges)
    return solved.distinct and flow(losses, solved, lam, edges).optimal


def window(
    losses: Losses | Floats, labels: Ints, lam: float, edges: Edges
) -> tuple[float, float] | None:
    """The interval around lam in which the partition is recovered; None if it is not at lam.

    Below it, clusters fall apart (the flow test fails); above it, two of them meet.
    """
    costs = costs_of(losses)
    x = np.nan_to_num(costs.minimise())

    def holds(value: float) -> bool:
        return passes(Problem(costs, edges, value), labels, x)

    if not holds(lam):
        return None
    return _border(holds, lam, 1 / STRIDE), _border(holds, lam, STRIDE)


@dataclass(frozen=True)
class Window:
    """An interval of lambda on which a partition is the solution's, and the clusters (N,)."""

    low: float
    high: float
    labels: Ints


def windows(losses: Losses | Floats, lams: Iterable[float], edges: Edges) -> list[Window]:
    """All intervals that hold one of the lambda, from the lowest up, each proved at both its ends.

    Lambda at which no partition is proved are in none.
    """
    found: list[Window] = []
    for lam in sorted(lams):
        if found and lam <= found[-1].high:
            continue
        solution = proved(losses, fit(losses, lam, edges), edges)
        around = solution.partition_certified and window(losses, solution.labels, lam, edges)
        if around:
            found.append(Window(*around, solution.labels))
    return found


def _border(holds: Callable[[float], bool], start: float, stride: float) -> float:
    """The end of what `holds`, from `start` by ever longer strides, then by bisection."""
    inside, outside = start, start * stride
    while holds(outside):
        inside, stride = outside, stride * stride
        outside = inside * stride
        if not TINIEST < outside / start < 1 / TINIEST:
            return 0.0 if stride < 1 else np.inf
    while abs(outside - inside) > DIGITS * inside:
        middle = (inside + outside) / 2
        inside, outside = (middle, outside) if holds(middle) else (inside, middle)
    return inside
