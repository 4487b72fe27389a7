"""Evaluation of models on the data of all users of a node: one model for all, or one a user."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from corsage.core.arrays import Array, Floats, Floats32, Ints
from corsage.core.measures import Measure
from corsage.networks.batches import Examples
from corsage.networks.criterion import Criterion
from corsage.networks.network import Network
from corsage.networks.outcome_counts import Outcome, counts, nothing


@dataclass(frozen=True)
class Scores:
    """One row a user: what its criterion counts, sum of losses, number of test examples.

    Counted are right answers where labels are classes, squared errors where they are numbers;
    `counts` is what else was asked for, by name.
    """

    counted: Floats
    loss: Floats
    n: Ints
    counts: Mapping[str, Floats] = field(default_factory=dict)


@torch.no_grad()
def outputs_of_heads(network: Network, body: Floats32, heads: Floats32, data: Examples) -> Tensor:
    """The outputs of one body and users' own heads (users, P_head) for their samples."""
    network.set(network.body, body)
    if not network.split_exact:
        whole = np.concatenate([np.broadcast_to(body, (len(heads), len(body))), heads], axis=1)
        return outputs_of_models(network, whole, data)
    features = all_features(network, data.x)
    if network.linear_head:
        return linear_logits(network, features, heads, data)
    logits = features.new_empty(0)
    for u, head in enumerate(heads):
        network.set(network.head, head)
        where = slice(int(data.offsets[u]), int(data.offsets[u] + data.sizes[u]))
        if data.sizes[u]:
            of_user = network.logits(features[where])
            logits = logits if len(logits) else features.new_zeros(len(features), of_user.shape[1])
            logits[where] = of_user
    return logits


@torch.no_grad()
def outputs_of_models(network: Network, models: Floats32, data: Examples) -> Tensor:
    """The outputs of one whole model (P,), or of each user's own (users, P), for their samples."""
    network.train(False)
    if models.ndim == 1:
        network.set(network.whole, models)
        return chunks(network.forward, data.x)
    logits = []
    for u, model in enumerate(models):
        if data.sizes[u]:
            network.set(network.whole, model)
            logits.append(chunks(network.forward, data.user(u)[0]))
    return torch.cat(logits or [data.x[:0]])


@torch.no_grad()
def outputs_of_picked(network: Network, models: Floats32, picked: Ints, data: Examples) -> Tensor:
    """The outputs of users' models for their samples, each one of some models (K, P)."""
    each = torch.stack([outputs_of_models(network, model, data) for model in models])
    own = torch.from_numpy(np.repeat(picked, data.sizes)).to(each.device)
    return each[own, torch.arange(each.shape[1], device=each.device)]


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


def features_of_each(network: Network, models: Iterable[Array], data: Examples) -> Tensor:
    """The features (samples, F) of all users' samples, each under its user's whole model."""
    parts = []
    for u, model in enumerate(models):
        network.set(network.whole, model)
        parts.append(all_features(network, data.user(u)[0]).flatten(1))
    return torch.cat(parts)


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


def score(
    criterion: Criterion,
    outputs: Tensor,
    data: Examples,
    measures: Sequence[Measure] = (),
    classes: int = 0,
) -> Scores:
    """Counts and losses, summed for each user; a user's NaN stays its own.

    `classes` is how many there are, which outputs for no sample do not show.

    Of labels that were standardised both are in the unit of the labels themselves. So is a Huber
    loss, whose delta is in standard deviations: h(s r; s d) = s^2 h(r; d).
    """
    if not len(data.y):
        none = np.zeros(len(data))
        return Scores(none, none, data.sizes, nothing(measures, classes, len(data)))
    outcome = Outcome(criterion, outputs, data)
    counted, loss = (
        outcome.sums(found.cpu().numpy())
        for found in (
            criterion.counted(outcome.outputs, outcome.data.y),
            criterion.each(outputs, data.y),
        )
    )
    return Scores(counted, loss * data.unit**2, data.sizes, counts(outcome, measures))


CHUNK_SAMPLES = {True: 128, False: 1024}
"""Examples in a piece: of images, and of anything else."""
FEWEST_ROWS = 4
"""Rows from which on a matrix product rounds a row alike, however many there are."""


@dataclass(frozen=True)
class Arithmetic:
    """The arithmetic of a prediction.

    Parameters
    ----------
    inputs : the type of a sample's numbers as they come into the model.
    linear : that of a convex linear model, which is computed by itself; empty for torch's modules.
    """

    inputs: str = "float32"
    linear: str = ""


@torch.no_grad()
def outputs_of(network: Network, model: NDArray[Any], x: Tensor) -> Tensor:
    """A whole model's outputs on one user's samples (n, outputs)."""
    network.train(False)
    network.set(network.whole, model)
    return chunks(network.forward, x.clone())  # where it begins in memory is always alike


def linear_outputs_of_each(models: Tensor, x: Tensor, sizes: Ints, outputs: int = 1) -> Tensor:
    """W a + b of users' samples (n, outputs), one user after the other: each row the very same sum.

    Models (users, P) have a number more for each output than samples where there is an intercept.
    """
    rows = torch.repeat_interleave(torch.from_numpy(sizes).to(x.device))
    a = x.flatten(1).to(models.dtype)
    width = a.shape[1]
    weights = models[:, : outputs * width].reshape(len(models), outputs, width)
    if models.shape[1] > outputs * width:
        weights = torch.cat([weights, models[:, outputs * width :, None]], 2)
        a = torch.cat([a, a.new_ones(len(a), 1)], 1)
    return torch.stack([(a * weights[rows, c]).sum(1) for c in range(outputs)], 1)


def chunks(function: Callable[[Tensor], Tensor], x: Tensor) -> Tensor:
    """A function of examples, piece by piece: bounded memory, and activations stay in cache.

    500 images through PFLlib's CNN: 24 ms in pieces of 50-100, 49 ms in pieces of 1,000. Few rows
    are multiplied by another kernel, which rounds otherwise: whoever else is at the node would show
    in a user's last bits, so no piece has so few.
    """
    n, most = len(x), CHUNK_SAMPLES[x.dim() == 4]
    if 0 < n < FEWEST_ROWS:
        filled = torch.cat([x, x[:1].expand(FEWEST_ROWS - n, *x.shape[1:])])
        return function(filled)[:n]
    parts = [function(part) for part in torch.tensor_split(x, max(-(-n // most), 1))]
    return torch.cat(parts) if len(parts) > 1 else parts[0]
