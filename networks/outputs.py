"""Outputs of a model for one user's samples: the one function that judges it and predicts.

Sums of floats depend on their order, and that on shapes and on the number of threads. So whoever is
to get the very numbers of an evaluation calls this on the same samples, user by user.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from numpy.typing import NDArray
from torch import Tensor

from corsage.core.arrays import Ints
from corsage.networks.network import Network

CHUNK = {True: 128, False: 1024}
"""Examples in a piece: of images, and of anything else."""


@dataclass(frozen=True)
class Arithmetic:
    """The arithmetic of a prediction.

    Parameters
    ----------
    inputs : the type of a sample's numbers as they come into the model.
    linear : that of a convex linear model, which is computed by itself; empty for torch's modules.
    """

    inputs: str = "float32"
    linear: str = ""


@torch.no_grad()
def outputs_of(network: Network, model: NDArray[Any], x: Tensor) -> Tensor:
    """A whole model's outputs on one user's samples (n, outputs)."""
    network.train(False)
    network.set(network.whole, model)
    return chunks(network.forward, x.clone())  # where it begins in memory is always alike


@torch.no_grad()
def linear_outputs(model: Tensor, x: Tensor) -> Tensor:
    """<w, a> + b of one user's samples (n, 1), where the model has one number more than these."""
    a = x.flatten(1).to(model.dtype)
    if len(model) > a.shape[1]:
        a = torch.cat([a, a.new_ones(len(a), 1)], 1)
    return (a * model).sum(1, keepdim=True)


def linear_outputs_of_each(models: Tensor, x: Tensor, sizes: Ints) -> Tensor:
    """The same of many users' samples, one user after the other; each row is the very same sum."""
    rows = torch.repeat_interleave(torch.from_numpy(sizes).to(x.device))
    a = x.flatten(1).to(models.dtype)
    if models.shape[1] > a.shape[1]:
        a = torch.cat([a, a.new_ones(len(a), 1)], 1)
    return (a * models[rows]).sum(1, keepdim=True)


def chunks(function: Callable[[Tensor], Tensor], x: Tensor) -> Tensor:
    """A function of examples, piece by piece: bounded memory, and activations stay in cache.

    500 images through PFLlib's CNN: 24 ms in pieces of 50-100, 49 ms in pieces of 1,000.
    """
    parts = [function(part) for part in torch.split(x, CHUNK[x.dim() == 4])]
    return torch.cat(parts) if len(parts) > 1 else parts[0]
