"""Convex losses, on all samples and on those that a fold leaves in, of all users at once."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from corsage.clients.convex import PRECISIONS, ConvexClient, ModelLosses
from corsage.core.arrays import Array, Floats, Ints
from corsage.core.keys import NoKeys
from corsage.networks.batches import Examples
from corsage.networks.criterion import output_of
from corsage.solvers.losses.convex import SmoothLosses
from corsage.solvers.losses.held_out import Fold


class FoldedClient(ConvexClient[NoKeys]):
    """A client who knows its users' losses on all samples, and on those that a fold leaves in."""

    usual_scale = "mean"

    @property
    def dtype(self) -> torch.dtype:
        """Torch models are solved in the precision that is asked for, too."""
        return PRECISIONS[self.task.model.precision]

    @property
    def problem(self) -> ModelLosses | SmoothLosses:
        """f_i, on the samples that are not held out in this message."""
        return self.on(self.fold)

    def on(self, fold: Fold | None) -> ModelLosses | SmoothLosses:
        """f_i, on the samples that a fold leaves in."""
        if not self.convex:
            return self.prepared((fold, "smooth"), lambda: self.smooth_losses(fold))
        if fold is None:
            return self.losses
        return self.prepared((fold, "linear"), lambda: self.linear_losses_without(fold))

    @property
    def examples(self) -> Examples:
        """All users' training samples."""
        return self.prepared("examples", lambda: self.train_data(self.limits))

    @property
    def fold(self) -> Fold | None:
        """The samples that are held out in this message, if any are."""
        options = self.task.options
        if "fold" not in options:
            return None
        number, share = int(options["fold-number"]), float(options["fold-share"])
        return Fold(str(options["fold"]), number, share)

    def left_out(self, fold: Fold | None) -> Ints:
        """The held-out samples of all users, as their numbers among all samples."""
        return self.prepared((fold, "left out"), lambda: self.drawn_out(fold))

    def drawn_out(self, fold: Fold | None) -> Ints:
        """These samples, drawn."""
        data = self.examples
        if fold is None:
            return np.empty(0, np.int64)
        parts = [
            start + fold.held_out(self.task.seed, user, int(size))
            for user, start, size in zip(self.users, data.offsets, data.sizes, strict=True)
        ]
        return np.concatenate(parts)

    def kept(self, fold: Fold | None) -> tuple[Ints, Ints]:
        """The samples that are not held out, and whose they are."""
        sizes = self.examples.sizes
        kept = np.setdiff1d(np.arange(int(sizes.sum())), self.left_out(fold))
        return kept, np.repeat(np.arange(len(sizes)), sizes)[kept]

    def linear_losses_without(self, fold: Fold) -> ModelLosses:
        """f_i of a linear model on the samples that are left."""
        data, (kept, owner) = self.examples, self.kept(fold)
        rows = torch.from_numpy(kept).to(data.x.device)
        sizes = np.bincount(owner, minlength=len(self.users))
        return self.losses_on(Examples(data.x[rows], data.y[rows], sizes))

    def smooth_losses(self, fold: Fold | None) -> SmoothLosses:
        """f_i of a torch model, by autograd: the mean over its samples, and the ridge."""
        data, (kept, owner) = self.examples, self.kept(fold)
        inputs, criterion, mean = (
            data.x.to(self.dtype),
            self.network.criterion,
            self.scale == "mean",
        )
        ridge = self.task.model.ridge  # on biases too: softmax takes no notice of a common shift

        def loss(user: int, x: Tensor) -> Tensor:
            own = torch.from_numpy(kept[owner == user])
            losses = criterion.each(self.module_outputs(x, inputs[own]), data.y[own])
            return (losses.mean() if mean else losses.sum()) + ridge * x.square().sum() / 2

        return SmoothLosses(loss, len(self.users), self.network.whole.stop, dtype=self.dtype)

    def model_outputs(self, x: Tensor) -> Tensor:
        """The model's outputs on all training samples, each under its user's x_i."""
        if self.convex:
            scores = self.losses.predict(x)
            return scores if scores.ndim == 2 else scores[:, None]
        data = self.examples
        inputs = torch.split(data.x.to(x.dtype), data.sizes.tolist())
        parts = zip(x, inputs, strict=True)
        return torch.cat([self.module_outputs(model, part) for model, part in parts])

    def module_outputs(self, x: Tensor, inputs: Tensor) -> Tensor:
        """The module's outputs with x in the place of its parameters."""
        network = self.network
        named = {b.name: x[b.where].view(b.shape) for b in network.blocks}
        return output_of(torch.func.functional_call(network.module, named, (inputs,)))

    def lost(self, x: Tensor, fold: Fold | None) -> Floats:
        """The mean loss of x_i on the samples of a fold, without ridge; NaN where it has none."""
        data, count = self.examples, len(self.users)
        each = doubles(self.network.criterion.each(self.model_outputs(x), data.y))
        left, owner = self.left_out(fold), np.repeat(np.arange(count), data.sizes)
        sums = np.bincount(owner[left], each[left], count)
        counts = np.bincount(owner[left], minlength=count)
        return np.where(counts > 0, sums / np.maximum(counts, 1), np.nan)


def numbers(tensor: Tensor) -> Array:
    """A tensor as an array."""
    return tensor.cpu().numpy()


def doubles(tensor: Tensor) -> Floats:
    """A tensor as an array of float64."""
    return np.asarray(tensor.double().cpu().numpy())
