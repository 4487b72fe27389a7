"""The exact sum-of-norms solver against Clarabel: CPU seconds of one thread, memory, and paths.

The ellipses under the squared hinge (the paper's losses), points among all pairs, and two half
moons on graphs of ten neighbours with w = exp(-2 |a_i - a_j|^2), as in Sun, Toh and Yuan 2021. Both
solvers find the same minimum; how much ours is above, as a share of it, is said. Clarabel's seconds
are CVXPY's: of the ellipses and among all pairs with its formulation, on neighbours without. Ours
begin with a graph of which nothing is known yet, and end with a certified gap and users that are
fused exactly. On neighbours both are asked for larger gaps, too.

With more users in a cluster than 20, lambda falls in proportion: the pull at a user stays what it
is. Large problems run in processes of their own, whose peak memory is measured. A path is compared
with the mean of ten cold solves, at every third of its lambdas. A round of the federated method is
timed, too.

    python -m corsage.benchmarks sum-of-norms
"""

from __future__ import annotations

import resource
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from functools import partial
from importlib import import_module
from importlib.util import find_spec
from multiprocessing import get_context
from statistics import mean, median
from typing import Any

import numpy as np
import threadpoolctl
import torch
from scipy.sparse import csr_array

from corsage.benchmarks.measure import Measure
from corsage.benchmarks.turns import one_thread
from corsage.core.arrays import Floats
from corsage.core.errors import CorsageError
from corsage.core.losses import SQUARED_HINGE
from corsage.core.seeding import generator
from corsage.datasets.ellipses import draw
from corsage.experiments.runner import run as run_strategy
from corsage.solvers.convex_clustering.exact.sum_of_norms import (
    TOLERANCE,
    Edges,
    Solution,
    fit,
    path,
)
from corsage.solvers.losses.linear_losses import LinearLosses

LAMBDAS, RIDGE = (0.0913593, 0.01), 1e-3
SPREAD, POINT_LAMBDAS = 0.1, (0.0133, 0.005)
"""The points' standard deviation, with groups that are 5.7 apart, and their lambdas."""
TURNS = {60: 5, 300: 1}
FASTER = {60: 1.0, 300: 0.2}
"""Our seconds as a share of CVXPY's, at most."""
SAME = 1e-8
SECONDS, MEGABYTES = 15.0, 1000.0
ROUNDS = 20, 420
FEDERATION: dict[str, Any] = {
    "dataset": "ellipses",
    "partition": "natural",
    "num_users": 0,
    "model": "linear",
    "loss": "squared-hinge",
    "ridge": RIDGE,
    "fraction_train": 1.0,
    "convex_solver": "pdmm",
    "convex_lambda": LAMBDAS[0],
    "convex_tolerance": 1e-14,
    "convex_certify_every": 10**6,
    "convex_report": False,
    "evaluate_every": 10**6,
}
SIZES, MOON_LAMBDAS = {300: 5, 1_000: 3, 3_000: 1, 10_000: 1}, (0.005, 0.05, 0.5, 5.0)
"""Points on graphs of neighbours, and turns of each duel; their lambdas."""
USUAL, USUAL_SECONDS = 0.5, {500: 0.05, 2_000: 0.2, 5_000: 0.5, 10_000: 1.5}
"""A lambda, and our seconds at it, at most."""
GAPS, MIDDLE, FEW = (1e-2, 1e-4, 1e-6, 1e-8), 3_000, 100
"""Relative gaps that are asked for; with so many neighbours' points, and points of all pairs."""
LARGE, GIGABYTES = 100_000, 8.0
PATH_SIZES, LENGTH, SPAN, TIMES = (2_000, 5_000), 30, (5.0, 5.0 / 300), 2.0
"""Users and lambdas of paths, their ends, and how many single solves one may take."""


@dataclass(frozen=True)
class Problem:
    """A problem; `cost` has its f_i summed for CVXPY: of that module and the variable X (n, d)."""

    name: str
    own: LinearLosses | Floats
    cost: Callable[[Any, Any], Any]
    d: int
    edges: Edges
    lam: float


def losses(users: int) -> tuple[LinearLosses, Floats]:
    """The ellipses with so many users a cluster, and u = l [a, 1] (n, m, 3) of their samples."""
    drawn = draw(1, users=users)
    n, m = drawn.l.shape
    a, y = torch.from_numpy(drawn.a.reshape(n * m, 2)), torch.from_numpy(drawn.l.ravel() > 0)
    found = LinearLosses(a, y, [m] * n, loss=SQUARED_HINGE, scale="mean", ridge=RIDGE)
    return found, drawn.l[..., None] * np.concatenate([drawn.a, np.ones((n, m, 1))], -1)


def blobs(users: int) -> Floats:
    """Three groups of so many points in three dimensions."""
    rng = generator(0, "benchmark", users)
    return np.repeat(4 * np.eye(3), users, 0) + SPREAD * rng.normal(size=(3 * users, 3))


