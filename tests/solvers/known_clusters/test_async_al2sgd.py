"""Async-AL2SGD+: its estimator by enumeration, its iterates line by line, and where they go."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from corsage.core.errors import ConfigError
from corsage.core.seeding import generator
from corsage.experiments.known_clusters.async_al2sgd import Faces, iterate, run_naive
from corsage.experiments.known_clusters.async_l2gd import run_naive as run_algorithm_1
from corsage.solvers.known_clusters.coins import al2sgd_coalescing, katyusha
from corsage.solvers.known_clusters.coins.al2sgd_coalescing import Missed, catch_up, plan
from corsage.solvers.known_clusters.coins.flips import Coin, Coins, stretch
from corsage.solvers.known_clusters.coins.katyusha import (
    Rows,
    begin,
    check,
    local_estimate,
    parameters,
    pull_estimate,
    thrifty,
)
from corsage.solvers.known_clusters.coins.settings import Parameters, largest_step
from corsage.solvers.known_clusters.hierarchy import Hierarchy, alpha_of
from tests.support.clustered_losses import Quadratics, faces, hierarchy_of, pull_matrix

SEEDS = st.integers(0, 2**32 - 1)
D, SIZES, NAMES = 2, [1, 2, 4], ("a", "b", "c")


def problem(seed, *, even=False, one_coin=False, samples=1, rho=None):
    """Three clusters, quadratic losses, the settings of Theorem 4.3."""
    rng = np.random.default_rng(seed)
    found = hierarchy_of(rng, SIZES, even=even)
    losses = Quadratics(rng, found.n, D, samples=samples)
    p = np.zeros(3) if one_coin else rng.uniform(0.05, 0.7, 3)
    p_0 = float(rng.uniform(0.1, 0.6))
    mu = losses.convexity()
    chosen = parameters(found, losses.smoothness(), mu, p_0, p, rho)
    return rng, found, losses, chosen


def anywhere(rng, found, losses, chosen):
    """Users whose z, y and x are apart, with anchors in order."""
    rows = begin(rng.normal(size=(found.n, D)), losses.gradient, found, chosen)
    z, y = rng.normal(size=(2, found.n, D))
    return replace(rows, z=z, y=y)


def coins_of(seed, chosen):
    return Coins(seed, chosen.p0, tuple(chosen.p), NAMES)


def drawn_samples(losses, seed=0):
    """`SampleGradient`: sample l of user i in iteration t, keyed by (t, i)."""

    def sample(t, rows, users):
        drawn = generator(seed, "samples", t).integers(losses.samples, size=losses.n)
        return losses.sample_gradient(drawn, rows, users)

    return sample


# The estimator.


def estimates(rows, theta, found, losses, chosen):
    """(probability, xi_0, g) over all coins and, in local steps, all samples."""
    near = found.centres(theta)[found.cluster]
    middle = found.means(theta)[1]
    for chance, xi_0, xi in faces(chosen.p0, chosen.p):
        if xi_0:
            yield chance, xi_0, pull_estimate(rows, theta, (near, middle))
            continue
        pulled, everyone = pull_estimate(rows, theta, (near, None)), np.arange(found.n)
        for sample in range(losses.samples):
            drawn = np.full(found.n, sample)
            at_theta = losses.sample_gradient(drawn, theta, everyone)
            difference = at_theta - losses.sample_gradient(drawn, rows.x, everyone)
            local = local_estimate(rows, difference)
            g = np.where(xi[found.cluster, None], pulled, local)
            yield chance / losses.samples, xi_0, g


def left_out(rows, theta, found, chosen):
    """gamma_i tau_j (1 - alpha_j) ((theta_i - thbar_j) - (x_i - xbar_j)), which (4.1) forgets."""
    own = found.cluster
    near, anchor = found.centres(theta)[own], found.centres(rows.x)[own]
    weight = found.gamma * chosen.tau[own] * (1 - found.alpha[own])
    return weight[:, None] * ((theta - near) - (rows.x - anchor))


@settings(max_examples=40, deadline=None)
@given(SEEDS, st.booleans())
def test_estimator_is_unbiased_and_the_printed_one_is_not(seed, one_coin):
    """The mean of g over coins and samples is F's gradient at theta; (4.1)'s as printed falls short
    by the term that it leaves out."""
    rng, found, losses, chosen = problem(seed, samples=3, one_coin=one_coin)
    rows, theta = anywhere(rng, found, losses, chosen), rng.normal(size=(found.n, D))
    everyone, missing = np.arange(found.n), left_out(rows, theta, found, chosen)
    right = losses.gradient(theta, everyone) + pull_matrix(found) @ theta
    mean = printed = 0.0
    for chance, xi_0, g in estimates(rows, theta, found, losses, chosen):
        mean = mean + chance * g
        printed = printed + chance * (g - xi_0 * missing / chosen.p0)
    assert np.allclose(mean, right, rtol=0, atol=1e-12)
    assert np.allclose(printed - right, -missing, rtol=0, atol=1e-12)
    assert np.abs(missing).max() > 1e-6


@settings(max_examples=25, deadline=None)
@given(SEEDS, st.booleans())
def test_estimator_has_no_noise_at_the_anchor_and_little_nearby(seed, one_coin):
    """Lemma 4.2 the right way round: E|g - nabla F(theta)|^2 <= 2 L D_F(x, theta)."""
    rng, found, losses, chosen = problem(seed, samples=3, one_coin=one_coin)
    rows, theta = anywhere(rng, found, losses, chosen), rng.normal(size=(found.n, D))
    dense = losses.hessian() + np.kron(pull_matrix(found), np.eye(D))
    for at in (rows.x, theta):
        gap = (rows.x - at).reshape(-1)
        right = losses.gradient(at, np.arange(found.n)) + pull_matrix(found) @ at
        noise = sum(
            chance * np.square(g - right).sum()
            for chance, _, g in estimates(rows, at, found, losses, chosen)
        )
        smooth = katyusha.expected_smoothness(found, losses.smoothness(), chosen.p0, chosen.p)
        assert noise <= smooth * (gap @ dense @ gap) + 1e-20


def line_by_line(state, found, losses, chosen, faces_now, t, sample):
    """Algorithm 2 with the estimator mended, user by user; state is (z, y, x)."""
    z, y, x = (part.copy() for part in state)
    theta = chosen.a1 * z + chosen.a2 * x + (1 - chosen.a1 - chosen.a2) * y
    weight = found.alpha[found.cluster] * found.gamma

    def mean(rows, weights):
        return (weights[:, None] * rows).sum(0) / weights.sum()

    p_0, after_y, after_z = chosen.p0, y.copy(), z.copy()
    middle, anchor_middle = mean(theta, weight), mean(x, weight)
    slopes = losses.gradient(x, np.arange(found.n))
    for i, j in enumerate(found.cluster):
        own = np.where(found.cluster == j, found.gamma, 0.0)
        near, far = theta[i] - mean(theta, own), theta[i] - middle
        anchor_near, anchor_far = x[i] - mean(x, own), x[i] - anchor_middle
        a, tau, p, gamma = found.alpha[j], chosen.tau[j], chosen.p[j], found.gamma[i]
        g = slopes[i] + a * gamma * anchor_far + (1 - a) * gamma * anchor_near
        if faces_now.xi_0:
            g = g + gamma * a / p_0 * (far - anchor_far)
            g = g + gamma * tau * (1 - a) / p_0 * (near - anchor_near)
        elif faces_now.xi[j]:
            g = g + gamma * (1 - tau) * (1 - a) / ((1 - p_0) * p) * (near - anchor_near)
        else:
            user = np.array([i])
            change = sample(t, theta[[i]], user) - sample(t, x[[i]], user)
            g = g + change[0] / ((1 - p_0) * (1 - p))
        after_y[i] = theta[i] - chosen.eta * g
        momentum = chosen.b1 * z[i] + (1 - chosen.b1) * theta[i]
        after_z[i] = momentum + chosen.b2 / chosen.eta * (after_y[i] - theta[i])
    return after_z, after_y, after_y if faces_now.refresh else x


@settings(max_examples=10, deadline=None)
@given(SEEDS, st.booleans())
def test_iterations_are_algorithm_2_line_by_line(seed, full):
    rng, found, losses, chosen = problem(seed, samples=3, rho=0.3)
    rows, sample = anywhere(rng, found, losses, chosen), drawn_samples(losses)
    state = (rows.z, rows.y, rows.x)

    def whole(t, theta, users):
        return losses.gradient(theta, users)

    for t in range(12):
        now = Faces(bool(rng.random() < 0.3), rng.random(3) < 0.4, bool(rng.random() < 0.3))
        used = None if full else sample
        rows = iterate(rows, losses.gradient, used, found, chosen, t, now)
        state = line_by_line(state, found, losses, chosen, now, t, whole if full else sample)
        for mine, theirs in zip((rows.z, rows.y, rows.x), state, strict=True):
            assert np.allclose(mine, theirs, rtol=1e-12, atol=1e-12)


# Steps run together: tests/strategies has whole runs against the iterations one by one.


def test_means_of_a_cluster_move_as_a_user():
    """The server's z, y, x and slope after aggregation steps are the means of the users'."""
    rng, found, losses, chosen = problem(8, even=True)
    rows = anywhere(rng, found, losses, chosen)
    z, y, x, slope = (found.centres(part) for part in (rows.z, rows.y, rows.x, rows.slope))
    oracle = rows.oracle.pick(found.order[found.starts])
    server = Rows(z, y, x, slope, x, found.weights @ x, oracle)
    ahead, told = al2sgd_coalescing.advance_means(server, chosen, 4, found.weights)
    for t in range(4):
        theta = rows.theta(chosen)
        centres, middle = found.means(theta)
        assert np.allclose(told[t][0], centres) and np.allclose(told[t][1], middle)
        now = Faces(True, np.zeros(3, bool), False)
        rows = iterate(rows, losses.gradient, None, found, chosen, t, now)
    assert np.allclose(found.centres(rows.z), ahead.z, rtol=0, atol=1e-12)
    assert np.allclose(found.centres(rows.y), ahead.y, rtol=0, atol=1e-12)


def test_users_catch_up_with_the_steps_that_they_missed():
    """As a record of any length, the steps come to what they are one by one."""
    rng, found, losses, chosen = problem(8, even=True)
    rows, missed = anywhere(rng, found, losses, chosen), Missed.none(D)
    wanted, users = rows, found.members(2)
    for toward in ([True, True], [False], [True, False]):
        targets = []
        for together in toward:
            centres, middle = found.means(wanted.theta(chosen))
            targets.append((centres[2], middle if together else None))
            now = Faces(together, np.ones(3, bool), False)
            wanted = iterate(wanted, losses.gradient, None, found, chosen, 0, now)
        missed = missed.and_then(targets)
    assert len(missed.targets) == 5
    sent = Missed(missed.padded(9), missed.is_global)
    assert len(sent.means) == 9 and len(sent.targets) == 5
    caught_up = catch_up(rows.pick(users), chosen, sent.targets)
    assert np.allclose(caught_up.y, wanted.y[users], rtol=0, atol=1e-12)
    assert np.allclose(caught_up.z, wanted.z[users], rtol=0, atol=1e-12)
    assert Missed.none(D).targets == [] and Missed.none(D).padded(1).shape == (1, 2, D)


def test_float32_rows_stay_float32():
    rng, found, losses, chosen = problem(6, even=True)
    start = rng.normal(size=(found.n, D))

    def gradient(rows, users):
        return losses.gradient(rows, users).astype(rows.dtype)

    rest = (gradient, None, found, chosen, coins_of(1, chosen), 300)
    small = run_naive(start.astype(np.float32), *rest)
    assert {getattr(small, name).dtype for name in ("z", "y", "x", "centre")} == {np.dtype("f4")}
    assert np.allclose(small.y, run_naive(start, *rest).y, atol=1e-4)


@settings(max_examples=40, deadline=None)
@given(SEEDS, st.floats(0.05, 0.9), st.floats(0.01, 0.9), st.integers(1, 300))
def test_plans_tile_the_run_and_end_with_refreshes(seed, p_0, rho, number):
    coins, renewal = Coins(seed, p_0, (0.4,), ("a",)), Coin(seed, rho, ("refresh coins",))
    parts, shown = [plan(coins, renewal, 0, number)], renewal.at(0, number)
    while parts[-1].last < number:
        parts.append(plan(coins, renewal, parts[-1].last, number))
    assert [p.first for p in parts] == [0, *(p.last for p in parts[:-1])]
    assert parts[-1].last == number
    assert [p.last - 1 for p in parts if p.refresh] == np.flatnonzero(shown).tolist()
    for part in parts:
        assert plan(coins, renewal, part.first, number) == part
        same = stretch(coins, part.first, part.last)
        assert (part.globals, part.walks) == (same.globals, same.walks)
        if not part.refresh and part.last < number:
            assert plan(coins, renewal, part.first, None) == part
            assert coins.network_at(part.last, part.last + 1)[0]


# Where it goes.


def test_quadratic_losses_are_solved_where_algorithm_1_stalls():
    _, found, losses, chosen = problem(21, samples=3)
    best, start, number = losses.minimiser(found), np.zeros((7, D)), 3_000
    coins, first = coins_of(1, chosen), np.square(best).sum()
    sample = drawn_samples(losses)
    rows = run_naive(start, losses.gradient, sample, found, chosen, coins, number)
    assert np.square(rows.y - best).sum() < 1e-10 * first
    step = largest_step(found, losses.smoothness(), chosen.p0, chosen.p)
    plain = Parameters(step, chosen.p0, chosen.p, chosen.tau)
    args = (start, losses.gradient, found, plain, coins, number)
    assert np.square(run_algorithm_1(*args) - best).sum() > 1e-4 * first


def test_printed_estimator_diverges_where_the_mended_one_converges(monkeypatch):
    """gamma_i about 10, lambda_j = 1/2, rho = .01, (p_0, p_j) = (.3, .02); losses that are hardly
    convex, so the term that (4.1) leaves out is what holds the models together."""
    rng = np.random.default_rng(0)
    users = hierarchy_of(rng, SIZES, even=False, gamma=(8.0, 12.0))
    found = Hierarchy(users.cluster, users.gamma, alpha_of(0.5, users.totals))
    losses, p = Quadratics(rng, found.n, D, floor=0.01), np.full(3, 0.02)
    chosen = parameters(found, losses.smoothness(), losses.convexity(), 0.3, p, rho=0.01)
    best, start = losses.minimiser(found), np.zeros((found.n, D))
    args = (start, losses.gradient, None, found, chosen, coins_of(5, chosen), 12_000)
    first = np.square(best).sum()
    assert np.square(run_naive(*args).y - best).sum() < 1e-8 * first

    def printed(rows, theta, target):
        g = pull_estimate(rows, theta, target)
        if target[1] is None:
            return g
        return g - left_out(rows, theta, found, chosen) / chosen.p0

    monkeypatch.setattr(katyusha, "pull_estimate", printed)
    assert np.square(run_naive(*args).y - best).sum() > 1e4 * first


# Settings.


@pytest.mark.parametrize("seed", range(4))
def test_settings_are_those_of_theorem_43(seed):
    _, found, losses, chosen = problem(seed)
    smooth, mu, rho = losses.smoothness(), losses.convexity(), chosen.rho
    expected = katyusha.expected_smoothness(found, smooth, chosen.p0, chosen.p)
    whole = smooth + found.gamma.max()
    assert chosen.eta == pytest.approx(0.25 / max(whole, expected))
    assert chosen.a2 == pytest.approx(expected / 2 / max(whole, expected))
    momentum = np.sqrt(chosen.eta * mu * max(0.5, chosen.a2 / rho))
    assert chosen.a1 == pytest.approx(min(0.5, momentum))
    assert chosen.b2 == pytest.approx(1 / max(2 * mu, 4 * chosen.a1 / chosen.eta))
    assert chosen.b1 == pytest.approx(1 - chosen.b2 * mu)
    assert rho == pytest.approx(chosen.p0 * (1 - chosen.p0))
    check(chosen, found)


def test_the_thrifty_rho_needs_less_than_half_of_the_rounds_between_clusters():
    """Every refresh of the anchors is such a round, of which Corollary 4.4 says nothing."""
    rng = np.random.default_rng(21)
    found = hierarchy_of(rng, SIZES, even=False)
    losses = Quadratics(rng, found.n, D)
    best, start = losses.minimiser(found), np.zeros((7, D))

    def left(rho, rounds):
        p = np.zeros(3)
        chosen = parameters(found, losses.smoothness(), losses.convexity(), 0.05, p, rho)
        number = int(rounds / (chosen.rho + chosen.p0 * (1 - chosen.p0)))
        coins, sample = coins_of(1, chosen), drawn_samples(losses)
        rows = run_naive(start, losses.gradient, sample, found, chosen, coins, number)
        return np.square(rows.y - best).sum() / np.square(best).sum()

    assert left(None, 220) < 1e-8 < left(1.0, 500)


def test_refreshes_without_global_steps_are_as_many_as_rounds_in_a_cluster():
    assert thrifty(0.0, np.array([0.1, 0.6])) == pytest.approx(0.24)
    assert Coins(3, 0.1, (0.2,), ("a",)).refresh_coin(0.4) == Coin(3, 0.4, ("refresh coins",))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"a1": 0.7, "a2": 0.4}, "at most 1 in sum"),
        ({"a1": 1.2, "a2": 0.5}, "at most 1 in sum"),
        ({"a1": 0.0}, "above 0"),
        ({"rho": 0.0}, "rho must be"),
        ({"b2": 0.0}, "b_1 and b_2"),
        ({"tau": np.full(3, 2.0)}, "tau_j"),
    ],
)
def test_bad_settings_are_refused(changes, message):
    _, found, _, chosen = problem(1)
    with pytest.raises(ConfigError, match=message):
        check(replace(chosen, **changes), found)


def test_losses_that_are_not_strongly_convex_need_a_floor():
    _, found, _, _ = problem(1)
    args = (0.2, np.full(3, 0.2))
    with pytest.raises(ConfigError, match="floor"):
        parameters(found, 1.0, 0.0, *args)
    with pytest.raises(ConfigError, match="rho=0"):
        parameters(found, 1.0, 0.1, *args, rho=0.0)
    assert parameters(found, 1.0, 1e-3, *args).a1 < parameters(found, 1.0, 0.1, *args).a1


def test_a_given_step_takes_its_momenta_with_it() -> None:
    """Theorem 4.3's a_1, b_1 and b_2 are those of eta; a_2 is not."""
    found = Hierarchy(np.array([0, 0, 1]), np.ones(3), np.full(2, 0.3))
    args = found, 2.0, 0.01, 0.2, np.full(2, 0.3), 0.16
    usual = parameters(*args)
    same = parameters(*args, eta=usual.eta)
    assert (same.a1, same.b1, same.b2) == (usual.a1, usual.b1, usual.b2)
    short = parameters(*args, eta=usual.eta / 4)
    assert short.a2 == usual.a2
    assert short.a1 == pytest.approx(usual.a1 / 2)  # a_1 goes with the root of eta
    assert short.b2 == pytest.approx(usual.b2 / 2)  # b_2 = eta/(4 a_1)
    assert short.b1 == pytest.approx(1 - short.b2 * 0.01)
