"""lambda = auto: the lambda of the least held-out loss, in a few exchanges."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from corsage.core.errors import ModelError
from corsage.core.losses import LOGISTIC
from corsage.solvers.convex_clustering.batched import Batched, Single
from corsage.solvers.convex_clustering.couplings import Clusters, Penalty
from corsage.solvers.convex_clustering.exact.edges import Edges
from corsage.solvers.convex_clustering.exact.sum_of_norms import fit
from corsage.solvers.convex_clustering.recovery import theorem1
from corsage.solvers.convex_clustering.runs import Task
from corsage.solvers.convex_clustering.selection import HOLD_OUT, choose_for_models, grid
from corsage.solvers.losses.held_out import Fold
from tests.support import drawn as at_drawn
from tests.support.convex_problems import AtHand
from tests.support.drawn import Drawn, ellipses

USERS = 6
FIFTHS = tuple(Fold("fifths", number, 0.2) for number in range(5))


def asked(drawn: Drawn) -> tuple[Batched, AtHand, Edges]:
    oracle, n = AtHand(drawn), len(drawn.l)
    return Batched(oracle, n, drawn.a.shape[2] + 1), oracle, Edges.all_pairs(n)


@given(st.integers(1, 40), st.integers(0, 10**6))
@settings(max_examples=50, deadline=None)
def test_folds_part_a_users_samples(size: int, seed: int) -> None:
    parts = [fold.held_out(seed, "u", size).tolist() for fold in FIFTHS]
    together = sorted(place for own in parts for place in own)
    assert together == list(range(size)) or size == 1
    assert max(map(len, parts)) < max(size, 2)
    assert len(HOLD_OUT.held_out(seed, "u", size)) == round(0.3 * size)


def test_folds_differ_by_purpose_and_user_only() -> None:
    fold = Fold("a", 0, 0.3)
    own = fold.held_out(1, "a", 20)
    assert np.array_equal(own, Fold("a", 0, 0.3).held_out(1, "a", 20))
    for other in (
        fold.held_out(2, "a", 20),
        fold.held_out(1, "b", 20),
        Fold("b", 0, 0.3).held_out(1, "a", 20),
    ):
        assert not np.array_equal(own, other)


def test_the_grid_begins_where_all_models_are_one() -> None:
    drawn = ellipses(1, 20, USERS)
    users, _, edges = asked(drawn)
    users.local([HOLD_OUT])
    lams = grid(users, edges, HOLD_OUT, 30)
    losses, one = drawn.losses_without(HOLD_OUT), np.zeros(18, np.int64)
    (model,) = users.solve([Task(Clusters(one), HOLD_OUT)], 1e-10)
    assert lams[-1] == pytest.approx(lams[0] / 50)
    assert lams[0] == pytest.approx(2 * theorem1_half(losses, model.x[:1]), rel=0.05)
    assert fit(losses, float(lams[0])).labels.max() == 0


def theorem1_half(losses, w):
    """max_i |grad f_i(y*)|/N."""
    import torch

    gradient = losses.gradient(torch.from_numpy(np.repeat(w, losses.n, 0)))
    assert theorem1(losses, np.zeros(losses.n, np.int64), w) > 0
    return float(gradient.norm(dim=1).max()) / losses.n


def test_the_lambda_for_models_is_that_of_the_least_held_out_loss_in_eight_exchanges() -> None:
    drawn = ellipses(1, 10, USERS)
    users, oracle, edges = asked(drawn)
    found = choose_for_models(users, edges)
    assert len(oracle.exchanges) <= 8
    losses = drawn.losses_without(HOLD_OUT)
    for place in (3, 15, 29):
        x = fit(losses, float(found.lams[place])).x
        lost = float(np.nanmean(drawn.evaluate(x, HOLD_OUT)))
        assert found.scores[place] == pytest.approx(lost, rel=1e-3)
    assert found.lam == found.lams[np.argmin(found.scores)]


def test_one_after_the_other_comes_to_the_same_as_all_at_once() -> None:
    """Large models send no Hessians."""
    drawn = ellipses(1, 10, 3)
    users, _, edges = asked(drawn)
    single = Single(drawn, 9, 3)
    tasks = [Task(Penalty(lam, edges), FIFTHS[0]) for lam in (0.1, 0.02)]
    tasks.append(Task(Clusters(drawn.groups), FIFTHS[0]))
    users.local([FIFTHS[0]])
    for one, other in zip(users.solve(tasks, 1e-9), single.solve(tasks, 1e-9), strict=True):
        assert one.x == pytest.approx(other.x, abs=1e-3)
        assert one.held == pytest.approx(other.held, abs=1e-3)
        assert one.v == pytest.approx(other.v, abs=1e-3)


def test_a_federation_without_a_best_model_is_refused_in_a_line(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Logistic loss, no ridge, and a plane that separates all samples."""
    monkeypatch.setattr(at_drawn, "RIDGE", 0.0)
    monkeypatch.setattr(at_drawn, "SQUARED_HINGE", LOGISTIC)
    drawn = ellipses(1, 10, 3, 1)
    users, oracle, edges = asked(replace(drawn, a=drawn.a + 8 * drawn.l[..., None]))
    with pytest.raises(ModelError, match=r"no best model .*ridge=0\.001"):
        choose_for_models(users, edges)
    assert len(oracle.exchanges) <= 8


@pytest.mark.parametrize("users", [1, 2])
def test_one_user_and_two_users_have_models(users: int) -> None:
    drawn = ellipses(1, 10, users, 1)
    alike = replace(drawn, a=drawn.a[:1].repeat(users, 0), l=drawn.l[:1].repeat(users, 0))
    for own in (drawn, alike)[:users]:  # one user is like itself
        batched, _, edges = asked(own)
        found = choose_for_models(batched, edges)
        assert found.lam > 0 and np.isfinite(found.start.x).all()


def test_one_sample_a_user_leaves_nothing_to_choose_by() -> None:
    drawn = ellipses(1, 1, 3)
    users, oracle, edges = asked(drawn)
    with pytest.raises(ModelError, match="no user has samples to hold out"):
        choose_for_models(users, edges)
    assert len(oracle.exchanges) <= 7
