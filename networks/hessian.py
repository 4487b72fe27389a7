"""A Hessian's product with a vector, by autograd."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import torch
from torch import Tensor

from corsage.core.errors import ModelError
from corsage.core.text import line

FLAT = "the gradient of the model has no derivative of its own"


def hessian_product(
    loss: Tensor, at: Sequence[Tensor], directions: Sequence[Tensor]
) -> list[Tensor]:
    """nabla^2 loss v, by the gradient of nabla loss . v."""
    first = torch.autograd.grad(loss, at, create_graph=True, allow_unused=True)
    pairs = [(g, v) for g, v in zip(first, directions, strict=True) if g is not None]
    if not all(g.requires_grad for g, _ in pairs):
        raise RuntimeError(FLAT)
    dot = torch.stack([(g * v).sum() for g, v in pairs]).sum()
    second = torch.autograd.grad(dot, at, allow_unused=True)
    if any(h is None and g is not None for h, g in zip(second, first, strict=True)):
        raise RuntimeError(FLAT)
    found = zip(second, directions, strict=True)
    return [torch.zeros_like(v) if h is None else h for h, v in found]


@contextmanager
def second_derivatives() -> Iterator[None]:
    """Say in one line if a model has an operation that has none."""
    try:
        yield
    except (NotImplementedError, RuntimeError) as error:
        if "derivative" not in str(error) and "differentiate twice" not in str(error):
            raise
        raise ModelError(
            f"a Hessian-vector product: {line(error)}; take perfedavg-variant=hf or fo."
        ) from error
