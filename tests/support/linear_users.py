"""Losses of linear models of some random users, and what they are compared with."""

from __future__ import annotations

from collections import Counter

import numpy as np
import torch

from corsage.core.losses import LOGISTIC, SQUARED_HINGE, SQUARED_LOSS, huber
from corsage.solvers.losses.linear_block import Block
from corsage.solvers.losses.linear_losses import LinearLosses

DELTA = 0.6
LOSSES = {loss.name: loss for loss in (LOGISTIC, SQUARED_HINGE, SQUARED_LOSS, huber(DELTA))}
SIZES = np.array([5, 1, 12, 3, 30, 7, 5, 1])


def build(name, seed=0, sizes=SIZES, p=2, dtype=torch.float64, **options):
    """Data of random users; the classes depend on the features, with much noise."""
    generator = np.random.default_rng(seed)
    features = generator.normal(size=(int(np.sum(sizes)), p))
    labels = features.sum(1) + 2 * generator.normal(size=len(features))
    if LOSSES[name].classes:
        labels = (labels > 0).astype(np.int64)
    tensors = torch.from_numpy(features).to(dtype), torch.from_numpy(labels)
    options = {"scale": "sum", **options}
    return LinearLosses(*tensors, np.asarray(sizes), loss=LOSSES[name], **options)


def models(losses, seed=1, size=1.0):
    x = size * np.random.default_rng(seed).normal(size=(losses.n, losses.d))
    return torch.from_numpy(x).to(losses.dtype)


def users(losses):
    """Each user's rows, with the 1 of the intercept, and labels."""
    a = losses.features.numpy()
    if losses.intercept:
        a = np.column_stack([a, np.ones(len(a))])
    ends = np.cumsum(losses.counts)[:-1]
    return list(zip(np.split(a, ends), np.split(losses.labels.numpy(), ends), strict=True))


def derivatives(losses, x):
    """Gradients (n, d) and Hessians (n, d, d) at x, by autograd of the values alone."""
    x = x.clone().requires_grad_()
    slopes = torch.autograd.grad(losses.value(x).sum(), x, create_graph=True)[0]
    columns = [
        torch.autograd.grad(slopes[:, k].sum(), x, retain_graph=True)[0] for k in range(losses.d)
    ]
    return slopes.detach(), torch.stack(columns, 1)


def counted_passes(monkeypatch):
    """How often the rows of blocks of users are looked at from now on, by what for."""
    seen: Counter[str] = Counter()

    def watch(name, before):
        def counted(self, x):
            seen[name] += 1
            return before(self, x)

        monkeypatch.setattr(Block, name, counted)

    for name in ("value", "gradient", "hessian"):
        watch(name, getattr(Block, name))
    return seen
