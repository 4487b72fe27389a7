"""Linear FedRep: against plain loops over users, closed forms and autograd."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from corsage.experiments.fedrep.linear_fedrep import (
    Alternation,
    average,
    body_gradient,
    descend,
    drawn_users,
    leading_subspace,
    moments,
    solve_heads,
    step_heads,
)
from corsage.experiments.fedrep.linear_problem import (
    Problems,
    distance,
    excess_error,
    orthonormal,
    predictors,
)

D, K, N, M = 6, 2, 12, 5
METHODS = {
    "FedRep": Alternation(0.2),
    "GD-GD": Alternation(0.2, 1, 0.1),
    "10GD-GD": Alternation(0.1, 10, 0.15),
}
EVERY = pytest.mark.parametrize("name", list(METHODS))
SEEDS = st.integers(0, 2**32 - 1)


def federation(seeds=(0, 1), noise=0.1, m=M, rounds=8, share=0.5):
    problems = Problems.draw(seeds, D, K, N, noise)
    samples = problems.samples(m, 0)
    start = leading_subspace(moments(samples), N, K)
    drawn = [drawn_users(seeds, N, share, t) for t in range(1, rounds + 1)]
    return problems, samples, start, drawn


def run(method, samples, start, drawn):
    return method.run(start, N, lambda t, users: samples.of(users), drawn)


def loss(body, head, x, y):
    """f^_i, equation (7), of one user."""
    x, y = torch.from_numpy(x), torch.from_numpy(y)
    return ((x @ body @ head - y) ** 2).sum() / (2 * len(y))


def leaf(array):
    return torch.from_numpy(np.array(array)).requires_grad_()


def plain(method, x, y, body, drawn):
    """Algorithm 2 of one federation, line by line: users one after the other, autograd."""
    heads = np.zeros((len(x), K))
    for users in drawn:
        bodies = []
        for i in users:
            if method.head_steps is None:
                heads[i] = np.linalg.lstsq(x[i] @ body, y[i], rcond=None)[0]
            for _ in range(method.head_steps or 0):
                head = leaf(heads[i])
                loss(torch.from_numpy(body), head, x[i], y[i]).backward()
                heads[i] -= method.head_step * head.grad.numpy()
            own = leaf(body)
            loss(own, torch.from_numpy(heads[i]), x[i], y[i]).backward()
            bodies.append(body - method.body_step * own.grad.numpy())
        body = np.mean(bodies, axis=0)
    return body


# The data.


def test_truth_is_normalised_and_labels_are_its():
    problems = Problems.draw((3, 4), D, K, N, noise=0.0)
    assert np.swapaxes(problems.body, 1, 2) @ problems.body == pytest.approx(
        np.broadcast_to(np.eye(K), (2, K, K)), abs=1e-12
    )
    assert np.linalg.norm(problems.heads, axis=-1) == pytest.approx(np.full((2, N), K**0.5))
    x, y = problems.samples(M, 0)
    for s in range(2):
        for i in range(N):
            assert y[s, i] == pytest.approx(x[s, i] @ problems.body[s] @ problems.heads[s, i])
    assert problems.newcomers(3).body is problems.body
    assert not np.isclose(problems.newcomers(3).heads, problems.heads[:, :3]).any()


def test_noise_has_the_deviation_that_was_asked_for():
    problems = Problems.draw((0,), D, K, 100, noise=0.3)
    x, y = problems.samples(200, 0)
    clean = (x @ problems.models[..., None])[..., 0]
    assert np.std(y - clean) == pytest.approx(0.3, rel=0.02)


def test_each_seed_is_the_same_in_any_company():
    both, alone = Problems.draw((1, 2), D, K, N, 0.1), Problems.draw((2,), D, K, N, 0.1)
    assert (both.body[1] == alone.body[0]).all() and (both.heads[1] == alone.heads[0]).all()
    for one, other in zip(both.samples(M, 7), alone.samples(M, 7), strict=True):
        assert (one[1] == other[0]).all() and not (one[0] == other[0]).any()
    assert not (both.samples(M, 7).x == both.samples(M, 8).x).any()
    assert not (drawn_users((1, 2), 50, 0.5, 1)[0] == drawn_users((1, 2), 50, 0.5, 1)[1]).all()


def test_fresh_samples_are_of_the_users_that_were_drawn():
    problems = Problems.draw((0, 1), D, K, N, noise=0.0)
    users = drawn_users((0, 1), N, 0.25, 1)
    x, y = problems.samples(M, 1, users=users)
    assert x.shape == (2, 3, M, D)
    for s in range(2):
        for place, i in enumerate(users[s]):
            assert y[s, place] == pytest.approx(x[s, place] @ problems.models[s, i])


def test_users_of_a_round_are_distinct_and_at_least_one():
    users = drawn_users((0, 1, 2), 20, 0.1, 5)
    assert users.shape == (3, 2) and all(len(set(row)) == 2 for row in users.tolist())
    assert drawn_users((0,), 5, 0.1, 1).shape == (1, 1)


# The distance.


@pytest.mark.parametrize("angles", [(0.0, 0.0), (0.0, 1e-7), (0.3, 0.7), (0.0, np.pi / 2)])
def test_distance_is_the_sine_of_the_largest_angle(angles):
    one, other = np.eye(5)[:, :2], np.zeros((5, 2))
    for j, angle in enumerate(angles):
        other[j, j], other[j + 2, j] = np.cos(angle), np.sin(angle)
    assert distance(one, other) == pytest.approx(np.sin(max(angles)), rel=1e-9, abs=1e-15)


@settings(max_examples=50, deadline=None)
@given(SEEDS)
def test_distance_is_of_subspaces(seed):
    rng = np.random.default_rng(seed)
    one, other = rng.standard_normal((2, 7, 3))
    turn = orthonormal(rng.standard_normal((7, 7)))
    mix = orthonormal(rng.standard_normal((3, 3))) * rng.uniform(0.5, 2, 3)
    found = distance(one, other)
    assert 0 <= found <= 1
    for same in (
        distance(other, one),
        distance(turn @ one, turn @ other),
        distance(one @ mix, other),
        distance(one, other @ mix),
    ):
        assert same == pytest.approx(found, abs=1e-9)
    complement = np.linalg.svd(one)[0][:, 3:]
    assert found == pytest.approx(np.linalg.norm(complement.T @ orthonormal(other), 2), abs=1e-12)


def test_distance_of_what_diverged_is_one():
    body = np.stack([np.eye(4)[:, :2], np.full((4, 2), np.nan)])
    assert distance(body, np.eye(4)[:, :2]).tolist() == [0, 1]


def test_excess_error_is_the_error_on_new_samples_without_their_noise():
    problems = Problems.draw((0,), D, K, 3, noise=0.5)
    models = problems.models + 0.3
    x, y = problems.samples(200_000, "test")
    errors = np.square((x @ models[..., None])[..., 0] - y).mean(-1)
    assert excess_error(models, problems.models) == pytest.approx(errors - 0.25, rel=0.02)


# The method of moments.


def test_moments_are_sums_that_any_split_over_nodes_keeps():
    _, samples, _, _ = federation()
    whole = moments(samples)
    parts = [np.arange(0, 5), np.arange(5, 6), np.arange(6, N)]
    split = [moments(samples.of(np.stack([part, part]))) for part in parts]
    assert sum(split) == pytest.approx(whole)
    by_hand = np.zeros((D, D))
    for i in range(N):
        for j in range(M):
            x, y = samples.x[1, i, j], samples.y[1, i, j]
            by_hand += y**2 * np.outer(x, x) / M
    assert whole[1] == pytest.approx(by_hand)


def test_leading_subspace_of_the_expected_moments_is_the_truth():
    problems = Problems.draw((0, 1), D, K, N, noise=0.1)
    models = problems.models
    # E y^2 x x^T = (|v|^2 + sigma^2) I + 2 v v^T for standard normal x.
    total = 2 * np.swapaxes(models, 1, 2) @ models + N * (K + 0.01) * np.eye(D)
    found = leading_subspace(total, N, K)
    assert distance(found, problems.body).max() < 1e-12
    many = problems.samples(20_000, "many")
    assert moments(many) / N == pytest.approx(total / N, abs=0.25)
    assert distance(leading_subspace(moments(many), N, K), problems.body).max() < 0.05


# The steps of a client.


@pytest.mark.parametrize("m", [1, 2, 5])
def test_solved_heads_are_least_squares(m):
    _, samples, start, _ = federation(m=m)
    found = solve_heads(start, samples)
    for s in range(2):
        for i in range(N):
            z = samples.x[s, i] @ start[s]
            expected = np.linalg.lstsq(z, samples.y[s, i], rcond=None)[0]
            assert found[s, i] == pytest.approx(expected, rel=1e-7)


def test_solved_heads_of_dependent_features_are_the_shortest():
    _, samples, start, _ = federation()
    start[..., 1] = 2 * start[..., 0]
    found = solve_heads(start, samples)
    assert found[..., 1] == pytest.approx(2 * found[..., 0])
    expected = np.linalg.lstsq(samples.x[0, 0] @ start[0], samples.y[0, 0], rcond=None)[0]
    assert found[0, 0] == pytest.approx(expected)


def test_gradients_are_those_of_autograd():
    problems, samples, start, _ = federation()
    for s in range(2):
        body, heads = leaf(start[s]), leaf(problems.heads[s])
        x, y = samples.x[s], samples.y[s]
        sum(loss(body, heads[i], x[i], y[i]) for i in range(N)).backward()
        found = body_gradient(start, problems.heads, samples)[s]
        assert found == pytest.approx(body.grad.numpy() / N)
        stepped = step_heads(start, problems.heads, samples, 0.3, 1)[s]
        assert stepped == pytest.approx((heads - 0.3 * heads.grad).detach().numpy())


def test_local_training_is_gradient_descent_in_closed_form():
    _, samples, _, _ = federation()
    found = descend(samples, 0.2, 30)
    capped = 0
    for s in range(2):
        for i in range(N):
            x, y = samples.x[s, i], samples.y[s, i]
            curvatures, vectors = np.linalg.eigh(x.T @ x / M)
            rate = min(0.2, 1 / curvatures[-1])
            capped += rate < 0.2
            # v_T = sum over eigenvectors of (1 - (1 - rate c)^T) / c times X^T y / m.
            gain = rate * sum((1 - rate * curvatures) ** t for t in range(30))
            expected = vectors @ (gain * (vectors.T @ (x.T @ y / M)))
            assert found[s, i] == pytest.approx(expected)
    assert 0 < capped < 2 * N


# Rounds.


@EVERY
def test_rounds_are_those_of_the_algorithm(name):
    _, samples, start, drawn = federation()
    found = run(METHODS[name], samples, start, drawn)
    for s in range(2):
        mine = [users[s] for users in drawn]
        expected = plain(METHODS[name], samples.x[s], samples.y[s], start[s], mine)
        assert found[s] == pytest.approx(expected, abs=1e-10)
        assert distance(expected, start[s]) > 0.01


def test_fedavg_is_local_training_of_all_parameters_then_the_mean():
    _, samples, start, drawn = federation()
    body, head = average(start, lambda t, users: samples.of(users), drawn, 0.1, 3)
    for s in range(2):
        theta = [start[s], np.zeros(K)]
        for users in drawn:
            models = []
            for i in users[s]:
                own = [leaf(part) for part in theta]
                optimiser = torch.optim.SGD(own, lr=0.1)
                for _ in range(3):
                    optimiser.zero_grad()
                    loss(*own, samples.x[s, i], samples.y[s, i]).backward()
                    optimiser.step()
                models.append([part.detach().numpy() for part in own])
            theta = [np.mean(parts, axis=0) for parts in zip(*models, strict=True)]
        assert body[s] == pytest.approx(theta[0], abs=1e-10)
        assert head[s] == pytest.approx(theta[1], abs=1e-10)


def test_without_noise_fedrep_recovers_everything():
    problems, samples, start, drawn = federation(noise=0.0, m=8, rounds=600)
    body = run(Alternation(0.4), samples, start, drawn)
    assert distance(start, problems.body).min() > 0.1
    assert distance(body, problems.body).max() < 1e-10
    models = predictors(body, solve_heads(body, samples))
    assert models == pytest.approx(problems.models, abs=1e-9)


@EVERY
def test_a_grid_of_steps_is_each_of_its_runs(name):
    _, samples, start, drawn = federation()
    grid = np.array([[0.05], [0.2]])
    both = run(dataclasses.replace(METHODS[name], body_step=grid), samples, start, drawn)
    assert both.shape == (2, 2, D, K)
    for row, step in zip(both, grid[:, 0], strict=True):
        alone = run(dataclasses.replace(METHODS[name], body_step=step), samples, start, drawn)
        assert row == pytest.approx(alone, abs=1e-12)


@pytest.mark.parametrize("name", ["GD-GD", "10GD-GD"])
def test_a_run_that_diverges_leaves_the_others_alone(name):
    problems, samples, start, drawn = federation(rounds=60)
    wild = dataclasses.replace(METHODS[name], body_step=np.array([[0.2], [1e6]]))
    seen = []
    both = wild.run(start, N, lambda t, users: samples.of(users), drawn, seen.append)
    assert np.isnan(both[1]).all() and (distance(both[1], problems.body) == 1).all()
    calm = dataclasses.replace(METHODS[name], body_step=0.2)
    assert both[0] == pytest.approx(run(calm, samples, start, drawn), abs=1e-12)
    assert len(seen) == 60 and (seen[-1][0] == both[0]).all()
    gone = np.isnan(np.stack(seen)[:, 1, :, 0, 0])
    assert (np.diff(gone.astype(int), axis=0) >= 0).all()  # once gone, gone


def test_optimal_heads_keep_any_step_from_diverging():
    # A body that is c times as large has heads and gradients that are 1/c times as large.
    _, samples, start, drawn = federation(rounds=60)
    assert np.isfinite(run(Alternation(1e6), samples, start, drawn)).all()
