"""Delivery of the models that a node judged: a file of them, for whoever loads it later."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from logging import WARNING
from typing import Any

import numpy as np
import torch
from flwr.supercore import log

from corsage.app.nodes.node import Node
from corsage.app.results.header import Header, spec
from corsage.app.results.rowfile import (
    CODES,
    MODELS_PREFIX,
    OF_A_USER,
    PICKED,
    SCALES_PREFIX,
    SHARED_PREFIX,
    USERS_PREFIX,
    encoded,
)
from corsage.app.states.pieces import ModelShelf
from corsage.clients.base import Client, Models
from corsage.core.arrays import Array, Arrays
from corsage.core.errors import StorageError
from corsage.core.messages.wire import DELIVER_OPTION, ROOM_OPTION, ROW_OPTION, Task
from corsage.core.registry import attached
from corsage.datasets.user_data import FederatedData
from corsage.networks.network import Network


def delivers(task: Task, node: Node) -> bool:
    """True if an evaluation is one whose models are kept."""
    if not node.simulated:
        return ROW_OPTION in task.options
    return bool(task.options.get(DELIVER_OPTION)) and ROOM_OPTION in task.options


class ModelDelivery:
    """Leaves the models of one message's users where they are to be.

    Parameters
    ----------
    task, node : the message, and who it is to.
    shelf : where they go.
    """

    def __init__(self, task: Task, node: Node, shelf: ModelShelf) -> None:
        self.task, self.node, self.shelf, self.count = task, node, shelf, 0
        self.room = int(task.options.get(ROOM_OPTION, 0)) if node.simulated else None

    def add(self, client: Client[Any]) -> None:
        """Keep the models that a client judged last."""
        if client.judged is None:
            return
        users = list(client.users)
        groups = [[i] for i in range(len(users))] if self.shelf.each_alone else [range(len(users))]
        for group in groups:
            self._put(client, client.judged, [*group])

    def _put(self, client: Client[Any], models: Models, places: Sequence[int]) -> None:
        users, row = [client.users[i] for i in places], str(self.task.options[ROW_OPTION])
        head, arrays = self.file(client, models, places)
        try:
            self.shelf.put(row, self.task.exchange, self.count, users[0], encoded(head, arrays))
        except OSError as error:
            if self.node.simulated:
                raise StorageError(f"models cannot be kept: {error}") from error
            why = error.strerror or error
            log(WARNING, "user %s: its model cannot be kept in state-dir: %s", users[0], why)
        self.count += 1

    def file(
        self, client: Client[Any], models: Models, places: Sequence[int]
    ) -> tuple[Header, Arrays]:
        """The header and the tensors of some of the client's users."""
        task, data, form = self.task, self.node.data, client.arithmetic
        arrays = tensors(client.full, models, list(places))
        size = sum(a.nbytes for name, a in arrays.items() if name.startswith(OF_A_USER))
        kept = self.room is None or size <= self.room * len(places)
        if not kept:
            arrays = {n: a for n, a in arrays.items() if not n.startswith(OF_A_USER)}
        if not self.count or self.shelf.each_alone:
            arrays |= fixed(client.full)  # of the pieces of a row, its file takes the first's
        head = Header(
            strategy=task.algorithm,
            row=str(task.options[ROW_OPTION]),
            round=task.round,
            users=tuple(client.users[i] for i in places),
            kept=kept,
            size=size,
            model=spec(task.model),
            shape=task.shape,
            num_classes=task.num_classes,
            seed=task.seed,
            inputs=form.inputs,
            linear=form.linear if models.spec is None else "",
            threads=torch.get_num_threads(),
            shift=data.shift,
            scale=data.scale,
            vectors=data.vectors is not None,
            classes=data.classes,
            combination=models.spec,
        )
        if data.preparation is not None:
            head = replace(head, preparation=data.preparation.json())
        return head, {**arrays, **scales(data, head.users)}


def fixed(network: Network) -> Arrays:
    """The frozen arrays by name, as far as a file can hold them."""
    kept = network.vector.fixed.arrays.items()
    return {SHARED_PREFIX + name: array for name, array in kept if str(array.dtype) in CODES}


def scales(data: FederatedData, users: Sequence[str]) -> Arrays:
    """The users' own scales, where each is scaled by its own rows."""
    if data.own is None:
        return {}
    rows = [data.index[user] for user in users]
    names = ("shift", "scale", "label")
    return {SCALES_PREFIX + name: getattr(data.own, name)[rows] for name in names}


def tensors(network: Network, models: Models, places: list[int]) -> Arrays:
    """Some users' models by the parameters' names, what is shared once."""
    if models.spec is not None:
        found: Arrays = attached("combined").arrays_of(models, network, places)
        return found
    if models.picked is not None:
        picked = np.asarray(models.picked, np.int64)[places]
        return {**split(network, models.whole, network.whole, MODELS_PREFIX), PICKED: picked}
    if models.heads is not None:
        heads = split(network, models.heads[places], network.head, USERS_PREFIX)
        return {**split(network, models.whole, network.body, SHARED_PREFIX), **heads}
    if models.whole.ndim == 1:
        return split(network, models.whole, network.whole, SHARED_PREFIX)
    return split(network, models.whole[places], network.whole, USERS_PREFIX)


def split(network: Network, flat: Array, part: slice, prefix: str) -> Arrays:
    """Flat vectors as arrays with the parameters' names and shapes; they stay what they are."""
    ahead = flat.shape[:-1]
    return {
        prefix + b.name: flat[..., b.where.start - part.start : b.where.stop - part.start].reshape(
            (*ahead, *b.shape)
        )
        for b in network.blocks_of(part)
    }
