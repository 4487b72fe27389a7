"""Where Algorithm 1 goes with old centres, by the exact mean of its steps over all coins."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from corsage.core.seeding import generator
from corsage.solvers.known_clusters.hierarchy import Hierarchy, alpha_of
from corsage.solvers.known_clusters.settings import (
    Parameters,
    Rates,
    largest_step,
    probabilities,
    rates,
    tau_of,
)
from corsage.solvers.known_clusters.stale import bears_delays, partial_map
from tests.support.slow_clusters import SCHEDULES, there

K, D = 4, 2


class Quadratic:
    """A user a cluster, f_j = 1/2 theta'A theta - b'theta, and the mean of what coins make of it.

    A state is theta_j of all clusters, what is seen of them, and a 1: maps are matrices.
    """

    def __init__(self, seed: int, lam: float = 2.0, scale: float = 1.0) -> None:
        rng = generator(seed, "stale")
        root = rng.normal(size=(K, D, D)) * np.exp(rng.normal(size=(K, 1, 1)))
        self.a = root @ root.transpose(0, 2, 1) + 0.05 * np.eye(D)
        self.b = rng.normal(size=(K, D)) * 3
        gamma = np.full(K, 1.5)
        self.hierarchy = Hierarchy(np.arange(K), gamma, alpha_of(lam, gamma))
        self.smooth = float(np.linalg.eigvalsh(self.a).max())
        p0, _ = probabilities(self.hierarchy, self.smooth)
        p = np.full(K, 0.0)
        step = scale * largest_step(self.hierarchy, self.smooth, p0, p)
        self.p0 = p0
        self.rates: Rates = rates(self.hierarchy, Parameters(step, p0, p, tau_of(p0, p)))

    def best(self) -> Any:
        """The minimiser of (2.1): A theta + alpha gamma (theta - middle) = b."""
        pull = self.hierarchy.alpha * self.hierarchy.gamma
        system = np.zeros((K, D, K, D))
        for j in range(K):
            system[j, :, j] += self.a[j] + pull[j] * np.eye(D)
            for other in range(K):
                system[j, :, other] -= pull[j] * self.hierarchy.weights[other] * np.eye(D)
        return np.linalg.solve(system.reshape(K * D, K * D), self.b.ravel()).reshape(K, D)

    def mean_round(self, there: Any) -> Any:
        """The mean map of a round in which some clusters take part.

        A run of global steps is r >= 1 long with probability (1 - p_0) p_0^(r - 1), a walk of l
        local steps is with p_0 (1 - p_0)^(l - 1).
        """
        n, p0, one = K * D, self.p0, self.run(there, 1)
        size, walk = 2 * n + 1, np.eye(2 * n + 1)
        step = np.eye(size)  # a global step that changes nothing of what is seen
        step[:n] = one[:n]
        before = (1 - p0) * np.linalg.inv(np.eye(size) - p0 * step)  # the last step of a run
        runs = step @ before
        runs[n:] = one[n:] @ before
        for j in np.flatnonzero(there):
            local, place = np.eye(D + 1), slice(j * D, (j + 1) * D)
            local[:D, :D] -= self.rates.local[j] * self.a[j]
            local[:D, D] = self.rates.local[j] * self.b[j]
            mean = p0 * np.linalg.solve(np.eye(D + 1) - (1 - p0) * local, local)
            walk[place, place], walk[place, size - 1] = mean[:D, :D], mean[:D, D]
        return np.asarray(walk @ runs)

    def run(self, there: Any, steps: int) -> Any:
        """The map of so many global steps, column by column."""
        n = K * D
        out = np.zeros((2 * n + 1, 2 * n + 1))
        rate = (self.rates.middle, self.rates.centre)
        for column in range(2 * n):
            state = np.zeros(2 * n)
            state[column] = 1.0
            own, seen = state[:n].reshape(K, D), state[n:].reshape(K, D)
            _, moved, last = partial_map(own, seen, there, self.hierarchy.weights, rate, steps)
            out[: 2 * n, column] = np.concatenate([moved.ravel(), last.ravel()])
        out[2 * n, 2 * n] = 1.0
        return out


@pytest.mark.parametrize("staleness", [0, 1, 2, 5, 20, 50])
@pytest.mark.parametrize("kind", SCHEDULES)
def test_the_mean_goes_to_the_minimiser(kind: str, staleness: int) -> None:
    """To 1e-9, with the paper's step size, whatever the schedule.

    What is compared is what others see: a cluster's mean before a global step, whatever comes next.
    """
    problem = Quadratic(staleness)
    rounds = 2 * (staleness + 1)
    joins = there(SCHEDULES[kind](list("0123"), rounds, staleness), list("0123"))
    maps = {key: problem.mean_round(np.array(key)) for key in {tuple(row) for row in joins}}
    period = np.eye(2 * K * D + 1)
    for row in joins:
        period = maps[tuple(row)] @ period
    n = 2 * K * D
    assert np.abs(np.linalg.eigvals(period[:n, :n])).max() < 1
    fixed = np.linalg.solve(np.eye(n) - period[:n, :n], period[:n, n])
    best = problem.best()
    assert np.abs(fixed[K * D :].reshape(K, D) - best).max() < 1e-9 * np.abs(best).max()


def test_the_paper_s_step_bears_any_delay_and_a_longer_one_need_not() -> None:
    for seed in range(20):
        problem = Quadratic(seed)
        assert bears_delays(problem.rates, problem.smooth)
        longer = Quadratic(seed, scale=40.0)
        assert not bears_delays(longer.rates, longer.smooth)


def test_many_steps_are_one_after_the_other() -> None:
    """What is seen is the centre before the last of them."""
    problem, some = Quadratic(1), np.array([True, False, True, True])
    many, one = problem.run(some, 3), problem.run(some, 1)
    n = K * D
    step = np.eye(2 * n + 1)
    step[:n] = one[:n]
    assert np.allclose(many[:n], (step @ step @ step)[:n], atol=1e-14)
    assert np.allclose(many[n:], (one @ step @ step)[n:], atol=1e-14)
