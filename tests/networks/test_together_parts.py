"""Norms of the batch, losses of users' own and deep heads of users together, against one by one."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from corsage.core.configuration.key_groups import TrainKeys
from corsage.networks import local_training as doors
from corsage.networks.network import Network
from corsage.networks.parameter_groups import Words
from corsage.networks.proximal import Pull
from corsage.networks.together import path_choice as choice
from corsage.networks.training import batches
from tests.networks.test_training import orders_for, rows_for
from tests.support.together import IMAGES, KEYS, MODELS, VECTORS, Normed, examples, normed

PERSONAL = Words(personal="first.*,second.*,head.*")


@pytest.mark.parametrize("words", ["head", PERSONAL])
@pytest.mark.parametrize("part", ["whole", "body", "head"])
@pytest.mark.parametrize("keys", [KEYS, TrainKeys(lr=0.003, optimizer="adam")])
def test_batch_norms_of_users_together_are_the_loop(
    words: Words | str, part: str, keys: TrainKeys
) -> None:
    """Running statistics and counters too; a short last batch is no part of another's."""
    joint, alone = normed("together-4", words), normed("loop", words)
    sizes, epochs, found = [9, 2, 4, 14, 9], [2, 1, 0, 3, 2], []
    data, rows = examples(sizes, IMAGES), np.tile(joint.initial, (5, 1))
    rngs = [np.random.default_rng(u) for u in range(5)]
    orders = [batches(r, n, e, 4, True) for r, n, e in zip(rngs, sizes, epochs, strict=True)]
    where = getattr(joint, part)
    for net in (joint, alone):
        net.train(False)  # as an evaluation leaves it
        found.append(doors.train_part(doors.Job(net, where, data, orders, keys, None), rows))
    np.testing.assert_allclose(*found, atol=5e-5)
    moved = np.abs(found[0] - rows[:, where]).max(axis=1)
    assert (moved[[0, 1, 3, 4]] > 1e-3).all() and not moved[2]
    if part == "whole":
        (calls,) = (b.where for b in joint.blocks if b.name == "calls")
        assert found[0][:, calls].ravel().tolist() == [2 * len(o) for o in orders]


def test_a_path_of_batch_norms_is_exact_or_says_why_not() -> None:
    assert choice.untraceable(normed("together-4"), IMAGES, 3) == ""
    cumulative = normed("together-4", how={"momentum": None})
    assert "asks for the value of a tensor" in choice.untraceable(cumulative, IMAGES, 3)


def test_a_pull_leaves_running_statistics_alone_together_too() -> None:
    sizes, found = [9, 5, 12], []
    data, orders = examples(sizes, IMAGES), orders_for(sizes, 2, 4)
    orders = [[b for b in order if len(b) > 1] for order in orders]
    for keys in (KEYS, replace(KEYS, nesterov=True)):
        for path in ("together-4", "loop"):
            net = normed(path)
            pull = Pull(0.3, np.tile(1.1 * net.initial, (3, 1)))
            found.append(doors.train_models(net, net.initial, data, orders, keys, pull))
    np.testing.assert_allclose(found[0], found[1], atol=2e-5)
    np.testing.assert_allclose(found[2], found[3], atol=2e-5)


def of_features(u: int) -> Callable[..., Tensor]:
    """A loss that is another for each user."""
    return lambda f, z, y: F.cross_entropy(z + u, y) + (u + 1) * f.square().mean()


def of_outputs(u: int) -> Callable[..., Tensor]:
    """A loss of the outputs alone, of a batch as a whole."""
    return lambda f, z, y: F.cross_entropy(z, y) * (1 + 0.1 * u * z.std(0).sum())


SPLIT = {
    "own": ("group norm", "head", "together-4"),
    "normed": ("", "head", "together-4"),
    "cut": ("prelu", Words(head="1,2"), "together-4"),
    "plain": ("plain", "", "auto"),
}


