"""FedRep with clustered heads: against plain loops, CVXPY, FedRep itself, and across engines."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import cvxpy as cp
import numpy as np
import pytest
import torch
from federations import federate, same_arrays
from reference import (
    Vector,
    agrees,
    chosen,
    examples,
    flat,
    fresh,
    near,
    plain_sgd,
    run,
    user_batches,
    users_data,
)

from corsage.app.callbacks import Callback
from corsage.app.checkpoint import read_checkpoint, write_checkpoint
from corsage.app.client_app import app
from corsage.app.errors import ConfigError
from corsage.app.local_grid import LocalGrid
from corsage.app.wire import decode
from corsage.datasets.federated import simulated
from corsage.models.edges import Edges
from corsage.models.sum_of_norms import prox
from corsage.strategies.base import Strategy

HEAD = 170  # parameters of the head: 16 features, 10 classes
CONVEX: dict[str, Any] = {
    "fedrep_heads": "convex-clustering",
    "fedrep_heads_lambda": 0.01,
    "fedrep_heads_rho": 0.5,
    "fedrep_heads_neighbours": 0,
}
KNOWN: dict[str, Any] = {
    "fedrep_heads": "known-clusters",
    "fedrep_heads_gamma": 2.0,
    "fedrep_heads_middle": 3.0,
}
CLUSTERS = {str(i): "abc"[i % 3] for i in range(12)}
MODES = pytest.mark.parametrize("keys", [CONVEX, {**CONVEX, "fedrep_heads_neighbours": 3}, KNOWN])


@pytest.fixture
def known(tmp_path: Path) -> dict[str, Any]:
    """The key that says which cluster a user is in."""
    path = tmp_path / "clusters.json"
    path.write_text(json.dumps(CLUSTERS))
    return {"cluster_map": str(path)}


def one_round(
    body: Vector, heads: dict[str, Vector], pulls: dict[str, Any], number: int
) -> tuple[Vector, dict[str, Vector]]:
    """FedRep's round by hand: each user's head from `heads` under its pull, then the body."""
    data, trained, bodies = users_data(), {}, []
    for user, (strength, centre) in pulls.items():
        whole = np.concatenate([body, heads[user]])
        centre_all = np.concatenate([body, centre])
        steps = user_batches(data, user, "head", number, 2)
        pull = near(strength, centre_all)
        whole = plain_sgd(whole, examples(data, user), steps, extra=pull, frozen=1)
        trained[user] = whole[-HEAD:]
        steps = user_batches(data, user, "body", number, 1)
        bodies.append(plain_sgd(whole, examples(data, user), steps, frozen=3)[:-HEAD])
    return np.mean(bodies, axis=0), trained


def body_of(arrays: Any) -> Vector:
    return np.concatenate(
        [a.reshape(-1) for n, a in decode(arrays).items() if not n.startswith("cluster-")]
    )


def test_convex_clustering_is_douglas_rachford_on_the_heads() -> None:
    strategy, result = run("fedrep", **CONVEX)
    body, first = np.split(flat(fresh()), [-HEAD])
    s: dict[str, Vector] = {}
    y: dict[str, Vector] = {}
    for number in range(1, 5):
        mean = np.mean(list(y.values()), axis=0) if y else first
        users = chosen(strategy, number)
        heads = {user: y.get(user, mean) for user in users}
        centres = {user: 2 * heads[user] - s.get(user, mean) for user in users}
        pulls = {user: (0.5, centres[user]) for user in users}
        body, trained = one_round(body, heads, pulls, number)
        for user in users:
            s[user] = s.get(user, mean) + trained[user] - heads[user]
        stacked = np.stack(list(s.values())).astype(np.float64)
        basis, turned = np.linalg.qr(stacked.T)
        rows = prox(turned.T.copy(), 0.01 / 0.5, Edges.all_pairs(len(s)))[0] @ basis.T
        y = {user: row.astype(np.float32) for user, row in zip(s, rows, strict=True)}
    assert np.allclose(body_of(result.arrays), body, atol=2e-5)
    mean = np.mean(list(y.values()), axis=0)
    models = {str(i): np.concatenate([body, y.get(str(i), mean)]) for i in range(12)}
    assert agrees(result, models, users_data())


def test_known_clusters_is_descent_in_turns(known: dict[str, Any]) -> None:
    strategy, result = run("fedrep", **KNOWN, **known)
    body, first = np.split(flat(fresh()), [-HEAD])
    heads: dict[str, Vector] = {}
    w: dict[str, Vector] = {}
    middle = first
    for number in range(1, 5):
        users = chosen(strategy, number)
        centres = {user: w.get(CLUSTERS[user], middle) for user in users}
        starts = {user: heads.get(user, centres[user]) for user in users}
        pulls = {user: (2.0, centres[user]) for user in users}
        body, trained = one_round(body, starts, pulls, number)
        heads |= trained
        names = sorted({CLUSTERS[user] for user in heads})
        w, middle = least_squares(heads, names)
    assert np.allclose(body_of(result.arrays), body, atol=2e-5)
    named = decode(result.arrays)
    for name in names:
        own = [a.reshape(-1) for n, a in named.items() if n.startswith(f"cluster-{name}.")]
        assert np.allclose(np.concatenate(own), w[name], atol=2e-5)
    models = {
        user: np.concatenate([body, heads.get(user, w.get(CLUSTERS[user], middle))])
        for user in CLUSTERS
    }
    assert agrees(result, models, users_data())


def least_squares(heads: dict[str, Vector], names: list[str]) -> tuple[dict[str, Vector], Vector]:
    """w_j and wbar of (2.3) by the normal equations, gamma = 2, lambda = 3."""
    k = len(names)
    system, right = np.zeros((k + 1, k + 1)), np.zeros((k + 1, HEAD))
    for j, name in enumerate(names):
        mine = [head for user, head in heads.items() if CLUSTERS[user] == name]
        system[j, j] = 2.0 * len(mine) + 3.0
        system[j, k] = system[k, j] = -3.0
        right[j] = 2.0 * np.sum(mine, axis=0)
    system[k, k] = 3.0 * k
    solution = np.linalg.solve(system, right).astype(np.float32)
    return dict(zip(names, solution, strict=False)), solution[k]


def test_no_pull_is_fedrep_to_the_last_bit(known: dict[str, Any]) -> None:
    _, own, _ = federate("fedrep", new_users=0.2)
    _, free, _ = federate("fedrep", **{**KNOWN, "fedrep_heads_gamma": 0.0}, **known, new_users=0.2)
    for one, other in zip(own.summaries, free.summaries, strict=True):
        assert one["per_user"] == other["per_user"] and one["loss"] == other["loss"]
    assert np.array_equal(body_of(own.arrays), body_of(free.arrays))


def test_without_lambda_each_head_is_pulled_to_its_last_value_only() -> None:
    """s_i = y_i = the last h_i: proximal steps, and FedRep where rho hardly pulls."""
    keys = {**CONVEX, "fedrep_heads_lambda": 0.0}
    _, own, _ = federate("fedrep", fraction_train=1.0)
    _, free, _ = federate("fedrep", fraction_train=1.0, **{**keys, "fedrep_heads_rho": 1e-9})
    strategy, result = run("fedrep", **keys, fraction_train=1.0)
    assert np.allclose(body_of(own.arrays), body_of(free.arrays), atol=1e-6)
    assert own.summaries[0]["per_user"] == free.summaries[0]["per_user"]
    body, first = np.split(flat(fresh()), [-HEAD])
    heads = dict.fromkeys(CLUSTERS, first)
    for number in range(1, 5):
        pulls = {user: (0.5, head) for user, head in heads.items()}
        body, heads = one_round(body, heads, pulls, number)
    assert np.allclose(body_of(result.arrays), body, atol=2e-5)
    assert strategy.state.arrays["labels"].tolist() == list(range(12))


def test_a_large_lambda_makes_one_head() -> None:
    keys = {**CONVEX, "fedrep_heads_lambda": 10.0, "fraction_train": 1.0}
    strategy, result, _ = federate("fedrep", **keys)
    assert strategy.state.arrays["heads"].shape == (1, HEAD)
    rows = dict(result.summaries[0]["findings"][0]["rows"])
    assert rows["distinct heads"] == "1 of 12 users, fused exactly"
    assert rows["cluster 0"] == "12 users: 0, 1, 2, 3, 4, 5, 6, 7, ..."


def test_a_strong_gamma_makes_heads_those_of_their_clusters(known: dict[str, Any]) -> None:
    def spread(gamma: float) -> float:
        keys = {**KNOWN, "fedrep_heads_gamma": gamma, "num_rounds": 20, "fraction_train": 1.0}
        strategy, _, _ = federate("fedrep", **keys, **known)
        heads = strategy.state.arrays["heads"]
        order = [CLUSTERS[user] for user in strategy.state.scalars["users"]]
        groups = [heads[[c == name for c in order]] for name in "abc"]
        return float(np.mean([np.linalg.norm(g - g.mean(axis=0), axis=1).mean() for g in groups]))

    assert spread(200.0) < 0.02 * spread(0.0)


@MODES
@pytest.mark.parametrize("nodes", [3, 12])
def test_the_number_of_nodes_changes_nothing(
    keys: dict[str, Any], nodes: int, known: dict[str, Any]
) -> None:
    more = {**keys, **known, "new_users": 0.2, "num_rounds": 6}
    _, one, _ = federate("fedrep", nodes=1, **more)
    _, many, _ = federate("fedrep", nodes=nodes, **more)
    assert len(one.summaries) == 2
    for a, b in zip(one.summaries, many.summaries, strict=True):
        assert a["per_user"] == pytest.approx(b["per_user"], abs=1e-9)
        assert a["loss"] == pytest.approx(b["loss"], abs=1e-5)
    assert same_arrays(one.arrays, many.arrays)
    for name in ("bytes_up", "bytes_down", "messages", "findings"):
        assert one.summaries[0][name] == many.summaries[0][name]


@pytest.mark.parametrize(("keys", "down"), [(CONVEX, 2), (KNOWN, 2)])
def test_bytes_are_a_body_and_heads(keys: dict[str, Any], down: int, known: dict[str, Any]) -> None:
    _, result, _ = federate("fedrep", nodes=3, **keys, **known)
    body, turns = 64 * 16 + 16, 4 * 6
    assert result.summaries[0]["bytes_up"] == 4 * turns * (body + HEAD)
    assert result.summaries[0]["bytes_down"] == 4 * turns * (body + down * HEAD + 1)


class Checkpoints(Callback):
    """Checkpoints rounds 1 and 2 and stops in round 3; or takes round 2 over at the start."""

    def __init__(self, path: Path, resume: bool) -> None:
        self.path, self.resume = path, resume

    def on_start(self, strategy: Strategy) -> None:
        if self.resume:
            strategy.state = read_checkpoint(self.path, {"run": 1})
            assert strategy.state.round == 2

    def on_round_end(self, strategy: Strategy, row: dict[str, object]) -> None:
        if row["round"] == 3 and not self.resume:
            raise KeyboardInterrupt
        write_checkpoint(self.path, strategy.state, {"run": 1})


@MODES
def test_a_resumed_run_ends_the_same(
    keys: dict[str, Any], known: dict[str, Any], tmp_path: Path
) -> None:
    whole, wanted, _ = federate("fedrep", num_rounds=6, **keys, **known)
    config, path, grid = whole.config, tmp_path / "checkpoint", LocalGrid(app, 3)
    with pytest.raises(KeyboardInterrupt):
        type(whole)(config, [Checkpoints(path, resume=False)], experiment="e").start(grid)
    result = type(whole)(config, [Checkpoints(path, resume=True)], experiment="e").start(grid)
    for name in ("per_user", "bytes_up", "bytes_down", "findings"):
        assert result.summaries[0][name] == wanted.summaries[0][name]
    assert result.summaries[0]["loss"] == pytest.approx(wanted.summaries[0]["loss"], abs=1e-7)
    assert same_arrays(result.arrays, wanted.arrays, tolerance=1e-6)


def test_over_a_frozen_body_the_heads_are_the_optimum_of_cvxpy() -> None:
    """Full-batch users, tau = 60: sum f_i + lam sum |h_i - h_j| is minimal up to 1e-4."""
    lam, decay = 0.03, 0.05
    keys = {**CONVEX, "fedrep_heads_lambda": lam, "local_epochs": 0, "head_epochs": 60}
    keys |= {"batch_size": 1000, "lr": 0.3, "momentum": 0.9, "weight_decay": decay}
    keys |= {"num_users": 6, "max_train_samples": 12, "hidden": "4", "num_rounds": 130}
    strategy, _, _ = federate("fedrep", fraction_train=1.0, evaluate_every=130, **keys)
    arrays, size = strategy.state.arrays, 6
    found = arrays["heads"][arrays["labels"]].astype(np.float64)
    heads, losses = cp.Variable((size, 50)), []
    for i in range(size):
        x, y = features_of(strategy, str(i))
        weight, bias = cp.reshape(heads[i, :40], (10, 4), order="C"), heads[i, 40:]
        scores = x @ weight.T + np.ones((len(x), 1)) @ cp.reshape(bias, (1, 10), order="C")
        right = cp.sum(cp.multiply(np.eye(10)[y], scores))
        losses.append((cp.sum(cp.log_sum_exp(scores, axis=1)) - right) / len(x))
    pairs = [(i, j) for i in range(size) for j in range(i)]
    apart = cp.sum(cp.hstack([cp.norm(heads[i] - heads[j]) for i, j in pairs]))
    whole = sum(losses) + decay / 2 * cp.sum_squares(heads[:, :40]) + lam * apart
    problem = cp.Problem(cp.Minimize(whole))
    problem.solve(solver=cp.CLARABEL)
    optimum = heads.value
    heads.value = found.copy()
    assert float(whole.value) == pytest.approx(problem.value, rel=1e-4)
    for rows in (found, optimum):  # softmax does not know a shift of all biases
        rows[:, 40:] -= rows[:, 40:].mean(axis=1, keepdims=True)
    assert np.abs(found - optimum).max() < 0.03
    together = np.linalg.norm(optimum[:, None] - optimum, axis=2) < 1e-3
    assert len(arrays["heads"]) > 1
    assert np.array_equal(arrays["labels"][:, None] == arrays["labels"], together)


def features_of(strategy: Strategy, user: str) -> tuple[np.ndarray, np.ndarray]:
    """A user's features under the initial body, and its labels."""
    config, network = strategy.config, strategy.network
    data = simulated(config.data, config.federation.num_users, 0)
    x, y = examples(data, user)
    network.set(network.whole, network.initial)
    with torch.no_grad():
        return network.features(x).numpy().astype(np.float64), y.numpy()


def test_what_cannot_work_is_refused_in_one_line() -> None:
    with pytest.raises(ConfigError, match=r"users 0, 1, .* in no known cluster: set cluster-col"):
        federate("fedrep", **KNOWN)
    with pytest.raises(ConfigError, match=r"is 5, SGD diverges from 3 on: lower fedrep-heads-rho"):
        run("fedrep", **{**CONVEX, "fedrep_heads_rho": 100.0})
