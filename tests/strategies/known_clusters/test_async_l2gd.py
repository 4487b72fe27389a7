"""Async-L2GD through a federation against Algorithm 1 coin by coin, and what it sends."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given
from hypothesis import settings as searched
from hypothesis import strategies as st

from corsage.app.client_app import app
from corsage.app.local_grid import LocalGrid
from corsage.core.errors import ConfigError
from corsage.core.seeding import generator
from corsage.experiments.known_clusters.async_l2gd import run_naive
from corsage.networks.training import batches
from corsage.solvers.known_clusters.coins.flips import Coins, count
from corsage.solvers.known_clusters.coins.settings import (
    Parameters,
    largest_step,
    probabilities,
    rates,
    tau_of,
)
from corsage.solvers.known_clusters.hierarchy import Hierarchy
from corsage.strategies.rounds.base import Strategy
from corsage.strategies.rounds.callbacks import Callback
from corsage.strategies.rounds.state import stored
from tests.support.federations import federate
from tests.support.grids import Watched
from tests.support.known_users import (
    HIERARCHICAL,
    LOGISTIC,
    SEVERAL,
    UNEVEN,
    Seen,
    Users,
    far,
    several,
    strengths,
    users_of,
    written,
)
from tests.support.reference import KEYS, examples, flat, fresh, plain_sgd, users_data


@pytest.fixture
def seen(monkeypatch: pytest.MonkeyPatch) -> Seen:
    return Seen(monkeypatch)


def theory(users: Users, found: Hierarchy, **given_: float) -> tuple[Parameters, Coins]:
    """The settings of Corollary 3.6, but for those that are given, and the run's coins."""
    p_0, p = probabilities(found, users.smoothness())
    p_0, p = given_.get("p0", p_0), np.full(found.k, given_["p"]) if "p" in given_ else p
    step = largest_step(found, users.smoothness(), p_0, p)
    parameters = Parameters(step, p_0, p, tau_of(p_0, p))
    return parameters, Coins(0, p_0, tuple(p.tolist()), tuple(users.clusters))


def naive(users: Users, found: Hierarchy, iterations: int, **given_: float) -> Any:
    """The models after so many single iterations from 0."""
    start = np.zeros((users.n, users.d))
    parameters, coins = theory(users, found, **given_)
    return run_naive(start, users.gradient, found, parameters, coins, iterations)


ONE_COIN = {"known_p": 0, "known_p0": 0.2}
CASES = [
    # data, gamma, clusters of unequal sizes, nodes, iterations, keys
    (HIERARCHICAL, "number", False, 1, 2_000, {}),
    (HIERARCHICAL, "cluster", False, 3, 400, {}),
    (HIERARCHICAL, "cluster", True, 12, 150, {}),
    (HIERARCHICAL, "user", False, 1, 100, {}),
    (HIERARCHICAL, "number", True, 5, 150, ONE_COIN),
    (LOGISTIC, "number", True, 1, 500, {}),
    (LOGISTIC, "user", True, 12, 60, {}),
    (LOGISTIC, "user", False, 1, 100, ONE_COIN),
    (LOGISTIC, "cluster", False, 4, 100, {"known_p": 0.4, "known_p0": 0.3}),
    (SEVERAL, "number", False, 3, 150, {}),
    (SEVERAL, "user", False, 12, 60, ONE_COIN),
]


@pytest.mark.parametrize("case", CASES)
def test_a_coalesced_run_is_the_naive_one(case: Any, seen: Seen, tmp_path: Path) -> None:
    """All users' models after T iterations, to rounding, whatever node hosts them."""
    data, gamma, unequal, nodes, iterations, keys = case
    if unequal:
        data = {**data, "cluster_map": written(tmp_path, UNEVEN)}
    if data is SEVERAL:
        data = {**data, "data_file": several(tmp_path)}
    users = users_of("async-l2gd", **data)
    values, text = strengths(gamma, users, tmp_path)
    more = {**data, **keys, "known_gamma": text, "known_lambda": 0.8}
    strategy, _, models = seen.run("async-l2gd", nodes, known_iterations=iterations, **more)
    found = users.hierarchy(values, 0.8)
    wanted = naive(users, found, iterations, **{k[6:]: v for k, v in keys.items()})
    assert far(users.rows(models), wanted) < 1e-12
    assert strategy.state.iteration == iterations
    centres, middle = found.means(wanted)
    assert far(strategy.state.model, middle) < 1e-12
    assert far(strategy.state.centres, centres) < 1e-12


