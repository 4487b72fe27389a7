"""Fed-MTL against autograd on its objective, and Omega against its definition."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from scipy.linalg import sqrtm

from corsage.core.errors import ConfigError
from corsage.core.messages.encoding import decode
from corsage.strategies.fedmtl import learned_relations, mean_relations, renewed, with_mean
from tests.support.federations import federate
from tests.support.reference import (
    Extra,
    Vector,
    agrees,
    chosen,
    examples,
    flat,
    fresh,
    plain_sgd,
    run,
    user_batches,
    users_data,
)

USERS = [str(i) for i in range(12)]
FLOOR = 0.02


def omega_of(w: np.ndarray, relations: str) -> np.ndarray:
    """Omega for W (P, users) by its singular values, those below the floor lifted to it."""
    m = w.shape[1]
    if relations == "mean":
        centring = np.eye(m) - np.ones((m, m)) / m
        return centring @ centring
    _, s, vt = np.linalg.svd(w.astype(np.float64), full_matrices=False)
    s = np.maximum(s, FLOOR * s[0])
    return np.linalg.inv(vt.T @ np.diag(s) @ vt / s.sum())


def objective(w: np.ndarray, omega: np.ndarray, i: int, one: float, two: float) -> Extra:
    """lambda_1 tr(W Omega W') + lambda_2 |W|^2 as a function of column i."""
    others, relations = torch.from_numpy(w.astype(np.float32)), torch.from_numpy(omega).float()

    def term(theta: torch.Tensor) -> torch.Tensor:
        full = torch.cat([others[:, :i], theta[:, None], others[:, i + 1 :]], dim=1)
        return one * torch.trace(full @ relations @ full.T) + two * full.square().sum()

    return term


@pytest.mark.parametrize(("relations", "inner"), [("learned", 2), ("mean", 1)])
def test_fedmtl_descends_its_objective(relations: str, inner: int) -> None:
    one, two = 0.01 if relations == "learned" else 1.0, 0.05
    strategy, result = run(
        "fedmtl",
        fedmtl_lambda1=one,
        fedmtl_lambda2=two,
        fedmtl_relations=relations,
        fedmtl_inner_rounds=inner,
        fedmtl_floor=FLOOR,
    )
    data, w = users_data(), np.tile(flat(fresh())[:, None], (1, 12))
    omega = omega_of(w, relations)
    for number in range(1, 5):
        new = w.copy()
        for user in chosen(strategy, number):
            i = int(user)
            steps = user_batches(data, user, "model", number, 1)
            term = objective(w, omega, i, one, two)
            new[:, i] = plain_sgd(w[:, i], examples(data, user), steps, extra=term)
        w = new
        if number % inner == 0:
            omega = omega_of(w, relations)
    assert result.arrays is not None
    found = decode(result.arrays)
    assert strategy.state.users == USERS
    assert np.allclose(found["models"].T, w, atol=2e-5)
    assert np.allclose(found["relations"], np.linalg.pinv(omega, hermitian=True), atol=1e-5)
    models: dict[str, Vector] = {user: w[:, int(user)] for user in USERS}
    assert agrees(result, models, data)


def test_omega_is_the_inverse_of_the_closed_form() -> None:
    w = np.random.default_rng(0).normal(size=(30, 6))
    root = sqrtm(w.T @ w).real
    sigma = root / np.trace(root)
    omega = learned_relations(w.T @ w, 1e-6)
    assert np.allclose(omega, np.linalg.inv(sigma), rtol=1e-8)
    # With it, tr(W Omega W') is the squared nuclear norm, and no other Sigma of trace 1 has less.
    least = np.trace(w @ omega @ w.T)
    assert least == pytest.approx(np.linalg.norm(w, "nuc") ** 2)
    rng = np.random.default_rng(1)
    for _ in range(20):
        a = rng.normal(size=(6, 6))
        other = sigma + 0.05 * (a @ a.T) / np.trace(a @ a.T)
        assert np.trace(w @ np.linalg.inv(other / np.trace(other)) @ w.T) > least
    # The trap: a matrix squared element by element is another matrix.
    mean = mean_relations(6)
    assert np.allclose(mean, mean @ mean) and not np.allclose(mean, mean * mean)


def test_like_users_are_pulled_together_and_not_apart() -> None:
    """-Omega_ij is the weight of w_j in what w_i is drawn to."""
    rng = np.random.default_rng(0)
    base = rng.normal(size=(2, 50))
    w = np.stack([base[0], base[0], base[1], base[1]], axis=1) + 0.3 * rng.normal(size=(50, 4))
    omega = learned_relations(w.T @ w, 1e-3)
    assert -omega[0, 1] > 5 * abs(omega[0, 2]) and -omega[2, 3] > 5 * abs(omega[1, 3])
    assert omega[0, 1] < 0 and omega[2, 3] < 0


def test_products_are_kept_up_to_date_and_grow() -> None:
    rng = np.random.default_rng(0)
    start, changes = rng.normal(size=9).astype(np.float32), np.zeros((4, 9), np.float32)
    products = np.zeros((4, 5))
    for users in ([1, 3], [0, 1], [4, 2], [4, 0]):
        if 4 in users and len(changes) == 4:
            changes = np.concatenate([changes, np.zeros((1, 9), np.float32)])
        changes[users] = rng.normal(size=(2, 9))
        products = renewed(products, changes, users, start)
        whole = np.column_stack([changes @ changes.T, changes @ start])
        assert np.allclose(products, whole, atol=1e-5)
    more = np.concatenate([changes, changes.mean(axis=0, keepdims=True)])
    assert np.allclose(
        with_mean(products), np.column_stack([more @ more.T, more @ start]), atol=1e-5
    )


def test_a_pull_that_sgd_cannot_follow_is_refused() -> None:
    with pytest.raises(ConfigError, match="lower fedmtl-lambda1"):
        run("fedmtl", fedmtl_lambda1=10.0)


def test_each_way_one_model_and_nothing_for_an_evaluation() -> None:
    _, result, _ = federate("fedmtl")
    size = 4 * (64 * 16 + 16 + 16 * 10 + 10)
    summary: dict[str, Any] = result.json()[0]
    assert summary["bytes_up"] == 4 * 6 * size
    assert summary["bytes_down"] == 4 * 6 * (size + 4)
    assert summary["traffic"]["evaluation_bytes_down"] == 0


def test_a_user_that_comes_later_begins_at_the_mean_of_the_others() -> None:
    strategy, _ = run("fedmtl", fedmtl_relations="mean", fedmtl_lambda1=1.0)
    models = strategy.state.changes + strategy.job.network.initial
    centre = strategy.send(["0", "new"]).rows["centre"]
    assert np.allclose(centre[1], models.mean(axis=0), atol=1e-5)
    others = np.concatenate([models[1:], models.mean(axis=0, keepdims=True)])
    assert np.allclose(centre[0], others.mean(axis=0), atol=1e-5)
