"""The first layer of a body set to random directions of the inputs' principal components.

Random features (Rahimi, Recht 2007) of what the inputs vary in: the layer's rows are normal
combinations of the leading principal components, each of which is divided by its deviation, so that
a strong one does not drown the others. Nothing is trained.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor, nn

from corsage.core.arrays import Floats, Floats32
from corsage.core.errors import ModelError
from corsage.networks.batches import Examples
from corsage.networks.network import Block, Network

WEAK = 0.3
"""What is added to a component's variance before it is divided by, as a share of the largest."""
SPREAD = 3.0
"""The deviation of what a unit of the layer puts out, before its bias."""
MOST_INPUTS = 4096
"""Second moments of more inputs are too many numbers to send."""


def first_layer(network: Network, shape: Sequence[int]) -> tuple[Block, Block | None]:
    """Weight and bias of the linear layer that sees inputs of this shape: the body's first."""
    module = first_module(network, shape)
    if not isinstance(module, nn.Linear):
        found = "none" if module is None else type(module).__name__
        raise ModelError(
            f"the first layer of the body must be linear to be set from the inputs, it is {found}: "
            "take fedrep-exact-body=initial, or a model such as mlp."
        )
    if module.in_features > MOST_INPUTS:
        raise ModelError(
            f"{module.in_features:,} inputs are too many for their second moments (at most "
            f"{MOST_INPUTS:,}): take fedrep-exact-body=initial."
        )
    blocks = {id(block.tensor): block for block in network.blocks_of(network.body)}
    weight, bias = blocks.get(id(module.weight)), blocks.get(id(module.bias))
    if weight is None:
        raise ModelError("the first layer is the head: there is no body to be set.")
    return weight, bias


def first_module(network: Network, shape: Sequence[int]) -> nn.Module | None:
    """The first module with parameters of its own that runs on an input."""
    ran: list[nn.Module] = []
    own = [m for m in network.module.modules() if any(True for _ in m.parameters(recurse=False))]
    hooks = [m.register_forward_pre_hook(lambda m, _: ran.append(m)) for m in own]
    network.train(False)
    try:
        with torch.no_grad():
            network.forward(torch.zeros(2, *shape, device=network.device))
    finally:
        for hook in hooks:
            hook.remove()
    return ran[0] if ran else None


def moments(data: Examples) -> tuple[Floats, Floats]:
    """Each user's mean input (n, p), and its mean of x x' (n, p (p+1)/2), the lower triangle."""
    users = [data.user(u)[0].flatten(1) for u in range(len(data))]
    mean = torch.stack([x.mean(0) for x in users]).double()
    below = torch.tril_indices(mean.shape[1], mean.shape[1])
    square = torch.stack([lower(x.t() @ x / len(x), below) for x in users])
    return mean.cpu().numpy(), square.cpu().numpy()


def lower(matrix: Tensor, below: Tensor) -> Tensor:
    """The lower triangle of a matrix as a row."""
    return matrix[below[0], below[1]]


def projected(
    layer: tuple[Block, Block | None],
    body: Floats32,
    mean: Floats,
    square: Floats,
    rank: int,
    rng: np.random.Generator,
) -> Floats32:
    """The body with its first layer set from the inputs' mean (p,) and mean of x x' (p, p)."""
    weight, bias = layer
    variance, directions = np.linalg.eigh(square - np.outer(mean, mean))
    variance, directions = variance[::-1][:rank], directions[:, ::-1][:, :rank]
    scaled = directions / np.sqrt(np.maximum(variance, 0.0) + WEAK * variance[0])
    mix = rng.normal(size=(weight.shape[0], len(variance))) * SPREAD / np.sqrt(len(variance))
    rows = mix @ scaled.T
    out = np.array(body)
    out[weight.where] = rows.ravel()
    if bias is not None:
        offset = rng.normal(size=len(rows)) * SPREAD / 2
        out[bias.where] = offset - rows @ mean
    return out
