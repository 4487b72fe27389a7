"""lambda and clusters without knowing their number: `lambda = auto` and `clusters`.

For models, the best lambda is that of the least loss on held-out samples. For clusters, whole
procedures compete, and each is done anew without each fold's samples: one model for all, each
user's own, the models along the path of lambda, and the own models of clusters that are found along
it, by k-means or by Ward's linkage of local models. What they lose on the samples that they have
not seen decides. Clusters are taken only if they are better than the better one of no clusters and
no sharing, and than models along the path, by more than chance explains.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from corsage.core.arrays import Floats, Ints
from corsage.core.errors import ModelError
from corsage.solvers.convex_clustering.batched import Users, consensus
from corsage.solvers.convex_clustering.couplings import Clusters, Penalty
from corsage.solvers.convex_clustering.exact.edges import Edges
from corsage.solvers.convex_clustering.partitions import (
    KMEANS,
    LAMBDA,
    ONE_MODEL,
    OWN_MODELS,
    WARD,
    Key,
    named_alike,
    one_cluster,
    partitions,
    shown_at,
)
from corsage.solvers.convex_clustering.reading import in_order
from corsage.solvers.convex_clustering.runs import Solved, Task
from corsage.solvers.losses.held_out import Fold, bounded

MODELS_GRID, COARSE, LOWEST = 30, 15, 1 / 50
"""Number of lambda to try, for models and in each fold; the least as a share of the largest."""
SURELY_BETTER = 1.64
"""Standard errors by which clusters must be better than no clusters: 5% of false alarms."""
ABOUT = 1.0
"""Standard errors up to which models along the path do as well as the best of them."""
PATH_EXCHANGES, ROUGH = 6, 1e-4
"""Exchanges that a path takes at most; the relative gap of what is only judged."""
REFITS = 5
"""Exchanges that the clusters' models take at most."""
NO_LAMBDA = 1e-12
"""The largest lambda where users have one model already, or there is one user only."""
NO_GLOBAL_MODEL = 0.5
"""A relative gap of the global model that says that there is none."""

HOLD_OUT = Fold("models", 0, 0.3)
CROSS = tuple(Fold("clusters", number, 0.2) for number in range(5))

MODELS = "sum of norms"


@dataclass(frozen=True)
class ModelChoice:
    """The lam of the least hold-out loss.

    Parameters
    ----------
    lam : it.
    lams, scores : what was tried, and the mean losses.
    start : the solution at lam without the samples held out.
    """

    lam: float
    lams: Floats
    scores: Floats
    start: Solved


@dataclass(frozen=True)
class Candidate:
    """A procedure, and what its models lose on samples that they were not made of.

    Parameters
    ----------
    kind : which one.
    place : of models along the path the place of their lambda on the grid; else how many clusters
        are looked for.
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
        """True if it is better by more than so many standard errors."""
        gain, error = self.gain(other)
        return gain > errors * error


@dataclass(frozen=True)
class ClusterChoice:
    """The procedure that was chosen, and those that it was compared with.

    Parameters
    ----------
    chosen : the best procedure.
    labels : its clusters on all samples (N,); of models along the path those of its lambda.
    models : its models (N, d).
    lam : its lambda; for clusters of local models the best one of the path.
    base : the better one of one model and own models.
    candidates : all procedures.
    softer : the best models along the path.
    start : the solution at lam, nearly; None where lam is 0.
    """

    chosen: Candidate
    labels: Ints
    models: Floats
    lam: float
    base: Candidate
    candidates: tuple[Candidate, ...]
    softer: Candidate
    start: Solved | None

    @property
    def refit_is_better(self) -> bool:
        """True if the chosen clusters' own models lose no more than models along the path."""
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


def grids(users: Users, edges: Edges, folds: Sequence[Fold | None], count: int) -> list[Floats]:
    """For each fold lambda from consensus on down; local models must have been asked for.

    A federation without a best model for all is refused here, before the path is begun.
    """
    tasks = [Task(Clusters(one_cluster(users.n)), fold) for fold in folds]
    found = users.solve(tasks, NO_GLOBAL_MODEL, PATH_EXCHANGES)
    if not all(each.gap <= NO_GLOBAL_MODEL for each in found):
        raise ModelError(
            "lambda=auto: all users' samples together have no best model (a plane separates their "
            "classes, or inputs are huge): set ridge=0.001, a number for lambda, or scale inputs."
        )
    held = [each.held for each, fold in zip(found, folds, strict=True) if fold is not None]
    if held and np.isnan(np.stack(held)).all():
        raise ModelError(
            "lambda=auto: no user has samples to hold out, nobody has more than one: set a number."
        )
    tops = [max(consensus(each, edges), NO_LAMBDA) for each in found]
    return [np.asarray(np.geomspace(top, LOWEST * top, count)) for top in tops]


def choose_for_models(users: Users, edges: Edges) -> ModelChoice:
    """The lam whose models, from 70% of each user's samples, lose the least on the other 30%."""
    users.local([None, HOLD_OUT])
    (lams,) = grids(users, edges, [HOLD_OUT], MODELS_GRID)
    tasks = [Task(Penalty(lam, edges), HOLD_OUT) for lam in lams.tolist()]
    found = users.solve(tasks, most=PATH_EXCHANGES)
    heard = bounded(np.stack([each.held for each in found]))
    scores = np.array([float(np.nanmean(losses)) for losses in heard])
    best = int(np.argmin(scores))
    return ModelChoice(float(lams[best]), lams, scores, found[best])


