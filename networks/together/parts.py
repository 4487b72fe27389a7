"""The users of a node trained together: heads on cached features, bodies, whole models.

Given the same batches, every function here returns what the loop of `training.sgd` over the users
returns, up to float rounding (1e-5); each picks the quickest way that is exact for the network.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import torch
from torch import Tensor

from corsage.core.arrays import Floats32
from corsage.core.configuration.groups import TrainKeys
from corsage.networks.batches import Examples, Order, Plan
from corsage.networks.evaluation import all_features
from corsage.networks.network import Network
from corsage.networks.pull import Pull
from corsage.networks.rules import vectors_of
from corsage.networks.together import stacked
from corsage.networks.together.descent import Job, descended, descended_by_rule
from corsage.networks.training import StepLoss, pulled_sgd, sgd
from corsage.networks.vector import LARGE

Way = Callable[[Job, Floats32, list[int]], tuple[list[int], Tensor, Tensor | None]]
TOGETHER = 32
GROUPED_CHANNELS = 16
IN_CACHE = 13_000_000


def groups(orders: Sequence[Order], size: int) -> list[list[int]]:
    """Users in groups of alike numbers of steps, so that few wait for others."""
    by_steps = sorted(range(len(orders)), key=lambda u: -len(orders[u]))
    return [by_steps[i : i + size] for i in range(0, len(by_steps), size)]


def train_plain_heads(
    network: Network,
    heads: Floats32,
    features: Examples,
    orders: Sequence[Order],
    keys: TrainKeys,
    pull: Pull | None = None,
) -> Floats32:
    """Heads (users, P_head) of linear layers of many users at once, on their features.

    Every step is one batched product a layer and side; users with fewer steps drop out as they
    finish.
    """
    out = np.array(heads, np.float32)
    job = Job(network, network.head, features, orders, keys, active(pull), head=True)
    fit = IN_CACHE // (2 * 4 * max(heads.shape[1], 1))
    for group in groups(orders, max(1, min(TOGETHER, fit))):
        train_group(job, out, group, out)
    return out


def train_heads(
    network: Network,
    body: Floats32,
    heads: Floats32,
    data: Examples,
    orders: Sequence[Order],
    keys: TrainKeys,
    pull: Pull | None = None,
) -> Floats32:
    """Heads (users, P_head) over one frozen body, in the quickest way that is exact.

    Cacheable body, head of linear layers: features once, all users together. Another head: one
    user after the other on the features. A body that cannot be cached (`network.why`): the whole
    network, of several users together where the path has it so.
    """
    network.set(network.body, body)
    kept = network.cacheable and data.views is None
    if data.views is not None or (not kept and through_all(network, data, keys)):
        rows = np.concatenate([np.broadcast_to(body, (len(heads), len(body))), heads], axis=1)
        return train_part(network, rows, network.head, data, orders, keys, pull)
    if kept:
        data = data.over(all_features(network, data.x))
        trained = all(b.trained for b in network.blocks_of(network.head))
        if network.head_layers and trained and keys.mixed_precision == "none":
            return train_plain_heads(network, heads, data, orders, keys, pull)
    out = np.array(heads, np.float32)
    job = Job(network, network.head, data, orders, keys, active(pull), kept)
    for u in range(len(orders)):
        network.set(network.head, out[u])
        train_alone(job, u)
        out[u] = network.vector.view(network.head)
    return out


def through_all(network: Network, data: Examples, keys: TrainKeys) -> bool:
    """Tell whether several users' heads are trained together through whole networks."""
    if network.stackable or (data.losses is not None and not network.split_exact):
        return False
    return users_together(network, network.head, 0, keys) > 1


def train_bodies(
    network: Network,
    body: Floats32,
    heads: Floats32,
    data: Examples,
    orders: Sequence[Order],
    keys: TrainKeys,
    pull: Pull | None = None,
) -> Floats32:
    """The users' bodies (users, P_body) from one start, each over its own frozen head."""
    body = np.asarray(body, np.float32)
    if len(body) >= LARGE and not together_in(network, network.body, data, keys, active(pull)):
        return train_alone_each(network, body, heads, data, orders, keys, active(pull))
    start = np.broadcast_to(body, (len(orders), len(body)))
    rows = np.concatenate([start, heads], axis=1, dtype=np.float32)
    return train_part(network, rows, network.body, data, orders, keys, pull)


def train_alone_each(
    network: Network,
    body: Floats32,
    heads: Floats32,
    data: Examples,
    orders: Sequence[Order],
    keys: TrainKeys,
    pull: Pull | None,
) -> Floats32:
    """Large bodies one after the other: whole models of all users are nowhere put together."""
    job = Job(network, network.body, data, orders, keys, pull)
    out = np.empty((len(orders), len(body)), np.float32)
    for u, head in enumerate(heads):
        network.set(network.body, body)
        network.set(network.head, head)
        train_alone(job, u)
        out[u] = network.vector.view(network.body)
    return out


def train_models(
    network: Network,
    starts: Floats32,
    data: Examples,
    orders: Sequence[Order],
    keys: TrainKeys,
    pull: Pull | None = None,
) -> Floats32:
    """The users' whole models (users, P), from one start (P,) or from their own (users, P)."""
    starts = np.asarray(starts, np.float32)
    rows = np.broadcast_to(starts, (len(orders), starts.shape[-1]))
    return train_part(network, rows, network.whole, data, orders, keys, pull)


