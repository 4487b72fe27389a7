"""Clusters of users, read off models that are only nearly fused.

Neither "z_ij is exactly zero" nor a fixed distance is reliable: an iterate is never quite fused,
and how far it is from it depends on lam and on the losses. So the largest relative gap between
distances proposes a partition, the reduced problem (5) of Armacki et al. 2022 is solved for it, and
only a certificate makes it exact.

A partition is `labels` (N,): the cluster of each user, numbered as they first appear.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice

import numpy as np
import torch
from scipy.cluster.hierarchy import cut_tree, linkage
from scipy.optimize import minimize

from corsage.core.arrays import Floats, Ints
from corsage.solvers.convex_clustering.exact.certificate import Problem, feasible
from corsage.solvers.convex_clustering.exact.costs import LossCosts
from corsage.solvers.convex_clustering.exact.edges import Edges, norms
from corsage.solvers.convex_clustering.exact.merged import Merged
from corsage.solvers.convex_clustering.exact.partition import proved
from corsage.solvers.convex_clustering.exact.sum_of_norms import Solution
from corsage.solvers.convex_clustering.recovery import flow, reduced
from corsage.solvers.losses.convex import Losses

FUSED = 1e-8
"""Distances below this share of the largest model's length are none."""
EXACT_GAP = 1e-10
"""A certified gap below this share of the objective makes a partition exact.

That of the solution is 1e-15 or so; a user in the wrong one of two clusters that are near each
other can cost no more than 1e-8.
"""
SMALL_SLOPE, SLOPES_ASKED = 1e-3, 200
"""Of the slope at 0 what may be left of a minimum that is looked for without Hessians; steps."""
CANDIDATES = 4
"""Candidates that are tried: where clusters are near each other, the first is not theirs."""


@dataclass(frozen=True)
class Partition:
    """A partition, and its fused models.

    Parameters
    ----------
    labels : the cluster of each user (N,).
    exact : the certificate holds: the solution at this lam has these clusters, all different.
    gap : how far from optimal the fused models can be at most, relative to the objective.
    models : the fused models (K, d), the solution of (5).
    """

    labels: Ints
    exact: bool
    gap: float
    models: Floats


def candidates(x: Floats, most: int | None = None) -> Iterator[Ints]:
    """Partitions by the ratio of successive heights of the dendrogram of X, largest ratio first.

    Average linkage; among the partitions into at most `most` clusters. One cluster if all models
    are the same, else at least two, never N.
    """
    n = len(x)
    floor = FUSED * max(float(norms(x).max()), FUSED)
    tree = linkage(x, "average") if n > 1 else np.zeros((0, 4))
    heights = np.maximum(tree[:, 2], floor)  # of the merges, lowest first
    if n == 1 or heights[-1] <= floor:
        yield np.zeros(n, np.int64)
        return
    counts = np.arange(2, min(most or n - 1, n - 1) + 1)
    ratios = heights[n - counts] / heights[n - counts - 1]
    cuts = cut_tree(tree, n_clusters=counts)
    for place in np.argsort(-ratios, kind="stable"):
        yield in_order(cuts[:, place])


def candidate(x: Floats) -> Ints | None:
    """The first of `candidates`; None if there is none."""
    return next(candidates(x), None)


def linked(x: Floats, count: int) -> Ints:
    """`count` clusters by average linkage."""
    if len(x) == 1:
        return np.zeros(1, np.int64)
    return in_order(cut_tree(linkage(x, "average"), n_clusters=[count])[:, 0])


def fused(x: Floats, tolerance: float = 1e-6) -> Ints:
    """Users whose models are the same up to a share of the largest: for exact solutions."""
    if len(x) == 1:
        return np.zeros(1, np.int64)
    tree = linkage(x, "single")
    reach = tolerance * float(np.linalg.norm(x, axis=1).max())
    return in_order(cut_tree(tree, height=reach)[:, 0])