def choose_for_clusters(users: Users, edges: Edges, seed: int = 0) -> ClusterChoice:
    """The best procedure by cross-validation; see above."""
    folds = (None, *CROSS)
    local = dict(zip(folds, users.local(folds), strict=True))
    lams = dict(zip(folds, grids(users, edges, folds, COARSE), strict=True))
    paths = along(users, edges, lams)
    wanted = {
        fold: partitions(local[fold], [each.x for each in paths[fold]], seed) for fold in folds
    }
    refits = refitted(users, named_alike(wanted))
    found = tuple(judged(paths, refits, wanted[None]))
    chosen, base, softer = chosen_of(found)
    if chosen.kind == MODELS:
        x = paths[None][chosen.place].x
        labels = in_order(np.unique(x, axis=0, return_inverse=True)[1].ravel())
    else:
        key = chosen.kind, chosen.place
        labels, x = wanted[None][key], refits[None][key].x
    if chosen.kind == OWN_MODELS:
        return ClusterChoice(chosen, labels, x, 0.0, base, found, softer, None)
    place = place_of(chosen, [each.x for each in paths[None]], labels, softer)
    lam = float(lams[None][place])
    return ClusterChoice(chosen, labels, x, lam, base, found, softer, paths[None][place])


def place_of(chosen: Candidate, path: Sequence[Floats], labels: Ints, softer: Candidate) -> int:
    """The place of the lambda that goes with what was chosen; else of the path's best one."""
    if chosen.kind == ONE_MODEL:
        return 0
    place = shown_at(path, labels) if chosen.kind == LAMBDA else None
    return softer.place if place is None else place


ByFold = dict[Fold | None, dict[Key, Solved]]


def along(
    users: Users, edges: Edges, lams: dict[Fold | None, Floats]
) -> dict[Fold | None, list[Solved]]:
    """The path of each fold."""
    tasks = [Task(Penalty(lam, edges), fold) for fold in lams for lam in lams[fold].tolist()]
    found = iter(users.solve(tasks, ROUGH, PATH_EXCHANGES))
    return {fold: [next(found) for _ in lams[fold]] for fold in lams}


def refitted(users: Users, wanted: dict[Fold | None, dict[Key, Ints]]) -> ByFold:
    """The own models of all clusters; those of equal partitions are found once."""
    different: dict[tuple[Fold | None, bytes], Ints] = {}
    for fold, each in wanted.items():
        for labels in each.values():
            different.setdefault((fold, labels.tobytes()), labels)
    tasks = [Task(Clusters(own), fold, certain=False) for (fold, _), own in different.items()]
    found = dict(zip(different, users.solve(tasks, ROUGH, REFITS), strict=True))
    return {
        fold: {key: found[fold, labels.tobytes()] for key, labels in each.items()}
        for fold, each in wanted.items()
    }


def judged(
    paths: dict[Fold | None, list[Solved]], refits: ByFold, named: dict[Key, Ints]
) -> list[Candidate]:
    """The loss of each procedure on samples that it has not seen."""
    folds = [fold for fold in paths if fold is not None]
    found = []
    for key, labels in named.items():
        lost = mean_of_known(np.stack([refits[fold][key].held for fold in folds]))
        found.append(Candidate(*key, lost, int(labels.max()) + 1))
    for place, solved in enumerate(paths[None]):
        lost = mean_of_known(np.stack([paths[fold][place].held for fold in folds]))
        found.append(Candidate(MODELS, place, lost, len(np.unique(solved.x, axis=0))))
    heard = bounded(np.stack([each.losses for each in found]))
    return [replace(each, losses=losses) for each, losses in zip(found, heard, strict=True)]


def by_score(each: Candidate) -> float:
    """The loss of a procedure."""
    return each.score


def chosen_of(found: Sequence[Candidate]) -> tuple[Candidate, Candidate, Candidate]:
    """The best procedure; the better one of one model and own models; the path's best models.

    Clusters, if they are better than the better one of the two, and than the path's models, by
    SURELY_BETTER standard errors; of those that do as well as each other the fewest. Else the
    path's models, if they are better than the two by one standard error.
    """
    ends = [each for each in found if each.kind in (ONE_MODEL, OWN_MODELS)]
    base = min(ends, key=by_score)
    groups = [each for each in found if each.kind in (LAMBDA, KMEANS, WARD) and each.clusters > 1]
    best, softer = along_best([each for each in found if each.kind == MODELS])
    if groups:
        chosen = min(groups, key=lambda each: (each.score, each.clusters))
        if chosen.beats(base, SURELY_BETTER) and chosen.beats(best, SURELY_BETTER):
            return chosen, base, softer
    return (softer if best.beats(base, 1.0) and softer.score < base.score else base), base, softer


def along_best(path: Sequence[Candidate]) -> tuple[Candidate, Candidate]:
    """The models of the least loss, and those of the least lambda that do about as well.

    Of what cannot be told apart, own models that are pulled less can do less harm.
    """
    best = min(path, key=by_score)
    return best, max(
        (each for each in path if not best.beats(each, ABOUT)), key=lambda each: each.place
    )
