"""FedPAC against a plain loop, its weights against another solver, and who is not listened to."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from scipy.optimize import minimize
from torch.nn import functional as F

from corsage.core.errors import ModelError
from corsage.core.messages.encoding import decode
from corsage.strategies.fedpac import combination
from tests.support.plain_steps import BODY, START, under
from tests.support.reference import (
    Vector,
    agrees,
    chosen,
    examples,
    fresh,
    plain_sgd,
    run,
    user_batches,
    users_data,
)

LAMBDA, EPOCHS = 3.0, 2
Data = tuple[torch.Tensor, torch.Tensor]


def features(model: Vector, data: Data) -> Any:
    with torch.no_grad():
        return fresh(model)[:3](data[0]).double().numpy()


def said(f: Any, y: Any) -> tuple[Any, float]:
    """h_i class by class, and V_i: the variance of their estimate."""
    h, v = np.zeros((10, f.shape[1])), 0.0
    for k in np.unique(y):
        share, mine = (y == k).mean(), f[y == k]
        h[k] = share * mine.mean(0)
        v += share * np.trace(mine.T @ mine / len(mine)) - share**2 * np.sum(mine.mean(0) ** 2)
    return h, v / len(y)


def error(alpha: Any, i: int, h: Any, v: Any) -> float:
    """Variance and bias of a user's weights."""
    bias = sum(np.sum((alpha @ (h[i] - h)[:, k]) ** 2) for k in range(h.shape[1]))
    return float(np.sum(alpha**2 * v) + bias)


def best(i: int, h: Any, v: Any) -> Any:
    """The weights by a general solver, from the middle."""
    start = np.full(len(v), 1 / len(v))
    simplex: Any = {"type": "eq", "fun": lambda a: a.sum() - 1}
    times = 1 / error(start, i, h, v)
    keys: dict[str, Any] = {"bounds": [(0, 1)] * len(v), "constraints": [simplex]}
    options = {"ftol": 1e-15, "maxiter": 500}
    return minimize(lambda a: times * error(a, i, h, v), start, options=options, **keys).x


def near(prototypes: dict[int, Any]) -> Any:
    """The loss of a batch, sample by sample."""

    def loss(f: torch.Tensor, outputs: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        known = [i for i, k in enumerate(y.tolist()) if k in prototypes]
        points = [torch.tensor(prototypes[int(y[i])], dtype=torch.float32) for i in known]
        away = [(f[i] - point).square().mean() for i, point in zip(known, points, strict=True)]
        return F.cross_entropy(outputs, y) + LAMBDA * sum(away, torch.zeros(())) / len(y)

    return loss


def test_fedpac_is_algorithm_1() -> None:
    keys: dict[str, Any] = {"fedpac_lambda": LAMBDA, "fedpac_head_epochs": EPOCHS}
    keys |= {"size_sigma": 0.8, "weighting": "examples", "fraction_train": 0.5, "lr": 0.1}
    strategy, result = run("fedpac", **keys)
    data, body, prototypes = users_data(size_sigma=0.8), START[:BODY], dict[int, Any]()
    heads: dict[str, Vector] = dict.fromkeys(data.users, START[BODY:])
    sgd, others = {"lr": 0.1, "momentum": 0.5}, list[float]()
    for number in range(1, 5):
        drawn, sent, h, v, came = chosen(strategy, number), [], [], [], dict[int, list[Any]]()
        for user in drawn:
            mine, whole = examples(data, user), under(body, heads[user])
            one, two = said(features(whole, mine), mine[1].numpy())
            h.append(one)
            v.append(two)
            steps = user_batches(data, user, "head", number, EPOCHS)
            whole = plain_sgd(whole, mine, steps, sgd, frozen=1)
            steps = user_batches(data, user, "body", number, 1)
            whole = plain_sgd(whole, mine, steps, sgd, frozen=3, of=near(prototypes))
            sent.append(whole)
            f, y = features(whole, mine), mine[1].numpy()
            for k in np.unique(y):
                came.setdefault(int(k), []).extend(f[y == k])
        sizes = [len(data[user].y_train) for user in drawn]
        body = np.average([w[:BODY] for w in sent], axis=0, weights=sizes).astype(np.float32)
        prototypes |= {k: np.mean(each, axis=0) for k, each in came.items()}
        rows = np.stack([w[BODY:] for w in sent])
        for i, user in enumerate(drawn):
            alpha = best(i, np.stack(h), np.array(v))
            others.append(1 - alpha[i])
            heads[user] = (alpha @ rows).astype(np.float32)
    assert result.arrays is not None and max(others) > 0.1
    found = np.concatenate([a.reshape(-1) for a in decode(result.arrays).values()])
    assert np.allclose(found, body, atol=2e-5)
    for user, head in zip(strategy.state.users, strategy.state.h, strict=True):
        assert np.allclose(head, heads[user], atol=2e-5), user
    for k, point in prototypes.items():
        assert np.allclose(strategy.state.prototypes[k], point, atol=2e-5)
    assert agrees(result, {user: under(body, head) for user, head in heads.items()}, data)


def test_the_weights_are_the_minimum_whatever_a_user_says() -> None:
    """Of users of all sorts: alike, of one sample, of nothing, and of a million times as much."""
    rng = np.random.default_rng(0)
    h, v = rng.normal(size=(7, 3, 4)), rng.uniform(0.1, 2, 7)
    h[1], h[2], v[3], h[4], v[5] = h[0], 0, 0, 1e6 * h[4], 1e30
    alpha = combination(h, v)
    assert np.allclose(alpha.sum(1), 1) and (alpha >= 0).all()
    for i in range(7):
        wanted = best(i, h, v)
        assert error(alpha[i], i, h, v) <= error(wanted, i, h, v) * (1 + 1e-6) + 1e-6
    assert alpha[3, 3] > 0.999 and np.delete(alpha[:, [4, 5]], [4, 5], 0).max() < 1e-3
    assert np.allclose(combination(np.zeros((3, 2, 2)), np.ones(3)), 1 / 3)
    assert combination(h[:1], v[:1]).tolist() == [[1.0]]
    assert np.isfinite(combination(np.zeros((3, 2, 2)), np.zeros(3))).all()


@pytest.mark.parametrize("seed", range(3))
def test_no_numbers_end_a_round(seed: int) -> None:
    """As large and as small as float32 has them."""
    rng = np.random.default_rng(seed)
    h = (rng.normal(size=(20, 3, 4)) * 10.0 ** rng.integers(-38, 38, (20, 1, 1))).astype(np.float32)
    v = 10.0 ** rng.uniform(-90, 76, 20)
    alpha = combination(h, v)
    assert np.allclose(alpha.sum(1), 1) and (alpha >= 0).all()


def test_what_has_no_class_means_is_refused() -> None:
    with pytest.raises(ModelError, match=r"fedpac: .* a head and nothing else; take model=mlp"):
        run("fedpac", model="linear")
