"""The base of clients that work for a whole cohort: its models are one array, a row a user.

A cohort is all the users of one known cluster that a node hosts. `fit` returns one row for all of
them together (such as their mean), `evaluate` numbers for each of them.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from corsage.clients.base import Client, Evaluation, Fit
from corsage.clients.training import Examples, evaluate_models, score
from corsage.models.convex import LinearLosses, linear_losses
from corsage.models.losses import scalar_loss

T = TypeVar("T")
Rows = tuple[dict[str, NDArray[Any]], dict[str, float]]
MOST_KEPT = 64
"""Prepared losses and test data that a process keeps: a few for each of its cohorts."""


class CohortClient(Client):
    """Base of the clients of known clusters.

    `self.users` are the cohort's members, `self.state` what they kept (arrays with a row a user),
    `self.rows` what the server sent to this cohort.
    """

    personal = True
    cohorts = True
    averaged = False
    options: dict[str, Any] = {}  # what the server says to this cohort beside the rows

    @property
    def state(self) -> dict[str, NDArray[Any]]:
        """What the cohort kept when it was last merged; empty at first."""
        return self._states[0]

    def fit(self, parameters: list[NDArray[Any]], config: dict[str, Any]) -> Fit:
        """Do what is asked: a step of the algorithm, or numbers that the server needs first."""
        self.options = config
        rows, metrics = getattr(self, str(config.get("ask", "step")))(config)
        self.returns = tuple(rows)
        count = int(self.sizes.sum())
        return list(rows.values()), count, {"num-examples": count, **metrics}

    def step(self, config: dict[str, Any]) -> Rows:
        """One step of the algorithm: arrays without a user axis, and numbers, of the cohort."""
        raise NotImplementedError

    def models(self) -> Tensor:
        """Each user's own model, as the algorithm's personal state and the server's rows say."""
        raise NotImplementedError

    def evaluate(self, parameters: list[NDArray[Any]], config: dict[str, Any]) -> Evaluation:
        """Each user's own model on its test data."""
        self.options = config
        return self.scored(self.models())

    # The cohort's losses.

    @property
    def sizes(self) -> NDArray[np.int64]:
        """Training samples of each user."""
        return self._data.train_sizes[[self._data.index[user] for user in self.users]]

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
        limit = self.task.options.get("adapt-samples", 0)
        return self._data, tuple(self.users), self.task.model, self.network.device, limit

    @property
    def dtype(self) -> torch.dtype:
        """What convex losses are computed with; torch models are float32."""
        return getattr(torch, self.task.model.precision) if self.convex else torch.float32

    def _losses(self, data: Examples) -> LinearLosses:
        keys = self.task.model
        loss = scalar_loss(self.network.criterion.name, keys.huber_delta)
        assert loss is not None
        return linear_losses(
            data.x.flatten(1).to(self.dtype),
            data.y,
            data.sizes,
            loss=loss,
            scale="mean" if keys.loss_scale == "mean" else "sum",
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

    def facts(self, config: dict[str, Any]) -> Rows:
        """The largest L_i and the smallest mu_i of the cohort."""
        if not self.convex:
            return {}, {}
        losses = self.losses
        smooth, strong = losses.smoothness().max(), losses.convexity().min()
        return {}, {"smoothness": float(smooth), "convexity": float(strong)}


def cached(key: tuple[Any, ...], make: Callable[[], T]) -> T:
    """What `make` makes, kept for the messages to come; the oldest are let go."""
    if key not in _CACHE:
        while len(_CACHE) >= MOST_KEPT:
            del _CACHE[next(iter(_CACHE))]
        _CACHE[key] = make()
    found: T = _CACHE[key]
    return found


_CACHE: dict[tuple[Any, ...], Any] = {}
