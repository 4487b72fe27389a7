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
