"""FedProto against a plain loop, and where it must equal what it is made of."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch.nn import functional as F

from corsage.core.errors import ModelError
from corsage.core.messages.encoding import decode
from corsage.strategies.rounds.prototypes import far
from tests.support.reference import (
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

LAMBDA = 3.0
Loss = Callable[[torch.Tensor, torch.Tensor, torch.Tensor], torch.Tensor]


def near(prototypes: dict[int, Vector]) -> Loss:
    """The loss of a batch, sample by sample."""

    def loss(features: torch.Tensor, outputs: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        apart = [
            (f - torch.from_numpy(prototypes[int(j)])).square().mean()
            for f, j in zip(features, y, strict=True)
            if int(j) in prototypes
        ]
        return F.cross_entropy(outputs, y) + LAMBDA * sum(apart, torch.zeros(())) / len(y)

    return loss


def averages(model: Vector, mine: tuple[torch.Tensor, torch.Tensor]) -> dict[int, tuple[Any, int]]:
    """A user's prototypes, and of how many samples each is."""
    with torch.no_grad():
        features, y = fresh(model)[:3](mine[0]).numpy(), mine[1].numpy()
    return {int(j): (features[y == j].mean(0), int((y == j).sum())) for j in np.unique(y)}


@pytest.mark.parametrize("weighting", ["uniform", "examples"])
def test_fedproto_is_algorithm_1(weighting: str) -> None:
    keys: dict[str, Any] = {"size_sigma": 0.8, "fraction_train": 0.3}
    strategy, result = run("fedproto", fedproto_lambda=LAMBDA, weighting=weighting, **keys)
    data, prototypes = users_data(size_sigma=0.8), dict[int, Vector]()
    models = dict.fromkeys(data.users, flat(fresh()))
    for number in range(1, 5):
        came: dict[int, list[tuple[Any, int]]] = {}
        for user in chosen(strategy, number):
            mine, steps = examples(data, user), user_batches(data, user, "model", number, 1)
            models[user] = plain_sgd(models[user], mine, steps, of=near(prototypes))
            for j, one in averages(models[user], mine).items():
                came.setdefault(j, []).append(one)
        for j, each in came.items():
            weights = [n if weighting == "examples" else 1 for _, n in each]
            mean = np.average([c for c, _ in each], axis=0, weights=weights)
            prototypes[j] = mean.astype(np.float32)
    assert agrees(result, models, data)
    assert result.arrays is not None
    found = decode(result.arrays)
    assert np.flatnonzero(found["known"]).tolist() == sorted(prototypes)
    for j in prototypes:
        assert np.allclose(found["prototypes"][j], prototypes[j], atol=1e-5)
    each = 4 * (10 * 16 + 10)
    assert result.json()[0]["bytes_up"] == result.json()[0]["bytes_down"] == 4 * 3 * each


def test_without_the_term_it_is_local_training() -> None:
    _, ours = run("fedproto", fedproto_lambda=0.0)
    _, local = run("local")
    assert ours.json()[0]["per_user"] == local.json()[0]["per_user"]
    assert ours.json()[0]["loss"]["mean"] == pytest.approx(
        local.json()[0]["loss"]["mean"], abs=1e-6
    )


@pytest.mark.parametrize(
    ("keys", "why"),
    [
        ({"model": "linear"}, "fedproto: .* a head and nothing else; take model=mlp"),
        ({"dataset": "hierarchical", "num_users": 0}, "fedproto: prototypes are of classes"),
    ],
)
def test_what_has_no_prototypes_is_refused(keys: dict[str, Any], why: str) -> None:
    with pytest.raises(ModelError, match=why):
        run("fedproto", **keys)


def test_only_prototypes_of_a_class_are_held_against_each_other() -> None:
    """Most users have all classes, in equal weights: who has one is no liar."""
    rng = np.random.default_rng(0)
    weights = np.ones((10, 4), np.float32)
    weights[0], weights[3:, 3] = [1, 0, 0, 0], 0
    points = 5 + rng.normal(size=(10, 4, 6)).astype(np.float32)
    assert not far(weights[..., None] * points, weights).any()
    lies: list[tuple[Any, Any, list[int]]] = [
        (1e6, 1, [0, 1, 2, 3]),  # of the last class there is no test: two users have it
        (1e6, 1e6, [0, 1, 2, 3]),
        (-1, -1, [0, 1, 2, 3]),
        (1, 1e-20, [0, 1, 2, 3]),
        (np.array([[1e6], [1], [1], [1]]), 1, [0, 3]),
    ]
    for more, heavier, wrong in lies:
        sent, said = weights[..., None] * points, weights.copy()
        sent[1], said[1] = sent[1] * more, said[1] * heavier
        found = far(sent, said)
        assert np.flatnonzero(found[1]).tolist() == wrong, (more, heavier)
        assert not np.delete(found, 1, 0).any()
    sent = weights[..., None] * points
    sent[1, 3] *= 1e6
    assert np.argwhere(far(sent, weights)).tolist() == [[1, 3]]
    sent = weights[..., None] * points
    sent[0, 2] = 1e6  # of a class that it says it has not
    assert far(sent, weights)[0].all()
