"""Many problems over the same users at once, each step of all of them one exchange.

A task joins the users' f_i, on all samples or on a fold's: by a sum of norms at some lambda, or by
clusters that have one model each. In each step the f_i are quadratic models (expansions.py), whose
problem the server solves exactly. The answer to the solution has the next models and a duality gap:
a proximal Newton method, that usually certifies 1e-6 after five or six exchanges, whatever the
number of tasks.

Tasks share what is known: a user's model is that of its answers to all of them whose point is the
nearest to where the solution will be. Huber's losses have kinks, and what is on the other side of
one is often known from the next lambda.

A step that does not lower the objective is not taken: the next ones are damped, by L_i times a
share that grows up to 1, from where nothing can fail, and several shares are tried at once.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np

from corsage.core.arrays import Floats
from corsage.solvers.convex_clustering.couplings import Coupling, Parts, Step
from corsage.solvers.convex_clustering.exact.edges import norms
from corsage.solvers.convex_clustering.expansions import (
    BOUNDED_BY,
    HERE,
    Expansion,
    Oracle,
    Probe,
    models,
    nearest,
    picked,
)
from corsage.solvers.losses.held_out import Fold

MOST_STEPS_ASKED = 20
"""Exchanges after which no more is asked."""
DAMPING_PATIENCE, FEW_TASKS = 3, 8
"""Exchanges after which tasks try several dampings at once, too, if so few are left."""
PROXIMAL_SHARE = 0.1
"""kappa of the proximal points, as a share of L."""
LEAST_DAMPING, FIRST_DAMPING = 1e-9, 1e-6
"""The smallest damping, and the first."""
FADES = 0.1
"""Damping as a part of the relative gap."""
LADDER = (1e-3, 3e-2, 1.0)
"""Dampings that are tried at once where a step failed."""
SHARPER = 0.01
"""The gap of the models' solutions, as a part of the one that is wanted."""
TINY = float(np.finfo(np.float64).tiny)
PICKS = 2
"""Times that the nearest answers are looked for anew, near the solution that they led to."""
STUCK_SHARE = 0.01
"""The share of the gap by which a step must lower the objective: with less, clusters are wrong."""
OUTSIZED = 100.0
"""Medians that a user's loss counts as at most: one that says 1e12 would certify anything."""
OUT_OF_SIGHT = 100.0
"""Distance beyond which nothing is said of models, where a user has no minimum."""


@dataclass(frozen=True)
class Task:
    """A problem.

    Parameters
    ----------
    coupling : what joins the users.
    fold : samples that are left out of their f_i.
    """

    coupling: Coupling
    fold: Fold | None = None


@dataclass(frozen=True)
class Solved:
    """The result of a task.

    Parameters
    ----------
    x : the best models (N, d).
    v : slopes with which they were found, nearly -grad f_i(x_i) (N, d).
    mu : the duals of the last models' solution (E, d); of clusters none.
    value : the objective at x.
    gap : at most so much is it above its minimum, as a share of sum |f_i| + penalty.
    everywhere : the gap holds against all models; else OUT_OF_SIGHT times as far at most.
    held : what x loses on the fold (N,).
    base : what users said last, of which further models can be made.
    slack : each user's part of the gap (N,); infinite where it has no minimum.
    """

    x: Floats
    v: Floats
    mu: Floats | None
    value: float
    gap: float
    everywhere: bool
    held: Floats
    base: Expansion | None = None
    slack: Floats | None = None


