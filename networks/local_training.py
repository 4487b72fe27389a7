"""The users of a node trained one after the other: heads over one body, bodies, whole models.

Several at once are trained by what attaches at `together` (core/registry.py), up to float rounding
(1e-5) with the same result: it is asked first, and has a rule for which models that pays.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np

from corsage.core.arrays import Floats32
from corsage.core.configuration.key_groups import ModelKeys, TrainKeys
from corsage.core.errors import ModelError
from corsage.core.registry import attachment
from corsage.core.training_paths import AUTO, LOOP, Choice
from corsage.networks.batches import Examples, Order
from corsage.networks.build import build_network
from corsage.networks.network import Network
from corsage.networks.proximal import Pull
from corsage.networks.training import StepLoss, pulled_sgd, sgd
from corsage.networks.user_scores import all_features
from corsage.networks.vector import LARGE_MODEL


@dataclass(frozen=True)
class Job:
    """A training job: the part of users' models that is trained, the data, and the keys.

    With `head` the rows are heads and the data are features; else they are whole models.
    """

    network: Network
    part: slice
    data: Examples
    orders: Sequence[Order]
    keys: TrainKeys
    pull: Pull | None
    head: bool = False


@cache
def together() -> Any:
    """The attachment that trains several users at once; None where it was taken out."""
    return attachment("together")


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
    return train_part(Job(network, network.whole, data, orders, keys, active(pull)), rows)


def train_bodies(
    network: Network,
    body: Floats32,
    heads: Floats32,
    data: Examples,
    orders: Sequence[Order],
    keys: TrainKeys,
    pull: Pull | None = None,
) -> Floats32:
    """The users' bodies (users, P_body) from one start or their own, each over its frozen head."""
    body = np.asarray(body, np.float32)
    job = Job(network, network.body, data, orders, keys, active(pull))
    if body.ndim == 1 and len(body) >= LARGE_MODEL and not at_once(job):
        return train_large_bodies(job, body, heads)
    start = np.broadcast_to(body, (len(orders), body.shape[-1]))
    return train_part(job, np.concatenate([start, heads], axis=1, dtype=np.float32))


def train_large_bodies(job: Job, body: Floats32, heads: Floats32) -> Floats32:
    """Large bodies one after the other: whole models of all users are nowhere put together."""
    network = job.network
    out = np.empty((len(heads), len(body)), np.float32)
    for u, head in enumerate(heads):
        network.set(network.body, body)
        network.set(network.head, head)
        train_alone(job, u)
        out[u] = network.vector.view(network.body)
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
    """Heads (users, P_head) over one frozen body, on its features where these can be kept.

    Where they cannot (`network.why`) they are computed at each step; several users may then be
    trained together through the whole network.
    """
    network.set(network.body, body)
    kept = network.cacheable and data.views is None
    job = Job(network, network.head, data, orders, keys, active(pull), kept)
    many = not kept and not network.stackable and at_once(job) > 1
    if data.views is not None or many:
        rows = np.concatenate([np.broadcast_to(body, (len(heads), len(body))), heads], axis=1)
        return train_part(job, rows)
    if kept:
        data = data.over(all_features(network, data.x))
        job = Job(network, network.head, data, orders, keys, active(pull), head=True)
        several = together() and together().train_several_heads(job, heads)
        if several is not None:
            return np.asarray(several)
    out = np.array(heads, np.float32)
    for u in range(len(orders)):
        network.set(network.head, out[u])
        train_alone(job, u)
        out[u] = network.vector.view(network.head)
    return out


def train_part(job: Job, rows: Floats32) -> Floats32:
    """One part of the models `rows` (users, P), the other part frozen."""
    network, part = job.network, job.part
    if part.stop == part.start:
        return np.empty((len(rows), 0), np.float32)
    several = together() and together().train_several(job, rows)
    if several is not None:
        return np.asarray(several)
    if len(rows) == 1 and part == network.whole:  # no copy is made to hand it over
        network.set(network.whole, rows[0])
        train_alone(job, 0)
        return network.vector.give()[None]
    out = np.empty((len(rows), part.stop - part.start), np.float32)  # user by user in memory
    for u, row in enumerate(rows):
        network.set(network.whole, row)
        train_alone(job, u)
        out[u] = network.vector.view(part)
    return out


def at_once(job: Job) -> int:
    """The number of users whose parts are trained in one go; 0: one after the other."""
    return int(together().users_of(job)) if together() else 0


def active(pull: Pull | None) -> Pull | None:
    """A pull that adds nothing is none: no step is slower for it, or rounded otherwise."""
    return None if pull is None or pull.idle else pull


def train_alone(job: Job, u: int) -> None:
    """One user's part of the network in place, through autograd."""
    data, order = job.data.user(u), job.orders[u]
    loss = job.data.losses[u] if job.data.losses is not None else None
    into = job.data.into_head[u] if job.data.into_head is not None else None
    mean = job.data.mean_of(u, job.network.criterion.mean)
    what = StepLoss(job.head, loss, mean, job.data.change_of(u, order), into)
    if job.pull is None:
        sgd(job.network, data, order, job.part, job.keys, what=what)
        return
    own = job.pull.pick([u])
    pulled_sgd(job.network, data, order, job.part, job.keys, own, what)
    if own.every:
        job.pull.centre[u] = own.centre[0]


def choose_path(
    keys: ModelKeys,
    shape: tuple[int, ...],
    num_classes: int,
    seed: int,
    train: TrainKeys,
    users: int,
) -> Choice:
    """The path on which a model of so many users is trained: as its key says, or by a rule."""
    if together() is None:
        network_on_its_path(keys, shape, num_classes, seed, train.device)
        return Choice(LOOP, "")
    chosen: Choice = together().choose_path(keys, shape, num_classes, seed, train, users)
    return chosen


def network_on_its_path(
    keys: ModelKeys, shape: tuple[int, ...], num_classes: int, seed: int, device: str = "cpu"
) -> Network:
    """The network of a configuration for training; ModelError if it cannot take the keys' path."""
    if together() is not None:
        network: Network = together().network_on_its_path(keys, shape, num_classes, seed, device)
        return network
    if keys.training_path not in (AUTO, LOOP):
        raise ModelError(
            f"training-path={keys.training_path}: networks/together is not installed here; "
            f"take {LOOP} or {AUTO}."
        )
    return build_network(keys, shape, num_classes, seed, device)
