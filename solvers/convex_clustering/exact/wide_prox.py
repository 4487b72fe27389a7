"""The proximal operator of the sum of norms for models of many parameters.

    prox of t Omega at S:  argmin over Y of  1/2 |Y - S|^2 + t sum_{i<j} w_ij |y_i - y_j|

(Armacki et al. 2022, (3), with f_i = 1/2 |x - s_i|^2.) The operator turns with S when S is turned,
and keeps its mean, so it is computed in as many dimensions as the rows of S - mean(S) span, N - 1
at most, however many parameters a model has.

There a Newton step with an array for each edge costs too much, and is not needed: of the curvature
of |y_i - y_j| in d dimensions only one is missing in the majoriser |.|^2 / (2 |y_i - y_j|). So the
weights v_ij = t w_ij/|y_i - y_j| and Y = (I + Laplacian of v)^-1 S take turns, each a few products
of N x N matrices. mu_ij = v_ij (y_i - y_j) are feasible duals with sum_j mu_ij = s_i - y_i, so the
duality gap comes with every step. Near users are merged, their models are found to machine
precision, and the gap says whether they are the solution's clusters.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from functools import cached_property

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.sparse.csgraph import connected_components

from corsage.core.arrays import Floats, Ints

TOLERANCE = 1e-8
PROX_STEPS, POLISH = 400, 400
"""Limits of steps on all users, and on the models of one partition."""
SMOOTH = 1e-6
"""Distances in the weights are rounded off at this share of the largest: products know 1e-8."""
NEAR_SHARES = (1e-2, 1e-3, 1e-4)
"""Users at most so far from each other, as a share of the largest distance, may be one cluster."""
EVERY = 4
"""Steps between two looks at the near users."""
PROMISING = 1e-3
"""A partition whose means have a larger gap is not looked at any closer."""
STANDSTILL = 1e-14
TINY = float(np.finfo(np.float64).tiny)


@dataclass(frozen=True)
class Fused:
    """The solution: users with one label have one model.

    Parameters
    ----------
    models : the distinct models, (K, d).
    labels : which of them is a user's, (N,), numbered as they first appear.
    gap : at most so much is the value above the minimum, as a share of it.
    """

    models: Floats
    labels: Ints
    gap: float

    @property
    def rows(self) -> Floats:
        """Y (N, d)."""
        return np.asarray(self.models[self.labels])


NO_FUSION = Fused(np.zeros((0, 0)), np.zeros(0, np.int64), np.inf)


def wide_prox(
    s: Floats, t: float, start: Floats | None = None, weights: Floats | None = None
) -> Fused:
    """The prox of t Omega at S (N, d), exactly fused.

    `start` (N, d) is a guess of it; `weights` are w_ij (N, N), by default 1 for all pairs.
    """
    s = np.asarray(s, np.float64)
    if t == 0:
        return exactly(s)
    mean = s.mean(axis=0)
    basis, turned = np.linalg.qr((s - mean).T)
    a = np.ascontiguousarray(turned.T)
    guess = a if start is None else (start - mean) @ basis
    w = np.ones((len(s), len(s))) if weights is None else weights
    if not a.any():
        return Fused(mean[None], np.zeros(len(s), np.int64), 0.0)
    enough = len(s) * float(distances(a).max())  # a pull of that strength fuses two users for sure
    pulls = np.minimum(t * w, enough) * (1 - np.eye(len(s)))
    found = Search(a, pulls).run(guess)
    return Fused(mean + found.models @ basis.T, found.labels, found.gap)


def exactly(rows: Floats) -> Fused:
    """Rows as they are; equal ones are one model."""
    models, first, inverse = np.unique(rows, axis=0, return_index=True, return_inverse=True)
    order = np.argsort(first)
    return Fused(models[order], np.argsort(order)[inverse.ravel()], 0.0)


@dataclass
class Search:
    """The iteration for points a (N, r) and pulls t w_ij (N, N).

    `known`: models and values of partitions; `best` of all; `bound`: the largest dual value.
    """

    a: Floats
    pulls: Floats
    known: dict[bytes, tuple[Floats, float]] = field(default_factory=dict)
    best: Fused = NO_FUSION
    bound: float = -np.inf

    @cached_property
    def scale(self) -> float:
        """The largest distance between two points."""
        return float(distances(self.a).max())

    def run(self, y: Floats) -> Fused:
        """Steps from Y on until the gap is closed, or the best of all if it never is."""
        n = len(self.a)
        one, alone, trail = np.ones(n), np.arange(n), [y]
        for step in range(PROX_STEPS):
            length = np.sqrt(distances(y) ** 2 + (SMOOTH * self.scale) ** 2)
            y = balanced(self.a, one, self.pulls / length)
            gaps, value = distances(y), self._value(y, alone)
            self._raise(y, float((gaps / length)[self.pulls > 0].max(initial=0.0)))
            closed = value - self.bound <= TOLERANCE * value
            for labels in merged(gaps, self.scale) if closed or step % EVERY == 0 else ():
                if self._offer(*self._models(y, labels)):
                    return self.best
            if self._offer(y, alone, value):
                return replace(self.best, models=self._polished(y, alone))
            y = self._leap(trail, y, alone)
        return self.best

    def _raise(self, y: Floats, ratio: float) -> None:
        """The dual value of mu_ij = v_ij (y_i - y_j); |mu_ij| is at most `ratio` of its bound."""
        v = (self.a - y) / max(ratio, 1.0)
        self.bound = max(self.bound, float((v * self.a).sum() - np.square(v).sum() / 2))

    def _leap(self, trail: list[Floats], y: Floats, labels: Ints) -> Floats:
        """Y, or after every second step where the last two lead to, if that is better.

        Varadhan and Roland 2008: y_0 + 2 a r + a^2 v with a = |r|/|v|, r = y_1 - y_0 and
        v = (y_2 - y_1) - r.
        """
        trail.append(y)
        if len(trail) < 3:
            return y
        r = trail[1] - trail[0]
        v = trail[2] - trail[1] - r
        a = max(float(np.linalg.norm(r)) / max(float(np.linalg.norm(v)), TINY), 1.0)
        far = trail[0] + 2 * a * r + a**2 * v
        y = far if self._value(far, labels) <= self._value(y, labels) else y
        trail[:] = [y]
        return y

    def _value(self, models: Floats, labels: Ints) -> float:
        """1/2 |Y - S|^2 + t sum_{i<j} w_ij |y_i - y_j| of clusters' models."""
        apart = (self._between(labels) * distances(models)).sum() / 2
        return float(np.square(models[labels] - self.a).sum() / 2 + apart)

    def _between(self, labels: Ints) -> Floats:
        """The pulls between clusters (K, K)."""
        count = int(labels.max()) + 1
        if count == len(labels):
            return self.pulls
        member = (np.arange(count)[:, None] == labels).astype(np.float64)
        pulls = member @ self.pulls @ member.T
        np.fill_diagonal(pulls, 0.0)
        return np.asarray(pulls)

    def _models(self, y: Floats, labels: Ints) -> tuple[Floats, Ints, float]:
        """A partition's models and their value; the best ones, if its means are nearly good."""
        key = labels.tobytes()
        if key not in self.known:
            models = means(y, labels)
            value = self._value(models, labels)
            if value - self.bound > PROMISING * value:
                return models, labels, value
            models = self._polished(models, labels)
            self.known[key] = models, self._value(models, labels)
        return self.known[key][0], labels, self.known[key][1]

    def _polished(self, models: Floats, labels: Ints) -> Floats:
        """The best models (K, r) of a partition from near ones on; two that meet end it."""
        sizes, points = np.bincount(labels).astype(np.float64), means(self.a, labels)
        if len(sizes) == 1:
            return points
        pulls, still = self._between(labels), STANDSTILL * self.scale
        trail = [models]
        for _ in range(POLISH):
            gaps = distances(models)
            gaps[pulls == 0] = np.inf
            if gaps.min() < SMOOTH * self.scale:
                break
            before, models = models, balanced(points, sizes, pulls / gaps)
            if np.abs(models - before).max() <= still:
                break
            models = self._leap(trail, models, labels)
        return models

    def _offer(self, models: Floats, labels: Ints, value: float) -> bool:
        """Keep what is best so far; whether its gap is closed."""
        gap = max(value - self.bound, 0.0) / max(value, TINY)
        if gap < self.best.gap:
            self.best = Fused(models, labels, gap)
        return bool(self.best.gap <= TOLERANCE)


