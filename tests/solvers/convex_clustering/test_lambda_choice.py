"""lambda = auto: the right partitions without knowing K, folds, the one-SE rule and the gate."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from corsage.core.errors import ModelError
from corsage.experiments.convex_clustering.problem import Splits, accuracy, problem
from corsage.solvers.convex_clustering import lambda_choice
from corsage.solvers.convex_clustering.lambda_choice import (
    CROSS,
    Candidate,
    choose_for_clusters,
    choose_for_models,
    fewest,
    gate,
    grid,
    mean_of_known,
    one_cluster,
    standard_error,
)
from corsage.solvers.convex_clustering.reading import agreement, refit
from corsage.solvers.convex_clustering.recovery import theorem1
from corsage.solvers.convex_clustering.sum_of_norms import fit, path
from corsage.solvers.losses.convex import points
from corsage.solvers.losses.held_out import Fold


def models_along(losses, lams):
    return [solved.x for solved in path(losses, lams.tolist())]


@given(st.integers(1, 40), st.integers(0, 10**6))
@settings(max_examples=50, deadline=None)
def test_folds_part_a_users_samples(size: int, seed: int) -> None:
    parts = [fold.held_out(seed, "u", size).tolist() for fold in CROSS]
    together = sorted(place for own in parts for place in own)
    assert together == list(range(size)) or size == 1
    assert max(map(len, parts)) < max(size, 2)
    assert len(Fold("models", 0, 0.3).held_out(seed, "u", size)) == round(0.3 * size)


def test_folds_differ_by_purpose_and_user_only() -> None:
    fold = Fold("gate 0", 0, 0.3)
    own = fold.held_out(1, "a", 20)
    assert np.array_equal(own, Fold("gate 0", 0, 0.3).held_out(1, "a", 20))
    for other in (
        fold.held_out(2, "a", 20),
        fold.held_out(1, "b", 20),
        Fold("gate 1", 0, 0.3).held_out(1, "a", 20),
    ):
        assert not np.array_equal(own, other)


def test_grid_begins_where_all_models_are_one() -> None:
    losses, _ = problem()
    lams = grid(losses)
    assert len(lams) == 30 and lams[-1] == pytest.approx(lams[0] / 50)
    one = one_cluster(losses.n)
    w = refit(losses, one)
    assert theorem1(losses, one, w) <= lams[0] <= 2 * theorem1(losses, one, w)
    assert fit(losses, float(lams[0])).labels.max() == 0
    largest = losses.gradient(torch.from_numpy(w[one])).norm(dim=1).max()
    assert lams[0] == pytest.approx(2 * float(largest) / losses.n)


def test_losses_without_a_best_model_are_refused_in_a_line(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(lambda_choice, "refit", lambda losses, labels: np.full((1, 2), np.nan))
    losses = points(torch.zeros(3, 2, dtype=torch.float64))
    with pytest.raises(ModelError, match=r"no best model .*ridge=0\.001"):
        grid(losses)


def test_models_are_chosen_nearly_as_well_as_can_be() -> None:
    chosen = choose_for_models(Splits(1), models_along)
    losses, _ = problem()
    assert accuracy(fit(losses, chosen.lam).x) == pytest.approx(0.8685, abs=2e-3)
    assert chosen.lam == chosen.lams[np.argmin(chosen.scores)]


@pytest.mark.parametrize("seed", [1, 7])
def test_three_clusters_are_found(seed: int) -> None:
    chosen = choose_for_clusters(Splits(seed), models_along)
    assert agreement(chosen.labels, problem(seed)[1]) == 1
    assert chosen.gain > 1.64 * chosen.error > 0


@pytest.mark.parametrize("seed", [1, 2])
def test_one_cluster_stays_one(seed: int) -> None:
    chosen = choose_for_clusters(Splits(seed, 1), models_along)
    assert chosen.labels.max() == 0
    assert any(each.clusters > 1 for each in chosen.candidates)


class Misled(Splits):
    """Users of one cluster whose cross-validation says that two are better."""

    def evaluate(self, models, fold):
        lost = super().evaluate(models, fold)
        apart = len(np.unique(models, axis=0)) > 1
        return lost / 10 if apart and fold.purpose == "clusters" else lost


def test_the_gate_refuses_clusters_that_only_cross_validation_sees() -> None:
    chosen = choose_for_clusters(Misled(1, 1), models_along)
    assert np.isfinite(chosen.gain) and not chosen.gain > 1.64 * chosen.error
    assert chosen.labels.max() == 0 and chosen.lam == chosen.candidates[0].lam


def test_the_gates_gain_is_that_of_fresh_partitions() -> None:
    """About what the true clusters would gain."""
    users, (losses, true) = Splits(1), problem()
    lams = grid(losses)
    gains = gate(users, int(np.argmin(np.abs(lams - 0.03))), models_along)
    fold = Fold("gate 0", 0, 0.3)
    kept = users.losses_without(fold)
    one = one_cluster(losses.n)
    oracle = users.evaluate(refit(kept, one)[one], fold)
    oracle -= users.evaluate(refit(kept, true)[true], fold)
    assert gains.mean() == pytest.approx(oracle.mean(), abs=3 * standard_error(oracle))


def test_fewest_clusters_within_a_standard_error() -> None:
    def made(count, losses):
        return Candidate(np.arange(6) % count, 1.0, np.array(losses, float))

    best, near = made(4, [1, 1, 1, 1, 1, 1.6]), made(3, [1.15] * 6)
    equal, far = dataclasses.replace(near, losses=np.full(6, 1.12)), made(2, [1.3] * 6)
    assert best.score == pytest.approx(1.1) and best.error == pytest.approx(0.1)
    assert fewest([far, best, near, equal]) is equal
    assert fewest([far, best]) is best
    none = made(1, [np.inf] * 6)
    assert fewest([none, far]) is far


def test_users_without_held_out_samples_do_not_count() -> None:
    scores = np.array([[1.0, np.nan, 2.0], [3.0, np.nan, np.nan]])
    np.testing.assert_array_equal(mean_of_known(scores), [2.0, np.nan, 2.0])
    assert standard_error(np.array([1.0, np.nan, 3.0])) == pytest.approx(1.0)
