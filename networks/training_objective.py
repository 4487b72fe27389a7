"""Objectives other than the plain criterion: smoothed labels, weighted classes.

With weights w_c and smoothing eps over K classes the loss of a sample (z, y) is, as torch's
cross-entropy has it,

    (1 - eps) w_y (-log p_y) + eps / K sum_c w_c (-log p_c),    p = softmax(z),

and that of a batch is the sum over its samples by sum_i w_{y_i}. A batch in which all weigh 0 has
none (torch's is 0/0): nothing is learnt from it. Models are judged by the plain criterion all the
same.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor
from torch.nn import functional as F

from corsage.core.configuration.train_keys import LOSS, TrainKeys
from corsage.core.errors import ModelError
from corsage.networks.batches import Examples
from corsage.networks.criterion import CROSS_ENTROPY, Criterion


@dataclass(frozen=True)
class Objective:
    """The loss of the users of a node.

    Parameters
    ----------
    smoothing : eps.
    weights : w_c, (users, classes); None: all are 1.
    """

    smoothing: float = 0.0
    weights: Tensor | None = None

    def pick(self, users: Sequence[int]) -> Objective:
        """That of some of the users, in this order."""
        return self if self.weights is None else replace(self, weights=self.weights[list(users)])

    def mean_of(self, user: int) -> Callable[[Tensor, Tensor], Tensor]:
        """One user's mean loss of a batch (outputs, labels), for autograd."""
        weight = None if self.weights is None else self.weights[user]
        eps = self.smoothing

        def mean(outputs: Tensor, y: Tensor) -> Tensor:
            if weight is None:
                return F.cross_entropy(outputs, y, label_smoothing=eps)
            own = weight.to(outputs.dtype)
            total = F.cross_entropy(outputs, y, own, label_smoothing=eps, reduction="sum")
            return total * inverse(own[y].sum())

        return mean

    def each(self, outputs: Tensor, y: Tensor) -> Tensor:
        """The loss of each sample (users, batch, 1), of outputs as `slope` takes them."""
        log_p, eps, classes = F.log_softmax(outputs, dim=2), self.smoothing, outputs.shape[2]
        w = torch.ones_like(log_p) if self.weights is None else self.weights[: len(y), None]
        weighed = -(w * log_p)
        return (1.0 - eps) * weighed.gather(2, y) + eps / classes * weighed.sum(2, keepdim=True)

    def slope(self, outputs: Tensor, y: Tensor) -> Tensor:
        """Each sample's gradient in its outputs (users, batch, classes); labels (users, batch, 1).

        It is that of the sample's own loss: `share` says what it counts for in its batch.
        """
        p, eps, classes = F.softmax(outputs, dim=2), self.smoothing, outputs.shape[2]
        if self.weights is None:
            p.sub_(eps / classes)
            return p.scatter_add_(2, y, p.new_full((1, 1, 1), eps - 1.0).expand(y.shape))
        w = self.weights[: len(outputs)].unsqueeze(1)  # (users, 1, classes)
        own = (1.0 - eps) * w.expand(-1, y.shape[1], -1).gather(2, y)
        p.mul_(own + eps / classes * w.sum(2, keepdim=True)).sub_(eps / classes * w)
        return p.scatter_add_(2, y, -own)

    def share(self, y: Tensor, share: float | Tensor) -> float | Tensor:
        """The share of each sample: 1 by the weights of its batch; 0 where `share` is."""
        if self.weights is None:
            return share
        w = self.weights[: len(y)].unsqueeze(1).expand(-1, y.shape[1], -1).gather(2, y)
        there = (share > 0).to(w.dtype) if isinstance(share, Tensor) else torch.ones_like(w)
        return there * inverse((w * there).sum(1, keepdim=True))


def inverse(weight: Tensor) -> Tensor:
    """1 by a batch's weight, and 0 of one that weighs nothing."""
    return torch.where(weight > 0, 1.0 / weight, 0.0)


def with_objective(
    data: Examples, keys: TrainKeys, criterion: Criterion, classes: int, algorithm: str
) -> Examples:
    """Examples that are trained on by the keys' objective; an algorithm may have its own loss."""
    labels = (data.user(u)[1] for u in range(len(data)))
    aim = objective_of(keys, criterion, classes, labels)
    if data.losses is not None:
        named = ", ".join(f"{name}={value}" for name, value in keys.changed(LOSS).items())
        raise ModelError(f"{named}: {algorithm} has a loss of its own; leave it out.")
    return replace(data, objective=aim)


def objective_of(
    keys: TrainKeys, criterion: Criterion, classes: int, labels: Iterable[Tensor]
) -> Objective | None:
    """The objective by the keys, for users with these labels; None: the criterion."""
    if not keys.class_weights and not keys.label_smoothing:
        return None
    check_loss(keys, criterion)
    weights = [class_weights(keys, classes, own) for own in labels] if keys.class_weights else []
    return Objective(keys.label_smoothing, torch.stack(weights) if weights else None)


def check_loss(keys: TrainKeys, criterion: Criterion) -> None:
    """Refuse keys of cross-entropy for another loss."""
    if criterion is not CROSS_ENTROPY and (
        set_ := keys.changed(("label_smoothing", "class_weights"))
    ):
        name, value = next(iter(set_.items()))
        raise ModelError(
            f"{name}={value}: it is for loss=cross-entropy, the model is trained on "
            f"loss={criterion.name}; leave it out."
        )


def class_weights(keys: TrainKeys, classes: int, labels: Tensor) -> Tensor:
    """w_c: as they are said, or n / (K n_c) over the K classes that there are among n labels."""
    if said := keys.numbers_of_classes:
        if len(said) != classes:
            raise ModelError(
                f"class-weights: {len(said)} weights are given, there are {classes} classes."
            )
        found = torch.tensor(said)
        if not found[labels.cpu()].any():
            raise ModelError("class-weights: all classes that the user has weigh 0.")
        return found.to(labels.device)
    counts = torch.bincount(labels, minlength=classes).to(torch.float32)
    there = counts > 0
    return torch.where(there, len(labels) / (there.sum() * counts.clamp(min=1)), 0.0)
