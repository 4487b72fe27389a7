"""Many problems at once: their optima, their gaps, and in how few exchanges."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
import torch

from corsage.core.losses import LOGISTIC, SQUARED_LOSS, huber
from corsage.solvers.convex_clustering import runs
from corsage.solvers.convex_clustering.batched import Batched
from corsage.solvers.convex_clustering.couplings import Clusters, Parts, Penalty
from corsage.solvers.convex_clustering.exact.edges import Edges
from corsage.solvers.convex_clustering.exact.sum_of_norms import fit, path
from corsage.solvers.convex_clustering.expansions import (
    HERE,
    Probe,
    answer,
    models,
    nearest,
    picked,
)
from corsage.solvers.convex_clustering.reading import fused, refit
from corsage.solvers.convex_clustering.runs import Task
from corsage.solvers.losses.convex import linear_losses
from tests.support.convex_problems import KINDS, AtHand, D, ellipses, huber_points, linear, random

PAIRS = Edges.all_pairs(9)
LAMS = np.geomspace(0.3, 0.005, 8).tolist()


class Whole:
    """Users none of whose samples are ever left out."""

    def __init__(self, losses):
        self.losses = losses

    def losses_without(self, fold):
        assert fold is None
        return self.losses


def asked(losses):
    oracle = AtHand(Whole(losses))
    users = Batched(oracle, losses.n, losses.d)
    users.local([None])
    return users, oracle


@pytest.mark.parametrize("kind", KINDS)
def test_a_path_is_the_path_and_its_gaps_are_never_below_the_true_ones(kind):
    losses, _ = kind(3)
    users, oracle = asked(losses)
    found = users.solve([Task(Penalty(lam, PAIRS)) for lam in LAMS])
    for lam, each in zip(LAMS, found, strict=True):
        best = fit(losses, lam, PAIRS, tolerance=1e-11)
        assert each.gap <= 1e-6
        size = float(losses.value(torch.from_numpy(each.x)).abs().sum())
        size += Penalty(lam, PAIRS).penalty(each.x)
        assert -1e-10 * size <= each.value - best.value <= each.gap * size + 1e-12 * size
        assert (fused(each.x, 1e-4) == fused(best.x, 1e-4)).all()
    assert len(oracle.exchanges) <= 8


def test_thirty_lambda_of_the_ellipses_are_certified_in_six_exchanges():
    losses, lams = ellipses(), np.geomspace(0.3, 0.006, 30)
    edges = Edges.all_pairs(losses.n)
    users, oracle = asked(losses)
    found = users.solve([Task(Penalty(lam, edges)) for lam in lams])
    assert max(each.gap for each in found) <= 1e-6
    assert all(each.everywhere for each in found)
    assert len(oracle.exchanges) <= 6
    for each, best in zip(found, path(losses, lams.tolist(), edges, 1e-10), strict=True):
        assert each.value == pytest.approx(best.value, rel=1e-6)


def outliers(seed=0, delta=0.2):
    """Three groups of linear regressions with the robust loss, a tenth of the labels far off."""
    rng = random(seed)
    w = np.repeat(2 * rng.normal(size=(3, 3)), 8, 0) + 0.2 * rng.normal(size=(24, 3))
    a = rng.normal(size=(24, 15, 3))
    y = np.einsum("nmd,nd->nm", a, w) + 0.5 * rng.normal(size=(24, 15))
    y += (rng.random(y.shape) < 0.1) * 20 * rng.normal(size=y.shape)
    parts = torch.from_numpy(a.reshape(-1, 3)), torch.from_numpy(y.ravel())
    return linear_losses(*parts, [15] * 24, loss=huber(delta), scale="mean", ridge=1e-3)


@pytest.mark.parametrize(("delta", "most"), [(0.2, 12), (1.0, 7)])
def test_kinks_of_the_robust_loss_cost_few_more_exchanges(delta, most):
    losses, edges = outliers(delta=delta), Edges.all_pairs(24)
    users, oracle = asked(losses)
    lams = np.geomspace(0.05, 0.001, 15)
    found = users.solve([Task(Penalty(lam, edges)) for lam in lams])
    assert max(each.gap for each in found) <= 1e-6
    assert len(oracle.exchanges) <= most
    for place in (1, 7, 14):
        best = fit(losses, lams[place], edges, tolerance=1e-9)
        assert found[place].value == pytest.approx(best.value, rel=1e-6)


def test_answers_to_other_tasks_are_taken_where_they_are_nearer():
    losses, _ = KINDS[2](3)
    far, near = (
        answer(losses, Probe(x, np.zeros_like(x), HERE), np.full(9, np.nan))
        for x in (np.zeros((9, D + 1)), np.ones((9, D + 1)))
    )
    x = np.where(np.arange(9)[:, None] < 4, 0.1, 0.8) * np.ones((9, D + 1))
    picks = nearest([far, near], x)
    assert picks.tolist() == [0] * 4 + [1] * 5
    both = picked([far, near], picks)
    assert np.array_equal(both.hessian[:4], far.hessian[:4])
    assert np.array_equal(both.gradient[4:], near.gradient[4:])


def test_quadratic_losses_take_one_step():
    losses, _ = KINDS[0](5)
    users, oracle = asked(losses)
    users.solve([Task(Penalty(lam, PAIRS)) for lam in LAMS])
    assert len(oracle.exchanges) == 2


@pytest.mark.parametrize("kind", KINDS)
def test_clusters_models_are_the_minimisers_of_their_sums(kind):
    losses, _ = kind(1)
    labels = np.array([0, 1, 2] * 3)
    users, _ = asked(losses)
    (found,) = users.solve([Task(Clusters(labels))], 1e-9)
    assert found.x == pytest.approx(refit(losses, labels)[labels], abs=1e-4)
    assert found.gap <= (1e-6 if kind is huber_points else 1e-9)


def test_fused_models_close_the_gap_where_they_are_the_solution_and_only_there():
    losses, edges = ellipses(users=6), Edges.all_pairs(18)
    best = fit(losses, 0.2, edges, tolerance=1e-11)
    right, wrong = fused(best.x), (fused(best.x) + np.arange(18)) % 3
    users, oracle = asked(losses)
    found = users.solve([Task(Parts(own, 0.2, edges)) for own in (right, wrong)], 1e-9)
    assert found[0].gap <= 1e-9 and found[0].value == pytest.approx(best.value)
    assert found[1].gap > 1e-4 and found[1].value > best.value
    assert len(oracle.exchanges) <= 7  # a wrong one is left when its models change no more


def test_a_huge_loss_makes_no_gap_small():
    assert runs.size_of(np.array([1.0, -2.0, 3.0])) == 6.0
    assert runs.size_of(np.array([1.0, 2.0, 1e12])) == 1 + 2 + 100 * 2
    assert runs.size_of(np.array([0.0, 0.0, 5.0])) == 5.0


def test_nobody_certifies_others_by_a_minimum_that_is_too_high():
    """A user says that it has nothing to gain; what the others have to gain is still counted."""
    losses, edges = ellipses(users=4), Edges.all_pairs(12)
    oracle = AtHand(Whole(losses))

    def lying(probes):
        found = oracle(probes)
        return [replace(each, least=each.least + 1e6 * (np.arange(12) == 0)) for each in found]

    users = Batched(lying, 12, losses.d)
    users.local([None])
    (found,) = users.solve([Task(Penalty(0.05, edges))], 1e-6)
    best = fit(losses, 0.05, edges, tolerance=1e-10)
    assert found.gap <= 1e-6 and found.value == pytest.approx(best.value, rel=1e-5)
    assert len(oracle.exchanges) > 2


def test_models_touch_the_losses_at_the_proximal_point():
    _, losses = linear(2, LOGISTIC)
    x, v = random(0).normal(size=(9, D + 1)), 0.01 * random(1).normal(size=(9, D + 1))
    found = answer(losses, Probe(x, v, 0.1), np.full(9, np.nan))
    y = torch.from_numpy(found.y)
    pulled = losses.gradient(y).numpy() + v + 0.1 * found.curvature[:, None] * (found.y - x)
    assert pulled == pytest.approx(0, abs=1e-9)
    own = models(found, found.y, 0.0)
    assert own.value(y).numpy() == pytest.approx(losses.value(y).numpy())
    assert own.gradient(y).numpy() == pytest.approx(losses.gradient(y).numpy())
    here = answer(losses, Probe(x, v, HERE), np.full(9, np.nan))
    assert np.array_equal(here.y, x)


def separable(ridge=0.0):
    """Users with samples of one class each, which no model of their own is best for."""
    rng = random(4)
    a, y = rng.normal(size=(8 * 6, 2)), np.repeat(np.arange(8) % 2, 6)
    return linear_losses(
        torch.from_numpy(a + 0.5 * (2 * y - 1)[:, None]), torch.from_numpy(y), [6] * 8,
        loss=LOGISTIC, scale="mean", ridge=ridge,
    )  # fmt: skip


def test_without_models_of_ones_own_the_gap_says_what_it_holds_against():
    """One class a user, no ridge: the infimum is never reached, and yet the gap closes nearby."""
    losses, edges = separable(), Edges.all_pairs(8)
    users, _ = asked(losses)
    assert not users.found.any()
    (found,) = users.solve([Task(Penalty(0.05, edges))], 1e-6)
    best = fit(losses, 0.05, edges, tolerance=1e-9)
    assert found.value == pytest.approx(best.value, rel=1e-5)
    assert found.gap <= 1e-5


def test_fewer_rows_than_coefficients_is_no_obstacle_to_squared_loss():
    rng = random(6)
    a, w = rng.normal(size=(12 * 3, 5)), rng.normal(size=5)
    losses = linear_losses(
        torch.from_numpy(a), torch.from_numpy(a @ w + 0.1 * rng.normal(size=36)), [3] * 12,
        loss=SQUARED_LOSS, scale="mean",
    )  # fmt: skip
    users, _ = asked(losses)
    (found,) = users.solve([Task(Penalty(0.02, Edges.all_pairs(12)))])
    best = fit(losses, 0.02, tolerance=1e-8)
    assert found.value == pytest.approx(best.value, rel=1e-5)
    assert found.gap <= 1e-5


def test_a_step_that_fails_is_not_taken(monkeypatch):
    """With models that are far too flat each first step is too long: damping saves them."""
    losses, lams = ellipses(users=4), [0.1, 0.02]
    plain = runs.models
    flat = lambda found, centre, damping: plain(found, centre, damping / 50)  # noqa: E731
    monkeypatch.setattr(runs, "models", flat)
    users, _ = asked(losses)
    values = []
    take = runs.Run.take

    def watched(run, found):
        take(run, found)
        values.append((id(run), run.value))

    monkeypatch.setattr(runs.Run, "take", watched)
    found = users.solve([Task(Penalty(lam, Edges.all_pairs(12))) for lam in lams])
    for own in {key for key, _ in values}:
        falls = [value for key, value in values if key == own]
        assert all(b <= a for a, b in pairwise(falls))
    assert all(each.gap <= 1e-6 for each in found)
