"""The base of clients with convex losses: linear models with one output, all users at once."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from corsage.clients.base import Client, Evaluation
from corsage.networks.training import Examples, evaluate_models, score
from corsage.solvers.losses.convex import LinearLosses, linear_losses
from corsage.solvers.losses.linear_losses import Scale
from corsage.solvers.losses.scalar import scalar_loss

T = TypeVar("T")
SUM: Scale = "sum"
MEAN: Scale = "mean"
MOST_KEPT = 4096
"""Prepared losses and test data that a process keeps: a few for each of its nodes."""


class ConvexClient(Client):
    """A client whose users' losses f_i are prepared once a process.

    Parameters (of the class)
    -------------------------
    usual_scale : what `loss-scale=auto` is: f_i as the sum or the mean of the samples' losses.
    """

    usual_scale: ClassVar[Scale] = "sum"

    @property
    def sizes(self) -> NDArray[np.int64]:
        """Training samples of each user."""
        data, users = self._data, self.users
        places = cached((*self._key, "places"), lambda: np.array([data.index[u] for u in users]))
        return np.asarray(data.train_sizes[places])

    @property
    def convex(self) -> bool:
        """Whether the model is linear with one output."""
        return self.task.model.model == "linear" and self.network.criterion.name != "cross-entropy"

    @property
    def losses(self) -> LinearLosses:
        """f_i of all users, prepared once a process."""
        return cached((*self._key, "train"), lambda: self._losses(self.train_data()))

    @property
    def _key(self) -> tuple[Any, ...]:
        task, limit = self.task, self.task.options.get("adapt-samples", 0)
        kind = task.model, self.scale, task.seed, self.network.device  # methods differ in the scale
        return self._data, tuple(self.users), *kind, limit

    @property
    def dtype(self) -> torch.dtype:
        """What convex losses are computed with; torch models are float32."""
        return getattr(torch, self.task.model.precision) if self.convex else torch.float32

    @property
    def scale(self) -> Scale:
        """Whether f_i is a sum or a mean."""
        asked = {"sum": SUM, "mean": MEAN}
        return asked.get(self.task.model.loss_scale, self.usual_scale)

    def _losses(self, data: Examples) -> LinearLosses:
        """f_i on some examples of every user."""
        keys = self.task.model
        loss = scalar_loss(self.network.criterion.name, keys.huber_delta)
        assert loss is not None
        return linear_losses(
            data.x.flatten(1).to(self.dtype),
            data.y,
            data.sizes,
            loss=loss,
            scale=self.scale,
            ridge=keys.ridge,
            intercept=keys.intercept,
        )

    def scored(self, models: Tensor) -> Evaluation:
        """The evaluation of each user's own model."""
        if not self.convex:
            return self.report(
                evaluate_models(self.network, models.cpu().numpy(), self.test_data())
            )
        data = cached((*self._key, "test"), self.test_data)
        test = cached((*self._key, "test losses"), lambda: self._losses(data))
        scores = score(self.network.criterion, test.predict(models)[:, None], data)
        return self.report(scores)

    def tensor(self, array: NDArray[Any]) -> Tensor:
        """An array as the losses compute with it."""
        return torch.from_numpy(np.array(array)).to(self.network.device, self.dtype)


def cached(key: tuple[Any, ...], make: Callable[[], T]) -> T:
    """What `make` makes, kept for the messages to come; the oldest are let go."""
    if key not in _CACHE:
        while len(_CACHE) >= MOST_KEPT:
            del _CACHE[next(iter(_CACHE))]
        _CACHE[key] = make()
    found: T = _CACHE[key]
    return found


_CACHE: dict[tuple[Any, ...], Any] = {}
