"""FedRep with clustered heads: against plain loops, CVXPY, FedRep itself, and across engines."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import cvxpy as cp
import numpy as np
import pytest
import torch

from corsage.core.errors import ConfigError
from corsage.core.messages.encoding import decode
from corsage.datasets.dealing.federated import simulated
from corsage.solvers.convex_clustering.exact.edges import Edges
from corsage.solvers.convex_clustering.exact.sum_of_norms import prox
from corsage.strategies.rounds.base import Strategy
from tests.support.clustered_heads import CLUSTERS, CONVEX, HEAD, KNOWN, body_of
from tests.support.federations import federate
from tests.support.reference import (
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
from tests.test_floors import ROOT, imported


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


def test_convex_clustering_is_douglas_rachford_on_the_heads() -> None:
    strategy, result = run("fedrep-convex", **CONVEX)
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


def test_known_clusters_is_descent_in_turns() -> None:
    strategy, result = run("fedrep-known", **KNOWN)
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


def test_no_pull_is_fedrep_to_the_last_bit() -> None:
    _, own, _ = federate("fedrep", new_users=0.2)
    _, free, _ = federate("fedrep-known", **{**KNOWN, "fedrep_known_gamma": 0.0}, new_users=0.2)
    for one, other in zip(own.json(), free.json(), strict=True):
        assert one["per_user"] == other["per_user"] and one["loss"] == other["loss"]
    assert np.array_equal(body_of(own.arrays), body_of(free.arrays))


def test_without_lambda_each_head_is_pulled_to_its_last_value_only() -> None:
    """s_i = y_i = the last h_i: proximal steps, and FedRep where rho hardly pulls."""
    keys = {**CONVEX, "fedrep_convex_lambda": 0.0}
    _, own, _ = federate("fedrep", fraction_train=1.0)
    tiny = {**keys, "fedrep_convex_rho": 1e-9}
    _, free, _ = federate("fedrep-convex", fraction_train=1.0, **tiny)
    strategy, result = run("fedrep-convex", **keys, fraction_train=1.0)
    assert np.allclose(body_of(own.arrays), body_of(free.arrays), atol=1e-6)
    assert own.json()[0]["per_user"] == free.json()[0]["per_user"]
    body, first = np.split(flat(fresh()), [-HEAD])
    heads = dict.fromkeys(CLUSTERS, first)
    for number in range(1, 5):
        pulls = {user: (0.5, head) for user, head in heads.items()}
        body, heads = one_round(body, heads, pulls, number)
    assert np.allclose(body_of(result.arrays), body, atol=2e-5)
    assert strategy.state.labels.tolist() == list(range(12))


def test_a_large_lambda_makes_one_head() -> None:
    keys = {**CONVEX, "fedrep_convex_lambda": 10.0, "fraction_train": 1.0}
    strategy, result, _ = federate("fedrep-convex", **keys)
    assert strategy.state.y.shape == (1, HEAD)
    rows = dict(result.json()[0]["findings"][0]["rows"])
    assert rows["distinct heads"] == "1 of 12 users, fused exactly"
    assert rows["cluster 0"] == "12 users: 0, 1, 2, 3, 4, 5, 6, 7, ..."


def test_a_strong_gamma_makes_heads_those_of_their_clusters() -> None:
    def spread(gamma: float) -> float:
        keys = {**KNOWN, "fedrep_known_gamma": gamma, "num_rounds": 20, "fraction_train": 1.0}
        strategy, _, _ = federate("fedrep-known", **keys)
        order = [CLUSTERS[user] for user in strategy.state.users]
        groups = [strategy.state.h[[c == name for c in order]] for name in "abc"]
        return float(np.mean([np.linalg.norm(g - g.mean(axis=0), axis=1).mean() for g in groups]))

    assert spread(200.0) < 0.02 * spread(0.0)


def test_over_a_frozen_body_the_heads_are_the_optimum_of_cvxpy() -> None:
    """Full-batch users, tau = 60: sum f_i + lam sum |h_i - h_j| is minimal up to 1e-4."""
    lam, decay = 0.03, 0.05
    keys = {**CONVEX, "fedrep_convex_lambda": lam, "local_epochs": 0, "head_epochs": 60}
    keys |= {"batch_size": 1000, "lr": 0.3, "momentum": 0.9, "weight_decay": decay}
    keys |= {"num_users": 6, "max_train_samples": 12, "hidden": "4", "num_rounds": 130}
    strategy, _, _ = federate("fedrep-convex", fraction_train=1.0, evaluate_every=130, **keys)
    state, size = strategy.state, 6
    found = state.y[state.labels].astype(np.float64)
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
    assert len(state.y) > 1
    assert np.array_equal(state.labels[:, None] == state.labels, together)


def features_of(strategy: Strategy[Any, Any], user: str) -> tuple[np.ndarray, np.ndarray]:
    """A user's features under the initial body, and its labels."""
    config, network = strategy.config, strategy.job.network
    data = simulated(config.data, config.federation.num_users, 0)
    x, y = examples(data, user)
    network.set(network.whole, network.initial)
    with torch.no_grad():
        return network.features(x).numpy().astype(np.float64), y.numpy()


