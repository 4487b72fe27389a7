"""What is to be trained at the users of a node."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from corsage.core.groups import TrainKeys
from corsage.networks.batches import Examples, Order
from corsage.networks.network import Network
from corsage.networks.pull import Pull


@dataclass(frozen=True)
class Job:
    """Which part of which users' models is trained, on what, and how.

    With `head` the rows are heads and the data are features; else they are whole models.
    """

    network: Network
    part: slice
    data: Examples
    orders: Sequence[Order]
    keys: TrainKeys
    pull: Pull | None
    head: bool = False
