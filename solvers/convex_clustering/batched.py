"""Users who are asked about many problems at once; and those who can be asked of one at a time.

Both solve tasks (runs.py) over all users, on all samples or without a fold's. `Batched` needs a
Hessian of each user, and a handful of exchanges for any number of tasks. `Single` is for models so
large that no Hessian is sent: one task after the other, each by as many exchanges as it takes.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

import numpy as np

from corsage.core.arrays import Bools, Floats
from corsage.solvers.convex_clustering.couplings import Clusters, Penalty
from corsage.solvers.convex_clustering.exact.edges import Edges, norms
from corsage.solvers.convex_clustering.exact.merged import Merged
from corsage.solvers.convex_clustering.exact.sum_of_norms import Solution, fit
from corsage.solvers.convex_clustering.expansions import (
    HERE,
    Expansion,
    Oracle,
    Probe,
    models,
    nearest,
    picked,
)
from corsage.solvers.convex_clustering.recovery import gradients
from corsage.solvers.convex_clustering.runs import (
    FIRST_DAMPING,
    MOST_STEPS_ASKED,
    Run,
    Solved,
    Task,
    solve,
    unfinished,
)
from corsage.solvers.losses.held_out import Fold, HeldOut

MOST_WITH_HESSIANS = 50
"""Numbers in a model up to which Hessians are sent."""


class Users(Protocol):
    """All users of a problem, with d numbers in a model."""

    n: int
    d: int

    def local(self, folds: Sequence[Fold | None]) -> list[Floats]:
        """Each user's own model without each fold's samples; where none is best, one near 0."""
        ...

    def solve(
        self, tasks: Sequence[Task], tolerance: float = 1e-6, most: int = MOST_STEPS_ASKED
    ) -> list[Solved]:
        """All tasks, whose folds' local models were asked for before."""
        ...


class Batched:
    """All tasks at once.

    Parameters
    ----------
    oracle : one exchange.
    n, d : users, numbers in a model.
    """

    def __init__(self, oracle: Oracle, n: int, d: int) -> None:
        self.oracle, self.n, self.d = oracle, n, d
        self.known: dict[Fold | None, list[Expansion]] = {}

    def local(self, folds: Sequence[Fold | None]) -> list[Floats]:
        """The minimisers of f_i, and what f_i is at 0: one exchange for all folds."""
        zero, count = np.zeros((self.n, self.d)), len(folds)
        probes = [Probe(zero, zero, share, fold) for share in (0.0, HERE) for fold in folds]
        found = self.oracle(probes)
        for fold, own, at_zero in zip(folds, found[:count], found[count:], strict=True):
            self.known[fold] = [own, at_zero]
        return [each.y for each in found[:count]]

    def at(self, points: Sequence[tuple[Floats, Floats]]) -> list[Expansion]:
        """The values of f_i at some x, with slopes v; further tasks begin there."""
        probes = [Probe(x, v, HERE, None, bound=False) for x, v in points]
        found = self.oracle(probes)
        self.known[None] = [*found[:1], *self.known.get(None, [])]
        return found

    @property
    def found(self) -> Bools:
        """The users with a best model of their own, on all samples (N,)."""
        return self.known[None][0].found

    def solve(
        self,
        tasks: Sequence[Task],
        tolerance: float = 1e-6,
        most: int = MOST_STEPS_ASKED,
        enough: Callable[[Sequence[Run]], bool] = unfinished,
    ) -> list[Solved]:
        """Newton's method for all of them; what users said is remembered for the tasks to come."""
        starts = [self.start(task) for task in tasks]
        found = solve(tasks, starts, self.oracle, tolerance, most, enough)
        for task, each in zip(tasks, found, strict=True):
            if each.base is not None:
                self.known[task.fold].append(each.base)
        return found

    def start(self, task: Task) -> Expansion:
        """A task's first models: of each user those of the expansion nearest to them."""
        known = self.known[task.fold]
        if not isinstance(task.coupling, Clusters):
            return known[0]
        of = known[len(known) > 1 and not task.coupling.labels.any()]  # one model: from 0
        guess = task.coupling.solve(models(of, of.y, FIRST_DAMPING), None, 1e-6).x
        return picked(known, nearest(known, guess))


class Single:
    """One task after the other, with gradients and proximal steps alone.

    Parameters
    ----------
    users : their losses, with and without folds.
    n, d : users, numbers in a model.
    """

    def __init__(self, users: HeldOut, n: int, d: int) -> None:
        self.users, self.n, self.d = users, n, d

    def local(self, folds: Sequence[Fold | None]) -> list[Floats]:
        """The minimisers of f_i; 0 where there is none."""
        found = [self.users.losses_without(fold).minimise().cpu().numpy() for fold in folds]
        return [np.nan_to_num(each) for each in found]

    def solve(
        self, tasks: Sequence[Task], tolerance: float = 1e-6, most: int = MOST_STEPS_ASKED
    ) -> list[Solved]:
        """Each to its end: sums of norms from the last one's solution, clusters from 0."""
        last: Solution | None = None
        found: list[Solved] = []
        for task in tasks:
            coupling = task.coupling
            if isinstance(coupling, Penalty):
                one, last = self._penalised(task, coupling, last, tolerance)
            else:
                assert isinstance(coupling, Clusters)
                one = self._fused(task, coupling)
            found.append(one)
        return found

    def _penalised(
        self, task: Task, coupling: Penalty, last: Solution | None, tolerance: float
    ) -> tuple[Solved, Solution]:
        """A sum of norms."""
        losses = self.users.losses_without(task.fold)
        got = fit(losses, coupling.lam, coupling.edges, last, tolerance)
        v = coupling.edges.adjoint(got.mu)
        held = self._held(got.x, task.fold)
        return Solved(got.x, v, got.mu, got.value, got.relative_gap, True, held), got

    def _fused(self, task: Task, coupling: Clusters) -> Solved:
        """Clusters' own models; those that have none are 0, and not certified."""
        losses, labels = self.users.losses_without(task.fold), coupling.labels
        w = np.asarray(Merged(losses, labels).minimise().cpu().numpy())
        gap = 0.0 if np.isfinite(w).all() else np.inf
        x = np.nan_to_num(w)[labels]
        slopes = -gradients(losses, x)
        return Solved(x, slopes, None, np.nan, gap, True, self._held(x, task.fold))

    def _held(self, x: Floats, fold: Fold | None) -> Floats:
        """The loss of x on the samples that are left out."""
        return np.full(self.n, np.nan) if fold is None else self.users.evaluate(x, fold)


def consensus(model: Solved, edges: Edges) -> float:
    """A lambda at which all models are one, from the global model; with all pairs as Theorem 1.

    2 max_i |grad f_i(y*)|/N, N - 1 the pairs of each user; with fewer pairs these are their mean.
    """
    pairs = 2 * float(edges.w.sum()) / max(edges.n, 1)
    return 2 * float(norms(model.v).max()) / (pairs + 1)
