"""The mixed model of several classes at the users: sums that the centres come from, and models.

The formulas are those of solvers/known_clusters/multinomial.py.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from corsage.clients.base import Got, Models, Sent
from corsage.core.arrays import Array, Floats
from corsage.solvers.known_clusters.mixed_model import pack
from corsage.solvers.known_clusters.multinomial import NO_FOLD, Block
from corsage.solvers.losses.padded import cut, pad
from corsage.solvers.losses.softmax_block import by_class, flat

if TYPE_CHECKING:
    from corsage.clients.known_clusters.mixed_model import MixedModelClient


def begin(client: MixedModelClient, got: Got) -> Sent:
    """Sum of z z' over a cohort's users, as their losses weigh them, and the weight of classes."""
    d = client.network.whole.stop // client.task.num_classes
    found, classes = np.zeros((d, d)), np.zeros(client.task.num_classes)
    for block in blocks(client, told=True, fold=NO_FOLD):
        found = found + torch.einsum("nm,nmd,nme->de", block.weight, block.z, block.z).cpu().numpy()
        classes += torch.einsum("nm,nmc->c", block.weight, block.y).cpu().numpy()
    return Sent(rows={"squares": pack(found), "classes": classes}, metrics=dict(client.floored))


def sums(client: MixedModelClient, got: Got) -> Sent:
    """Of each centre (K, P): what is left of losses, its slope, and what left-out records cost."""
    rows, count = got.rows, len(got.rows["centres"])
    value, held, slopes = np.zeros(count), np.zeros((count, 2)), np.zeros(rows["centres"].shape)
    for place, (own, pulls) in enumerate(zip(rows["centres"], rows["pulls"], strict=True)):
        ridge, centre = float(rows["ridges"][place]), matrix(client, own)
        for block in blocks(client, told=True, fold=int(rows["folds"][place])):
            found = block.told(centre, np.asarray(pulls, np.float64), ridge)
            value[place] += found.value
            held[place] += found.held
            slopes[place] += vector(client, torch.from_numpy(found.slope)[None])[0]
    return Sent(rows={"value": value, "held": held, "slopes": slopes})


def models(client: MixedModelClient, got: Got) -> Models:
    """theta_i around w_j, of all rows as they are."""
    rows, found = got.rows, np.zeros((len(client.users), client.network.whole.stop))
    centre, pulls = matrix(client, rows["w"]), np.asarray(rows["pulls"][0], np.float64)
    places = cut(client.sizes, client.network.whole.stop, client.network.device)
    for users, block in zip(places, blocks(client, told=False), strict=True):
        found[users] = vector(client, block.settled(centre, pulls, float(rows["ridges"][0]))[0])
    return Models(client.tensor(found).cpu().numpy())


def blocks(client: MixedModelClient, told: bool, fold: int = NO_FOLD) -> list[Block]:
    """The users' rows, as sums may be of them or as they are; prepared once a node.

    The records of `fold` are left out.
    """

    def made() -> list[Block]:
        data = client.train_data(client.limits)
        floored = told and client.floor >= 2
        z = torch.from_numpy(client.shared.x if floored else client.columns(data))
        z = z.to(client.network.device, client.dtype)
        sizes, classes = data.sizes, client.task.num_classes
        user, folds = client.folds_of(sizes)
        there = client.shared.some[user] if floored else np.ones(len(user), bool)
        share = 1 / np.asarray(sizes)[user] if client.scale == "mean" else np.ones(len(user))
        y = F.one_hot(data.y.long(), classes).to(z)
        parts = (
            z,
            y,
            as_like(share * there * (folds != fold), z),
            as_like(there * (folds == fold), z),
        )
        first = np.cumsum(sizes) - sizes
        found = list[Block]()
        for users in cut(sizes, client.network.whole.stop, client.network.device):
            at = np.concatenate([np.arange(first[u], first[u] + sizes[u]) for u in users])
            some = torch.from_numpy(at).to(z.device)
            found.append(Block(*(pad(part[some], sizes[users]) for part in parts)))
        return found

    return client.prepared(("classes", told and client.floor, fold), made)


def as_like(values: Array, like: Tensor) -> Tensor:
    """Numbers of rows, as they are computed with."""
    return torch.from_numpy(np.asarray(values, np.float64)).to(like)


def matrix(client: MixedModelClient, model: Array) -> Floats:
    """A flat model (P,) as (d, C)."""
    classes, size = client.task.num_classes, client.network.whole.stop
    width = size // classes - client.task.model.intercept
    rows = by_class(torch.from_numpy(np.asarray(model, np.float64))[None], classes, width)
    return np.asarray(rows[0].T.numpy())


def vector(client: MixedModelClient, models: Tensor) -> Floats:
    """Models (n, d, C) as flat ones (n, P)."""
    width = models.shape[1] - client.task.model.intercept
    return np.asarray(flat(models.mT, width).double().cpu().numpy())
