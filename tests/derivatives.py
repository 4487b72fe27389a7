"""Derivatives of losses of many users by autograd, of their values alone."""

from __future__ import annotations

import torch


def derivatives(losses, x):
    """Gradients (n, d) and Hessians (n, d, d) at x."""
    x = x.clone().requires_grad_()
    slopes = torch.autograd.grad(losses.value(x).sum(), x, create_graph=True)[0]
    columns = [
        torch.autograd.grad(slopes[:, k].sum(), x, retain_graph=True)[0] for k in range(losses.d)
    ]
    return slopes.detach(), torch.stack(columns, 1)