def moons(n: int) -> tuple[Floats, Edges]:
    """n points on two half circles, .1 of noise, and their ten nearest neighbours."""
    rng, side = generator(0, "benchmark", "moons", n), np.repeat([1.0, -1.0], n // 2)
    t = rng.uniform(0, np.pi, n)
    a = np.stack([side * np.cos(t) - side / 2, side * np.sin(t) - side / 4], 1)
    a += 0.1 * rng.normal(size=a.shape)
    return a, Edges.knn(a, 10, decay=2.0)


def hinge_cost(u: Floats, cp: Any, x: Any) -> Any:
    """The ellipses' f_i summed, for CVXPY."""
    margins = cp.vstack([u[i] @ x[i] for i in range(len(u))])
    losses = cp.sum_squares(cp.pos(1 - margins)) / u.shape[1]
    return losses + RIDGE / 2 * cp.sum_squares(x[:, :2])


def point_cost(a: Floats, cp: Any, x: Any) -> Any:
    """The points' f_i summed, for CVXPY."""
    return cp.sum_squares(x - a) / 2


def timed(problem: Problem, tolerance: float = TOLERANCE) -> tuple[Solution, float]:
    """The solution on a graph of which nothing is known, and its CPU seconds."""
    edges = problem.edges
    fresh = Edges(edges.i, edges.j, edges.w, edges.n)
    begin = time.process_time()
    found = fit(problem.own, problem.lam, fresh, tolerance=tolerance)
    return found, time.process_time() - begin


def by_clarabel(problem: Problem, tolerance: float = TOLERANCE) -> tuple[float, float, float]:
    """The minimum to that relative gap, CVXPY's CPU seconds, and those without its formulation."""
    cp: Any = import_module("cvxpy")
    edges, count = problem.edges, len(problem.edges)
    rows, columns = np.tile(np.arange(count), 2), np.concatenate([edges.i, edges.j])
    incidence = csr_array((np.repeat([1.0, -1.0], count), (rows, columns)), (count, edges.n))
    x = cp.Variable((edges.n, problem.d))
    apart = cp.norm(incidence @ x, 2, axis=1)
    whole = cp.Problem(cp.Minimize(problem.cost(cp, x) + problem.lam * (edges.w @ apart)))
    options: dict[str, float] = dict.fromkeys(("tol_gap_rel", "tol_gap_abs", "tol_feas"), tolerance)
    options["max_threads"] = 1
    begin = time.process_time()
    data, chain, inverse = whole.get_problem_data(cp.CLARABEL, solver_opts=options)
    formulated = time.process_time()
    found = chain.solve_via_data(whole, data, solver_opts=options)
    solved = time.process_time()
    whole.unpack_results(found, chain, inverse)
    return float(whole.value), solved - begin, solved - formulated


def words(found: Solution) -> str:
    """How good, and how many clusters."""
    sure = "certified" if found.certified else "NOT certified"
    return f"{sure} to {found.relative_gap:.0e}; {found.labels.max() + 1:,} clusters"


def duel(problem: Problem, turns: int, most: float, formulated: bool) -> list[Measure]:
    """Both solvers by turns; medians, Clarabel's with CVXPY's formulation or without."""
    pairs = [(timed(problem), by_clarabel(problem)) for _ in range(turns)]
    house = median(ours for (_, ours), _ in pairs)
    guest = median(theirs[1 if formulated else 2] for _, theirs in pairs)
    (found, _), (value, *_) = pairs[0]
    whose, name = "CVXPY" if formulated else "Clarabel", problem.name
    beside = f"CPU ms {1e3 * house:.0f}, {whose} {1e3 * guest:,.0f}; {words(found)}"
    above = max(found.value - value, 0.0) / value
    return [
        Measure(name, house / guest, most, f"of {whose}", beside),
        Measure(f"{name}: above", above, SAME if formulated else 1e-7, "of P"),
    ]


def to_gaps(problem: Problem) -> Iterator[Measure]:
    """Seconds until a relative gap is certified, beside Clarabel's for the same tolerance."""
    for gap in GAPS:
        found, house = timed(problem, gap)
        _, _, guest = by_clarabel(problem, gap)
        beside = f"CPU ms {1e3 * house:.0f}, Clarabel {1e3 * guest:,.0f}; {words(found)}"
        yield Measure(f"{problem.name}, to {gap:.0e}", house / guest, 1.0, "of Clarabel", beside)


def large(kind: str, users: int, lam: float) -> tuple[float, float, str]:
    """CPU seconds and peak MB of this process: of ellipses with so many users a cluster, or moons.

    Ellipses are joined in `all` pairs, or as neighbours by their local models.
    """
    with one_thread(), threadpoolctl.threadpool_limits(1):
        own: LinearLosses | Floats
        edges: Edges | None = None
        if kind == "moons":
            own, edges = moons(users)
        else:
            own, _ = losses(users)
        begin = time.process_time()
        if isinstance(own, LinearLosses) and kind == "knn":
            edges = Edges.knn(own.minimise().numpy())
        found = fit(own, lam, edges)
        seconds = time.process_time() - begin
    return seconds, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 / 1e6, words(found)


def alone(name: str, most: tuple[float | None, float], *case: Any) -> list[Measure]:
    """A large problem in a process of its own; `most`: seconds and megabytes."""
    with ProcessPoolExecutor(1, get_context("spawn")) as pool:
        seconds, size, beside = pool.submit(large, *case).result()
    return [
        Measure(name, seconds, most[0], "CPU s", beside),
        Measure(f"{name}: peak", size, most[1], "MB"),
    ]


def usual(n: int) -> Measure:
    """Our seconds at the usual lambda."""
    found, seconds = timed(on_neighbours(n, USUAL))
    return Measure(f"10-NN, {n:,}, {USUAL:g}: CPU", seconds, USUAL_SECONDS[n], "s", words(found))


def on_neighbours(n: int, lam: float) -> Problem:
    """The moons' problem."""
    a, edges = moons(n)
    return Problem(f"10-NN, {n:,}, {lam:g}", a, partial(point_cost, a), 2, edges, lam)


def along_neighbours(n: int) -> Measure:
    """A path of the moons, beside the mean of ten cold solves along it."""
    (a, edges), lams = moons(n), np.geomspace(*SPAN, LENGTH)
    single = mean(timed(on_neighbours(n, lam))[1] for lam in lams[::3])
    begin = time.process_time()
    solutions = list(path(a, lams, edges))
    seconds = time.process_time() - begin
    worst = max(solution.relative_gap for solution in solutions)
    beside = (
        f"CPU ms {1e3 * seconds:.0f}, one cold solve {1e3 * single:.0f}; certified to {worst:.0e}"
    )
    return Measure(f"10-NN, {n:,}: {LENGTH} lambdas", seconds / single, TIMES, "solves", beside)


def along_a_path() -> Measure:
    """CPU seconds of a lambda on a path of the ellipses."""
    own, _ = losses(20)
    begin = time.process_time()
    solutions = list(path(own, np.geomspace(0.12, 0.002, LENGTH)))
    seconds = (time.process_time() - begin) / LENGTH
    worst = max(solution.relative_gap for solution in solutions)
    beside = f"{LENGTH} lambdas, all certified to {worst:.0e}"
    return Measure("ellipses, 60, a lambda of a path", seconds, 0.02, "CPU s", beside)


def federated_round() -> Measure:
    """CPU milliseconds of a round of PDMM of 60 users in process: a long run less a short one."""
    short, long = ROUNDS

    def seconds(rounds: int) -> float:
        (name,) = names = ["convex-clustering"]
        (row,) = run_strategy(names, (0,), **FEDERATION, num_rounds=rounds)[name]
        return float(row["cpu_seconds"])

    seconds(short)
    spent = 1e3 * (seconds(long) - seconds(short)) / (long - short)
    return Measure("a federation's round of pdmm, 60 users", spent, 3.0, "CPU ms")


def run() -> Iterator[Measure]:
    """All duels, the paths, and the large problems."""
    if find_spec("cvxpy") is None:
        raise CorsageError("sum-of-norms: needs cvxpy; pip install 'corsage[dev]'.")
    with one_thread(), threadpoolctl.threadpool_limits(1):
        for n, turns in TURNS.items():
            (own, u), a, edges = losses(n // 3), blobs(n // 3), Edges.all_pairs(n)
            kinds: tuple[tuple[str, tuple[float, ...], LinearLosses | Floats, Any], ...] = (
                ("ellipses", LAMBDAS, own, partial(hinge_cost, u)),
                ("points", POINT_LAMBDAS, a, partial(point_cost, a)),
            )
            for kind, lambdas, data, cost in kinds:
                for lam in lambdas:
                    name = f"{kind}, {n}, {lam:g}"
                    problem = Problem(name, data, cost, 3, edges, lam * 60 / n)
                    yield from duel(problem, turns, FASTER[n], formulated=True)
        yield along_a_path()
        yield federated_round()
        yield from (usual(n) for n in USUAL_SECONDS)
        yield from (along_neighbours(n) for n in PATH_SIZES)
        yield from to_gaps(on_neighbours(MIDDLE, USUAL))
        a = moons(FEW)[0]
        pairs = Edges.all_pairs(FEW)
        name = f"all pairs, {FEW}"
        yield from to_gaps(Problem(name, a, partial(point_cost, a), 2, pairs, 1 / FEW))
        for n, turns in SIZES.items():
            for lam in MOON_LAMBDAS:
                yield from duel(on_neighbours(n, lam), turns, 1.0, formulated=False)
    most = SECONDS, MEGABYTES
    yield from alone("ellipses, 999, all pairs", most, "all", 333, LAMBDAS[0] * 20 / 333)
    yield from alone("ellipses, 3,000, 10-NN", most, "knn", 1000, 0.05)
    yield from alone(f"10-NN, {LARGE:,}", (None, 1e3 * GIGABYTES), "moons", LARGE, USUAL)
