"""kNN-Per against a plain loop over samples, and where it must equal FedAvg."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

import corsage
from corsage.app.results.row import NoModel
from corsage.core.arrays import Floats
from corsage.core.errors import ModelError
from corsage.datasets.user_data import FederatedData
from tests.support.reference import Vector, examples, final, fresh, run, users_data

SIGMA = 0.7


def seen(model: Vector, x: torch.Tensor) -> tuple[Floats, Floats]:
    """Features and probabilities, in double precision from there on."""
    net = fresh(model)
    with torch.no_grad():
        features = net[:3](x)
        return features.double().numpy(), net[3](features).double().softmax(1).numpy()


def vote(phi: Floats, memory: Floats, labels: Any, k: int) -> Floats:
    """h_m(x) of one sample, neighbour by neighbour."""
    d = [float(np.mean((phi - other) ** 2)) for other in memory]
    found = np.zeros(10)
    for i in sorted(range(len(d)), key=d.__getitem__)[:k]:
        found[labels[i]] += np.exp(-d[i] / SIGMA)
    return found / found.sum()


def predicted(model: Vector, data: FederatedData, user: str, k: int, weight: float) -> Any:
    """lambda h_m + (1 - lambda) h of a user's test samples; its lambda, where none is given."""
    x, y = examples(data, user)
    memory, p = seen(model, x)
    if weight < 0:
        others = [np.delete(np.arange(len(y)), i) for i in range(len(y))]
        votes = np.array([vote(memory[i], memory[o], y[o], k) for i, o in enumerate(others)])
        grid = np.linspace(0, 1, 11)
        right = [((a * votes + (1 - a) * p).argmax(1) == y.numpy()).sum() for a in grid]
        weight = float(grid[int(np.argmax(right))])
    test = torch.from_numpy((data[user].x_test - data.shift) * data.scale).float()
    phi, p = seen(model, test)
    votes = np.array([vote(one, memory, y, k) for one in phi])
    return weight, weight * votes + (1 - weight) * p


@pytest.mark.parametrize(("k", "weight"), [(3, 0.4), (10, -1.0), (500, 1.0)])
def test_a_user_s_neighbours_vote_beside_fedavg_s_model(k: int, weight: float) -> None:
    keys = {"knn_per_k": k, "knn_per_lambda": weight, "knn_per_sigma": SIGMA, "size_sigma": 0.8}
    _, result = run("knn-per", **keys)
    _, fedavg = run("fedavg", size_sigma=0.8)
    model, data = final(result), users_data(size_sigma=0.8)
    assert np.array_equal(model, final(fedavg))
    summary, losses, weights = result.json()[0], [], set()
    for user in data.users:
        chosen, p = predicted(model, data, user, k, weight)
        labels = np.asarray(data[user].y_test)
        right = float((p.argmax(1) == labels).mean())
        assert summary["per_user"][user] == pytest.approx(right), user
        kept = p[np.arange(len(labels)), labels].clip(np.finfo(np.float32).tiny)
        losses.append(-np.log(kept).mean())
        weights.add(chosen)
    assert summary["loss"]["mean"] == pytest.approx(np.mean(losses), rel=1e-4)
    assert weight >= 0 or len(weights) > 2


def test_its_models_are_a_body_a_head_and_a_memory() -> None:
    keys: dict[str, Any] = {"num_users": 4, "num_rounds": 2, "new_users": 0.25, "num_nodes": 2}
    found = corsage.simulate("knn-per", hidden="8", progress=False, size_sigma=0.8, **keys)
    for row in found:
        assert found[row].evaluate() == found[row].per_user
    user = found["knn-per"].users[1]
    state = found["knn-per"].user(user).state_dict()
    assert state["phi"].shape == (len(state["y"]), 8) and state["weight"].shape == ()
    with pytest.raises(NoModel, match="knn-per has no model for new users"):
        found["knn-per"].new_user()


@pytest.mark.parametrize(
    ("keys", "why"),
    [
        ({"dataset": "hierarchical", "num_users": 0}, "knn-per: neighbours vote on classes"),
        (
            {"dataset": "ellipses", "num_users": 0, "loss": "squared-hinge", "model": "linear"},
            "loss=squared-hinge has no probabilities",
        ),
    ],
)
def test_what_has_no_votes_is_refused(keys: dict[str, Any], why: str) -> None:
    with pytest.raises(ModelError, match=why):
        run("knn-per", **keys)
