"""lambda and clusters without knowing their number: `lambda = auto` and `clusters`.

For models, the best lambda is that of the least loss on held-out samples. For clusters, whole
procedures compete, and each is done anew without each fold's samples: one model for all, each
user's own, the models along the path of lambda, and the own models of clusters that are found along
it, by k-means or by Ward's linkage of local models. What they lose on the samples that they have
not seen decides. Clusters are taken only if they are better than the better one of no clusters and
no sharing by more than chance explains.
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from scipy.cluster.hierarchy import cut_tree, linkage
from scipy.cluster.vq import kmeans2

from corsage.core.arrays import Floats, Ints
from corsage.core.errors import ModelError
from corsage.core.seeding import generator
from corsage.solvers.convex_clustering.batched import Users, consensus
from corsage.solvers.convex_clustering.edges import Edges
from corsage.solvers.convex_clustering.newton import Clusters, Penalty, Solved, Task
from corsage.solvers.convex_clustering.reading import candidate, in_order
from corsage.solvers.losses.held_out import Fold

GRID, COARSE, LOWEST = 30, 15, 1 / 50
"""How many lambda are tried, for models and in each fold; the least as a share of the largest."""
SMALLEST, MOST = 3, 10
"""Users a cluster of the path has at least, and clusters there are at most."""
STARTS = 5
"""Runs of k-means for each number of clusters."""
SURE = 1.64
"""Standard errors by which clusters must be better than no clusters: 5% of false alarms."""
PATH, ROUGH = 6, 1e-4
"""Exchanges that a path takes at most; the relative gap of what is only judged."""
REFITS = 5
"""Exchanges that the clusters' models take at most."""
HOPELESS = 0.5
"""A relative gap of the global model that says that there is none."""

HOLD_OUT = Fold("models", 0, 0.3)
CROSS = tuple(Fold("clusters", number, 0.2) for number in range(5))

GLOBAL, LOCAL, MODELS, KMEANS, WARD, LAMBDA = (
    "one model", "own models", "sum of norms", "k-means", "Ward", "path"
)  # fmt: skip


@dataclass(frozen=True)
class ModelChoice:
    """The lam of the least hold-out loss; `scores` are the mean losses at `lams`."""

    lam: float
    lams: Floats
    scores: Floats


@dataclass(frozen=True)
class Candidate:
    """A procedure, and what its models lose on samples that they were not made of.

    Parameters
    ----------
    kind : which one.
    place : the place of its lambda on the grid, or its number of clusters.
    losses : of each user (N,), the mean over the folds; NaN where it has no such samples.
    clusters : how many there are on all samples; N with models of one's own.
    """

    kind: str
    place: int
    losses: Floats
    clusters: int

    @property
    def score(self) -> float:
        """The mean over the users."""
        return float(np.nanmean(self.losses))

    def gain(self, other: Candidate) -> tuple[float, float]:
        """By how much it loses less than another, and the standard error of that."""
        gains = other.losses - self.losses
        return float(np.nanmean(gains)), standard_error(gains)

    def beats(self, other: Candidate, errors: float) -> bool:
        """Whether it is better by more than so many standard errors."""
        gain, error = self.gain(other)
        return gain > errors * error


@dataclass(frozen=True)
class ClusterChoice:
    """What was chosen.

    Parameters
    ----------
    chosen : the best procedure.
    labels : its clusters on all samples (N,); of models along the path those of its lambda.
    models : its models (N, d).
    lam : its lambda; for clusters of local models the best one of the path.
    base : the better one of one model and own models.
    candidates : all procedures.
    softer : the best models along the path.
    """

    chosen: Candidate
    labels: Ints
    models: Floats
    lam: float
    base: Candidate
    candidates: tuple[Candidate, ...]
    softer: Candidate

    @property
    def refit_is_better(self) -> bool:
        """Whether the chosen clusters' own models lose no more than models along the path."""
        return self.chosen.kind != MODELS and self.chosen.score <= self.softer.score


def standard_error(values: Floats) -> float:
    """Of the mean over those users who have a value."""
    known = values[~np.isnan(values)]
    return float(known.std(ddof=1) / np.sqrt(len(known))) if len(known) > 1 else np.inf


def mean_of_known(scores: Floats) -> Floats:
    """The mean over the first axis of what is not NaN; NaN where all are."""
    known = ~np.isnan(scores)
    count = known.sum(0)
    return np.where(count > 0, np.where(known, scores, 0.0).sum(0) / np.maximum(count, 1), np.nan)


def one_cluster(count: int) -> Ints:
    """The partition with one cluster."""
    return np.zeros(count, np.int64)


def grids(users: Users, edges: Edges, folds: Sequence[Fold | None], count: int) -> list[Floats]:
    """For each fold lambda from consensus on down; local models must have been asked for.

    A federation without a best model for all is refused here, before the path is begun.
    """
    tasks = [Task(Clusters(one_cluster(users.n)), fold) for fold in folds]
    found = users.solve(tasks, most=1)
    if not all(each.gap <= HOPELESS for each in found):
        found = users.solve(tasks, most=PATH)
    if not all(each.gap <= HOPELESS for each in found):
        raise ModelError(
            "lambda=auto: all users' samples together have no best model (a plane separates their "
            "classes, or inputs are huge): set ridge=0.001, a number for lambda, or scale inputs."
        )
    tops = [consensus(each, edges) for each in found]
    return [np.asarray(np.geomspace(top, LOWEST * top, count)) for top in tops]