def in_order(labels: Ints) -> Ints:
    """The same partition, its clusters numbered 0, 1, ... as they first appear."""
    _, first, places = np.unique(labels, return_index=True, return_inverse=True)
    return np.asarray(np.argsort(np.argsort(first))[places.ravel()], np.int64)


def read(losses: Losses, x: Floats, lam: float, edges: Edges) -> Partition:
    """The partition that the flow test proves from X on; or the first candidate with a certificate.

    If none of the first few is, it is the likeliest. That every user is its own cluster is tried
    last: only where no two models are the same, and it is said only with a certificate.
    """
    sure = proved(losses, unsolved(x, lam, edges), edges)
    if sure.partition_certified:
        labels = in_order(sure.labels)
        w = sure.x[np.unique(labels, return_index=True)[1]]
        return Partition(labels, True, sure.relative_gap, w)
    alone = np.arange(len(x))
    proposed = list(islice(candidates(x), CANDIDATES))
    if not proposed or len(np.unique(fused(x))) == len(x):
        proposed.append(alone)
    found = []
    for labels in proposed:
        found.append(judged(losses, labels, lam, edges))
        if found[-1].exact:
            return found[-1]
    return found[0]


def unsolved(x: Floats, lam: float, edges: Edges) -> Solution:
    """Models of which nothing is known, as a solution to be proved."""
    mu = np.zeros((len(edges), x.shape[1]), order="F")
    return Solution(x, mu, lam, np.nan, np.inf, np.inf, False, 0)


def judged(losses: Losses, labels: Ints, lam: float, edges: Edges) -> Partition:
    """A partition's fused models, and whether they are a solution at lam."""
    solved = reduced(losses, labels, lam, edges)
    problem = Problem(LossCosts(losses), edges, lam)
    carried = feasible(flow(losses, solved, lam, edges).mu, problem.radius)
    gap = problem.relative(problem.gap(solved.x, carried), solved.x)
    return Partition(labels, gap <= EXACT_GAP and solved.distinct, gap, solved.w)


def refit(losses: Losses, labels: Ints) -> Floats:
    """argmin over w_k of the sum of its users' f_i, (K, d): no pull between the clusters."""
    return np.asarray(Merged(losses, labels).minimise().cpu().numpy(), np.float64)


def refit_by_slopes(losses: Losses, labels: Ints) -> Floats:
    """The same by values and slopes alone (L-BFGS): a Hessian of a thousand numbers is a million.

    NaN where the slope is not small after as many steps.
    """
    merged = Merged(losses, labels)
    shape = merged.n, merged.d

    def at(flat: Floats) -> tuple[float, Floats]:
        x = torch.from_numpy(flat.reshape(shape).copy())
        return float(merged.value(x).sum()), merged.gradient(x).numpy().ravel()

    start = np.zeros(merged.n * merged.d)
    options = {"maxiter": SLOPES_ASKED, "maxcor": 20, "ftol": 0.0, "gtol": 1e-9}
    found = minimize(at, start, jac=True, method="L-BFGS-B", options=options).x
    left, first = (norms(at(flat)[1].reshape(shape)) for flat in (found, start))
    return np.where((left <= SMALL_SLOPE * first)[:, None], found.reshape(shape), np.nan)


def refitted_models(
    losses: Losses, labels: Ints, x: Floats, by_slopes: bool = False
) -> tuple[Floats, int]:
    """The clusters' own models, one row a user; clusters that have none keep the mean of theirs.

    Returns how many these are, too.
    """
    models = (refit_by_slopes if by_slopes else refit)(losses, labels)
    usable = np.isfinite(models.sum(1))
    means = np.stack([x[labels == k].mean(0) for k in range(len(models))])
    return np.where(usable[:, None], models, means)[labels], int((~usable).sum())


def within_distance(x: Floats, labels: Ints) -> float:
    """The mean distance between two users' models over all pairs of a cluster."""
    i, j = np.triu_indices(len(x), 1)
    same = labels[i] == labels[j]
    if not same.any():
        return 0.0
    return float(np.linalg.norm(x[i[same]] - x[j[same]], axis=1).mean())