@pytest.mark.parametrize(
    ("name", "keys", "down"), [("fedrep-convex", CONVEX, 2), ("fedrep-known", KNOWN, 2)]
)
def test_bytes_are_a_body_and_heads(name: str, keys: dict[str, Any], down: int) -> None:
    _, result, _ = federate(name, nodes=3, **keys)
    body, turns = 64 * 16 + 16, 4 * 6
    assert result.json()[0]["bytes_up"] == 4 * turns * (body + HEAD)
    assert result.json()[0]["bytes_down"] == 4 * turns * (body + down * HEAD + 1)


def test_what_cannot_work_is_refused_in_one_line() -> None:
    with pytest.raises(ConfigError, match=r"users 0, 1, .* in no known cluster: set cluster-col"):
        federate("fedrep-known", **{**KNOWN, "cluster_map": ""})
    for name, key in (("fedrep-convex", "rho"), ("fedrep-known", "gamma")):
        why = rf"is 5, SGD diverges from 3 on: lower {name}-{key} or lr\."
        with pytest.raises(ConfigError, match=why):
            federate(name, lr=0.05, **{f"{name}-{key}".replace("-", "_"): 100.0})


OTHERS = ("known_clusters", "convex_clustering")


def file_of(name: str) -> Path | None:
    """The file of a module, or of the module that a name is taken from."""
    parts = name.split(".")
    for end in range(len(parts), 0, -1):
        path = ROOT.joinpath(*parts[:end])
        for found in (path.with_suffix(".py"), path / "__init__.py"):
            if found.is_file():
                return found
    return None


def needed(*first: str) -> set[Path]:
    """All files that some modules import, also inside of functions, and what these import."""
    found: set[Path] = set()
    todo = list(first)
    while todo:
        path = file_of(todo.pop())
        if path is not None and path not in found:
            found.add(path)
            todo += imported(path)
    return found


@pytest.mark.parametrize("floor", ["strategies", "clients"])
def test_fedrep_needs_neither_of_the_other_papers(floor: str) -> None:
    files = needed(f"{floor}.fedrep.fedrep")
    assert ROOT / "strategies/rounds/base.py" in files  # the search finds what is needed
    wrong = [file for file in files if set(file.relative_to(ROOT).parts) & set(OTHERS)]
    beside = [file for file in files if file.parent.name == "fedrep" and file.stem != "fedrep"]
    assert not wrong
    assert [file.name for file in beside if file.name != "__init__.py"] == []


def test_the_search_finds_the_papers_where_they_are_needed() -> None:
    for name, paper in (("fedrep_convex", OTHERS[1]), ("fedrep_known", OTHERS[0])):
        files = needed(f"strategies.fedrep.{name}")
        assert any(paper in file.parts for file in files)
