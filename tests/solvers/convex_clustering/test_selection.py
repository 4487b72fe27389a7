"""lambda = auto and clusters: right without knowing K, in a few exchanges, and never by chance."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.metrics import adjusted_rand_score

from corsage.core.errors import ModelError
from corsage.core.losses import LOGISTIC
from corsage.experiments.convex_clustering import drawn as at_drawn
from corsage.experiments.convex_clustering.drawn import Drawn, ellipses, scattered
from corsage.solvers.convex_clustering import selection
from corsage.solvers.convex_clustering.batched import AtHand, Batched, Single
from corsage.solvers.convex_clustering.couplings import Clusters, Penalty
from corsage.solvers.convex_clustering.exact.edges import Edges
from corsage.solvers.convex_clustering.exact.sum_of_norms import fit
from corsage.solvers.convex_clustering.partitions import (
    KMEANS,
    LAMBDA,
    ONE_MODEL,
    OWN_MODELS,
    along_path,
    k_means,
    named_alike,
    one_cluster,
    partitions,
    shown_at,
)
from corsage.solvers.convex_clustering.recovery import theorem1
from corsage.solvers.convex_clustering.runs import Task
from corsage.solvers.convex_clustering.selection import (
    CROSS,
    HOLD_OUT,
    MODELS,
    Candidate,
    along_best,
    choose_for_clusters,
    choose_for_models,
    chosen_of,
    grids,
    mean_of_known,
    standard_error,
)
from corsage.solvers.losses.held_out import Fold

USERS = 6


@pytest.fixture
def short(monkeypatch: pytest.MonkeyPatch) -> None:
    """Fewer lambda along a path, of the same length: each is a problem of its own."""
    monkeypatch.setattr(selection, "MODELS_GRID", 8)
    monkeypatch.setattr(selection, "COARSE", 5)


def asked(drawn: Drawn) -> tuple[Batched, AtHand, Edges]:
    oracle, n = AtHand(drawn), len(drawn.l)
    return Batched(oracle, n, drawn.a.shape[2] + 1), oracle, Edges.all_pairs(n)


@given(st.integers(1, 40), st.integers(0, 10**6))
@settings(max_examples=50, deadline=None)
def test_folds_part_a_users_samples(size: int, seed: int) -> None:
    parts = [fold.held_out(seed, "u", size).tolist() for fold in CROSS]
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
    users.local([None])
    (lams,) = grids(users, edges, [None], 30)
    losses, one = drawn.losses_without(None), one_cluster(18)
    (model,) = users.solve([Task(Clusters(one))], 1e-10)
    assert lams[-1] == pytest.approx(lams[0] / 50)
    assert lams[0] == pytest.approx(2 * theorem1_half(losses, model.x[:1]), rel=0.05)
    assert fit(losses, float(lams[0])).labels.max() == 0


def theorem1_half(losses, w):
    """max_i |grad f_i(y*)|/N."""
    import torch

    gradient = losses.gradient(torch.from_numpy(np.repeat(w, losses.n, 0)))
    assert theorem1(losses, one_cluster(losses.n), w) > 0
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


@pytest.mark.usefixtures("short")
def test_three_clusters_are_found_and_their_models_are_refitted() -> None:
    drawn = ellipses(1, 40, USERS)
    users, oracle, edges = asked(drawn)
    found = choose_for_clusters(users, edges)
    assert adjusted_rand_score(found.labels, drawn.groups) == 1
    assert len(oracle.exchanges) <= 25
    (right,) = users.solve([Task(Clusters(found.labels))], 1e-8)
    assert found.models == pytest.approx(right.x, abs=1e-2)
    gain, error = found.chosen.gain(found.base)
    assert gain > 1.64 * error > 0


@pytest.mark.usefixtures("short")
@pytest.mark.parametrize(
    "drawn", [ellipses(2, 10, 12, 1), scattered(2, 20, 12)], ids=["one", "none"]
)
def test_where_there_are_no_clusters_none_are_found(drawn: Drawn) -> None:
    users, _, edges = asked(drawn)
    found = choose_for_clusters(users, edges)
    assert found.chosen.kind in (ONE_MODEL, OWN_MODELS, MODELS)
    assert any(each.clusters > 1 for each in found.candidates if each.kind == LAMBDA)


def test_one_after_the_other_comes_to_the_same_as_all_at_once() -> None:
    """Large models send no Hessians."""
    drawn = ellipses(1, 10, 3)
    users, _, edges = asked(drawn)
    single = Single(drawn, 9, 3)
    tasks = [Task(Penalty(lam, edges), CROSS[0]) for lam in (0.1, 0.02)]
    tasks.append(Task(Clusters(drawn.groups), CROSS[0]))
    users.local([CROSS[0]])
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


@pytest.mark.usefixtures("short")
@pytest.mark.parametrize("users", [1, 2])
def test_one_user_and_two_users_have_models(users: int) -> None:
    drawn = ellipses(1, 10, users, 1)
    alike = replace(drawn, a=drawn.a[:1].repeat(users, 0), l=drawn.l[:1].repeat(users, 0))
    for own in (drawn, alike)[:users]:  # one user is like itself
        batched, _, edges = asked(own)
        found = choose_for_clusters(batched, edges)
        assert found.chosen.kind in (ONE_MODEL, OWN_MODELS, MODELS)
        assert found.models.shape == (users, 3) and np.isfinite(found.models).all()
        assert choose_for_models(asked(own)[0], edges).lam > 0


def test_one_sample_a_user_leaves_nothing_to_choose_by() -> None:
    drawn = ellipses(1, 1, 3)
    for choose in (choose_for_models, choose_for_clusters):
        users, oracle, edges = asked(drawn)
        with pytest.raises(ModelError, match="no user has samples to hold out"):
            choose(users, edges)
        assert len(oracle.exchanges) <= 7


def made(kind: str, losses: list[float], clusters: int = 1) -> Candidate:
    return Candidate(kind, clusters, np.array(losses), clusters)


def test_clusters_must_be_better_than_both_ends_by_more_than_chance() -> None:
    one, own = made(ONE_MODEL, [1.0, 1.2, 1.1, 0.9]), made(OWN_MODELS, [1.5] * 4, 4)
    soft = made(MODELS, [1.0, 1.15, 1.1, 0.95], 4)
    sure = made(KMEANS, [0.8, 1.0, 0.85, 0.7], 2)
    lucky = made(LAMBDA, [0.2, 1.3, 1.3, 1.2], 3)
    assert chosen_of([one, own, soft, sure])[0] is sure
    assert chosen_of([one, own, soft, lucky])[:2] == (one, one)
    more = made(LAMBDA, [0.8, 1.0, 0.85, 0.7], 3)
    assert chosen_of([one, own, soft, more, sure])[0] is sure  # as good, and fewer
    softer = made(MODELS, [0.5, 0.7, 0.55, 0.4], 4)
    assert chosen_of([one, own, softer, sure]) == (softer, one, softer)
    near = made(MODELS, [0.82, 1.05, 0.9, 0.6], 4)  # better than both ends, and as good as `sure`
    assert chosen_of([one, own, near, sure]) == (near, one, near)


def test_of_models_along_the_path_that_do_as_well_the_least_pulled_are_taken() -> None:
    one, own = made(ONE_MODEL, [2.0, 2.2, 2.1, 1.9]), made(OWN_MODELS, [2.5, 2.4, 2.6, 2.5], 4)
    losses = [
        [1.5, 1.6, 1.4, 1.5], [1.0, 1.2, 1.1, 0.9], [1.1, 1.1, 1.0, 1.05], [1.3, 1.5, 1.4, 1.2],
    ]  # fmt: skip
    path = [Candidate(MODELS, place, np.array(own), 4) for place, own in enumerate(losses)]
    assert along_best(path) == (path[1], path[2])
    assert chosen_of([one, own, *path]) == (path[2], one, path[2])


def test_clusters_of_the_path_have_one_number_in_all_folds() -> None:
    """Folds judge what is done on all samples, not what the same lambda shows."""
    two, three = np.repeat([0.0, 4.0], 6), np.repeat([0.0, 4.0, 9.0], 4)
    noise = 1e-3 * np.arange(12)
    path = [(places + noise)[:, None] for places in (two, three, three, 2 * three)]
    found = along_path(path)
    assert {count: labels.max() + 1 for count, labels in found.items()} == {2: 2, 3: 3}
    assert np.array_equal(found[3], np.repeat([0, 1, 2], 4))
    assert shown_at(path, found[3]) == 2 and shown_at(path, np.arange(12)) is None
    wanted = {None: {(ONE_MODEL, 1): one_cluster(12)} | {(LAMBDA, k): v for k, v in found.items()}}
    wanted[CROSS[0]] = {(ONE_MODEL, 1): one_cluster(12), (LAMBDA, 2): found[2]}
    wanted[CROSS[1]] = {(ONE_MODEL, 1): one_cluster(12)}
    alike = named_alike(wanted)
    assert np.array_equal(alike[None][LAMBDA, 3], found[3])
    assert np.array_equal(alike[CROSS[0]][LAMBDA, 3], found[2])
    assert not alike[CROSS[1]][LAMBDA, 3].any()


def test_partitions_of_local_models_have_the_numbers_that_they_are_named_after() -> None:
    local = np.repeat(np.arange(6.0), 4)[:, None] + 0.01 * np.arange(24)[:, None]
    found = partitions(local, [local], 0)
    for (kind, count), labels in found.items():
        if kind not in (LAMBDA,):
            assert labels.max() + 1 == count
    assert np.array_equal(k_means(local, 6, 0), np.repeat(np.arange(6), 4))


def test_users_without_held_out_samples_do_not_count() -> None:
    scores = np.array([[1.0, np.nan, 2.0], [3.0, np.nan, np.nan]])
    np.testing.assert_array_equal(mean_of_known(scores), [2.0, np.nan, 2.0])
    assert standard_error(np.array([1.0, np.nan, 3.0])) == pytest.approx(1.0)


@pytest.mark.filterwarnings("error")
def test_k_means_of_models_that_are_equal() -> None:
    assert not k_means(np.ones((6, 2)), 3, 0).any()
    assert k_means(np.repeat([[0.0], [1.0]], 3, axis=0), 4, 0).tolist() == [0, 0, 0, 1, 1, 1]
