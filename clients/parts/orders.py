"""The batches of users: drawn for a purpose, a round and a user, and for nothing else."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from corsage.core.arrays import Ints
from corsage.core.seeding import generator
from corsage.networks.batches import Order
from corsage.networks.training import batches, steps_of
from corsage.strategies.effort import whole_steps

if TYPE_CHECKING:
    from corsage.clients.base import Client


def orders_of(
    client: Client[Any], purpose: str, sizes: Ints, epochs: int, steps: int
) -> list[Order]:
    """The batches of each user of a client, who have so many samples."""
    sized = zip(client.users, sizes, strict=True)
    return [order_of(client, purpose, user, int(n), epochs, steps) for user, n in sized]


def order_of(
    client: Client[Any], purpose: str, user: str, n: int, epochs: int, steps: int
) -> Order:
    """A user's batches; of a training round as many as the work that all methods do leaves."""
    task, size, join = client.task, client.settings.batch_size, client.network.batch_statistics
    rng, each = generator(task.seed, purpose, task.round, user), steps_of(n, size, join)
    due = steps or epochs * each
    if client.pace:
        due = whole_steps(client.pace * epochs, task.round)
    elif client.effort != 1.0:
        due = whole_steps(client.effort * due, task.round)
    return batches(rng, n, -(-due // each), size, join)[:due]
