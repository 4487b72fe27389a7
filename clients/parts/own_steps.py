"""Training by an app's own function, in the place of SGD: a part of each user's model."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from corsage.core.arrays import Floats32
from corsage.networks.batches import Examples
from corsage.networks.own_training import Lesson
from corsage.networks.pull import Pull
from corsage.strategies.effort import whole_steps

if TYPE_CHECKING:
    from corsage.clients.base import Client


def as_the_app_does(
    client: Client[Any], name: str, rows: Floats32, data: Examples, epochs: int, pull: Pull | None
) -> Floats32:
    """A part of the users' models, trained as the app does it, for whole epochs."""
    assert client.training is not None
    task, net = client.task, client.network
    if client.effort != 1.0:
        epochs = whole_steps(client.effort * epochs, task.round)
    part = {"model": net.whole, "head": net.head, "body": net.body}[name]
    lesson = Lesson(name, part, epochs, client.settings, task.seed, task.round)
    rows = np.broadcast_to(np.asarray(rows, np.float32), (len(client.users), net.whole.stop))
    trained, steps = client.training.train(net, rows, client.users, data, lesson, pull)
    client.count(steps)
    return trained


def joined(body: Floats32, heads: Floats32) -> Floats32:
    """Whole models of users with one body."""
    bodies = np.broadcast_to(body, (len(heads), len(body)))
    return np.concatenate([bodies, heads], axis=1, dtype=np.float32)
