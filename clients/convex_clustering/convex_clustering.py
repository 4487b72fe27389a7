"""Convex clustering at the users: one proximal step a round, and answers about f_i.

Armacki et al. 2022, (16): a user solves argmin f_i(x) + kappa/2 |x - p|^2 for the p and kappa that
the server sends; it keeps nothing between rounds.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import numpy as np
import torch
from torch import Tensor

from corsage.clients.base import Got, Models, Sent
from corsage.clients.convex import PRECISIONS, Answer, ConvexClient
from corsage.core.arrays import Array, Floats, Ints
from corsage.core.asked import Takes, floats, number, text, whole
from corsage.core.keys import NoKeys
from corsage.networks.answers import output_of
from corsage.networks.batches import Examples
from corsage.solvers.convex_clustering.costs import user_terms
from corsage.solvers.losses.convex import LinearLosses, Losses, SmoothLosses
from corsage.solvers.losses.held_out import Fold


class ConvexClusteringClient(ConvexClient[NoKeys]):
    """The users of convex clustering."""

    takes = Takes(
        shared={"known": floats("K", "P")},
        rows={name: floats("P") for name in ("p", "x", "v", "slope")} | {"kappa": floats()},
        options={
            "ask": text(40),
            "fold": text(100),
            "fold-number": whole(high=1000),
            "fold-share": number(0, 1),
        },
        squares=4,
    )

    usual_scale = "mean"
    usual_question = "prox"

    @property
    def dtype(self) -> torch.dtype:
        """Torch models are solved in the precision that is asked for, too."""
        return PRECISIONS[self.task.model.precision]

    def answers(self) -> Mapping[str, Answer]:
        """What the server may ask."""
        return {
            "prox": self.prox,
            "gradient": self.gradient,
            "hessian": self.hessian,
            "minimise": self.minimise,
            "slack": self.slack,
            "facts": self.facts,
            "held_out": self.held_out,
        }

    def respond(self, got: Got) -> Sent:
        """Answer what is asked; by default a proximal step."""
        sent = super().respond(got)
        return replace(sent, metrics={"num-examples": self.sizes, **sent.metrics})

    def models(self, got: Got) -> Models:
        """Each user's model, as the server has it."""
        return Models(numbers(self.tensor(got.rows["x"])))

    def adapt(self, got: Got, data: Examples, epochs: int) -> Models:
        """A new user takes the federation's model that fits its own samples best."""
        known = self.tensor(got.shared["known"])
        alike = (model.expand(len(self.users), -1) for model in known)
        losses = torch.stack([self.problem.value(x) for x in alike])
        return Models(numbers(known[losses.argmin(0)]))

    # Answers.

    def prox(self, got: Got) -> Sent:
        """(16): x_i; a user without neighbours (kappa 0) minimises f_i alone."""
        p, kappa = self.tensor(got.rows["p"]), self.tensor(got.rows["kappa"])
        x = self.problem.prox(p, torch.where(kappa > 0, kappa, 1.0), start=p)
        if bool((kappa == 0).any()):
            best = self.problem.minimise(start=p)
            x = torch.where((kappa == 0)[:, None] & best.isfinite(), best, x)
        return Sent(rows={"x": doubles(x)})

    def gradient(self, got: Got) -> Sent:
        """f_i(x_i) and its gradient."""
        x = self.tensor(got.rows["x"])
        value = doubles(self.problem.value(x))
        return Sent(rows={"gradient": doubles(self.problem.gradient(x))}, metrics={"value": value})

    def hessian(self, got: Got) -> Sent:
        """The Hessian of f_i at x_i."""
        return Sent(rows={"hessian": doubles(self.problem.hessian(self.tensor(got.rows["x"])))})

    def minimise(self, got: Got) -> Sent:
        """argmin f_i(x) + <slope_i, x>, and whether there is one."""
        x = doubles(self.problem.minimise(self.tensor(got.rows["slope"])))
        found = np.asarray(np.isfinite(x).all(1))
        rows = {"x": np.where(found[:, None], x, 0.0)}
        return Sent(rows=rows, metrics={"found": found.astype(np.float64)})

    def slack(self, got: Got) -> Sent:
        """The two floats of the certificate, f_i(x) + <v, x> and its minimum; and f_i(x)."""
        x, v = (np.asarray(got.rows[name], np.float64) for name in ("x", "v"))
        at_x, least = user_terms(self.problem, x, v)
        found = np.isfinite(least)
        metrics = {
            "at_x": at_x,
            "least": np.where(found, least, 0.0),
            "found": found.astype(np.float64),
            "value": doubles(self.problem.value(self.tensor(x))),
        }
        return Sent(metrics=metrics)

    def facts(self, got: Got) -> Sent:
        """What is known of f_i: curvature and slope at 0, bounds, and whether it is coercive."""
        losses = self.problem
        zero = torch.zeros(len(self.users), losses.d, dtype=losses.dtype, device=losses.device)
        trace = losses.hessian(zero).diagonal(dim1=1, dim2=2).sum(1) / losses.d
        smooth = trace * losses.d if isinstance(losses, SmoothLosses) else losses.smoothness()
        metrics = {
            "curvature": trace,
            "slope": losses.gradient(zero).norm(dim=1),
            "smoothness": smooth,
            "convexity": losses.convexity(),
            "coercive": losses.coercive(),
        }
        return Sent(metrics={name: doubles(each) for name, each in metrics.items()})

    def held_out(self, got: Got) -> Sent:
        """The mean loss on the held-out samples, without ridge."""
        data, count = self.examples, len(self.users)
        each = doubles(
            self.network.criterion.each(self.model_outputs(self.tensor(got.rows["x"])), data.y)
        )
        left, owner = self.left_out(), np.repeat(np.arange(count), data.sizes)
        sums = np.bincount(owner[left], each[left], count)
        counts = np.bincount(owner[left], minlength=count)
        found = (counts > 0).astype(np.float64)
        return Sent(metrics={"value": sums / np.maximum(counts, 1), "found": found})

    # The losses.

    @property
    def problem(self) -> Losses:
        """f_i, on the samples that are not held out."""
        if not self.convex:
            return self.prepared((self.fold, "smooth"), self.smooth_losses)
        if self.fold is None:
            return self.losses
        return self.prepared((self.fold, "linear"), self.linear_losses_without)

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

    def left_out(self) -> Ints:
        """The held-out samples of all users, as their numbers among all samples."""
        fold, data = self.fold, self.examples
        if fold is None:
            return np.empty(0, np.int64)
        parts = [
            start + fold.held_out(self.task.seed, user, int(size))
            for user, start, size in zip(self.users, data.offsets, data.sizes, strict=True)
        ]
        return np.concatenate(parts)

    def kept(self) -> tuple[Ints, Ints]:
        """The samples that are not held out, and whose they are."""
        sizes = self.examples.sizes
        kept = np.setdiff1d(np.arange(int(sizes.sum())), self.left_out())
        return kept, np.repeat(np.arange(len(sizes)), sizes)[kept]

    def linear_losses_without(self) -> LinearLosses:
        """f_i of a linear model on the samples that are left."""
        data, (kept, owner) = self.examples, self.kept()
        rows = torch.from_numpy(kept).to(data.x.device)
        sizes = np.bincount(owner, minlength=len(self.users))
        return self.losses_on(Examples(data.x[rows], data.y[rows], sizes))

    def smooth_losses(self) -> SmoothLosses:
        """f_i of a torch model, by autograd: the mean over its samples, and the ridge."""
        data, (kept, owner) = self.examples, self.kept()
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
            return self.losses.predict(x)[:, None]
        data = self.examples
        inputs = torch.split(data.x.to(x.dtype), data.sizes.tolist())
        parts = zip(x, inputs, strict=True)
        return torch.cat([self.module_outputs(model, part) for model, part in parts])

    def module_outputs(self, x: Tensor, inputs: Tensor) -> Tensor:
        """The module's outputs with x in the place of its parameters."""
        network = self.network
        named = {b.name: x[b.where].view(b.shape) for b in network.blocks}
        return output_of(torch.func.functional_call(network.module, named, (inputs,)))


def numbers(tensor: Tensor) -> Array:
    """A tensor as an array."""
    return tensor.cpu().numpy()


def doubles(tensor: Tensor) -> Floats:
    """A tensor as an array of float64."""
    return np.asarray(tensor.double().cpu().numpy())
