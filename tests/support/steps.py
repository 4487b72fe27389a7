"""Counts the gradients of minibatches that are really computed, below all that says how many."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import pytest

from corsage.clients import gpfl
from corsage.networks import local_training as doors
from corsage.networks.gradients import AutogradLosses
from corsage.networks.together import parts
from corsage.networks.together.stacked_gradients import StackedLosses


@dataclass
class Steps:
    """Gradients of one user's minibatches so far; it counts while `on`."""

    count: int = 0
    on: bool = True

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Count nothing of what has been counted."""
        before, self.on = self.on, False
        yield
        self.on = before


@contextmanager
def counted() -> Iterator[Steps]:
    """While it is open every minibatch's gradient counts, whichever loop takes it."""
    found = Steps()
    group, alone = parts.train_group, doors.train_alone
    with pytest.MonkeyPatch.context() as patch:

        def of_group(job: Any, rows: Any, users: list[int], out: Any) -> None:
            found.count += found.on * sum(len(job.orders[u]) for u in users)
            with found.paused():  # losses of the users' own take gradients that count as well
                group(job, rows, users, out)

        def of_one(job: Any, u: int) -> None:
            found.count += found.on * len(job.orders[u])
            alone(job, u)

        descent = gpfl.sgd

        def of_valve(network: Any, data: Any, order: Any, *rest: Any) -> None:
            found.count += found.on * len(order)
            descent(network, data, order, *rest)

        patch.setattr(gpfl, "sgd", of_valve)
        patch.setattr(parts, "train_group", of_group)
        patch.setattr(doors, "train_alone", of_one)
        for cls in (AutogradLosses, StackedLosses):
            count_gradients(patch, cls, found)
            count_products(patch, cls, found)
        yield found


def count_products(patch: pytest.MonkeyPatch, cls: Any, found: Steps) -> None:
    """A Hessian's product with a vector costs as much as two gradients."""
    product = cls.product

    def counting(self: Any, theta: Any, v: Any, step: int, *rest: Any, **more: Any) -> None:
        found.count += found.on * 2 * self.active[step]
        product(self, theta, v, step, *rest, **more)

    patch.setattr(cls, "product", counting)


def count_gradients(patch: pytest.MonkeyPatch, cls: Any, found: Steps) -> None:
    """A gradient of several users' losses at a step counts for each that still trains."""
    gradient = cls.gradient

    def counting(self: Any, theta: Any, step: int, *rest: Any, **more: Any) -> None:
        found.count += found.on * self.active[step]
        gradient(self, theta, step, *rest, **more)

    patch.setattr(cls, "gradient", counting)