@pytest.mark.parametrize("name", list(SPLIT))
@pytest.mark.parametrize("part", ["whole", "body", "head"])
@pytest.mark.parametrize("loss", [of_features, of_outputs])
@pytest.mark.parametrize("keys", [KEYS, TrainKeys(lr=0.01, optimizer="adam")])
def test_losses_of_users_own_take_the_path(
    name: str, part: str, loss: Callable[..., Any], keys: TrainKeys, monkeypatch: pytest.MonkeyPatch
) -> None:
    kind, words, path = SPLIT[name]
    shape = MODELS[kind][0] if kind in MODELS else IMAGES
    sizes, found = [10, 2, 14, 10], []
    data = replace(examples(sizes, shape), losses=[loss(u) for u in range(4)])
    orders, seen = orders_for(sizes, 1, 4), []
    monkeypatch.setattr(doors, "train_alone", spied(seen, doors.train_alone))
    for way in (path, "loop"):
        torch.manual_seed(0)
        make = MODELS[kind][1] if kind in MODELS else {"": Normed, "plain": plain}[kind]
        net = Network(make(), words, torch.rand(3, *shape)).along(way)
        rows, where = np.tile(net.initial, (4, 1)), getattr(net, part)
        found.append(doors.train_part(doors.Job(net, where, data, orders, keys, None), rows))
        assert len(seen) == (4 if way == "loop" else 0)
    np.testing.assert_allclose(*found, rtol=1e-4, atol=1e-4)
    assert np.abs(found[0] - rows[:, where]).max() > 1e-3


def plain() -> nn.Module:
    """A chain of plain layers."""
    layers = (nn.Conv2d(2, 3, 3), nn.ReLU(), nn.Flatten(), nn.Linear(108, 5), nn.ReLU())
    return nn.Sequential(*layers, nn.Linear(5, 3))


def spied(seen: list[int], function: Callable[..., Any]) -> Callable[..., Any]:
    """A function of a job and a user that notes the user."""

    def noted(job: Any, u: int) -> Any:
        seen.append(u)
        return function(job, u)

    return noted


@pytest.mark.parametrize("words", [Words(head="1,3"), Words(head="3")])
@pytest.mark.parametrize("keys", [KEYS, TrainKeys(lr=0.01, optimizer="adam")])
@pytest.mark.parametrize("losses", [None, of_features])
def test_heads_of_several_linear_layers_are_trained_together(
    words: Words, keys: TrainKeys, losses: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    layers = nn.Linear(6, 5), nn.Linear(5, 4), nn.ReLU(), nn.Linear(4, 3)
    net = Network(nn.Sequential(*layers), words, torch.rand(3, 6))
    sizes, seen = [9, 5, 12], []
    data = examples(sizes, VECTORS)
    data = replace(data, losses=losses and [losses(u) for u in range(3)])
    orders, heads = orders_for(sizes, [2, 1, 3], 4), rows_for(net, 3)[:, net.head]
    monkeypatch.setattr(doors, "train_alone", spied(seen, doors.train_alone))
    body = net.initial[net.body]
    found = doors.train_heads(net, body, heads, data, orders, keys)
    assert len(net.head_layers) == (3 if "1" in words.head else 1) and not seen
    monkeypatch.setattr(net, "head_layers", [])
    wanted = doors.train_heads(net, body, heads, data, orders, keys)
    assert len(seen) == 3
    np.testing.assert_allclose(found, wanted, atol=2e-5)
    assert np.abs(found - heads).max() > 1e-2


def test_a_head_of_other_layers_has_none() -> None:
    torch.manual_seed(0)
    layers = nn.Linear(6, 5), nn.Linear(5, 4), nn.GELU(), nn.Linear(4, 3)
    net = Network(nn.Sequential(*layers), Words(head="1,3"), torch.rand(3, 6))
    assert net.cacheable and net.head_layers == []
