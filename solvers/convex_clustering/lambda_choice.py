"""lam without knowing the number of clusters: `lambda = auto`.

All that needs the users' data is in `HeldOut`: losses without some samples, and how models do on
those. The rest is the server's arithmetic. For models the best lam is that of the least loss on
held-out samples; for clusters lam only proposes partitions, and how well the clusters' own models
do decides. A gate on fresh splits keeps one cluster one.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from corsage.core.arrays import Floats, Ints
from corsage.core.errors import ModelError
from corsage.solvers.convex_clustering.edges import norms
from corsage.solvers.convex_clustering.reading import candidate, refit
from corsage.solvers.convex_clustering.recovery import gradients
from corsage.solvers.losses.convex import Losses
from corsage.solvers.losses.held_out import Fold, HeldOut

GRID, LOWEST = 30, 1 / 50
"""How many lam are tried, and the smallest as a share of the largest."""
SMALLEST, MOST = 3, 10
"""Users a cluster has at least, and clusters there are at most."""
SURE = 1.64
"""Standard errors by which clusters must be better than one model: 5% of false alarms."""

Path = Callable[[Losses, Floats], Sequence[Floats]]
"""(losses, lams) -> X (N, d) of each lam; lams fall."""

HOLD_OUT = Fold("models", 0, 0.3)
CROSS = tuple(Fold("clusters", number, 0.2) for number in range(5))
GATE = tuple(Fold(f"gate {number}", 0, 0.3) for number in range(3))


@dataclass(frozen=True)
class ModelChoice:
    """The lam of the least hold-out loss; `scores` are the mean losses at `lams`."""

    lam: float
    lams: Floats
    scores: Floats


@dataclass(frozen=True)
class Candidate:
    """A partition, the lam that proposed it, and what its models lose on held-out samples (N,)."""

    labels: Ints
    lam: float
    losses: Floats

    @property
    def clusters(self) -> int:
        """K."""
        return int(self.labels.max()) + 1

    @property
    def score(self) -> float:
        """The mean over the users."""
        return float(np.nanmean(self.losses))

    @property
    def error(self) -> float:
        """The standard error of the score."""
        return standard_error(self.losses)


@dataclass(frozen=True)
class ClusterChoice:
    """The chosen partition.

    Parameters
    ----------
    labels, lam : the partition and the lam that proposed it; all users one cluster if the gate
        was not passed.
    candidates : all partitions that were looked at.
    gain, error : by how much the clusters' models are better than one model on the gate's fresh
        splits, and the standard error of it over users; NaN if one cluster was chosen before.
    """

    labels: Ints
    lam: float
    candidates: tuple[Candidate, ...]
    gain: float
    error: float


def standard_error(values: Floats) -> float:
    """Of the mean over those users who have a value."""
    known = values[~np.isnan(values)]
    return float(known.std(ddof=1) / np.sqrt(len(known))) if len(known) > 1 else np.inf


def one_cluster(count: int) -> Ints:
    """The partition with one cluster."""
    return np.zeros(count, np.int64)


def global_model(losses: Losses) -> Floats:
    """y*, the solution of (1), for every user (N, d)."""
    return np.repeat(refit(losses, one_cluster(losses.n)), losses.n, axis=0)


def grid(losses: Losses, count: int = GRID, lowest: float = LOWEST) -> Floats:
    """lam from 2 max_i |grad f_i(y*)|/N, y* the global model, down to `lowest` of it.

    With all pairs at the weight 1 the largest is one at which all models are y* (Theorem 1).
    """
    model = global_model(losses)
    if not np.isfinite(model).all():
        raise ModelError(
            "lambda=auto: all users' samples together have no best model (a plane separates their "
            "classes, or inputs are huge): set ridge=0.001, a number for lambda, or scale inputs."
        )
    top = 2 * float(norms(gradients(losses, model)).max()) / losses.n
    return np.asarray(np.geomspace(top, lowest * top, count))


def choose_for_models(users: HeldOut, path: Path) -> ModelChoice:
    """The lam whose models, from 70% of each user's samples, lose the least on the other 30%."""
    losses = users.losses_without(HOLD_OUT)
    lams = grid(losses)
    scores = [float(np.nanmean(users.evaluate(x, HOLD_OUT))) for x in path(losses, lams)]
    return ModelChoice(float(lams[np.argmin(scores)]), lams, np.array(scores))


