"""Async-L2GD: its oracle by enumeration, its bound, and its steps run together."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.linalg import eigh

from corsage.core.errors import ConfigError
from corsage.experiments.known_clusters.async_l2gd import iterate, run_naive
from corsage.solvers.known_clusters.coins.coalescing import (
    Affine,
    compose,
    global_map,
    replay_global,
    replay_within,
    within_map,
)
from corsage.solvers.known_clusters.coins.flips import Coins
from corsage.solvers.known_clusters.coins.settings import (
    Parameters,
    check,
    expected_smoothness,
    largest_step,
    probabilities,
    rates,
    tau_of,
)
from corsage.solvers.known_clusters.hierarchy import Hierarchy
from tests.support.clustered_losses import Quadratics, faces, hierarchy_of, pull_matrix

SEEDS = st.integers(0, 2**32 - 1)
D = 2
SIZES = [1, 2, 4]


def problem(seed, *, even=False, alpha=None, one_coin=False):
    """Three clusters, quadratic losses, settings with any tau_j, models."""
    rng = np.random.default_rng(seed)
    found = hierarchy_of(rng, SIZES, even=even, alpha=alpha)
    losses = Quadratics(rng, found.n, D)
    p = np.zeros(3) if one_coin else rng.uniform(0.05, 0.9, 3)
    tau = np.ones(3) if one_coin else rng.uniform(0, 1, 3)
    chosen = Parameters(1.0, float(rng.uniform(0.1, 0.8)), p, tau)
    rate = rates(found, chosen)
    reach = max((rate.middle + rate.centre).max(), rate.within.max())
    chosen = replace(chosen, eta=min(0.05, 0.9 / reach))  # no step beyond its target
    return rng, found, losses, chosen, rng.normal(size=(found.n, D))


def oracles(theta, losses, found, chosen):
    """(probability, G(theta)) over all coins, from single iterations."""
    for chance, xi_0, xi in faces(chosen.p0, chosen.p):
        after = iterate(theta, losses.gradient, found, chosen, xi_0, xi)
        yield chance, (theta - after) / chosen.eta


def whole_gradient(theta, losses, found):
    return losses.gradient(theta, np.arange(found.n)) + pull_matrix(found) @ theta


@settings(max_examples=40, deadline=None)
@given(SEEDS, st.booleans(), st.booleans())
def test_oracle_is_unbiased(seed, one_coin, far):
    """(3.2), summed over all coins; alpha_j beyond 1 as well."""
    alpha = np.array([0.2, 1.7, 1.0]) if far else None
    _, found, losses, chosen, theta = problem(seed, alpha=alpha, one_coin=one_coin)
    mean = sum(chance * g for chance, g in oracles(theta, losses, found, chosen))
    assert np.allclose(mean, whole_gradient(theta, losses, found), rtol=0, atol=1e-12)


def line_by_line(theta, losses, found, chosen, xi_0, xi):
    """Lines 4 to 18 of Algorithm 1, user by user."""
    eta, p_0, after = chosen.eta, chosen.p0, theta.copy()
    weight = found.alpha[found.cluster] * found.gamma
    middle = (weight[:, None] * theta).sum(0) / weight.sum()
    for i, j in enumerate(found.cluster):
        own = found.cluster == j
        centre = (found.gamma[own, None] * theta[own]).sum(0) / found.gamma[own].sum()
        a, tau, p, g = found.alpha[j], chosen.tau[j], chosen.p[j], found.gamma[i]
        if xi_0:
            target = a * middle + tau * (1 - a) * centre
            shrink = 1 - eta * g * (a + tau * (1 - a)) / p_0
            after[i] = shrink * theta[i] + eta * g / p_0 * target
        elif xi[j]:
            c = eta * g * (1 - tau) * (1 - a) / ((1 - p_0) * p)
            after[i] = (1 - c) * theta[i] + c * centre
        else:
            slope = losses.mean_a[i] @ theta[i] - losses.mean_b[i]
            after[i] = theta[i] - eta / ((1 - p_0) * (1 - p)) * slope
    return after


@settings(max_examples=30, deadline=None)
@given(SEEDS)
def test_an_iteration_is_algorithm_1_line_by_line(seed):
    _, found, losses, chosen, theta = problem(seed)
    for _, xi_0, xi in faces(chosen.p0, chosen.p):
        after = iterate(theta, losses.gradient, found, chosen, xi_0, xi)
        reference = line_by_line(theta, losses, found, chosen, xi_0, xi)
        assert np.allclose(after, reference, rtol=0, atol=1e-13)


# Steps run together: tests/strategies has whole runs against the iterations one by one.


def test_float32_models_stay_float32():
    _, found, losses, chosen, start = problem(12)
    coins = Coins(2, chosen.p0, tuple(chosen.p), ("a", "b", "c"))
    args = (losses.gradient, found, chosen, coins, 200)
    small = run_naive(start.astype(np.float32), *args)
    assert small.dtype == np.float32
    assert np.allclose(small, run_naive(start, *args), atol=1e-4)


maps = st.builds(
    lambda factor, shift: Affine(factor, np.array(shift)),
    st.floats(-2, 2),
    st.lists(st.floats(-5, 5), min_size=D, max_size=D),
)


@settings(max_examples=50, deadline=None)
@given(maps, maps, maps, SEEDS)
def test_maps_compose_in_order_and_associate(first, second, third, seed):
    theta = np.random.default_rng(seed).normal(size=(4, D))
    assert np.allclose(compose(first, second)(theta), second(first(theta)), atol=1e-12)
    left, right = compose(compose(first, second), third), compose(first, compose(second, third))
    assert np.allclose(left.factor, right.factor)
    assert np.allclose(left.shift, right.shift, atol=1e-12)
    rows = Affine(np.array([first.factor, second.factor]), np.stack([first.shift, second.shift]))
    both = compose(rows, rows)
    assert np.allclose(both.of(1).shift, compose(second, second).shift, atol=1e-12)


@settings(max_examples=30, deadline=None)
@given(SEEDS, st.integers(0, 9), st.integers(0, 9), st.booleans())
def test_maps_are_steps_one_by_one(seed, outer, inner, apart):
    """Global steps, then steps to the centre; also where nothing is pulled to a middle."""
    alpha = np.zeros(3) if apart else None
    _, found, losses, chosen, theta = problem(seed, even=True, alpha=alpha)
    rate = rates(found, chosen).of_clusters(found)
    factor, shift, centres = global_map(
        found.centres(theta), found.weights, rate.middle, rate.centre, outer
    )
    ahead = theta
    for _ in range(outer):
        ahead = iterate(ahead, losses.gradient, found, chosen, True, np.zeros(3, bool))
    assert np.allclose(found.centres(ahead), centres, rtol=0, atol=1e-12)
    assert np.allclose(
        replay_global(theta, found, rates(found, chosen), outer), ahead, rtol=0, atol=1e-12
    )
    for _ in range(inner):
        ahead = iterate(ahead, losses.gradient, found, chosen, False, np.ones(3, bool))
    for j in range(3):
        users, back = found.members(j), within_map(centres[j], rate.within[j], inner)
        once = compose(Affine(factor[j], shift[j]), back)(theta[users])
        assert np.allclose(once, ahead[users], rtol=0, atol=1e-12)


@settings(max_examples=30, deadline=None)
@given(SEEDS, st.integers(0, 30))
def test_steps_to_a_centre_of_unequal_gamma_are_the_iterations_one_by_one(seed, steps):
    _, found, losses, chosen, theta = problem(seed)
    ahead, within = theta, rates(found, chosen).within
    for _ in range(steps):
        ahead = iterate(ahead, losses.gradient, found, chosen, False, np.ones(3, bool))
    for j in range(3):
        users = found.members(j)
        own, gamma, c = theta[users], found.gamma[users], within[users]
        moved = replay_within(own, gamma, c, steps)
        assert np.allclose(moved, ahead[users], rtol=0, atol=1e-12)


def test_users_without_a_pull_stay_where_they_are():
    theta, nothing = np.ones((3, D)) * np.arange(3)[:, None], np.zeros(3)
    assert np.array_equal(replay_within(theta, nothing, nothing, 4), theta)


# What is proved.


def extreme(found, losses, chosen):
    """The largest E|G(u) - G(0)|^2/(2 D_F(u, 0)) over all u, an eigenvalue: F is quadratic."""
    n, second = found.n * D, 0.0
    zero = np.zeros((found.n, D))
    for chance, xi_0, xi in faces(chosen.p0, chosen.p):

        def oracle(theta, xi_0=xi_0, xi=xi):
            after = iterate(theta, losses.gradient, found, chosen, xi_0, xi)
            return (theta - after) / chosen.eta

        units = np.eye(n).reshape(n, found.n, D)
        linear = np.stack([(oracle(u) - oracle(zero)).reshape(-1) for u in units], axis=1)
        second = second + chance * linear.T @ linear
    hessian = losses.hessian() + np.kron(pull_matrix(found), np.eye(D))
    return eigh(second, hessian, eigvals_only=True)[-1]


def proved(seed, alpha, one_coin=False):
    """A problem with tau_j of Proposition 3.3, and (3.3)."""
    rng, found, losses, chosen, _ = problem(seed, alpha=alpha, one_coin=one_coin)
    p_0, p = chosen.p0, chosen.p
    chosen = Parameters(0.01, p_0, p, tau_of(p_0, p))
    return rng, found, losses, chosen


@settings(max_examples=25, deadline=None)
@given(SEEDS, st.booleans(), st.booleans())
def test_oracle_is_as_smooth_as_expected(seed, one_coin, far):
    """E|G(theta) - G(theta')|^2 <= 2 L D_F, L of (3.3), for all models at once."""
    alpha = np.random.default_rng(seed).uniform(0, 5, 3) if far else None
    _, found, losses, chosen = proved(seed, alpha, one_coin)
    bound = expected_smoothness(found, losses.smoothness(), chosen.p0, chosen.p)
    assert extreme(found, losses, chosen) <= bound * (1 + 1e-9)


def printed_33(found, smooth, p_0, p):
    alpha, gamma = found.alpha, found.strongest
    return max(
        2 / p_0 * (alpha * gamma).max(),
        (2 * (1 - alpha) * gamma / (p_0 + 2 * (1 - p_0) * p)).max(),
        smooth / (1 - p_0) * (1 / (1 - p)).max(),
    )


@pytest.mark.parametrize("seed", range(5))
def test_expected_smoothness_is_33_up_to_alpha_1_and_more_beyond(seed):
    _, found, losses, chosen = proved(seed, None)
    args = (losses.smoothness(), chosen.p0, chosen.p)
    assert expected_smoothness(found, *args) == pytest.approx(printed_33(found, *args))
    assert largest_step(found, *args) == pytest.approx(0.5 / printed_33(found, *args))
    far = Hierarchy(found.cluster, found.gamma, np.array([0.5, 0.5, 20.0]))
    chosen = Parameters(0.01, 0.1, np.full(3, 0.5), tau_of(0.1, np.full(3, 0.5)))
    args = (losses.smoothness(), 0.1, chosen.p)
    assert printed_33(far, *args) < extreme(far, losses, chosen) <= expected_smoothness(far, *args)


@pytest.mark.parametrize("alpha", [(0.2, 0.3, 0.1), (0.9, 0.5, 0.7), (0.0, 0.0, 0.0)])
def test_corollary_36_makes_its_bound_least(alpha):
    """(3.5) by a grid over (p_0, p_j); tau_j = C_1/C_2, or 1."""
    found = Hierarchy(np.array([0, 1, 2, 2]), np.array([1.0, 2.0, 2.0, 0.5]), np.array(alpha))
    c_1, c_2, smooth = max(2 * np.array(alpha)[1:].max(), alpha[0]), None, 1.5
    c_2 = max(1 - alpha[0], 2 * (1 - min(alpha[1:])))

    def bound(p_0, p):
        local = smooth / ((1 - p_0) * (1 - p))
        inner = 2 * c_2 / (p_0 + 2 * (1 - p_0) * p) if p_0 + p > 0 else np.inf
        return max(2 * c_1 / p_0 if c_1 else 0.0, inner, local)

    p_0, p = probabilities(found, smooth)
    least = c_1 + c_2 + smooth if c_2 > c_1 else 2 * c_1 + smooth
    assert bound(p_0, p[0]) == pytest.approx(least) and (p == p[0]).all()
    grid = np.linspace(0.005, 0.995, 199)
    assert min(bound(q_0, q) for q_0 in grid for q in (0.0, *grid)) >= least - 1e-9
    assert np.allclose(tau_of(p_0, p), c_1 / c_2 if c_2 > c_1 else 1.0)
    assert expected_smoothness(found, smooth, p_0, p) <= least + 1e-9


def sigma2(found, p_0, p, best, losses):
    """(3.4), user by user."""
    slopes, (centres, middle) = losses.gradient(best, np.arange(found.n)), found.means(best)
    total = 0.0
    for i, j in enumerate(found.cluster):
        g, a = found.gamma[i], found.alpha[j]
        total += 2 / p_0 * np.sum((a * g * (best[i] - middle)) ** 2)
        pull = (1 - a) * g * (best[i] - centres[j])
        total += 2 / (p_0 + 2 * (1 - p_0) * p[j]) * np.sum(pull**2)
        total += np.sum(slopes[i] ** 2) / ((1 - p_0) * (1 - p[j]))
    return total


@settings(max_examples=25, deadline=None)
@given(SEEDS, st.booleans())
def test_sigma2_bounds_the_oracle_at_the_minimiser(seed, one_coin):
    """(3.4) term by term, and E|G|^2 there."""
    _, found, losses, chosen = proved(seed, None, one_coin)
    best, p_0, p = losses.minimiser(found), chosen.p0, chosen.p
    bound = sigma2(found, p_0, p, best, losses)
    square = sum(c * np.sum(g**2) for c, g in oracles(best, losses, found, chosen))
    assert square <= bound * (1 + 1e-12)


def theorem_bound(t, eta, mu, start, sigma):
    """Theorem 3.5: what E|theta^t - best|^2 is at most."""
    return (1 - eta * mu) ** t * start + 2 * eta * sigma / mu


def test_theorem_35_holds_on_average_over_coins():
    """With its largest step; the noise term is needed, and the start is forgotten as it says."""
    rng, found, losses, _ = proved(1, None)
    p_0, p = 0.3, np.array([0.2, 0.4, 0.1])
    smooth, mu = losses.smoothness(), losses.convexity()
    chosen = Parameters(largest_step(found, smooth, p_0, p), p_0, p, tau_of(p_0, p))
    best = losses.minimiser(found)
    noise = sigma2(found, p_0, p, best, losses)
    start = best + 3 * rng.normal(size=best.shape)
    gaps = np.zeros((20, 400))
    for seed, row in enumerate(gaps):

        def note(t, theta, row=row):
            row[t - 1] = np.square(theta - best).sum()

        coins = Coins(seed, p_0, tuple(p), ("a", "b", "c"))
        run_naive(start, losses.gradient, found, chosen, coins, 400, note)
    mean, first = gaps.mean(0), float(np.square(start - best).sum())
    bounds = [theorem_bound(t, chosen.eta, mu, first, noise) for t in range(1, 401)]
    assert (mean <= bounds).all() and mean[-1] < first / 20
    assert mean[-100:].mean() > theorem_bound(2000, chosen.eta, mu, first, 0.0)


# What cannot be.


def settings_of(**changes):
    given = {"eta": 0.1, "p0": 0.2, "p": [0.1, 0.1], "tau": [0.5, 0.5]} | changes
    numbers = {name: np.array(given[name], float) for name in ("p", "tau")}
    return Parameters(given["eta"], given["p0"], **numbers)


@pytest.mark.parametrize(
    ("changes", "alpha", "message"),
    [
        ({"eta": 0.0}, 0.5, "step size"),
        ({"p0": 1.0}, 0.5, "p_0=1"),
        ({"p0": -0.1}, 0.5, "p_0=-0.1"),
        ({"p": [0.1, 1.0]}, 0.5, "p_j=1"),
        ({"p": [np.nan, 0.1]}, 0.5, "p_j=nan"),
        ({"tau": [0.5, 1.1]}, 0.5, "tau_j"),
        ({"p": [0.1, 0.0]}, 0.5, "set tau_j=1"),
        ({"p0": 0.0, "tau": [0, 0]}, 0.5, "raise p_0"),
        ({"p0": 0.0}, 0.0, "set tau_j=0"),
    ],
)
def test_settings_that_leave_out_a_pull_are_refused(changes, alpha, message):
    found = Hierarchy(np.array([0, 1, 1]), np.ones(3), np.full(2, alpha))
    check(settings_of(), found)
    with pytest.raises(ConfigError, match=message):
        check(settings_of(**changes), found)


def test_settings_that_leave_out_nothing_are_not_refused():
    """No steps to the centre where no pull goes there; no global steps where alpha = 0."""
    own = np.array([0, 1, 1])
    check(settings_of(p=[0, 0]), Hierarchy(own, np.ones(3), np.ones(2)))
    check(settings_of(p0=0.0, tau=[0, 0]), Hierarchy(own, np.ones(3), np.zeros(2)))
    rate = rates(Hierarchy(own, np.ones(3), np.zeros(2)), settings_of(p0=0.0, tau=[0, 0]))
    assert not rate.middle.any() and not rate.centre.any() and np.allclose(rate.within, 1.0)
    one = settings_of(p=[0, 0], tau=[1, 1])
    assert not rates(Hierarchy(own, np.ones(3), np.full(2, 0.5)), one).within.any()


def test_tau_of_proposition_33():
    assert np.allclose(tau_of(0.2, np.array([0.0, 0.5])), [1.0, 0.2 / (0.2 + 0.8)])
    assert np.allclose(tau_of(0.0, np.array([0.0, 0.5])), [1.0, 0.0])
    found = Hierarchy(np.zeros(1, int), np.ones(1), np.ones(1))
    with pytest.raises(ConfigError, match="smoothness"):
        probabilities(found, 0.0)
    with pytest.raises(ConfigError, match="p_0=1"):
        expected_smoothness(found, 1.0, 1.0, np.zeros(1))
