"""The first layer of a body set to random directions of the inputs' principal components.

Random features (Rahimi, Recht 2007) of what the inputs vary in: the layer's rows are normal
combinations of the leading principal components, each of which is divided by its deviation, so that
a strong one does not drown the others. Nothing is trained. The components come from a sketch: users
send their mean of x x' times a random matrix that everybody knows, a fraction of the whole.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import nn

from corsage.core.arrays import Array, Floats, Floats32
from corsage.core.errors import ModelError
from corsage.core.seeding import generator
from corsage.networks.batches import Examples
from corsage.networks.network import Block, Network

WEAK_SHARE = 0.3
"""Added to a component's variance before it is divided by, as a share of the largest."""
SPREAD = 3.0
"""The deviation of what a unit of the layer puts out, before its bias."""
MOST_INPUTS = 65_536
"""A layer of more inputs is no layer of random directions."""
MOST_COMPONENTS = 2048
"""More are not asked of a device."""
BEYOND = 20
"""Columns of a sketch beyond the components that are looked for."""
SPREAD_ROUNDING = 1e-6
"""The error of single precision, as a share of the largest."""


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
            f"{module.in_features:,} inputs are too many for random directions (at most "
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


def moments(data: Examples, rank: int) -> tuple[Floats, Floats]:
    """Each user's mean input (n, p), and its mean of x x' times the test matrix (n, p, q)."""
    users = [data.user(u)[0].flatten(1) for u in range(len(data))]
    mean = torch.stack([x.mean(0) for x in users]).double()
    test = torch.from_numpy(probes(mean.shape[1], rank)).to(users[0])
    sketch = torch.stack([x.t() @ (x @ test) / len(x) for x in users])
    return mean.cpu().numpy(), sketch.cpu().numpy()


def sketched(rank: int, p: int) -> int:
    """The columns of a sketch: some more than there are components to be found."""
    return min(rank + BEYOND, p)


def probes(p: int, rank: int) -> Floats:
    """Omega (p, q), the same for everybody."""
    return generator(0, "sketch of inputs").normal(size=(p, sketched(rank, p)))


def spread(means: Array, sketches: Array) -> dict[str, float]:
    """What a user's inputs differ by, and what their sketches do, by the users' moments.

    Omega with S Omega (p, q), Omega normal, comes to about the trace of S, times q. Products differ
    by what they are.
    """
    q = sketches.shape[2]
    test = probes(means.shape[1], q - BEYOND)
    squares = np.einsum("npq,pq->n", sketches, test, dtype=np.float64) / q
    own = squares - np.square(means, dtype=np.float64).sum(1)
    differ = float(np.median(np.sqrt(np.maximum(own, 0))))
    size = float(np.median(np.sqrt(np.square(sketches, dtype=np.float64).sum((1, 2)))))
    return {"mean": differ, "sketch": size}


def components(mean: Floats, sketch: Floats, rank: int) -> tuple[Floats, Floats]:
    """The leading variances of the inputs, and their directions (p, r), from S Omega.

    Nystrom's S ~ Y (Omega'Y)^-1 Y' with Y = S Omega (Halko et al. 2011): exact if S has no more
    than q directions, and where q = p.
    """
    test = probes(len(mean), rank)
    y = sketch - np.outer(mean, mean @ test)
    middle = test.T @ y
    values, vectors = np.linalg.eigh((middle + middle.T) / 2)
    sound = values > SPREAD_ROUNDING * max(values[-1], 0.0)
    if not sound.any():
        raise ModelError("the inputs do not vary: there are no principal components.")
    half = y @ (vectors[:, sound] / np.sqrt(values[sound]))
    directions, deviations, _ = np.linalg.svd(half, full_matrices=False)
    return np.square(deviations[:rank]), directions[:, :rank]


def projected(
    layer: tuple[Block, Block | None],
    body: Floats32,
    mean: Floats,
    sketch: Floats,
    rank: int,
    rng: np.random.Generator,
) -> Floats32:
    """The body with its first layer set from the inputs' mean (p,) and sketch (p, q)."""
    weight, bias = layer
    variance, directions = components(mean, sketch, rank)
    scaled = directions / np.sqrt(variance + WEAK_SHARE * variance[0])
    mix = rng.normal(size=(weight.shape[0], len(variance))) * SPREAD / np.sqrt(len(variance))
    rows = mix @ scaled.T
    out = np.array(body)
    out[weight.where] = rows.ravel()
    if bias is not None:
        offset = rng.normal(size=len(rows)) * SPREAD / 2
        out[bias.where] = offset - rows @ mean
    return out
