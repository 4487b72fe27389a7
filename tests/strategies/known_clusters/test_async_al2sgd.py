"""Async-AL2SGD+ through a federation against Algorithm 2 coin by coin, and where it goes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given
from hypothesis import settings as searched
from hypothesis import strategies as st
from numpy.typing import NDArray

from corsage.core.errors import ConfigError
from corsage.core.seeding import uniforms, user_keys
from corsage.experiments.known_clusters.async_al2sgd import run_naive
from corsage.solvers.known_clusters.coins.flips import Coins
from corsage.solvers.known_clusters.coins.katyusha import Rows, parameters
from corsage.solvers.known_clusters.coins.settings import probabilities
from corsage.solvers.known_clusters.hierarchy import Hierarchy
from tests.support.federations import federate
from tests.support.grids import Watched
from tests.support.known_users import (
    HIERARCHICAL,
    LOGISTIC,
    SEVERAL,
    UNEVEN,
    Floats,
    Seen,
    Users,
    far,
    several,
    strengths,
    users_of,
    written,
)

FLOOR = 1e-4  # of L, the least mu


@pytest.fixture
def seen(monkeypatch: pytest.MonkeyPatch) -> Seen:
    return Seen(monkeypatch)


def sampled(users: Users, seed: int) -> Any:
    """The gradient of each user's sample of iteration t, times how many there are."""
    keys, m = user_keys(seed, "samples", users.names), users.x.shape[1]

    def sample(t: int, theta: Floats, chosen: NDArray[np.int64]) -> Floats:
        drawn = (uniforms(keys, t) * m).astype(np.int64)[chosen]
        x, y = users.x[chosen, drawn], users.y[chosen, drawn]
        if users.outputs > 1:
            return m * users.softmax(theta, x[:, None], y[:, None])
        return m * users.slopes((x * theta).sum(1), y)[:, None] * x

    return sample


def naive(
    users: Users, found: Hierarchy, iterations: int, oracle: str, seed: int = 0, **chosen: float
) -> tuple[Rows, Coins]:
    """All users after so many single iterations from 0, under the settings of Theorem 4.3."""
    smooth, m = users.smoothness(), users.x.shape[1]
    if oracle == "sample":
        bound = 0.5 if users.outputs > 1 else 0.25 if users.classes else 1.0
        smooth = m * bound * float(np.square(users.x).sum(2).max())
    p_0, p = probabilities(found, smooth)
    p_0, p = chosen.get("p0", p_0), np.full(found.k, chosen["p"]) if "p" in chosen else p
    mu = max(users.convexity(), FLOOR * smooth)
    settings = parameters(found, smooth, mu, p_0, p, chosen.get("rho"))
    coins = Coins(seed, p_0, tuple(p.tolist()), tuple(users.clusters))
    sample = sampled(users, seed) if oracle == "sample" else None
    start = np.zeros((users.n, users.d))
    return run_naive(start, users.gradient, sample, found, settings, coins, iterations), coins


SOME = {"known_p0": 0.2, "known_p": 0.4, "al2sgd_rho": 0.1}
ONE_COIN = {"known_p0": 0.2, "known_p": 0, "al2sgd_rho": 0.1}
CASES = [
    # data, gamma, clusters of unequal sizes, oracle, nodes, iterations, keys
    (HIERARCHICAL, "number", False, "full", 1, 1_500, {}),
    (HIERARCHICAL, "cluster", True, "sample", 12, 70, SOME),
    (HIERARCHICAL, "cluster", False, "full", 3, 100, SOME),
    (HIERARCHICAL, "user", True, "full", 5, 50, SOME),
    (HIERARCHICAL, "user", False, "sample", 1, 80, ONE_COIN),
    (LOGISTIC, "number", True, "sample", 1, 500, {}),
    (LOGISTIC, "cluster", False, "full", 4, 60, ONE_COIN),
    (LOGISTIC, "user", True, "sample", 12, 40, SOME),
    (SEVERAL, "number", False, "full", 3, 120, SOME),
    (SEVERAL, "user", False, "sample", 12, 40, SOME),
]


