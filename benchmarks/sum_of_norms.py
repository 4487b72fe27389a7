"""The exact sum-of-norms solver against CVXPY with Clarabel: CPU seconds of one thread.

Two problems: the ellipses under the squared hinge (the paper's losses), and points (convex
clustering). Both solvers find the same minimum; how much ours is above, as a share of it, is said.
A round of the federated method is timed, too.
CVXPY's seconds are those of `Problem.solve`, formulation included. Larger
problems run without it in processes of their own, whose peak memory is measured too. With more
users in a cluster than 20, lambda falls in proportion: the pull at a user stays what it is.

Points on graphs of ten neighbours are `neighbour-graphs`.

    python -m corsage.benchmarks sum-of-norms
"""

from __future__ import annotations

import resource
import time
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from importlib.util import find_spec
from multiprocessing import get_context
from statistics import median
from typing import Any

import numpy as np
import threadpoolctl
import torch

from corsage.benchmarks.measure import Measure
from corsage.benchmarks.turns import one_thread
from corsage.core.arrays import Floats
from corsage.core.errors import CorsageError
from corsage.core.losses import SQUARED_HINGE
from corsage.core.seeding import generator
from corsage.datasets.ellipses import draw
from corsage.experiments.convex_clustering.classic import Cost, by_cvxpy
from corsage.experiments.runner import run as run_strategy
from corsage.solvers.convex_clustering.exact.sum_of_norms import Edges, Solution, fit, path
from corsage.solvers.losses.convex import LinearLosses, linear_losses

LAMBDAS, RIDGE = (0.0913593, 0.01), 1e-3
SPREAD, POINT_LAMBDAS = 0.1, (0.0133, 0.005)
"""The points' standard deviation, with groups that are 5.7 apart, and their lambdas."""
TURNS = {60: 5, 300: 1}
FASTER = {60: 1.0, 300: 0.2}
"""Our seconds as a share of CVXPY's, at most."""
SAME = 1e-8
SECONDS, MEGABYTES = 15.0, 1000.0
PATH = 30
ROUNDS = (20, 420)
FEDERATION: dict[str, Any] = {
    "dataset": "ellipses",
    "partition": "natural",
    "num_users": 0,
    "model": "linear",
    "loss": "squared-hinge",
    "ridge": RIDGE,
    "fraction_train": 1.0,
    "convex_lambda": LAMBDAS[0],
    "convex_tolerance": 1e-14,
    "convex_certify_every": 10**6,
    "convex_report": False,
    "evaluate_every": 10**6,
}


def losses(users: int) -> tuple[LinearLosses, Floats]:
    """The ellipses with so many users a cluster, and u = l [a, 1] (n, m, 3) of their samples."""
    drawn = draw(1, users=users)
    n, m = drawn.l.shape
    a, y = torch.from_numpy(drawn.a.reshape(n * m, 2)), torch.from_numpy(drawn.l.ravel() > 0)
    found = linear_losses(a, y, [m] * n, loss=SQUARED_HINGE, scale="mean", ridge=RIDGE)
    return found, drawn.l[..., None] * np.concatenate([drawn.a, np.ones((n, m, 1))], -1)


def blobs(users: int) -> Floats:
    """Three groups of so many points in three dimensions."""
    rng = generator(0, "benchmark", users)
    return np.repeat(4 * np.eye(3), users, 0) + SPREAD * rng.normal(size=(3 * users, 3))


def hinge_cost(u: Floats, cp: Any, x: Any) -> Any:
    """The ellipses' f_i summed, for CVXPY."""
    margins = cp.vstack([u[i] @ x[i] for i in range(len(u))])
    losses = cp.sum_squares(cp.pos(1 - margins)) / u.shape[1]
    return losses + RIDGE / 2 * cp.sum_squares(x[:, :2])


def point_cost(a: Floats, cp: Any, x: Any) -> Any:
    """The points' f_i summed, for CVXPY."""
    return cp.sum_squares(x - a) / 2