@searched(
    max_examples=8, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(st.integers(1, 40), st.sampled_from([1, 2, 3, 12]), st.booleans(), st.integers(0, 99))
def test_a_run_may_end_anywhere(
    seen: Seen, tmp_path: Path, iterations: int, nodes: int, apart: bool, seed: int
) -> None:
    """Also in steps that no user has heard of yet, and where nobody is asked in a round."""
    users = users_of("async-l2gd", **HIERARCHICAL)
    values, text = strengths("user" if apart else "cluster", users, tmp_path)
    more = {"known_gamma": text, "known_lambda": 0.8, "known_p0": 0.4, "known_p": 0.5}
    keys = {**HIERARCHICAL, **more, "known_iterations": iterations, "seed": seed}
    _, _, models = seen.run("async-l2gd", nodes, **keys)
    found = users.hierarchy(values, 0.8)
    parameters, coins = theory(users, found, p0=0.4, p=0.5)
    coins = Coins(seed, coins.p0, coins.p, coins.names)
    start = np.zeros((users.n, users.d))
    wanted = run_naive(start, users.gradient, found, parameters, coins, iterations)
    assert np.abs(users.rows(models) - wanted).max() <= 1e-12 * max(np.abs(wanted).max(), 1e-6)


def test_strengths_of_several_classes_are_of_lr_and_bear_a_ridge(tmp_path: Path) -> None:
    """Nobody estimates variances there, which a ridge would make mean nothing."""
    keys = {**SEVERAL, "data_file": several(tmp_path), "known_iterations": 20}
    keys |= {"known_gamma": "auto", "known_lambda": "auto"}
    strategy, _, _ = federate("async-l2gd", ridge=0.1, lr=0.1, **keys)
    assert strategy.state.strengths.gamma == {"": 0.5}
    with pytest.raises(ConfigError, match="lr=0 stands for endless pulls"):
        federate("async-al2sgd", lr=0.0, **keys)


# What is sent.


@pytest.mark.parametrize("apart", [False, True], ids=["even", "told apart"])
def test_communications_are_those_that_the_coins_make(apart: bool, tmp_path: Path) -> None:
    """One message to a user and one back for each run of local steps, and a question at first."""
    users, grid = users_of("async-l2gd", **HIERARCHICAL), Watched(12)
    _, text = strengths("user" if apart else "number", users, tmp_path)
    keys = {"known_gamma": text, "known_lambda": 0.8, "known_p0": 0.2, "known_p": 0.4}
    strategy, result, _ = federate(
        "async-l2gd", grid=grid, evaluate_every=10**6, known_iterations=150, **keys, **HIERARCHICAL
    )
    coins = Coins(0, 0.2, (0.4,) * 3, ("0", "1", "2"))
    counted = count(coins, 150)
    local = ~(coins.network_at(0, 150) | coins.clusters_at(0, 150))
    trips = counted["round-trips"] + local[:, -1]  # the last run is not followed by another step
    asked = [len(grid.training(user)) - 1 for user in users.names]
    assert asked == trips[users.cluster].tolist()
    assert result.json()[0]["messages"] == 2 * 4 * trips.sum()
    assert result.json()[0]["bytes_up"] == 4 * trips.sum() * 8 * users.d
    table = dict(result.json()[0]["findings"][1]["rows"])
    told = {row: int(text.split()[0].replace(",", "")) for row, text in table.items()}
    assert told["between clusters"] == counted["between"]
    for j in range(3):
        assert told[f"within {j}"] == counted["within"][j]
        assert told[f"round trips of {j}"] == counted["round-trips"][j]
    assert strategy.job.traffic.wire_messages >= 2 * sum(asked)


def test_a_node_that_hosts_a_whole_cluster_walks_alone() -> None:
    """One message a round, and what comes back has no row for a user."""
    grid, keys = Watched(3), {"known_gamma": 1.5, "known_lambda": 0.8, "num_rounds": 6}
    federate("async-l2gd", grid=grid, **keys, **HIERARCHICAL)
    ticks = [task.round for _, task in grid.training()]
    assert max(ticks) <= 1 + 6 and len(ticks) <= 3 * 7
    assert all(len(task.users) == 1 and "#" in task.users[0] for _, task in grid.training())


@pytest.mark.parametrize(("name", "gamma"), [("async-l2gd", "user"), ("async-al2sgd", "number")])
def test_what_is_kept_does_not_grow(name: str, gamma: str, tmp_path: Path) -> None:
    """A run may take weeks: the state after 36 rounds is as large as after 12."""
    users = users_of(name, **HIERARCHICAL)
    _, text = strengths(gamma, users, tmp_path)
    sizes, grid = {}, LocalGrid(app, 12)
    counters = {"iteration": 0} | ({"refreshes": 0} if name == "async-al2sgd" else {})

    class Watch(Callback):
        def on_round_end(self, strategy: Strategy[Any, Any], row: dict[str, Any]) -> None:
            plain, arrays = stored(replace(strategy.state, **counters))
            kept = [context.state for context in grid._contexts.values()]
            sizes[row["round"]] = (
                {n: a.shape for n, a in arrays.items() if not n.startswith("missed")},
                sum(len(a) for n, a in arrays.items() if n.startswith("missed")),
                len(json.dumps({**plain, "missed": []})),
                len(strategy.progress.versions),
                max(len(records) for records in kept),
            )

    keys = {"known_gamma": text, "known_lambda": 0.8, "known_p0": 0.2, "known_p": 0.3}
    keys |= {"num_rounds": 36, "evaluate_every": 100}
    federate(name, grid=grid, callbacks=[Watch()], **keys, **HIERARCHICAL)
    first, last = sizes[12], sizes[36]
    assert (first[0], first[3]) == (last[0], last[3])
    assert abs(first[2] - last[2]) < 20  # digits of numbers
    assert max(size[1] for size in sizes.values()) < 500 * (12 if gamma == "user" else 3)
    assert max(size[4] for size in sizes.values()) <= 3


# Models that are not linear.

DIGITS = {"dataset": "digits", "partition": "shards", "num_users": 12, "users_per_cluster": 20}
DIGITS |= {"model": "mlp", "loss": "auto", "known_gamma": 0.4, "known_lambda": 0.3}


def by_loops(users: list[str], clusters: dict[str, list[str]], iterations: int) -> dict[str, Any]:
    """Algorithm 1 in plain torch, one user after the other; momentum begins anew in each run."""
    cluster = np.array([next(j for j, c in enumerate(clusters.values()) if u in c) for u in users])
    totals = 0.4 * np.bincount(cluster)
    found = Hierarchy(cluster, np.full(12, 0.4), 0.3 / (0.3 + totals))
    step = largest_step(found, 1 / (2 * KEYS["lr"]), 0.2, np.full(3, 0.3))
    settings = Parameters(step, 0.2, np.full(3, 0.3), tau_of(0.2, np.full(3, 0.3)))
    rate, coins = rates(found, settings), Coins(0, 0.2, (0.3,) * 3, tuple(clusters))
    xi_0, xi = coins.network_at(0, iterations), coins.clusters_at(0, iterations)
    theta = np.tile(flat(fresh()).astype(np.float64), (12, 1))
    data, began = users_data(), dict[int, int]()

    def learn(j: int, t: int) -> None:
        """The local steps of cluster j up to iteration t."""
        first = began.pop(j, t)
        for i in np.flatnonzero(cluster == j) if first < t else []:
            own = examples(data, users[i])
            drawn = batches(generator(0, "local steps", first, users[i]), len(own[1]), t, 10)
            keys = {**KEYS, "lr": float(rate.local[j])}
            theta[i] = plain_sgd(theta[i].astype(np.float32), own, drawn[: t - first], keys)

    for t in range(iterations):
        for j in range(3):
            if not (xi_0[t] or xi[j, t]):
                began.setdefault(j, t)
                continue
            learn(j, t)
        now = theta.copy()
        for i, j in enumerate(cluster):
            near = now[i] - now[cluster == j].mean(0)
            if xi_0[t]:
                theta[i] -= rate.centre[i] * near
                theta[i] -= rate.middle[i] * (now[i] - found.means(now)[1])
            elif xi[j, t]:
                theta[i] -= rate.within[i] * near
    for j in range(3):
        learn(j, iterations)
    return dict(zip(users, theta, strict=True))


@pytest.mark.parametrize("nodes", [1, 12])
def test_a_network_is_trained_as_by_a_slow_loop(nodes: int, seen: Seen, tmp_path: Path) -> None:
    users, clusters = [str(i) for i in range(12)], {"a": ["0", "5", "7"], "b": ["1"], "c": []}
    clusters["c"] = [user for user in users if user not in clusters["a"] + clusters["b"]]
    keys = {**KEYS, **DIGITS, "cluster_map": written(tmp_path, clusters)}
    keys |= {"known_p0": 0.2, "known_p": 0.3, "known_iterations": 14}
    _, _, models = seen.run("async-l2gd", nodes, **keys)
    wanted = by_loops(users, clusters, 14)
    for user, model in wanted.items():
        assert np.abs(models[user] - model).max() < 2e-6


def test_a_network_gets_better(tmp_path: Path) -> None:
    clusters = {"even": [str(i) for i in range(0, 12, 2)], "odd": [str(i) for i in range(1, 12, 2)]}
    keys = {**DIGITS, "cluster_map": written(tmp_path, clusters), "evaluate_every": 1}
    strategy, _, notes = federate("async-l2gd", num_rounds=12, lr=0.1, **keys)
    curve = [accuracy for _, accuracy in strategy.progress.curve]
    assert np.mean(curve[-3:]) > curve[0] + 0.1
    assert not notes.notes