@pytest.mark.parametrize("case", CASES)
def test_a_coalesced_run_is_the_naive_one(case: Any, seen: Seen, tmp_path: Path) -> None:
    """All users' models after T iterations, to rounding, whatever node hosts them."""
    data, gamma, unequal, oracle, nodes, iterations, keys = case
    if unequal:
        data = {**data, "cluster_map": written(tmp_path, UNEVEN)}
    if data is SEVERAL:
        data = {**data, "data_file": several(tmp_path)}
    users = users_of("async-al2sgd", **data)
    values, text = strengths(gamma, users, tmp_path)
    more = {"known_gamma": text, "known_lambda": 0.8, "al2sgd_oracle": oracle}
    more |= {"known_iterations": iterations}
    strategy, _, models = seen.run("async-al2sgd", nodes, **data, **more, **keys)
    found = users.hierarchy(values, 0.8)
    chosen = {key.removeprefix("known_").removeprefix("al2sgd_"): v for key, v in keys.items()}
    wanted, coins = naive(users, found, iterations, oracle, **chosen)
    assert far(users.rows(models), wanted.y) < 1e-12
    assert far(strategy.state.model, found.means(wanted.y)[1]) < 1e-12
    renewals = coins.refresh_coin(strategy.state.rho).at(0, iterations)
    assert strategy.state.refreshes == renewals.sum() > 0


@searched(
    max_examples=8, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(st.integers(1, 40), st.sampled_from([1, 2, 3, 12]), st.booleans(), st.integers(0, 99))
def test_a_run_may_end_anywhere(
    seen: Seen, tmp_path: Path, iterations: int, nodes: int, apart: bool, seed: int
) -> None:
    """Also in steps that no user has heard of yet, and where nobody is asked in a round."""
    users = users_of("async-al2sgd", **HIERARCHICAL)
    values, text = strengths("user" if apart else "cluster", users, tmp_path)
    more = {"known_gamma": text, "known_lambda": 0.8, "known_p0": 0.4, "known_p": 0.5}
    more |= {"known_iterations": iterations, "seed": seed, "al2sgd_rho": 0.1}
    _, _, models = seen.run("async-al2sgd", nodes, **HIERARCHICAL, **more)
    found = users.hierarchy(values, 0.8)
    wanted, _ = naive(users, found, iterations, "full", seed, p0=0.4, p=0.5, rho=0.1)
    assert np.abs(users.rows(models) - wanted.y).max() <= 1e-12 * max(np.abs(wanted.y).max(), 1e-6)


@pytest.mark.parametrize("oracle", ["full", "sample"])
def test_it_goes_to_the_exact_solution(oracle: str, seen: Seen) -> None:
    """That of the mixed model; Async-L2GD stays in its ball of noise."""
    keys = {**HIERARCHICAL, "samples_per_user": 20, "known_gamma": 1.5, "known_lambda": 0.8}
    users = users_of("mixed-model", **keys)
    wanted = users.rows(seen.run("mixed-model", **keys)[2])
    keys |= {"known_p0": 0.02, "known_p": 0.1, "num_rounds": 60}
    _, _, found = seen.run("async-al2sgd", al2sgd_oracle=oracle, **keys)
    assert far(users.rows(found), wanted) < 1e-4
    _, _, plain = seen.run("async-l2gd", **keys)
    assert 1e-3 < far(users.rows(plain), wanted) < 0.2


def test_bytes_and_messages_are_those_of_round_trips_and_refreshes() -> None:
    """Down the means that were missed, up z and y, and a gradient at a refresh."""
    grid, users = Watched(12), users_of("async-al2sgd", **HIERARCHICAL)
    keys = {"known_gamma": 1.5, "known_lambda": 0.8, **SOME, "known_iterations": 100}
    strategy, result, _ = federate("async-al2sgd", grid=grid, **keys, **HIERARCHICAL)
    sent = len(grid.training()) - 2 * 12  # two questions at first: facts, and the gradients at 0
    size, renewed = 8 * users.d, strategy.state.refreshes
    summary = result.json()[0]
    assert summary["messages"] == 2 * sent
    assert summary["bytes_down"] == 2 * size * sent
    assert summary["bytes_up"] == size * (2 * sent + 12 * renewed)
    assert dict(summary["findings"][1]["rows"])["refreshes, of all users"].startswith(f"{renewed} ")


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ({"al2sgd_rho": 0}, "rho=0"),
        ({"al2sgd_rho": 1.5}, r"rho=1\.5"),
        ({"al2sgd_rho": "often"}, "al2sgd-rho=often: not a number, and not auto"),
        ({"al2sgd_mu": 0}, "mu=0"),
        ({"al2sgd_mu": "nan"}, "al2sgd-mu=nan: must be finite"),
        ({"al2sgd_oracle": "half"}, "al2sgd-oracle=half"),
    ],
)
def test_bad_settings_are_refused(keys: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        federate("async-al2sgd", known_gamma=1, known_lambda=1, **keys, **HIERARCHICAL)