def duel(name: str, own: LinearLosses | Floats, cost: Cost, n: int, lam: float) -> list[Measure]:
    """Both solvers by turns."""
    house, guest = [], []
    for _ in range(TURNS[n]):
        begin = time.process_time()
        found = fit(own, lam)
        house.append(time.process_time() - begin)
        value, seconds = by_cvxpy(cost, 3, Edges.all_pairs(n), lam)
        guest.append(seconds)
    beside = (
        f"CPU ms {1e3 * median(house):.0f}, CVXPY {1e3 * median(guest):.0f}; certified to "
        f"{found.relative_gap:.0e}; {found.labels.max() + 1} clusters"
    )
    above = max(found.value - value, 0.0) / value
    return [
        Measure(name, median(house) / median(guest), FASTER[n], "of CVXPY", beside),
        Measure(f"{name}: above", above, SAME, "of P"),
    ]


def large(graph: str, users: int, lam: float) -> tuple[float, float, Solution]:
    """CPU seconds and peak MB of this process, for the ellipses with so many users a cluster."""
    with one_thread(), threadpoolctl.threadpool_limits(1):
        own, _ = losses(users)
        begin = time.process_time()
        edges = Edges.all_pairs(own.n) if graph == "all" else Edges.knn(own.minimise().numpy())
        found = fit(own, lam, edges)
        seconds = time.process_time() - begin
    return seconds, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 / 1e6, found


def alone(name: str, *words: Any) -> list[Measure]:
    """A large problem in a process of its own."""
    with ProcessPoolExecutor(1, get_context("spawn")) as pool:
        seconds, size, found = pool.submit(large, *words).result()
    beside = f"certified to {found.relative_gap:.0e}, {found.labels.max() + 1} clusters"
    return [
        Measure(name, seconds, SECONDS, "CPU s", beside),
        Measure(f"{name}: peak", size, MEGABYTES, "MB"),
    ]


def run() -> Iterator[Measure]:
    """All duels, a path, and the large problems."""
    if find_spec("cvxpy") is None:
        raise CorsageError("sum-of-norms: needs cvxpy; pip install 'corsage[dev]'.")
    with one_thread(), threadpoolctl.threadpool_limits(1):
        for n in TURNS:
            own, u = losses(n // 3)
            for lam in LAMBDAS:
                cost = partial(hinge_cost, u)
                yield from duel(f"ellipses, {n}, {lam:g}", own, cost, n, lam * 60 / n)
            a = blobs(n // 3)
            for lam in POINT_LAMBDAS:
                cost = partial(point_cost, a)
                yield from duel(f"points, {n}, {lam:g}", a, cost, n, lam * 60 / n)
        yield along_a_path()
        yield federated_round("pdmm", 3.0)
    yield from alone("ellipses, 999, all pairs", "all", 333, LAMBDAS[0] * 20 / 333)
    yield from alone("ellipses, 3,000, 10-NN", "knn", 1000, 0.05)


def federated_round(solver: str, most: float) -> Measure:
    """CPU milliseconds of a round with 60 users in process: a long run less a short one."""
    short, long = ROUNDS
    keys = {**FEDERATION, "convex_solver": solver}

    def seconds(rounds: int) -> float:
        (row,) = run_strategy(["convex-clustering"], (0,), **keys, num_rounds=rounds)[
            "convex-clustering"
        ]
        return float(row["cpu_seconds"])

    seconds(short)
    spent = 1e3 * (seconds(long) - seconds(short)) / (long - short)
    return Measure(f"a federation's round of {solver}, 60 users", spent, most, "CPU ms")


def along_a_path() -> Measure:
    """CPU seconds of a lambda on a path of the ellipses."""
    own, _ = losses(20)
    begin = time.process_time()
    solutions = list(path(own, np.geomspace(0.12, 0.002, PATH)))
    seconds = (time.process_time() - begin) / PATH
    worst = max(solution.relative_gap for solution in solutions)
    beside = f"{PATH} lambdas, all certified to {worst:.0e}"
    return Measure("ellipses, 60, a lambda of a path", seconds, 0.02, "CPU s", beside)
