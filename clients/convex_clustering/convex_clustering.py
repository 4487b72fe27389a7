"""Convex clustering at the users: one proximal step a round, and answers about f_i.

Armacki et al. 2022, (16): a user solves argmin f_i(x) + kappa/2 |x - p|^2 for the p and kappa that
the server sends; it keeps nothing between rounds.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from corsage.clients.base import Evaluation, Fit
from corsage.clients.convex import ConvexClient, cached
from corsage.solvers.convex_clustering.costs import user_terms
from corsage.solvers.losses.convex import LinearLosses, Losses, SmoothLosses
from corsage.solvers.losses.held_out import Fold

Answer = tuple[dict[str, NDArray[Any]], dict[str, NDArray[Any]]]
"""Rows, one a user, and numbers, one a user."""


class ConvexClusteringClient(ConvexClient):
    """The users of convex clustering."""

    averaged = False
    usual_scale = "mean"

    @property
    def dtype(self) -> torch.dtype:
        """Torch models are solved in the precision that is asked for, too."""
        return getattr(torch, self.task.model.precision)  # type: ignore[no-any-return]

    def fit(self, parameters: list[NDArray[Any]], config: dict[str, Any]) -> Fit:
        """Answer what is asked; by default a proximal step."""
        rows, numbers = getattr(self, str(config.get("ask", "prox")))()
        self.returns = tuple(rows)
        sizes = np.asarray(self.sizes)
        return list(rows.values()), int(sizes.sum()), {"num-examples": sizes, **numbers}

    def evaluate(self, parameters: list[NDArray[Any]], config: dict[str, Any]) -> Evaluation:
        """Each user's model, as the server has it."""
        return self.scored(self.tensor(self.rows["x"]))

    def adapt(self, parameters: list[NDArray[Any]], config: dict[str, Any]) -> Evaluation:
        """A new user takes the federation's model that fits its own samples best."""
        known = self.tensor(self.rows["known"][0])
        losses = torch.stack([self.problem.value(self._alike(model)) for model in known])
        return self.scored(known[losses.argmin(0)])

    # What the server may ask.

    def prox(self) -> Answer:
        """(16): x_i; a user without neighbours (kappa 0) minimises f_i alone."""
        p, kappa = self.tensor(self.rows["p"]), self.tensor(self.rows["kappa"])
        x = self.problem.prox(p, torch.where(kappa > 0, kappa, 1.0), start=p)
        if bool((kappa == 0).any()):
            own = self.problem.minimise(start=p)
            x = torch.where((kappa == 0)[:, None] & own.isfinite(), own, x)
        return {"x": x.double().cpu().numpy()}, {}

    def gradient(self) -> Answer:
        """f_i(x_i) and its gradient."""
        x = self.tensor(self.rows["x"])
        numbers = {"value": self.problem.value(x).double().cpu().numpy()}
        return {"gradient": self.problem.gradient(x).double().cpu().numpy()}, numbers

    def hessian(self) -> Answer:
        """The Hessian of f_i at x_i."""
        x = self.tensor(self.rows["x"])
        return {"hessian": self.problem.hessian(x).double().cpu().numpy()}, {}

    def minimise(self) -> Answer:
        """argmin f_i(x) + <slope_i, x>, and whether there is one."""
        x = self.problem.minimise(self.tensor(self.rows["slope"])).double().cpu().numpy()
        found = np.isfinite(x).all(1)
        return {"x": np.where(found[:, None], x, 0.0)}, {"found": found.astype(np.float64)}

    def slack(self) -> Answer:
        """The two floats of the certificate, f_i(x) + <v, x> and its minimum; and f_i(x)."""
        x, v = (np.asarray(self.rows[name], np.float64) for name in ("x", "v"))
        here, least = user_terms(self.problem, x, v)
        found = np.isfinite(least)
        value = self.problem.value(self.tensor(x)).double().cpu().numpy()
        return {}, {
            "here": here,
            "least": np.where(found, least, 0.0),
            "found": found.astype(np.float64),
            "value": value,
        }

    def facts(self) -> Answer:
        """What is known of f_i: curvature and slope at 0, bounds, and whether it is coercive."""
        losses = self.problem
        zero = torch.zeros(len(self.users), losses.d, dtype=losses.dtype, device=losses.device)
        trace = losses.hessian(zero).diagonal(dim1=1, dim2=2).sum(1) / losses.d
        smooth = trace * losses.d if isinstance(losses, SmoothLosses) else losses.smoothness()
        numbers = {
            "curvature": trace,
            "slope": losses.gradient(zero).norm(dim=1),
            "smoothness": smooth,
            "convexity": losses.convexity(),
            "coercive": losses.coercive(),
        }
        return {}, {name: each.double().cpu().numpy() for name, each in numbers.items()}

    def held_out(self) -> Answer:
        """The mean loss on the held-out samples, without ridge."""
        x = self.tensor(self.rows["x"])
        scores = self.outputs(x)
        each = self.network.criterion.each(scores, self.labels).double().cpu().numpy()
        left, owner = self._left_out(), np.repeat(np.arange(len(self.users)), self.sizes)
        sums = np.bincount(owner[left], each[left], len(self.users))
        counts = np.bincount(owner[left], minlength=len(self.users))
        found = (counts > 0).astype(np.float64)
        return {}, {"value": sums / np.maximum(counts, 1), "found": found}

    # The losses.

    @property
    def problem(self) -> Losses:
        """f_i, on the samples that are not held out."""
        fold = self._fold
        if not self.convex:
            return cached((*self._key, fold, "smooth"), self._smooth)
        if fold is None:
            return self.losses
        return cached((*self._key, fold), self._without)

    @property
    def labels(self) -> Tensor:
        """The training labels of all users, as the criterion takes them."""
        return self._prepared[1]

    @property
    def _prepared(self) -> tuple[Tensor, Tensor]:
        """All users' inputs and labels."""

        def both() -> tuple[Tensor, Tensor]:
            data = self.train_data()
            return data.x, data.y

        return cached((*self._key, "inputs"), both)

    def outputs(self, x: Tensor) -> Tensor:
        """The model's outputs on all training samples, each under its user's x_i."""
        if self.convex:
            return self.losses.predict(x)[:, None]
        function = self._function
        inputs = torch.split(self._prepared[0].to(x.dtype), self.sizes.tolist())
        return torch.cat([function(row, part) for row, part in zip(x, inputs, strict=True)])

    def _function(self, x: Tensor, inputs: Tensor) -> Tensor:
        """The module's outputs with x in the place of its parameters."""
        network = self.network
        named = {b.name: x[b.where].view(b.shape) for b in network.blocks}
        outputs: Tensor = torch.func.functional_call(network.module, named, (inputs,))
        return outputs

    def _smooth(self) -> SmoothLosses:
        """f_i of a torch model, by autograd: the mean over its samples, and the ridge."""
        rows, sizes = self._prepared, self.sizes.tolist()
        kept = np.setdiff1d(np.arange(int(self.sizes.sum())), self._left_out())
        owner = np.repeat(np.arange(len(sizes)), sizes)
        inputs = rows[0].to(self.dtype)
        ridge = self.task.model.ridge  # on biases too: softmax takes no notice of a common shift
        mean = self.scale == "mean"

        def loss(user: int, x: Tensor) -> Tensor:
            own = torch.from_numpy(kept[owner[kept] == user])
            losses = self.network.criterion.each(self._function(x, inputs[own]), rows[1][own])
            return (losses.mean() if mean else losses.sum()) + ridge * x.square().sum() / 2

        return SmoothLosses(partial(loss), len(sizes), self.network.whole.stop, dtype=self.dtype)

    def _alike(self, model: Tensor) -> Tensor:
        return model.expand(len(self.users), -1)

    @property
    def _fold(self) -> Fold | None:
        options = self.task.options
        if "fold" not in options:
            return None
        number, share = int(options["fold-number"]), float(options["fold-share"])
        return Fold(str(options["fold"]), number, share)

    def _left_out(self) -> NDArray[np.int64]:
        """The held-out samples of all users."""
        fold = self._fold
        if fold is None:
            return np.empty(0, np.int64)
        starts = np.cumsum(self.sizes) - self.sizes
        parts = [
            start + fold.held_out(self.task.seed, user, int(size))
            for user, start, size in zip(self.users, starts, self.sizes, strict=True)
        ]
        return np.concatenate(parts)

    def _without(self) -> LinearLosses:
        """f_i on the samples that are left."""
        data, left = self.train_data(), self._left_out()
        kept = np.setdiff1d(np.arange(len(data.y)), left)
        owner = np.repeat(np.arange(len(self.users)), self.sizes)
        counts = np.bincount(owner[kept], minlength=len(self.users))
        rows = torch.from_numpy(kept).to(data.x.device)
        return self._losses(type(data)(data.x[rows], data.y[rows], counts))


def is_convex_module(module: nn.Module) -> bool:
    """Whether a module is one linear layer, after which every loss here is convex."""
    layers = [layer for layer in module.modules() if not list(layer.children())]
    return all(isinstance(layer, nn.Flatten | nn.Linear | nn.Identity) for layer in layers) and (
        sum(isinstance(layer, nn.Linear) for layer in layers) == 1
    )
