"""Training by an app's own function, in the place of SGD: what attaches to a client there."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from corsage.core.arrays import Floats32
from corsage.networks.batches import Examples
from corsage.networks.own_training import Lesson, OwnTraining
from corsage.networks.proximal import Pull
from corsage.strategies.effort import whole_steps

if TYPE_CHECKING:
    from corsage.clients.base import Client


class OwnSteps:
    """The local steps of clients whose app trains by a function of its own."""

    def __init__(self, training: OwnTraining) -> None:
        self.training = training

    def of(
        self,
        client: Client[Any],
        name: str,
        rows: Floats32,
        data: Examples,
        epochs: int | None,
        pull: Pull | None = None,
    ) -> Floats32:
        """A part of the users' models, trained as the app does it, for whole epochs."""
        task, net = client.task, client.network
        epochs = client.settings.local_epochs if epochs is None else epochs
        if client.effort != 1.0:
            epochs = whole_steps(client.effort * epochs, task.round)
        part = {"model": net.whole, "head": net.head, "body": net.body}[name]
        lesson = Lesson(name, part, epochs, client.settings, task.seed, task.round)
        rows = np.broadcast_to(np.asarray(rows, np.float32), (len(client.users), net.whole.stop))
        trained, steps = self.training.train(net, rows, client.users, data, lesson, pull)
        client.count(steps)
        return trained

    def over(
        self,
        client: Client[Any],
        name: str,
        parts: tuple[Floats32, Floats32],
        data: Examples,
        epochs: int | None,
        pull: Pull | None = None,
    ) -> Floats32:
        """The same for whole models of users with one body, (body, heads)."""
        body, heads = parts
        bodies = np.broadcast_to(body, (len(heads), body.shape[-1]))
        rows = np.concatenate([bodies, heads], axis=1, dtype=np.float32)
        return self.of(client, name, rows, data, epochs, pull)
