"""The mixed model through a federation against (2.3) as one dense system, and minimisers."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy.optimize import minimize

from corsage.core.messages.encoding import decode
from corsage.solvers.losses.linear_losses import LinearLosses
from tests.support.federations import federate
from tests.support.grids import Watched
from tests.support.known_users import (
    HIERARCHICAL,
    LOGISTIC,
    UNEVEN,
    Floats,
    Seen,
    Users,
    far,
    strengths,
    users_of,
    written,
)

DATA = {**HIERARCHICAL, "samples_per_user": 6}  # more than coefficients: one best model a user
INF = float("inf")


@pytest.fixture
def seen(monkeypatch: pytest.MonkeyPatch) -> Seen:
    return Seen(monkeypatch)


def per_user(users: Users, gamma: float | Mapping[str, float]) -> Floats:
    """gamma_i from a number, or from numbers by user or cluster."""
    if not isinstance(gamma, Mapping):
        return np.full(users.n, float(gamma))
    if set(users.names) <= set(gamma):
        return np.array([gamma[user] for user in users.names])
    return np.array([gamma[users.clusters[j]] for j in users.cluster])


def dense(users: Users, gamma: Floats, lam: Floats) -> Floats:
    """theta (n, d) of (2.3): all theta_i, w_j and wbar as one system of linear equations.

    What an infinite strength ties is one unknown: theta_i and w_j, or w_j and wbar.
    """
    n, k, d = users.n, users.k, users.d
    # Blocks of unknowns: 0 is wbar, then w_j, then theta_i.
    w = [0 if np.isinf(lam[j]) else 1 + j for j in range(k)]
    theta = [
        w[j] if np.isinf(gamma[i]) else 1 + k + i for i, j in enumerate(users.cluster.tolist())
    ]
    size = (1 + k + n) * d
    matrix, right = np.zeros((size, size)), np.zeros(size)

    def at(one: int, other: int) -> Any:
        return np.s_[one * d : (one + 1) * d, other * d : (other + 1) * d]

    def tie(one: int, other: int, strength: float) -> None:
        """strength/2 |one - other|^2."""
        if one == other or strength == 0:
            return
        for a, b in ((one, other), (other, one)):
            matrix[at(a, a)] += strength * np.eye(d)
            matrix[at(a, b)] -= strength * np.eye(d)

    for i, j in enumerate(users.cluster.tolist()):
        matrix[at(theta[i], theta[i])] += users.x[i].T @ users.x[i]
        right[theta[i] * d : (theta[i] + 1) * d] += users.x[i].T @ users.y[i]
        tie(theta[i], w[j], gamma[i])
    for j in range(k):
        tie(w[j], 0, lam[j])
    solved = np.linalg.lstsq(matrix, right, rcond=1e-12)[0].reshape(-1, d)
    return solved[theta]


CASES = [
    # gamma, lambda, clusters of unequal sizes, nodes
    ("number", 0.8, False, 1),
    ("cluster", 0.8, True, 3),
    ("user", 0.8, True, 12),
    ("user", 0.8, False, 1),
    ("user", INF, True, 5),
    ("cluster", 0.0, False, 12),
    (INF, 0.8, True, 3),
    (INF, 0.0, False, 1),
    (INF, INF, True, 5),
    (0.0, 0.8, False, 3),
]


@pytest.mark.parametrize(("gamma", "lam", "unequal", "nodes"), CASES)
def test_squared_loss_is_a_dense_solve(
    gamma: Any, lam: float, unequal: bool, nodes: int, seen: Seen, tmp_path: Path
) -> None:
    data = dict(DATA)
    if unequal:
        data["cluster_map"] = written(tmp_path, UNEVEN)
    users = users_of("mixed-model", **data)
    values, text = (gamma, str(gamma))
    if isinstance(gamma, str):
        values, text = strengths(gamma, users, tmp_path)
    keys = {**data, "known_gamma": text, "known_lambda": lam}
    strategy, result, models = seen.run("mixed-model", nodes, **keys)
    wanted = dense(users, per_user(users, values), np.full(users.k, lam))
    assert far(users.rows(models), wanted) < 1e-10
    assert result.json()[0]["rounds"] == strategy.progress.round == 1


def test_lambda_may_differ_between_clusters(seen: Seen, tmp_path: Path) -> None:
    users = users_of("mixed-model", **DATA)
    text = written(tmp_path, {"0": 0.2, "1": 5.0, "2": 1.0})
    keys = {**DATA, "known_gamma": 2, "known_lambda": text}
    _, _, models = seen.run("mixed-model", 3, **keys)
    wanted = dense(users, np.full(12, 2.0), np.array([0.2, 5.0, 1.0]))
    assert far(users.rows(models), wanted) < 1e-10


@pytest.mark.parametrize(
    ("name", "gamma", "lam"),
    [
        ("exact-global", INF, INF),
        ("exact-cluster", INF, 0.0),
        ("exact-local", 0.0, 0.0),
        ("single-cluster", 0.7, INF),
    ],
)
@pytest.mark.parametrize("nodes", [1, 5])
def test_its_extremes_have_names(
    name: str, gamma: float, lam: float, nodes: int, seen: Seen
) -> None:
    """The single cluster has one centre for all. The mixed model's own keys do not count."""
    users = users_of(name, **DATA)
    keys = {**DATA, "known_gamma": 3, "single_cluster_lambda": 0.7}
    _, _, models = seen.run(name, nodes, **keys)
    wanted = dense(users, np.full(12, gamma), np.full(3, lam))
    assert far(users.rows(models), wanted) < 1e-10


