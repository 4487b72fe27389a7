"""The users of a node trained together: heads on cached features, bodies, whole models.

Given the same batches, every function here returns what the loop of `training.sgd` over the users
returns, up to float rounding (1e-5); each picks the quickest way that is exact for the network.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor, nn

from corsage.app.config import TrainKeys
from corsage.clients.training import all_features, sgd, split_heads
from corsage.models import stacked
from corsage.models.layers import Dense
from corsage.models.network import Floats, Network
from corsage.models.ragged import Examples, Order, Plan

TOGETHER = 32
GROUPED_CHANNELS = 16
IN_CACHE = 13_000_000


def groups(orders: Sequence[Order], size: int) -> list[list[int]]:
    """Users in groups of alike numbers of steps, so that few wait for others."""
    by_steps = sorted(range(len(orders)), key=lambda u: -len(orders[u]))
    return [by_steps[i : i + size] for i in range(0, len(by_steps), size)]


def train_heads(
    network: Network, heads: Floats, features: Examples, orders: Sequence[Order], keys: TrainKeys
) -> Floats:
    """Linear heads (users, P_head) of many users at once, on their features.

    Every step is one batched product a side; users with fewer steps drop out as they finish.
    """
    out = np.array(heads, np.float32)
    for group in groups(orders, TOGETHER):
        plan = Plan.build(orders, features.offsets, group)
        own = torch.from_numpy(out[plan.users]).to(features.x.device)
        weight, bias = split_heads(network, own)
        has_bias = own.shape[1] > weight[0].numel()
        layer = Dense(weight.clone(), bias.clone() if has_bias else None, keys, True)
        stacked.run([layer], stacked.flat_rows, features, plan)
        parts = [layer.w.flatten(1)] + ([layer.b] if layer.b is not None else [])
        out[plan.users] = torch.cat(parts, 1).cpu().numpy()
    return out


def train_head_group(
    network: Network,
    body: Floats,
    heads: Floats,
    data: Examples,
    orders: Sequence[Order],
    keys: TrainKeys,
) -> Floats:
    """Heads (users, P_head) over one frozen body, in the quickest way that is exact.

    Cacheable body, linear head: features once, all users together. Another head: one user after
    the other on the features. A body that cannot be cached (`network.why`): the whole network.
    """
    network.set(network.body, body)
    if network.cacheable:
        data = Examples(all_features(network, data.x), data.y, data.sizes)
        if network.linear_head:
            return train_heads(network, heads, data, orders, keys)
    out = np.array(heads, np.float32)
    for u, order in enumerate(orders):
        network.set(network.head, out[u])
        sgd(network, *data.user(u), order, network.head, keys, cached=network.cacheable)
        out[u] = network.get(network.head)
    return out


def train_bodies(
    network: Network,
    body: Floats,
    heads: Floats,
    data: Examples,
    orders: Sequence[Order],
    keys: TrainKeys,
) -> Floats:
    """The users' bodies (users, P_body) from one start, each over its own frozen head."""
    start = np.broadcast_to(np.asarray(body, np.float32), (len(orders), len(body)))
    rows = np.concatenate([start, heads], axis=1, dtype=np.float32)
    return train_part(network, rows, network.body, data, orders, keys)


def train_models(
    network: Network, starts: Floats, data: Examples, orders: Sequence[Order], keys: TrainKeys
) -> Floats:
    """The users' whole models (users, P), from one start (P,) or from their own (users, P)."""
    starts = np.asarray(starts, np.float32)
    rows = np.broadcast_to(starts, (len(orders), starts.shape[-1]))
    return train_part(network, rows, network.whole, data, orders, keys)


def train_part(
    network: Network,
    rows: Floats,
    part: slice,
    data: Examples,
    orders: Sequence[Order],
    keys: TrainKeys,
) -> Floats:
    """One part of the models `rows` (users, P), the other part frozen."""
    out = np.array(rows[:, part], np.float32)
    if part.stop == part.start:
        return out
    together = users_together(network, part)
    if not together:
        for u, order in enumerate(orders):
            network.set(network.whole, rows[u])
            sgd(network, *data.user(u), order, part, keys)
            out[u] = network.get(part)
        return out
    ready = Examples(stacked.data_for(network, data.x), data.y, data.sizes)
    for group in groups(orders, together):
        train_group(network, rows, part, (ready, orders), keys, out, group)
    return out


def train_group(
    network: Network,
    rows: Floats,
    part: slice,
    work: tuple[Examples, Sequence[Order]],
    keys: TrainKeys,
    out: Floats,
    group: list[int],
) -> None:
    """Users together; alone if one of them diverges.

    A grouped convolution may fill its blocks with other users' channels at weight 0, and
    0 * NaN is NaN.
    """
    data, orders = work
    plan = Plan.build(orders, data.offsets, group)
    starts = torch.from_numpy(rows[plan.users]).to(data.x.device)
    result: Tensor = stacked.train_stacked(network, starts, part, (data, plan), keys)
    values = result.cpu().numpy()
    images = data.x.dim() == 4
    if images and len(group) > 1 and not np.isfinite(values).all():
        for u in group:
            train_group(network, rows, part, work, keys, out, [u])
    else:
        out[plan.users] = values


def users_together(network: Network, part: slice) -> int:
    """How many users' models are trained in one go; 0: one by one through autograd.

    Milliseconds a step and user, batch 10, for 1, 5, 10, 20 users at once: MLP .198, .143, .141,
    .181 (parameters and momentum of 20 leave the cache); LeNet-5 .944, .405, .358, .384; PFLlib's
    CNN 2.85, 2.98, 3.36 (one at a time; 3.07 through autograd).
    """
    if not stacked.supports(network):
        return 0
    fit: int = IN_CACHE // (2 * 4 * max(part.stop - part.start, 1))
    convolutions = [m for m in network.module.modules() if isinstance(m, nn.Conv2d)]
    if max((m.out_channels for m in convolutions), default=0) > GROUPED_CHANNELS:
        return 1
    return max(1, min(10 if convolutions else TOGETHER, fit))
