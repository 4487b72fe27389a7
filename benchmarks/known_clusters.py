"""Known clusters at the size of Lyu et al. 2022, section 6.2: 29,490 users, a million records.

Async-L2GD with one coin takes 5,000 iterations of a logistic regression in float32, five nodes with
a known cluster each, in process and on Ray: with a worker a core, and with one, as each takes
400 MB before it has any data. The mixed model solves the same problem, its strengths estimated.
Each run is a process of its own with all that it starts: its CPU seconds, start-up and the
preparation of the data included, and its peak of memory. A pass of the kernel that takes the local
steps is timed alone, too. Beside them runs a bare loop of numpy: the
same iterations with the same coins on the same data, without messages or users.

    python -m corsage.benchmarks known-clusters
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from corsage.benchmarks.measure import Measure
from corsage.benchmarks.memory import Peak, watched
from corsage.core.arrays import Floats32
from corsage.core.configuration.config import Config
from corsage.core.losses import LOGISTIC
from corsage.datasets.dealing.federated import simulated
from corsage.datasets.user_data import FederatedData
from corsage.experiments.runner import say
from corsage.solvers.known_clusters.coins.flips import Coins
from corsage.solvers.known_clusters.coins.settings import Parameters, Rates, rates
from corsage.solvers.known_clusters.hierarchy import Hierarchy
from corsage.solvers.losses.linear_losses import LinearLosses
from corsage.solvers.losses.local_descent import library
from corsage.solvers.losses.padded import cells

SECONDS, MEMORY, SOLVER, RATIO = 8.0, 1500.0, 10.0, 2.0
PASS, PASSES = 0.5, 500
ITERATIONS, ETA, P0, NODES = 5000, 1e-3, 0.1, 5
DATA: dict[str, Any] = {
    "dataset": "donors",
    "partition": "natural",
    "num-users": 0,
    "users-per-cluster": 5898,
    "samples-per-user": 20,
    "model": "linear",
    "loss": "logistic",
    "precision": "float32",
}
COINS: dict[str, Any] = {
    "strategy": "async-l2gd",
    "known-gamma": 1,
    "known-lambda": 1,
    "known-p0": P0,
    "known-p": 0,
    "known-eta": ETA,
}
PADDING = 1.25
"""A block's users have at most so many times as many records as its smallest one."""


@dataclass
class Spent(Peak):
    """The peak, and the CPU seconds of every process that was seen."""

    cpu: dict[int, float] = field(default_factory=dict)

    def take(self, pids: set[int]) -> None:
        """One more sample."""
        super().take(pids)
        for pid in pids:
            try:
                self.cpu[pid] = cpu_seconds(pid)
            except OSError:  # it is gone: what was seen of it counts
                continue

    @property
    def seconds(self) -> float:
        """CPU seconds of all processes."""
        return sum(self.cpu.values())


def cpu_seconds(pid: int) -> float:
    """What a process has spent so far, in user and system mode."""
    stat = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
    ticks = stat.rpartition(")")[2].split()[11:13]
    return sum(map(int, ticks)) / os.sysconf("SC_CLK_TCK")


# The bare loop.


def bare(data: FederatedData, iterations: int) -> tuple[Floats32, float]:
    """theta^T (n, d) of the same run in a loop of numpy, and the loop's CPU seconds."""
    names = np.array([data.clusters[user] for user in data.users])
    _, cluster = np.unique(names, return_inverse=True)
    k = int(cluster.max()) + 1
    totals = np.bincount(cluster).astype(np.float64)
    hierarchy = Hierarchy(cluster, np.ones(len(cluster)), 1 / (1 + totals))  # gamma = lambda = 1
    rate = rates(hierarchy, Parameters(ETA, P0, np.zeros(k), np.ones(k)))
    gradient = logistic(data)
    xi_0 = Coins(0, P0, (0.0,) * k, tuple(map(str, range(k)))).network_at(0, iterations)
    theta = np.zeros((len(cluster), 3), np.float32)
    begin = time.process_time()
    for coin in xi_0:
        if coin:
            theta = pulled(theta, hierarchy, rate)
        else:
            theta = theta - np.float32(rate.local[0]) * gradient(theta)
    return theta, time.process_time() - begin


def pulled(theta: Floats32, hierarchy: Hierarchy, rate: Rates) -> Floats32:
    """Line 7 of Algorithm 1 for all users."""
    centres, middle = hierarchy.means(theta)
    move = rate.middle[:, None] * (theta - middle)
    move += rate.centre[:, None] * (theta - centres[hierarchy.cluster])
    return (theta - move).astype(np.float32)