def choose_for_clusters(users: HeldOut, path: Path) -> ClusterChoice:
    """The fewest clusters within a standard error of the best cross-validated ones, and the gate.

    A partition's score is the loss of its clusters' own models on samples that these were not
    found from; folds are inside each user's samples.
    """
    losses = users.losses_without(None)
    lams = grid(losses)
    found = candidates(users, losses, lams, path)
    chosen = fewest(found)
    gain = error = np.nan
    if chosen.clusters > 1:
        gains = gate(users, int(np.flatnonzero(lams == chosen.lam)[0]), path)
        gain, error = float(np.nanmean(gains)), standard_error(gains)
        if not gain > SURE * error:
            chosen = found[0]
    return ClusterChoice(chosen.labels, chosen.lam, found, gain, error)


def candidates(users: HeldOut, losses: Losses, lams: Floats, path: Path) -> tuple[Candidate, ...]:
    """One cluster, and the different partitions along the path, each at its largest lam."""
    proposed = {one_cluster(losses.n).tobytes(): (one_cluster(losses.n), float(lams[0]))}
    for lam, x in zip(lams.tolist(), path(losses, lams), strict=True):
        labels = candidate(x, SMALLEST, MOST)
        if labels is not None:
            proposed.setdefault(labels.tobytes(), (labels, lam))
    parts = [users.losses_without(fold) for fold in CROSS]
    return tuple(
        Candidate(labels, lam, cross_validated(users, parts, labels))
        for labels, lam in proposed.values()
    )


def cross_validated(users: HeldOut, parts: Sequence[Losses], labels: Ints) -> Floats:
    """The mean over the folds of what the refitted clusters lose there (N,)."""
    scores = [
        clusters_losses(users, losses, labels, fold)
        for losses, fold in zip(parts, CROSS, strict=True)
    ]
    return mean_of_known(np.stack(scores))


def clusters_losses(users: HeldOut, losses: Losses, labels: Ints, fold: Fold) -> Floats:
    """What refitted clusters lose on a fold (N,); infinite where a cluster has no best model."""
    models = refit(losses, labels)
    found = np.asarray(np.isfinite(models).all(1))
    lost = users.evaluate(np.where(found[:, None], models, 0.0)[labels], fold)
    return np.where(found[labels], lost, np.inf)


def mean_of_known(scores: Floats) -> Floats:
    """The mean over the first axis of what is not NaN; NaN where all are."""
    known = ~np.isnan(scores)
    count = known.sum(0)
    return np.where(count > 0, np.where(known, scores, 0.0).sum(0) / np.maximum(count, 1), np.nan)


def fewest(found: Sequence[Candidate]) -> Candidate:
    """Of all candidates within a standard error of the best that with the fewest clusters.

    Of several with as many clusters the best.
    """
    best = min(found, key=lambda each: each.score)
    near = [each for each in found if each.score <= best.score + best.error]
    return min(near, key=lambda each: (each.clusters, each.score))


def gate(users: HeldOut, place: int, path: Path) -> Floats:
    """By how much clusters are better than one model, for each user; on splits of their own.

    Partition and models are found anew from 70% of each user's samples, at the lam in the same
    place of those samples' grid, and compared on the other 30%: there, nothing was chosen.
    """
    gains = []
    for fold in GATE:
        losses = users.losses_without(fold)
        (x,) = path(losses, grid(losses)[place : place + 1])
        single, labels = one_cluster(losses.n), candidate(x, SMALLEST, MOST)
        own = single if labels is None else labels
        gains.append(
            clusters_losses(users, losses, single, fold) - clusters_losses(users, losses, own, fold)
        )
    return mean_of_known(np.stack(gains))
