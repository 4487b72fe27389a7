"""The base of clients with convex losses: linear models, all users at once."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import cached_property
from typing import Any, ClassVar, TypeVar

import numpy as np
import torch
from torch import Tensor

from corsage.clients.base import Client, Got, K, Models, Sent
from corsage.core.arrays import Array, Ints
from corsage.core.cache import Cache
from corsage.core.errors import UserError
from corsage.core.losses import scalar_loss
from corsage.networks.batches import Examples
from corsage.networks.training import Types
from corsage.networks.user_scores import Arithmetic, linear_outputs_of_each
from corsage.solvers.losses.linear_losses import LinearLosses
from corsage.solvers.losses.ragged import Scale
from corsage.solvers.losses.softmax import SoftmaxLosses

ModelLosses = LinearLosses | SoftmaxLosses
T = TypeVar("T")
Answer = Callable[[Got], Sent]
PRECISIONS = {"float64": torch.float64, "float32": torch.float32}
SUM_SCALE: Scale = "sum"
MEAN_SCALE: Scale = "mean"


class ConvexClient(Client[K]):
    """A client whose users' losses f_i are prepared once a node, and who answers about them.

    Parameters (of the class)
    -------------------------
    usual_scale : what `loss-scale=auto` is: f_i as the sum or the mean of the samples' losses.
    usual_question : what is asked where a message does not say.
    """

    by_arithmetic = True
    usual_scale: ClassVar[Scale] = "sum"
    usual_question: ClassVar[str] = "step"

    def answers(self) -> Mapping[str, Answer]:
        """The questions that the server may ask, and who answers: nothing else is ever called."""
        raise NotImplementedError

    def respond(self, got: Got) -> Sent:
        """Answer what is asked."""
        asked, answers = str(got.options.get("ask", self.usual_question)), self.answers()
        if asked not in answers:
            raise UserError(self.users[0], "train", f"no answer to the question {asked[:40]!r}")
        return answers[asked](got)

    @property
    def sizes(self) -> Ints:
        """Training samples of each user: of a new one as many as it may use."""
        places, limit = self.data.places(self.users), int(self.task.options.get("adapt-samples", 0))
        return self.prepared(
            "sizes", lambda: np.minimum(self.data.train_sizes[places], limit or np.inf).astype(int)
        )

    @property
    def convex(self) -> bool:
        """Tell whether the model is linear."""
        return self.task.model.model == "linear"

    @property
    def losses(self) -> ModelLosses:
        """f_i of all users, prepared once a node."""
        return self.prepared("train", lambda: self.losses_on(self.train_data(self.limits)))

    @property
    def limits(self) -> Got:
        """The limit of the training samples of new users."""
        return Got(options=self.task.options)

    def prepared(self, what: Any, make: Callable[[], T]) -> T:
        """Something that is made once for these users under these settings."""
        task, limit = self.task, self.task.options.get("adapt-samples", 0)
        kind = task.model, self.scale, task.seed, self.network.device  # methods differ in the scale
        return self._own.get((*kind, limit, what), make)

    @cached_property
    def _own(self) -> Cache:
        """The cache of these users: the names of thousands are hashed once a message."""
        return self.cache.get((id(self.data), self.names), Cache)

    @property
    def dtype(self) -> torch.dtype:
        """The type that convex losses are computed in; torch models are float32."""
        return PRECISIONS[self.task.model.precision] if self.convex else torch.float32

    @property
    def types(self) -> Types:
        """Samples of convex losses are held as they are computed with."""
        return (self.dtype, self.dtype) if self.convex else super().types

    @property
    def scale(self) -> Scale:
        """The scale of f_i: a sum or a mean."""
        asked = {"sum": SUM_SCALE, "mean": MEAN_SCALE}
        return asked.get(self.task.model.loss_scale, self.usual_scale)

    def losses_on(self, data: Examples) -> ModelLosses:
        """f_i on some examples of every user: of one output, or of one for each class."""
        keys = self.task.model
        loss = scalar_loss(self.network.criterion.name, keys.huber_delta)
        samples = data.x.flatten(1).to(self.dtype), data.y, data.sizes
        more: Any = {"scale": self.scale, "ridge": keys.ridge, "intercept": keys.intercept}
        if loss is None:
            return SoftmaxLosses(*samples, classes=self.task.num_classes, **more)
        return LinearLosses(*samples, loss=loss, **more)

    def test_data(self) -> Examples:
        """The examples that models are judged on, made once where the losses are convex."""
        usual = super().test_data
        return self.prepared("test", usual) if self.convex else usual()

    def outputs(self, models: Models, data: Examples) -> Tensor:
        """The outputs of models; of convex ones in the precision of the keys."""
        if not self.convex or models.spec is not None:
            return super().outputs(models, data)
        if self.alone:
            return self.outputs_alone(models, data)
        there = np.flatnonzero(data.sizes)  # users without test samples have no rows to predict
        own = replace(data, sizes=data.sizes[there])
        test = self.prepared("test losses", lambda: self.losses_on(own))
        whole = models.whole if models.whole.ndim == 1 else models.whole[there]
        found = test.predict(self.tensor(whole))
        return found if found.ndim == 2 else found[:, None]

    def outputs_alone(self, models: Models, data: Examples) -> Tensor:
        """The outputs on all users' samples, as each user's alone."""
        whole = models.whole
        if models.heads is not None or models.picked is not None:
            whole = np.stack(list(models.each(len(self.users))))
        each = np.broadcast_to(whole, (len(self.users), whole.shape[-1]))
        outputs = self.network.criterion.outputs(self.task.num_classes)
        return linear_outputs_of_each(self.tensor(each), data.x, data.sizes, outputs)

    @property
    def arithmetic(self) -> Arithmetic:
        """Convex models are computed in the precision of the keys."""
        form = super().arithmetic
        return replace(form, linear=self.task.model.precision) if self.convex else form

    def tensor(self, array: Array) -> Tensor:
        """An array as the losses compute with it."""
        return torch.from_numpy(np.array(array)).to(self.network.device, self.dtype)


def one_output(losses: ModelLosses) -> LinearLosses:
    """Losses of one output, where those of several classes were refused before."""
    assert isinstance(losses, LinearLosses)
    return losses
