"""FedEM against a plain loop; what it mixes, and what users do who train nothing."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch.nn import functional as F

import corsage
from corsage.core.errors import ModelError
from corsage.core.messages.encoding import decode
from corsage.datasets.sample_table import model_input
from tests.support.reference import (
    Vector,
    chosen,
    examples,
    fresh,
    plain_sgd,
    run,
    user_batches,
    users_data,
)

K = 3
Data = tuple[torch.Tensor, torch.Tensor]
UNLIKE: dict[str, Any] = {"size_sigma": 0.8, "weighting": "examples", "fedem_components": K}


def shares(models: list[Vector], pi: Vector, data: Data) -> torch.Tensor:
    """q(z_i = k) by Bayes' rule, sample by sample."""
    with torch.no_grad():
        p = torch.stack([fresh(m)(data[0]).softmax(1) for m in models])
    found = torch.stack([torch.from_numpy(pi) * p[:, i, y] for i, y in enumerate(data[1])])
    return found / found.sum(1, keepdim=True)


def trained(model: Vector, q: torch.Tensor, data: Data, steps: list[Any]) -> Vector:
    """SGD on q_i l_i: each sample comes with its number as its label."""

    def loss(features: torch.Tensor, outputs: torch.Tensor, i: torch.Tensor) -> torch.Tensor:
        return (q[i] * F.cross_entropy(outputs, data[1][i], reduction="none")).mean()

    return plain_sgd(model, (data[0], torch.arange(len(q))), steps, of=loss)


def right(models: list[Vector], pi: Vector, data: Data) -> tuple[float, float]:
    """Accuracy and mean loss of the mixture."""
    with torch.no_grad():
        p = sum(w * fresh(m)(data[0]).softmax(1) for w, m in zip(pi, models, strict=True))
    assert isinstance(p, torch.Tensor)
    return float((p.argmax(1) == data[1]).float().mean()), float(F.nll_loss(p.log(), data[1]))


def held_out(data: Any, user: str) -> Data:
    x = torch.from_numpy(model_input(data[user].x_test, data.shift, data.scale))
    return x, torch.from_numpy(np.array(data[user].y_test, np.int64))


@pytest.mark.parametrize("path", ["auto", "loop"])
def test_fedem_is_algorithm_1(path: str) -> None:
    """Its models, its weights and its mixtures; then new users, who find weights alone."""
    keys = {**UNLIKE, "training_path": path, "new_users": 0.2, "adapt_epochs": "4"}
    strategy, result = run("fedem", fine_tune_epochs=2, **keys)
    start = list(strategy_start(strategy))
    data, models = users_data(size_sigma=0.8), start
    uniform = np.full(K, 1 / K, np.float32)
    pi = dict.fromkeys(data.users, uniform)
    for number in range(1, 5):
        sent, sizes = [], []
        for user in chosen(strategy, number):
            mine, steps = examples(data, user), user_batches(data, user, "model", number, 1)
            q = shares(models, pi[user], mine)
            pi[user] = q.mean(0).numpy()
            sent.append([trained(m, q[:, k], mine, steps) for k, m in enumerate(models)])
            sizes.append(len(mine[1]))
        models = list(np.average(sent, axis=0, weights=sizes).astype(np.float32))
    assert result.arrays is not None
    found = np.concatenate([a.reshape(-1) for a in decode(result.arrays).values()])
    assert np.allclose(found, np.concatenate(models), atol=2e-5)
    rows = {row["strategy"]: row for row in result.json()}
    weights = {"fedem": (pi, 0), "fedem+own": (pi, 2), "fedem+new": (pi, 4)}
    assert rows.keys() == weights.keys()
    for name, (first, steps) in weights.items():
        losses = []
        for user, accuracy in rows[name]["per_user"].items():
            own = first[user]
            for _ in range(steps):
                own = shares(models, own, examples(data, user)).mean(0).numpy()
            wanted = right(models, own, held_out(data, user))
            assert accuracy == pytest.approx(wanted[0], abs=1e-6)
            losses.append(wanted[1])
        assert rows[name]["loss"]["mean"] == pytest.approx(np.mean(losses), abs=1e-5)
    assert rows["fedem+own"]["gradient_steps"] == rows["fedem"]["gradient_steps"]


def strategy_start(strategy: Any) -> list[Vector]:
    """theta^0 of the components: the first is the run's own, all are unlike."""
    first = strategy.initial(strategy.job.network).models
    assert np.array_equal(first[0], strategy.job.network.initial)
    assert len(np.unique(first, axis=0)) == K
    return list(first)


def test_of_numbers_outputs_are_mixed_and_of_other_losses_nothing() -> None:
    rng = np.random.default_rng(0)
    users = [(x := rng.normal(size=(20, 3)).astype("f4"), x.sum(1) + u) for u in range(4)]
    found = corsage.simulate("fedem", users, model="linear", num_rounds=3, progress=False)["fedem"]
    assert found.evaluate() == found.per_user
    own, x = found.user("2"), torch.from_numpy(found.users_data()["2"].x_test).float()
    state = own.state_dict()
    each = [
        F.linear(x, state[f"models.{k}.head.weight"], state[f"models.{k}.head.bias"])
        for k in range(K)
    ]
    mixed = sum(w * h for w, h in zip(state["weights"], each, strict=True))
    assert torch.allclose(own.module()(x), torch.as_tensor(mixed), atol=1e-6)
    with pytest.raises(ModelError, match="fedem: loss=huber has neither probabilities to mix"):
        corsage.simulate("fedem", users, model="linear", loss="huber", progress=False)


@pytest.mark.parametrize("name", ["fedem", "ifca"])
def test_models_that_begin_alike_are_refused(name: str) -> None:
    """Those of a module as it is: FedEM's would never differ, of IFCA's one would be trained."""
    users = [(np.eye(4, dtype="f4"), np.arange(4) % 2) for _ in range(4)]
    keys: dict[str, Any] = {"num_rounds": 1, "num_users": 4, "progress": False}
    with pytest.raises(ModelError, match=f"{name}: its . models would begin alike: model=Linear"):
        corsage.simulate(name, users, model=torch.nn.Linear(4, 2), **keys)
    assert corsage.simulate("fedem", users, model=torch.nn.Linear(4, 2), fedem_components=1, **keys)


def test_a_component_that_is_no_number_explains_nothing() -> None:
    """Nor does it take a user's weights away."""
    from corsage.clients.fedem import FedEMClient

    losses = torch.tensor([[1.0, torch.nan], [torch.inf, 2.0], [torch.nan, torch.nan]])
    data = type("Data", (), {"sizes": np.array([3])})()
    pi = np.full((1, 2), 0.5, np.float32)
    q = FedEMClient.shares(None, losses.nan_to_num(nan=3e38), pi, data)  # type: ignore[arg-type]
    assert q.tolist() == [[1, 0], [0, 1], [0.5, 0.5]]
