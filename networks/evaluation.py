"""How good models are on the data of all users of a node: one model for all, or one a user."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from corsage.core.arrays import Array, Floats, Floats32, Ints
from corsage.networks.batches import Examples
from corsage.networks.criterion import Criterion
from corsage.networks.network import Network
from corsage.networks.outputs import chunks, outputs_of


@dataclass(frozen=True)
class Scores:
    """One row a user: what its measure counts, sum of losses, number of test examples.

    Counted are right answers where labels are classes, squared errors where they are numbers.
    """

    counted: Floats
    loss: Floats
    n: Ints


@torch.no_grad()
def evaluate(network: Network, body: Floats32, heads: Floats32, data: Examples) -> Scores:
    """All users with one body and their own heads (users, P_head)."""
    network.set(network.body, body)
    if not network.split_exact:
        whole = np.concatenate([np.broadcast_to(body, (len(heads), len(body))), heads], axis=1)
        return evaluate_models(network, whole, data)
    features = all_features(network, data.x)
    if network.linear_head:
        return score(network.criterion, linear_logits(network, features, heads, data), data)
    logits = features.new_empty(0)
    for u, head in enumerate(heads):
        network.set(network.head, head)
        where = slice(int(data.offsets[u]), int(data.offsets[u] + data.sizes[u]))
        if data.sizes[u]:
            of_user = network.logits(features[where])
            logits = logits if len(logits) else features.new_zeros(len(features), of_user.shape[1])
            logits[where] = of_user
    return score(network.criterion, logits, data)


@torch.no_grad()
def evaluate_models(network: Network, models: Floats32, data: Examples) -> Scores:
    """All users with one whole model (P,), or each with its own (users, P)."""
    network.train(False)
    if models.ndim == 1:
        network.set(network.whole, models)
        return score(network.criterion, chunks(network.forward, data.x), data)
    logits = []
    for u, model in enumerate(models):
        network.set(network.whole, model)
        logits.append(chunks(network.forward, data.user(u)[0]))
    outputs = torch.cat([part for part in logits if len(part)] or [data.x[:0]])
    return score(network.criterion, outputs, data)


@torch.no_grad()
def evaluate_picked(network: Network, models: Floats32, picked: Ints, data: Examples) -> Scores:
    """All users, each with one of some models (K, P)."""
    each = [evaluate_models(network, model, data) for model in models]
    users = np.arange(len(picked))
    counted, loss = (
        np.stack([getattr(scores, name) for scores in each])[picked, users]
        for name in ("counted", "loss")
    )
    return Scores(counted, loss, data.sizes)


def outputs_of_each(network: Network, models: Iterable[Array], data: Examples) -> Tensor:
    """The outputs on all users' samples, each under its user's whole model and computed alone."""
    parts = [
        outputs_of(network, model, data.user(u)[0])
        for u, model in enumerate(models)
        if data.sizes[u]
    ]
    return torch.cat(parts or [data.x[:0]])


@torch.no_grad()
def all_features(network: Network, x: Tensor) -> Tensor:
    """The body's features of all examples, in evaluation mode."""
    network.train(False)
    return chunks(network.features, x)


def linear_logits(network: Network, features: Tensor, heads: Floats32, data: Examples) -> Tensor:
    """Each user's own linear head on its own features: batched products over users of like size."""
    weight, bias = split_heads(network, torch.from_numpy(np.ascontiguousarray(heads)))
    weight, bias = weight.to(features.device), bias.to(features.device)
    logits = features.new_empty(len(features), weight.shape[1])
    by_size = np.argsort(data.sizes, kind="stable")
    by_size = by_size[data.sizes[by_size] > 0]
    for size in np.unique(data.sizes[by_size]):
        users = by_size[data.sizes[by_size] == size]
        rows = torch.from_numpy((data.offsets[users, None] + np.arange(size)).reshape(-1))
        rows, who = rows.to(features.device), torch.from_numpy(users).to(features.device)
        own = features[rows].view(len(users), int(size), features.shape[1])
        result = torch.baddbmm(bias[who].unsqueeze(1), own, weight[who].transpose(1, 2))
        logits[rows] = result.flatten(0, 1)
    return logits


def split_heads(network: Network, heads: Tensor) -> tuple[Tensor, Tensor]:
    """Flat linear heads (users, P_head) as W (users, classes, features) and b (users, classes)."""
    classes, width = next(network.blocks_of(network.head)).shape
    weight = heads[:, : classes * width].reshape(len(heads), classes, width)
    bias = heads[:, classes * width :]
    return weight, bias if bias.shape[1] else heads.new_zeros(len(heads), classes)


def score(criterion: Criterion, outputs: Tensor, data: Examples) -> Scores:
    """What is counted, and losses, summed for each user; a user's NaN stays its own."""
    if not len(data.y):
        return Scores(np.zeros(len(data)), np.zeros(len(data)), data.sizes)
    user = np.repeat(np.arange(len(data)), data.sizes)
    counted, loss = (
        np.bincount(user, each(outputs, data.y).cpu().numpy(), len(data)).astype(np.float64)
        for each in (criterion.counted, criterion.each)
    )
    return Scores(counted, loss, data.sizes)
