"""The built-in models. Each is a Sequential whose last layer, of so many outputs, is its head.

Pooling comes before ReLU where the papers have it after: both orders are the same function, and
this one is cheaper (PFLlib's CNN, batch 50: 8.0 against 10.6 ms a step; LeNet-5, batch 10: equal).
"""

from __future__ import annotations

import warnings
from collections import OrderedDict
from collections.abc import Callable
from itertools import pairwise
from math import prod
from typing import cast

from torch import nn

from corsage.core.configuration.key_groups import ModelKeys
from corsage.core.errors import ModelError
from corsage.core.registry import attached

Shape = tuple[int, ...]
Layers = dict[str, nn.Module]


def linear(shape: Shape, outputs: int, keys: ModelKeys) -> nn.Module:
    """A linear model, such as logistic regression: the body is the identity, the head is all.

    Without an input it is the intercept alone.
    """
    width = prod(shape)
    if not width and not keys.intercept:
        raise ModelError("intercept=false: the data have no input, so nothing is left to learn.")
    with warnings.catch_warnings():  # torch's, about the weights of no input
        warnings.filterwarnings("ignore", "Initializing zero-element tensors")
        head = nn.Linear(width, outputs, bias=keys.intercept)
    return sequential({"flatten": nn.Flatten(), "head": head})


def mlp(shape: Shape, outputs: int, keys: ModelKeys) -> nn.Module:
    """A perceptron with ReLU layers of the given sizes; (784-)200(-10) is the paper's."""
    sizes = [prod(shape), *hidden_sizes(keys.hidden)]
    layers: Layers = {"flatten": nn.Flatten()}
    for i, (width, size) in enumerate(pairwise(sizes), 1):
        layers[f"fc{i}"], layers[f"relu{i}"] = nn.Linear(width, size), nn.ReLU()
    layers["head"] = nn.Linear(sizes[-1], outputs)
    return sequential(layers)


def hidden_sizes(hidden: str) -> list[int]:
    """`512,256` as numbers."""
    try:
        sizes = [int(word) for word in hidden.split(",") if word.strip()]
    except ValueError:
        sizes = [0]
    if any(size < 1 for size in sizes):
        raise ModelError(f"hidden={hidden}: not sizes of layers; such as 200 or 512,256.")
    return sizes


def lenet(shape: Shape, outputs: int, keys: ModelKeys) -> nn.Module:
    """LeNet-5: two 5x5 convolutions of 6 and 16 channels, 120-84, head.

    Images of 28x28 are padded to 32x32 as usual; larger ones are taken as they are.
    """
    padding = 2 if min(image(shape, "lenet")[1:]) <= 28 else 0
    return convolutional("lenet", shape, outputs, (6, 16), (120, 84), padding=padding)


def cnn(shape: Shape, outputs: int, keys: ModelKeys) -> nn.Module:
    """PFLlib's CNN: two 5x5 convolutions of 32 and 64 channels without padding, 512, head."""
    return convolutional("cnn", shape, outputs, (32, 64), (512,))


def cnn_cifar10(shape: Shape, outputs: int, keys: ModelKeys) -> nn.Module:
    """FedRep's CNN for CIFAR-10: two 5x5 convolutions of 64 channels, (1600-)120-64, head."""
    return convolutional("cnn-cifar10", shape, outputs, (64, 64), (120, 64))


def cnn_cifar100(shape: Shape, outputs: int, keys: ModelKeys) -> nn.Module:
    """FedRep's CNN for CIFAR-100: 5x5 convolutions of 64 and 128 channels, (3200-)256-128, head.

    Dropout of .6 before the head: the body is random in training, so features cannot be cached.
    """
    return convolutional("cnn-cifar100", shape, outputs, (64, 128), (256, 128), dropout=0.6)


def convolutional(
    model: str,
    shape: Shape,
    outputs: int,
    channels: tuple[int, int],
    full: tuple[int, ...],
    *,
    padding: int = 0,
    dropout: float = 0.0,
) -> nn.Module:
    """Two convolutions of so many channels, linear layers of the sizes `full`, head."""
    first, height, width = image(shape, model)
    layers: Layers = {}
    height, width = convolve(layers, (first, channels[0]), (height, width), padding, model)
    height, width = convolve(layers, channels, (height, width), 0, model)
    layers["flatten"] = nn.Flatten()
    sizes = (channels[1] * height * width, *full)
    for i, (before, after) in enumerate(pairwise(sizes), 1):
        layers[f"fc{i}"], layers[f"relu{i + 2}"] = nn.Linear(before, after), nn.ReLU()
    if dropout:
        layers["dropout"] = nn.Dropout(dropout)
    layers["head"] = nn.Linear(sizes[-1], outputs)
    return sequential(layers)


def convolve(
    layers: Layers, channels: tuple[int, int], size: tuple[int, int], padding: int, model: str
) -> tuple[int, int]:
    """Append a 5x5 convolution, 2x2 pooling and ReLU; return the height and width after them."""
    i = len(layers) // 3 + 1
    height, width = ((side + 2 * padding - 4) // 2 for side in size)
    if height < 1 or width < 1:
        raise ModelError(
            f"model={model}: the images are too small for its two 5x5 convolutions with pooling: "
            f"at layer {i} {size[0]}x{size[1]} pixels are left. Use model=mlp or model=linear."
        )
    layers[f"conv{i}"] = nn.Conv2d(*channels, kernel_size=5, padding=padding)
    layers[f"pool{i}"], layers[f"relu{i}"] = nn.MaxPool2d(2), nn.ReLU()
    return height, width


def image(shape: Shape, model: str) -> tuple[int, int, int]:
    """Channels, height and width."""
    if len(shape) == 3:
        return shape[0], shape[1], shape[2]
    raise ModelError(
        f"model={model}: needs images (channels, height, width), the data have shape {shape}. "
        "Use model=mlp or model=linear."
    )


def sequential(layers: Layers) -> nn.Module:
    """Named layers, one after the other."""
    return nn.Sequential(OrderedDict(layers))


def other(name: str) -> Callable[[Shape, int, ModelKeys], nn.Module]:
    """A model for what is neither a row nor an image, whose module is imported when it is built."""

    def model(shape: Shape, outputs: int, keys: ModelKeys) -> nn.Module:
        return cast(nn.Module, getattr(attached("sequence models"), name)(shape, outputs, keys))

    return model


ZOO: dict[str, Callable[[Shape, int, ModelKeys], nn.Module]] = {
    "linear": linear,
    "mlp": mlp,
    "lenet": lenet,
    "cnn": cnn,
    "cnn-cifar10": cnn_cifar10,
    "cnn-cifar100": cnn_cifar100,
    **{name: other(name) for name in ("lstm", "cnn1d", "gru", "embedding")},
}