@dataclass
class Run:
    """A task under way.

    Parameters
    ----------
    base, centre : the expansion that models are made of, and where their damping pulls to.
    dampings, steps : what was tried last.
    best : the best step, with its objective.
    lower, near : the largest lower bound that holds everywhere; a gap to what is near.
    change : how much less the last step was, as a share.
    slack : of each user the part of the gap at the best step (N,).
    """

    task: Task
    base: Expansion
    centre: Floats
    damping: float = FIRST_DAMPING
    dampings: tuple[float, ...] = (FIRST_DAMPING,)
    failed: int = 0
    steps: list[Step] = field(default_factory=list)
    best: Step | None = None
    value: float = np.inf
    size: float = np.inf
    lower: float = -np.inf
    near: float = np.inf
    change: float = np.inf
    held: Floats = field(default_factory=lambda: np.zeros(0))
    slack: Floats = field(default_factory=lambda: np.zeros(0))

    @property
    def gap(self) -> float:
        """The relative gap, against all models or against those that are near."""
        gap = min(self.value - self.lower, self.near)
        return max(gap, 0.0) / max(self.size, TINY)

    def over(self, tolerance: float) -> bool:
        """True if it is good enough, or as good as it gets."""
        if self.gap <= tolerance or self.failed > len(LADDER):
            return True
        return isinstance(self.task.coupling, Parts) and self.change <= STUCK_SHARE * self.gap

    def propose(
        self,
        tolerance: float,
        start: Step | None,
        known: Sequence[Expansion] = (),
        late: bool = False,
    ) -> list[Probe]:
        """Probes: the models' solution, and several damped ones late or after a failure."""
        self.dampings = (self.damping,) * (not self.failed) + LADDER * (late or self.failed > 0)
        sharp = SHARPER * tolerance
        self.steps = []
        for damping in self.dampings:
            quadratic = models(self.base, self.centre, damping)
            start = self.task.coupling.solve(quadratic, self.best or start, sharp)
            if known and damping == self.damping:
                start = self._nearer(start, known, sharp)
            self.steps.append(start)
        share = HERE if self.failed > 1 else PROXIMAL_SHARE
        fold = self.task.fold
        probes = [Probe(step.x, step.v, share, fold) for step in self.steps]
        if self.failed == 1 and self.best is not None:
            probes.append(Probe(self.best.x, self.best.v, HERE, fold, bound=False))
        return probes

    def _nearer(self, step: Step, known: Sequence[Expansion], sharp: float) -> Step:
        """The solution of models that are made of the answers nearest to it."""
        before = np.array([k for k, each in enumerate(known) if each is self.base] or [-1])[:1]
        for _ in range(PICKS):
            picks = nearest(known, step.x)
            if (picks == before).all():
                break
            base, before = picked(known, picks), picks
            step = self.task.coupling.solve(models(base, base.y, self.damping), step, sharp)
        return step

    def take(self, found: Sequence[Expansion]) -> None:
        """Take the best of the steps, if it is better than what there was."""
        answers = found[: len(self.steps)]
        values = [self._judge(step, each) for step, each in zip(self.steps, answers, strict=True)]
        at = int(np.argmin(values))
        step, expansion = self.steps[at], answers[at]
        if values[at] < self.value or self.best is None:
            self.change = (self.value - values[at]) / max(abs(values[at]), TINY)
            self.best, self.value = step, values[at]
            penalty = self.task.coupling.penalty(step.x)
            self.size, self.held = size_of(expansion.at_x) + penalty, expansion.held
            slack = expansion.at_x + (step.v * step.x).sum(1) - expansion.least
            self.slack = np.where(expansion.found, slack, np.inf)
            self.base, self.failed = expansion, 0
            self.centre = expansion.y
            eased = FADES * min(self.dampings[at], self.gap)
            self.damping = float(np.clip(eased, LEAST_DAMPING, 1.0))
        else:
            self.failed += 1
            self.change = (values[at] - self.value) / max(abs(self.value), TINY)
            self.centre = self.best.x
            if len(found) > len(self.steps):
                self.base = found[-1]

    def _judge(self, step: Step, found: Expansion) -> float:
        """The objective at a step; what it says of the minimum is remembered.

        A user's minimum is never above its value at x_i, whatever it says.
        """
        value = float(found.at_x.sum()) + self.task.coupling.penalty(step.x)
        lower = float(np.minimum(found.least, found.at_x + (step.v * step.x).sum(1)).sum())
        if found.found.all():
            self.lower = max(self.lower, lower)
        else:
            reach = np.square(OUT_OF_SIGHT * (1 + norms(step.x)))
            loose = BOUNDED_BY * found.curvature / 2 * reach
            self.near = min(self.near, value - lower + float(loose[~found.found].sum()))
        return value

    def solved(self) -> Solved:
        """The result so far."""
        assert self.best is not None
        everywhere = self.value - self.lower <= self.near
        mu = None if self.best.solution is None else self.best.solution.mu
        x, v = self.best.x, self.best.v
        if mu is None:  # of what is known now: these are exact where the models are
            ahead = self.task.coupling.solve(
                models(self.base, self.centre, LEAST_DAMPING), self.best, 1.0
            )
            v = ahead.v
        return Solved(
            x, v, mu, self.value, self.gap, bool(everywhere), self.held, self.base, self.slack
        )


def size_of(values: Floats) -> float:
    """sum |f_i|, of which nobody's part is more than OUTSIZED medians: a gap is a share of it."""
    each = np.abs(values)
    most = OUTSIZED * float(np.median(each)) or np.inf
    return float(np.minimum(each, most).sum())


def unfinished(runs: Sequence[Run]) -> bool:
    """All tasks are wanted."""
    return False


def solve(
    tasks: Sequence[Task],
    starts: Sequence[Expansion],
    oracle: Oracle,
    tolerance: float = 1e-6,
    most: int = MOST_STEPS_ASKED,
    enough: Callable[[Sequence[Run]], bool] = unfinished,
) -> list[Solved]:
    """All tasks, from expansions of their own folds' f_i.

    Parameters
    ----------
    tasks : the problems; like ones one after the other: each starts from the last one's solution.
    starts : an expansion for each of them.
    oracle : one exchange.
    tolerance : the relative gap that is wanted.
    most : exchanges after which what is not certified is left as it is.
    enough : whether no more is asked, though some are not certified.
    """
    runs = [Run(task, start, start.y) for task, start in zip(tasks, starts, strict=True)]
    for number in range(most):
        wanted = [run for run in runs if not run.over(tolerance)]
        if not wanted or enough(runs):
            break
        late = number >= DAMPING_PATIENCE and len(wanted) <= FEW_TASKS
        groups = proposed(wanted, tolerance, shared(runs), late)
        found = iter(oracle([probe for group in groups for probe in group]))
        for run, group in zip(wanted, groups, strict=True):
            run.take([next(found) for _ in group])
    return [run.solved() for run in runs]


def shared(runs: Sequence[Run]) -> dict[Fold | None, list[Expansion]]:
    """The last answers about each fold's f_i, of all tasks."""
    found: dict[Fold | None, dict[int, Expansion]] = {}
    for run in runs:
        found.setdefault(run.task.fold, {})[id(run.base)] = run.base
    return {fold: list(each.values()) for fold, each in found.items()}


def proposed(
    runs: Sequence[Run],
    tolerance: float,
    known: dict[Fold | None, list[Expansion]],
    late: bool,
) -> list[list[Probe]]:
    """The probes of each of them; where like ones follow each other, a solution starts the next."""
    groups: list[list[Probe]] = []
    last: Run | None = None
    for run in runs:
        alike = last is not None and type(last.task.coupling) is type(run.task.coupling)
        start = last.steps[-1] if last is not None and alike else None
        groups.append(run.propose(tolerance, start, known[run.task.fold], late))
        last = run
    return groups