def test_the_squared_penalty_of_all_pairs_is_the_single_cluster(seen: Seen) -> None:
    """Armacki et al. 2022, (4): sum f_i + lam sum_{i<j} |x_i - x_j|^2, pair by pair."""
    lam, users = 0.05, users_of("single-cluster", **DATA)
    n, d = users.n, users.d
    pairs = lam * (n * np.eye(n) - 1.0)
    blocks = [x.T @ x for x in users.x]
    matrix = np.kron(2 * pairs, np.eye(d))
    for i, block in enumerate(blocks):
        matrix[i * d : (i + 1) * d, i * d : (i + 1) * d] += block
    right = np.concatenate([x.T @ y for x, y in zip(users.x, users.y, strict=True)])
    keys = {**DATA, "single_cluster_lambda": 2 * n * lam}
    _, _, models = seen.run("single-cluster", 3, **keys)
    assert far(users.rows(models), np.linalg.solve(matrix, right).reshape(n, d)) < 1e-10


def logistic(users: Users, gamma: Floats, lam: Floats) -> Floats:
    """theta (n, d) of (2.3) with logistic losses: L-BFGS over all unknowns, then Newton."""
    n, k, d = users.n, users.k, users.d
    own, signs = users.cluster, 2 * users.y - 1

    def whole(flat: Floats) -> tuple[float, Floats]:
        theta, w, wbar = np.split(flat.reshape(-1, d), [n, n + k])
        scores = np.einsum("umd,ud->um", users.x, theta)
        inner, outer = theta - w[own], w - wbar
        value = np.logaddexp(0, -signs * scores).sum()
        value += (gamma @ np.square(inner).sum(1) + lam @ np.square(outer).sum(1)) / 2
        slope = np.zeros_like(flat).reshape(-1, d)
        slope[:n] = users.gradient(theta, np.arange(n)) + gamma[:, None] * inner
        np.add.at(slope, n + own, -gamma[:, None] * inner)
        slope[n : n + k] += lam[:, None] * outer
        slope[n + k] -= (lam[:, None] * outer).sum(0)
        return float(value), slope.reshape(-1)

    x = minimize(whole, np.zeros((n + k + 1) * d), jac=True, method="L-BFGS-B", tol=1e-12).x
    eye = np.eye(len(x))
    for _ in range(3):
        hessian = np.array([whole(x + 1e-5 * e)[1] - whole(x - 1e-5 * e)[1] for e in eye]) / 2e-5
        x = x - np.linalg.solve(hessian, whole(x)[1])
    assert np.abs(whole(x)[1]).max() < 1e-12
    return x.reshape(-1, d)[:n]


@pytest.mark.parametrize(
    ("gamma", "unequal", "nodes"), [("number", False, 1), ("cluster", True, 12), ("user", True, 3)]
)
def test_logistic_loss_is_minimised(
    gamma: str, unequal: bool, nodes: int, seen: Seen, tmp_path: Path
) -> None:
    data = {**LOGISTIC, **({"cluster_map": written(tmp_path, UNEVEN)} if unequal else {})}
    users = users_of("mixed-model", **data)
    values, text = strengths(gamma, users, tmp_path)
    keys = {**data, "known_gamma": text, "known_lambda": 0.8, "num_rounds": 30}
    strategy, _, models = seen.run("mixed-model", nodes, **keys)
    wanted = logistic(users, per_user(users, values), np.full(users.k, 0.8))
    assert far(users.rows(models), wanted) < 1e-8
    assert strategy.progress.round < 12 and strategy.finished()


def test_users_alone_are_minimised_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """No round changes them: who has no minimiser would look for one in each."""
    seen, minimise = [], LinearLosses.minimise

    def counted(self: LinearLosses, *arguments: Any, **named: Any) -> Any:
        seen.append(self.n)
        return minimise(self, *arguments, **named)

    monkeypatch.setattr(LinearLosses, "minimise", counted)
    keys = {**LOGISTIC, "ridge": 0.0, "num_rounds": 12, "seed": 31}  # users that nobody knows yet
    strategy, _, _ = federate("exact-local", num_nodes=1, **keys)
    assert strategy.progress.round > 3
    assert sum(seen) == len(strategy.members.users)