def merged(gaps: Floats, scale: float) -> Iterator[Ints]:
    """Partitions in which near users are one cluster, the fewest clusters first."""
    for near in NEAR_SHARES:
        count, labels = connected_components(gaps <= near * scale, directed=False)
        if count == len(gaps):
            return
        yield labels.astype(np.int64)


def means(rows: Floats, labels: Ints) -> Floats:
    """The mean row of each cluster."""
    sizes = np.bincount(labels)
    return np.asarray((np.arange(len(sizes))[:, None] == labels) @ rows / sizes[:, None])


def balanced(points: Floats, sizes: Floats, v: Floats) -> Floats:
    """argmin of sum_k n_k/2 |y_k - a_k|^2 + sum_{k<l} v_kl/2 |y_k - y_l|^2; v_kk are 0."""
    system = -v
    np.fill_diagonal(system, sizes - system.sum(axis=1))
    factor = torch.linalg.cholesky(torch.from_numpy(system))
    right = torch.from_numpy(sizes[:, None] * points)
    return np.asarray(torch.cholesky_solve(right, factor).numpy())


def distances(y: Floats) -> NDArray[np.float64]:
    """|y_i - y_j| (N, N), to 1e-8 of the largest, and symmetric to the last bit."""
    square = np.square(y).sum(axis=1)
    found = square[:, None] + square - 2 * y @ y.T
    found = np.maximum(np.maximum(found, found.T), 0.0)
    np.fill_diagonal(found, 0.0)
    return np.asarray(np.sqrt(found), np.float64)


def neighbours(s: Floats, k: int) -> Floats:
    """w_ij (N, N): 1 where one of i and j is among the k nearest of the other, else 0."""
    gaps = distances(s)
    np.fill_diagonal(gaps, np.inf)
    near = np.zeros(gaps.shape)
    np.put_along_axis(near, np.argsort(gaps, axis=1, kind="stable")[:, :k], 1.0, axis=1)
    np.fill_diagonal(near, 0.0)
    return np.asarray(np.maximum(near, near.T))