@dataclass(frozen=True)
class Rows:
    """Users of like sizes: their numbers (u,), and arrays (u, most records), zeros behind."""

    users: NDArray[np.int64]
    first: Floats32
    second: Floats32
    real: Floats32
    label: Floats32

    def gradient(self, theta: Floats32) -> Floats32:
        """The gradients (u, 3) of the sums of logistic losses."""
        own = theta[self.users, :, None]
        u = self.first * own[:, 0] + self.second * own[:, 1] + own[:, 2]
        slope = self.real / (1 + np.exp(-u)) - self.label
        columns = [np.einsum("um,um->u", slope, plane) for plane in (self.first, self.second)]
        return np.stack([*columns, slope.sum(1)], axis=1)


def logistic(data: FederatedData) -> Callable[[Floats32], Floats32]:
    """The gradients (n, 3) of all users, those of like sizes together."""
    sizes, starts = data.train_sizes, data.bounds[:, 0]
    order, blocks = np.argsort(sizes, kind="stable"), []
    while len(order):
        many = int(np.searchsorted(sizes[order], PADDING * sizes[order[0]], "right"))
        users, order = order[:many], order[many:]
        column = np.arange(sizes[users].max())
        real = (column < sizes[users, None]).astype(np.float32)
        rows = np.where(real > 0, starts[users, None] + column, 0)
        first, second = (data.x[rows, place].astype(np.float32) * real for place in (0, 1))
        label = data.y[rows].astype(np.float32) * real
        blocks.append(Rows(users, first, second, real, label))

    def gradient(theta: Floats32) -> Floats32:
        out = np.empty_like(theta)
        for block in blocks:
            out[block.users] = block.gradient(theta)
        return out

    return gradient


# The runs.


def run(keys: dict[str, Any] | None = None, iterations: int = ITERATIONS) -> Iterator[Measure]:
    """All runs; `keys` change the data."""
    data = {**DATA, **(keys or {})}
    users = simulated(Config.parse(data).data, 0, 0)
    yield one_pass(users)
    say("bare loop of numpy")
    _, loop = bare(users, iterations)
    beside = f"{len(users.users):,} users, {len(users.y):,} records; bare loop {loop:.1f} CPU s"
    coins = {**COINS, "known-iterations": iterations}
    alone = {"engine": "ray", "node-cpus": os.cpu_count() or 1}  # all cores for one worker
    for place, engine in (
        ("local", {"engine": "local"}),
        ("ray", {"engine": "ray"}),
        ("ray with one worker", alone),
    ):
        spent = measured({**data, **coins, **engine})
        name = f"async-l2gd, {place}"
        words = f"{beside}; MB at the peak: {spent.words()}"
        yield Measure(f"{name}: CPU", spent.seconds, SECONDS, "s", words)
        if place == "local":
            ratio = spent.seconds / loop
            yield Measure(f"{name}: bare loop", ratio, RATIO, "of bare", words)
        yield Measure(f"{name}: memory", spent.total, MEMORY, "MB", words)
    spent = measured({**data, "strategy": "mixed-model", "engine": "local"})
    name = "mixed-model, strengths on auto, local"
    yield Measure(f"{name}: CPU", spent.seconds, SOLVER, "s", spent.words())


def one_pass(data: FederatedData) -> Measure:
    """CPU milliseconds of a gradient step of all users, of many at once, as a round has them."""
    of, number = cells(data.train_sizes)
    rows = data.bounds[of, 0] + number
    x, y = torch.from_numpy(data.x[rows].astype(np.float32)), torch.from_numpy(data.y[rows])
    losses = LinearLosses(x, y, data.train_sizes, loss=LOGISTIC, scale="sum")
    theta = torch.zeros(len(data.users), losses.d)
    losses.descend(theta, 1, ETA)  # the layout, and the compiled kernel
    begin = time.process_time()
    losses.descend(theta, PASSES, ETA)
    spent = 1e3 * (time.process_time() - begin) / PASSES
    kind = "llvmlite" if library() else "torch"
    beside = f"{len(data.users):,} users, {len(rows):,} training records, by {kind}"
    return Measure("a pass of all users", spent, PASS, "CPU ms", beside)


def measured(keys: dict[str, Any]) -> Spent:
    """One run in a process of its own, evaluated at its end."""
    say(f"{keys['strategy']} on the engine {keys['engine']}")
    once = {"num-nodes": NODES, "evaluate-every": 10**6, "checkpoint-every": 10**6}
    return watched([f"{key}={value}" for key, value in {**keys, **once}.items()], Spent())
