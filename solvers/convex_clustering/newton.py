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

from corsage.solvers.convex_clustering.expansions import Expansion, Oracle, Probe
from corsage.solvers.convex_clustering.runs import Run, Solved, Task
from corsage.solvers.losses.held_out import Fold

MOST = 20
"""Exchanges after which no more is asked."""
PATIENCE = 3
"""Exchanges after which the few tasks that are left try several dampings at once, too."""


def unfinished(runs: Sequence[Run]) -> bool:
    """All tasks are wanted."""
    return False


def solve(
    tasks: Sequence[Task],
    starts: Sequence[Expansion],
    oracle: Oracle,
    tolerance: float = 1e-6,
    most: int = MOST,
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
        groups = proposed(wanted, tolerance, shared(runs), number >= PATIENCE)
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
    """What each of them asks; where like ones follow each other, a solution starts the next."""
    groups: list[list[Probe]] = []
    last: Run | None = None
    for run in runs:
        alike = last is not None and type(last.task.coupling) is type(run.task.coupling)
        start = last.steps[-1] if last is not None and alike else None
        groups.append(run.propose(tolerance, start, known[run.task.fold], late))
        last = run
    return groups
