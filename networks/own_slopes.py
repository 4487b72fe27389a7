"""Losses of users' own (`Client.loss`) where several users are trained together.

The model is run once for all of them, their losses one after the other: each is any function of
its user's features, outputs and labels.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from corsage.networks.batches import Loss


def slopes(
    losses: Sequence[Loss],
    sizes: Sequence[int],
    features: Tensor,
    outputs: Tensor,
    labels: Tensor,
    scale: float | Tensor,
) -> tuple[Tensor | None, Tensor]:
    """Gradients of scale * each user's loss in its features and outputs (users, batch, ...).

    Samples that only fill a batch up have none; None: no loss is one of features.
    """
    f, h = (t.detach().requires_grad_() for t in (features, outputs))
    with torch.enable_grad():
        own = zip(losses, sizes, f, h, labels.squeeze(-1), strict=True)
        each = torch.stack([loss(a[:n], b[:n], y[:n]) for loss, n, a, b, y in own])
        of_features, of_outputs = torch.autograd.grad(
            (each * scale).sum(), (f, h), allow_unused=True
        )
    return of_features, torch.zeros_like(h) if of_outputs is None else of_outputs