def choose_for_models(users: Users, edges: Edges) -> ModelChoice:
    """The lam whose models, from 70% of each user's samples, lose the least on the other 30%."""
    users.local([HOLD_OUT])
    (lams,) = grids(users, edges, [HOLD_OUT], GRID)
    tasks = [Task(Penalty(lam, edges), HOLD_OUT) for lam in lams.tolist()]
    scores = [float(np.nanmean(each.held)) for each in users.solve(tasks, most=PATH)]
    return ModelChoice(float(lams[np.argmin(scores)]), lams, np.array(scores))


def choose_for_clusters(users: Users, edges: Edges, seed: int = 0) -> ClusterChoice:
    """The best procedure by cross-validation; see above."""
    folds = (None, *CROSS)
    local = dict(zip(folds, users.local(folds), strict=True))
    lams = dict(zip(folds, grids(users, edges, folds, COARSE), strict=True))
    paths = along(users, edges, lams)
    wanted = {
        fold: partitions(local[fold], [each.x for each in paths[fold]], seed) for fold in folds
    }
    refits = refitted(users, wanted)
    found = tuple(judged(paths, wanted, refits))
    chosen, base, softer = chosen_of(found)
    lam = {GLOBAL: float(lams[None][0]), LOCAL: 0.0}.get(chosen.kind)
    if lam is None:
        place = chosen.place if chosen.kind in (MODELS, LAMBDA) else softer.place
        lam = float(lams[None][place])
    if chosen.kind == MODELS:
        x = paths[None][chosen.place].x
        labels = in_order(np.unique(x, axis=0, return_inverse=True)[1].ravel())
    else:
        key = chosen.kind, chosen.place
        labels, x = wanted[None][key], refits[None][key].x
    return ClusterChoice(chosen, labels, x, lam, base, found, softer)


Key = tuple[str, int]
ByFold = dict[Fold | None, dict[Key, Solved]]


def along(
    users: Users, edges: Edges, lams: dict[Fold | None, Floats]
) -> dict[Fold | None, list[Solved]]:
    """The path of each fold."""
    tasks = [Task(Penalty(lam, edges), fold) for fold in lams for lam in lams[fold].tolist()]
    found = iter(users.solve(tasks, ROUGH, PATH))
    return {fold: [next(found) for _ in lams[fold]] for fold in lams}


def partitions(local: Floats, path: Sequence[Floats], seed: int) -> dict[Key, Ints]:
    """The clusters of each procedure, from local models and from those along the path."""
    n = len(local)
    found: dict[Key, Ints] = {(GLOBAL, 1): one_cluster(n), (LOCAL, n): np.arange(n)}
    for place, x in enumerate(path):
        labels = candidate(x, SMALLEST, MOST)
        found[LAMBDA, place] = one_cluster(n) if labels is None else labels
    tree = linkage(local, "ward") if n > 1 else None
    for count in range(2, min(MOST, n - 1) + 1):
        found[WARD, count] = in_order(cut_tree(tree, n_clusters=[count])[:, 0])
        found[KMEANS, count] = k_means(local, count, seed)
    return found


def k_means(x: Floats, count: int, seed: int) -> Ints:
    """The best of some runs of k-means."""
    best, least = one_cluster(len(x)), np.inf
    for start in range(STARTS):
        rng = generator(seed, "k-means", count, start)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)  # of clusters that are empty: fewer, then
            centres, labels = kmeans2(x, count, minit="++", rng=rng)
        spread = float(np.square(x - centres[labels]).sum())
        if spread < least:
            best, least = in_order(labels), spread
    return best


def refitted(users: Users, wanted: dict[Fold | None, dict[Key, Ints]]) -> ByFold:
    """The own models of all clusters; those of equal partitions are found once."""
    different: dict[tuple[Fold | None, bytes], Ints] = {}
    for fold, partitions in wanted.items():
        for labels in partitions.values():
            different.setdefault((fold, labels.tobytes()), labels)
    tasks = [Task(Clusters(own), fold, certain=False) for (fold, _), own in different.items()]
    found = dict(zip(different, users.solve(tasks, ROUGH, REFITS), strict=True))
    return {
        fold: {key: found[fold, labels.tobytes()] for key, labels in partitions.items()}
        for fold, partitions in wanted.items()
    }


def judged(
    paths: dict[Fold | None, list[Solved]],
    wanted: dict[Fold | None, dict[Key, Ints]],
    refits: ByFold,
) -> list[Candidate]:
    """What each procedure loses on samples that it has not seen."""
    folds = [fold for fold in paths if fold is not None]
    found = []
    for key, labels in wanted[None].items():
        lost = mean_of_known(np.stack([refits[fold][key].held for fold in folds]))
        found.append(Candidate(*key, lost, int(labels.max()) + 1))
    for place, solved in enumerate(paths[None]):
        lost = mean_of_known(np.stack([paths[fold][place].held for fold in folds]))
        found.append(Candidate(MODELS, place, lost, len(np.unique(solved.x, axis=0))))
    return found


def by_score(each: Candidate) -> float:
    """What a procedure loses."""
    return each.score


def chosen_of(found: Sequence[Candidate]) -> tuple[Candidate, Candidate, Candidate]:
    """The best procedure; the better one of one model and own models; the path's best models.

    Clusters, if they are better than the better one of the two by SURE standard errors and not
    worse than the path's models by one; else the path's, if they are better by one. Of clusters
    that do as well as each other the fewest.
    """
    ends = [each for each in found if each.kind in (GLOBAL, LOCAL)]
    base = min(ends, key=by_score)
    groups = [each for each in found if each.kind in (LAMBDA, KMEANS, WARD) and each.clusters > 1]
    softer = min((each for each in found if each.kind == MODELS), key=by_score)
    if groups:
        chosen = min(groups, key=lambda each: (each.score, each.clusters))
        if chosen.beats(base, SURE) and not softer.beats(chosen, 1.0):
            return chosen, base, softer
    return (softer if softer.beats(base, 1.0) else base), base, softer