def train_part(
    network: Network,
    rows: Floats32,
    part: slice,
    data: Examples,
    orders: Sequence[Order],
    keys: TrainKeys,
    pull: Pull | None = None,
) -> Floats32:
    """One part of the models `rows` (users, P), the other part frozen; `pull` is on that part."""
    if part.stop == part.start:
        return np.empty((len(orders), 0), np.float32)
    pull = active(pull)
    together = together_in(network, part, data, keys, pull)
    if network.stackable and together and data.views is None:
        data = data.over(stacked.data_for(network, data.x))
    job = Job(network, part, data, orders, keys, pull)
    if len(orders) == 1 and part == network.whole:
        return only_one(job, rows, bool(together))
    out = np.empty((len(orders), part.stop - part.start), np.float32)  # user by user in memory
    for group in groups(orders, together) if together else []:
        train_group(job, rows, group, out)
    for u in range(len(orders)) if not together else []:
        network.set(network.whole, rows[u])
        train_alone(job, u)
        out[u] = network.vector.view(part)
    return out


def together_in(
    network: Network, part: slice, data: Examples, keys: TrainKeys, pull: Pull | None
) -> int:
    """The number of users whose parts are trained in one go on such data, under such a pull."""
    if data.losses is not None and not network.split_exact:  # which is refused
        return 0
    return users_together(network, part, pull.own_rows if pull is not None else 0, keys)


def only_one(job: Job, rows: Floats32, together: bool) -> Floats32:
    """The whole model of an only user (1, P): no copy of it is made to hand it over."""
    network = job.network
    if together:
        _, result, centres = way_of(job)(job, rows, [0])
        if job.pull is not None and centres is not None:
            job.pull.centre[[0]] = centres.cpu().numpy()
        if result.data_ptr() != network.flat.data_ptr():
            values: Floats32 = result.cpu().numpy()
            return values
    else:
        network.set(network.whole, rows[0])
        train_alone(job, 0)
    return network.vector.give()[None]


def active(pull: Pull | None) -> Pull | None:
    """A pull that adds nothing is none: no step is slower for it, or rounded otherwise."""
    return None if pull is None or pull.idle else pull


def train_alone(job: Job, u: int) -> None:
    """One user's part of the network in place, through autograd."""
    data, order = job.data.user(u), job.orders[u]
    loss = job.data.losses[u] if job.data.losses is not None else None
    mean = job.data.mean_of(u, job.network.criterion.mean)
    what = StepLoss(job.head, loss, mean, job.data.change_of(u, order))
    if job.pull is None:
        sgd(job.network, data, order, job.part, job.keys, what=what)
        return
    own = job.pull.pick([u])
    pulled_sgd(job.network, data, order, job.part, job.keys, own, what)
    if own.every:
        job.pull.centre[u] = own.centre[0]


def train_group(job: Job, rows: Floats32, group: list[int], out: Floats32) -> None:
    """Users together; alone if one of them diverges.

    A grouped convolution may fill its blocks with other users' channels at weight 0, and
    0 * NaN is NaN.
    """
    users, result, centres = way_of(job)(job, rows, group)
    values = result.cpu().numpy()
    mixed = job.data.x.dim() == 4 or not (job.head or job.network.stackable)
    if mixed and len(group) > 1 and not np.isfinite(values).all():
        for u in group:
            train_group(job, rows, [u], out)
        return
    out[users] = values
    if job.pull is not None and centres is not None:
        job.pull.centre[users] = centres.cpu().numpy()


def way_of(job: Job) -> Way:
    """The quickest way to train users together."""
    plain = job.keys.plain and job.data.objective is None and job.data.views is None
    if plain and not (job.head or job.network.stackable):
        return descended
    return trained_together if plain and job.data.losses is None else descended_by_rule


def starts_of(job: Job, rows: Floats32, users: list[int]) -> torch.Tensor:
    """A copy of some users' rows; of one whole model it is the network's own vector."""
    network = job.network
    if len(users) > 1 or job.head or job.part != network.whole:
        return torch.from_numpy(rows[users]).to(job.data.x.device)
    network.set(network.whole, rows[users[0]])
    return network.flat.unsqueeze(0)


def trained_together(
    job: Job, rows: Floats32, group: list[int]
) -> tuple[list[int], Tensor, Tensor | None]:
    """Users in the order of the rows, their trained part, and the centres if these followed."""
    plan = Plan.build(job.orders, job.data.offsets, group)
    starts = starts_of(job, rows, plan.users)
    pull = job.pull and job.pull.pick(plan.users)
    result, centres = stacked.train_stacked(
        job.network, starts, job.part, (job.data, plan), job.keys, pull, job.head
    )
    return plan.users, result, centres


def users_together(
    network: Network, part: slice, more: int = 0, keys: TrainKeys | None = None
) -> int:
    """The number of users whose models are trained in one go; 0: one by one through autograd.

    Of chains of plain layers a rule says it, of others the network's path, which was measured.
    Milliseconds a step and user, batch 10, for 1, 5, 10, 20 users at once: MLP .198, .143, .141,
    .181 (parameters and momentum of 20 leave the cache; `more` says how many vectors a user has
    besides these); LeNet-5 .944, .405, .358, .384; PFLlib's CNN 2.85, 2.98, 3.36 (one at a time;
    3.07 through autograd).
    """
    if keys is not None and keys.mixed_precision != "none":
        return 0
    if not network.stackable:
        return network.path.users
    if keys is not None and not keys.plain:
        more += vectors_of(keys)
    fit: int = IN_CACHE // ((2 + more) * 4 * max(part.stop - part.start, 1))
    if network.widest_convolution > GROUPED_CHANNELS:
        return 1
    return max(1, min(10 if network.widest_convolution else TOGETHER, fit))
