"""Criteria that models are trained and judged by: the loss, its slope, and what is counted.

A network has one, `network.criterion`, and every loop that trains or evaluates uses it: softmax
cross-entropy over one output a class, or a loss of `core.losses` of one output.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol, cast

from torch import Tensor
from torch.nn import functional as F

from corsage.core.configuration.key_groups import ModelKeys
from corsage.core.errors import ConfigError, ModelError
from corsage.core.losses import ScalarLoss, scalar_loss
from corsage.core.measures import ACCURACY, RMSE, Measure


class Sloped(Protocol):
    """A criterion that users can be trained on together."""

    def slope(self, outputs: Tensor, y: Tensor) -> Tensor:
        """Each sample's gradient with respect to its outputs: (users, batch, outputs).

        The labels are (users, batch, 1). The gradient is a tensor of its own, not a view.
        """


class Criterion(Sloped, Protocol):
    """The loss of outputs (batch, outputs) against labels (batch,).

    Labels are classes, whole numbers from 0, or with `numbers` float32 numbers.
    """

    @property
    def name(self) -> str:
        """As the key `loss` has it."""

    @property
    def numbers(self) -> bool:
        """Tell whether labels are numbers, not classes."""

    @property
    def measure(self) -> Measure:
        """The measure that users are judged by."""

    @property
    def wants(self) -> str:
        """In words, what the model must return for a sample."""

    def outputs(self, num_classes: int) -> int:
        """The number of outputs."""

    def mean(self, outputs: Tensor, y: Tensor) -> Tensor:
        """The mean loss of a batch, for autograd."""

    def each(self, outputs: Tensor, y: Tensor) -> Tensor:
        """The loss of each sample (batch,)."""

    def counted(self, outputs: Tensor, y: Tensor) -> Tensor:
        """The value that `measure` has of each sample: is it right, or the squared error."""

    def response(self, outputs: Tensor) -> Tensor:
        """Outputs on the scale of labels that are numbers."""

    def link(self, answers: Tensor) -> Tensor:
        """The outputs that give these answers."""


@dataclass(frozen=True)
class CrossEntropy:
    """Softmax cross-entropy: one output, a logit, a class."""

    name: str = "cross-entropy"
    numbers: bool = False
    measure: Measure = ACCURACY
    wants: str = "one logit a class"

    def outputs(self, num_classes: int) -> int:
        """A logit a class."""
        return num_classes

    def mean(self, outputs: Tensor, y: Tensor) -> Tensor:
        """The mean cross-entropy of a batch."""
        return F.cross_entropy(outputs, y)

    def each(self, outputs: Tensor, y: Tensor) -> Tensor:
        """The cross-entropy of each sample."""
        return F.cross_entropy(outputs, y, reduction="none")

    def slope(self, outputs: Tensor, y: Tensor) -> Tensor:
        """softmax - one-hot."""
        d = F.softmax(outputs, dim=2)
        return d.scatter_add_(2, y, d.new_full((1, 1, 1), -1.0).expand(y.shape))

    def counted(self, outputs: Tensor, y: Tensor) -> Tensor:
        """Tell whether the largest logit is the right one."""
        return outputs.argmax(1) == y

    def response(self, outputs: Tensor) -> Tensor:
        """The logits."""
        return outputs

    def link(self, answers: Tensor) -> Tensor:
        """The logits."""
        return answers


CROSS_ENTROPY = CrossEntropy()


@dataclass(frozen=True)
class OneOutput:
    """A loss phi(u, y) of the model's only output u."""

    loss: ScalarLoss

    @property
    def name(self) -> str:
        """As the key `loss` has it."""
        return self.loss.name

    @property
    def numbers(self) -> bool:
        """Tell whether labels are numbers and not classes."""
        return not self.loss.classes

    @property
    def measure(self) -> Measure:
        """Accuracy where labels are classes, RMSE where they are numbers."""
        return ACCURACY if self.loss.classes else RMSE

    @property
    def wants(self) -> str:
        """The output that the model must have, for an error message."""
        return f"one number a sample, for loss={self.name}"

    def outputs(self, num_classes: int) -> int:
        """One number, whatever the labels."""
        return 1

    def mean(self, outputs: Tensor, y: Tensor) -> Tensor:
        """The mean of phi(u, y) over a batch."""
        return self.each(outputs, y).mean()

    def each(self, outputs: Tensor, y: Tensor) -> Tensor:
        """phi(u, y) of each sample."""
        return self.loss.value(outputs[:, 0], y)

    def slope(self, outputs: Tensor, y: Tensor) -> Tensor:
        """phi'(u, y), the derivative in u."""
        return self.loss.slope(outputs, y)

    def counted(self, outputs: Tensor, y: Tensor) -> Tensor:
        """(mean(u) - y)^2 of numbers; of classes, whether u > 0 says the right one."""
        u = outputs[:, 0]
        return (self.loss.mean(u) - y) ** 2 if self.numbers else (u > 0) == (y == 1)

    def response(self, outputs: Tensor) -> Tensor:
        """The means that outputs stand for; of classes the scores."""
        return self.loss.mean(outputs) if self.numbers else outputs

    def link(self, answers: Tensor) -> Tensor:
        """The outputs of these means; of classes the scores."""
        return self.loss.link(answers) if self.numbers else answers


def criterion_of(keys: ModelKeys, num_classes: int) -> Criterion:
    """The criterion that `loss` names, for labels of so many classes; 0: labels are numbers.

    Refuses a loss that such labels cannot have.
    """
    name = keys.loss
    if name == "auto" and num_classes == 2 and keys.model == "linear":
        name = "logistic"  # one output: with two, a linear model has twice the numbers it needs
    elif name == "auto":
        name = "cross-entropy" if num_classes else "squared"
    loss = scalar_loss(name, keys.huber_delta)
    if num_classes == 0 and (loss is None or loss.classes):
        raise ConfigError(
            f"loss={name}: is for classes, the labels are numbers; set loss=squared or huber, or "
            "of counts poisson."
        )
    if num_classes and loss is not None and not loss.classes:
        raise ConfigError(
            f"loss={name}: is for numbers, the labels are {num_classes} classes; set "
            "loss=cross-entropy, or labels=numbers if numbers are what they are."
        )
    if loss is not None and num_classes > 2:
        raise ConfigError(
            f"loss={name}: is for two classes, the labels are {num_classes}; set "
            "loss=cross-entropy."
        )
    return CROSS_ENTROPY if loss is None else OneOutput(loss)


def output_of(answer: Any) -> Tensor:
    """The tensor in an answer of a forward: itself, its `logits`, or the first; else ModelError.

    Models of transformers return an object or a dictionary with `logits` in it, others a tuple
    whose first tensor is the output (the rest are auxiliary outputs, hidden states, attention).
    """
    if is_tensor(answer):
        return cast(Tensor, answer)
    found = answer.get("logits") if isinstance(answer, Mapping) else getattr(answer, "logits", None)
    if found is None and isinstance(answer, tuple | list) and answer:
        found = answer[0]
    if not is_tensor(found):
        kind = type(answer).__name__
        raise ModelError(
            f"forward returns a {kind}: neither a tensor, nor one in `logits`, nor as the first "
            "of several; return the logits alone."
        )
    return cast(Tensor, found)


def is_tensor(value: Any) -> bool:
    """Tell whether a value is a tensor, or stands for those of several users."""
    return hasattr(type(value), "__torch_function__")
