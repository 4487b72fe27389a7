"""Sums of norms on graphs of ten neighbours: CPU seconds beside Clarabel's, memory, and a path.

Two half moons, w = exp(-2 |a_i - a_j|^2), as in Sun, Toh and Yuan 2021. Our seconds begin with a
graph of which nothing is known yet, and end with a certified relative gap of 1e-8 and users that
are fused exactly. Clarabel's are without CVXPY's formulation; it ends
with gaps of 1e-8, too, and says nothing of who is fused. Both are also asked for larger gaps, on
neighbour graphs and among all pairs.

A path is compared with one solve: the mean of ten cold ones, each on a graph of which nothing is
known, at every third lambda of the path. Those in the middle of the path are cheaper; theirs is
said beside.

    python -m corsage.benchmarks neighbour-graphs
"""

from __future__ import annotations

import resource
import time
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from importlib import import_module
from importlib.util import find_spec
from multiprocessing import get_context
from statistics import mean, median
from typing import Any

import numpy as np
import threadpoolctl

from corsage.benchmarks.measure import Measure
from corsage.benchmarks.turns import one_thread
from corsage.core.arrays import Floats
from corsage.core.errors import CorsageError
from corsage.core.seeding import generator
from corsage.solvers.convex_clustering.exact.sum_of_norms import (
    TOLERANCE,
    Edges,
    Solution,
    fit,
    path,
)

SIZES, LAMBDAS = (300, 1_000, 3_000, 10_000), (0.005, 0.05, 0.5, 5.0)
SECONDS, USUAL = {500: 0.05, 2_000: 0.2, 5_000: 0.5, 10_000: 1.5}, 0.5
"""Our seconds at the usual lambda, at most."""
TURNS = {300: 5, 1_000: 3}
GAPS, MIDDLE, FEW = (1e-2, 1e-4, 1e-6, 1e-8), 3_000, 100
"""Relative gaps that are asked for; with so many neighbours' points, and points of all pairs."""
LARGE, GIGABYTES = 100_000, 8.0
PATH_SIZES, LENGTH, SPAN, TIMES = (2_000, 5_000), 30, (5.0, 5.0 / 300), 2.0
"""Users and lambdas of paths, their ends, and how many single solves one may take."""