def test_only_sums_go_up() -> None:
    """A node with several users sends nothing with an axis of users, and no number of one."""
    replies: list[Any] = []

    class Spy(Watched):
        def _work(self, message: Any) -> Any:
            reply = super()._work(message)
            if message.metadata.message_type == "train":
                replies.append(reply.content)
            return reply

    for keys in ({"known_gamma": 1, "known_lambda": 1}, {}):
        keys["mixed_summary"] = "federation"  # as of devices, whatever is asked
        _, result, _ = federate("mixed-model", grid=Spy(3), **{**LOGISTIC, **keys, "num_rounds": 5})
        _, squared, _ = federate("mixed-model", grid=Spy(3), **{**HIERARCHICAL, **keys})
        assert squared.json()[0]["messages"] > 0 < result.json()[0]["bytes_up"]
    assert len(replies) > 30
    for content in replies:
        assert len(content["config"]["users"]) == 1  # the cohort
        assert all(len(v) == 1 for v in content["metrics"].values() if isinstance(v, list))
        rows = decode(content["rows"]) if "rows" in content else {}
        assert all(len(array) == 1 and 4 not in array.shape[1:2] for array in rows.values())


def test_what_is_sent_is_counted() -> None:
    """Of the squared loss: w and twice gamma down, P and q up; then w_j down once more."""
    users = users_of("mixed-model", **HIERARCHICAL)
    keys = {**HIERARCHICAL, "known_gamma": 1, "known_lambda": 1}
    _, result, _ = federate("mixed-model", 3, **keys)
    d, summary = users.d, result.json()[0]
    assert summary["bytes_up"] == 12 * 8 * (d * (d + 1) // 2 + d)
    assert summary["bytes_down"] == 12 * 2 * 8 * 3 * d
    assert summary["messages"] == 12 * 3


@pytest.mark.parametrize("gamma", ["auto", "1"])
def test_who_fails_in_the_one_round_is_asked_again(gamma: str, seen: Seen) -> None:
    """The solution is exact only with everybody's sums."""
    failed: list[int] = []

    def fails(number: int, task: Any) -> bool:
        first = number == 1 and not failed
        failed.extend([number] if first else [])
        return first

    keys = {**DATA, "known_gamma": gamma, "known_lambda": 0.8}
    strategy, _, found = seen.run("mixed-model", grid=Watched(12, fails), **keys)
    assert strategy.progress.dropped == {"1": 1}
    if gamma == "1":
        assert strategy.progress.round == 2
        users = users_of("mixed-model", **keys)
        assert far(users.rows(found), dense(users, np.ones(12), np.full(3, 0.8))) < 1e-10


@pytest.mark.parametrize("auto", ["gamma", "lambda"])
@pytest.mark.parametrize("name", ["mixed-model", "async-l2gd"])
def test_one_strength_may_be_on_auto_and_the_other_given(name: str, auto: str) -> None:
    given = {"gamma": "lambda", "lambda": "gamma"}[auto]
    keys = {**LOGISTIC, f"known_{auto}": "auto", f"known_{given}": 0.7, "num_rounds": 12}
    strategy, result, _ = federate(name, 3, mixed_em_rounds=4, **keys)
    tables = {table["title"]: dict(table["rows"]) for table in result.json()[0]["findings"]}
    spread = tables["variances by coefficient (penalised quasi-likelihood)"]
    assert "not converged" in tables["EM"]["variances"]
    assert list(spread) == [{"gamma": "users", "lambda": "clusters"}[auto]]
    strengths = strategy.state.strengths
    assert {"gamma": strengths.gamma, "lambda": strengths.lam}[given] == {"": 0.7}


@pytest.mark.parametrize("gamma", [1.0, 10.0])
@pytest.mark.parametrize("name", ["mixed-model", "exact-cluster", "exact-global"])
def test_hubers_loss_is_minimised_where_newton_runs_in_circles(
    name: str, gamma: float, seen: Seen
) -> None:
    """With as many coefficients as samples: at the end all gradients of (2.3) are 0."""
    keys = {**HIERARCHICAL, "num_features": 12, "samples_per_user": 12, "loss": "huber"}
    keys |= {"known_gamma": gamma, "known_lambda": 0.8, "huber_delta": 0.5, "num_rounds": 80}
    strategy, _, models = seen.run(name, **keys)
    users = users_of(name, **keys)
    assert strategy.finished() and strategy.progress.round < 80
    theta = users.rows(models)
    errors = np.einsum("umd,ud->um", users.x, theta) - users.y
    slopes = np.einsum("um,umd->ud", np.clip(errors, -0.5, 0.5), users.x)
    if name == "exact-global":
        assert np.abs(slopes.sum(0)).max() < 1e-6
    elif name == "exact-cluster":
        assert np.abs(np.add.reduceat(slopes, [0, 4, 8])).max() < 1e-6
    else:
        w = strategy.state.w
        pull = gamma * (theta - w[users.cluster])
        assert np.abs(slopes + pull).max() < 1e-6
        outer = 0.8 * (w - strategy.state.model)
        assert np.abs(outer - np.add.reduceat(pull, [0, 4, 8])).max() < 1e-6
        assert np.abs(outer.sum(0)).max() < 1e-6