def moons(n: int) -> tuple[Floats, Edges]:
    """n points on two half circles, .1 of noise, and their ten nearest neighbours."""
    rng, side = generator(0, "benchmark", "moons", n), np.repeat([1.0, -1.0], n // 2)
    t = rng.uniform(0, np.pi, n)
    a = np.stack([side * np.cos(t) - side / 2, side * np.sin(t) - side / 4], 1)
    a += 0.1 * rng.normal(size=a.shape)
    return a, Edges.knn(a, 10, decay=2.0)


def timed(
    a: Floats, edges: Edges, lam: float, tolerance: float = TOLERANCE
) -> tuple[Solution, float]:
    """The solution on a graph of which nothing is known, and its CPU seconds."""
    fresh = Edges(edges.i, edges.j, edges.w, edges.n)
    begin = time.process_time()
    found = fit(a, lam, fresh, tolerance=tolerance)
    return found, time.process_time() - begin


def by_clarabel(
    a: Floats, edges: Edges, lam: float, tolerance: float = TOLERANCE
) -> tuple[float, float]:
    """The minimum by Clarabel on one thread, to that relative gap, and its CPU seconds."""
    cp: Any = import_module("cvxpy")
    x = cp.Variable(a.shape)
    apart = cp.norm(x[edges.i] - x[edges.j], 2, axis=1)
    problem = cp.Problem(cp.Minimize(cp.sum_squares(x - a) / 2 + lam * (edges.w @ apart)))
    options: dict[str, float] = dict.fromkeys(("tol_gap_rel", "tol_gap_abs", "tol_feas"), tolerance)
    options["max_threads"] = 1
    data, chain, inverse = problem.get_problem_data(cp.CLARABEL, solver_opts=options)
    begin = time.process_time()
    found = chain.solve_via_data(problem, data, solver_opts=options)
    seconds = time.process_time() - begin
    problem.unpack_results(found, chain, inverse)
    return float(problem.value), seconds


def words(found: Solution) -> str:
    """How good, and how many clusters."""
    clusters = f"{found.labels.max() + 1:,} clusters"
    sure = "certified" if found.certified else "NOT certified"
    return f"{sure} to {found.relative_gap:.0e}, {clusters}"


def duel(n: int, lam: float) -> Iterator[Measure]:
    """Both solvers on the same problem, by turns; medians."""
    a, edges = moons(n)
    turns = [(timed(a, edges, lam), by_clarabel(a, edges, lam)) for _ in range(TURNS.get(n, 1))]
    (found, _), (value, _) = turns[0]
    house, guest = (median(turn[side][1] for turn in turns) for side in (0, 1))
    beside = f"CPU ms {1e3 * house:.0f}, Clarabel {1e3 * guest:,.0f}; {words(found)}"
    name, above = f"10-NN, {n:,}, {lam:g}", max(found.value - value, 0.0) / value
    yield Measure(name, house / guest, 1.0, "of Clarabel", beside)
    yield Measure(f"{name}: above", above, 1e-7, "of P")


def to_gaps(name: str, a: Floats, edges: Edges, lam: float) -> Iterator[Measure]:
    """Seconds until a relative gap is certified, beside Clarabel's for the same tolerance."""
    for gap in GAPS:
        found, house = timed(a, edges, lam, gap)
        _, guest = by_clarabel(a, edges, lam, gap)
        beside = f"CPU ms {1e3 * house:.0f}, Clarabel {1e3 * guest:,.0f}; {words(found)}"
        yield Measure(f"{name}, to {gap:.0e}", house / guest, 1.0, "of Clarabel", beside)


def alone(n: int) -> tuple[Solution, float, float]:
    """The solution for so many points, CPU seconds, and the peak GB of this process."""
    with one_thread(), threadpoolctl.threadpool_limits(1):
        found, seconds = timed(*moons(n), USUAL)
    return found, seconds, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 / 1e9


def large() -> list[Measure]:
    """A hundred thousand points in a process of their own."""
    with ProcessPoolExecutor(1, get_context("spawn")) as pool:
        found, seconds, size = pool.submit(alone, LARGE).result()
    beside = f"{seconds:.0f} CPU s; {words(found)}"
    return [Measure(f"10-NN, {LARGE:,}: peak", size, GIGABYTES, "GB", beside)]


def usual(n: int) -> Measure:
    """Our seconds at the usual lambda."""
    found, seconds = timed(*moons(n), USUAL)
    return Measure(f"10-NN, {n:,}, {USUAL:g}: CPU", seconds, SECONDS[n], "s", words(found))


def along_a_path(n: int) -> Measure:
    """A path, beside the mean of ten cold solves along it."""
    (a, edges), lams = moons(n), np.geomspace(*SPAN, LENGTH)
    single = mean(timed(a, edges, lam)[1] for lam in lams[::3])
    middle = median(timed(a, edges, lams[LENGTH // 2])[1] for _ in range(3))
    fresh = Edges(edges.i, edges.j, edges.w, edges.n)
    begin = time.process_time()
    solutions = list(path(a, lams, fresh))
    seconds = time.process_time() - begin
    worst = max(solution.relative_gap for solution in solutions)
    beside = (
        f"CPU ms {1e3 * seconds:.0f}, one cold solve {1e3 * single:.0f}, in the middle "
        f"{1e3 * middle:.0f}; certified to {worst:.0e}"
    )
    return Measure(f"10-NN, {n:,}: {LENGTH} lambdas", seconds / single, TIMES, "solves", beside)


def run() -> Iterator[Measure]:
    """All of them."""
    if find_spec("cvxpy") is None:
        raise CorsageError("neighbour-graphs: needs cvxpy; pip install 'corsage[dev]'.")
    with one_thread(), threadpoolctl.threadpool_limits(1):
        timed(*moons(SIZES[0]), USUAL)
        yield from (usual(n) for n in SECONDS)
        yield from (along_a_path(n) for n in PATH_SIZES)
        yield from to_gaps(f"10-NN, {MIDDLE:,}, {USUAL:g}", *moons(MIDDLE), USUAL)
        a = moons(FEW)[0]
        yield from to_gaps(f"all pairs, {FEW}", a, Edges.all_pairs(FEW), 1 / FEW)
        for n in SIZES:
            for lam in LAMBDAS:
                yield from duel(n, lam)
    yield from large()
