"""The built-in models. Each is a Sequential whose last layer is its head.

Pooling comes before ReLU where the papers have it after: both orders are the same function, and
this one is cheaper (PFLlib's CNN, batch 50: 8.0 against 10.6 ms a step; LeNet-5, batch 10: equal).
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from itertools import pairwise
from math import prod

from torch import nn

from corsage.app.errors import ModelError

Shape = tuple[int, ...]
Layers = dict[str, nn.Module]


def linear(shape: Shape, num_classes: int, hidden: str = "") -> nn.Module:
    """Multinomial logistic regression: the body is the identity, the head is everything."""
    return sequential({"flatten": nn.Flatten(), "head": nn.Linear(prod(shape), num_classes)})


def mlp(shape: Shape, num_classes: int, hidden: str = "200") -> nn.Module:
    """A perceptron with ReLU layers of the given sizes; (784-)200(-10) is the paper's."""
    sizes = [prod(shape), *hidden_sizes(hidden)]
    layers: Layers = {"flatten": nn.Flatten()}
    for i, (width, size) in enumerate(pairwise(sizes), 1):
        layers[f"fc{i}"], layers[f"relu{i}"] = nn.Linear(width, size), nn.ReLU()
    layers["head"] = nn.Linear(sizes[-1], num_classes)
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


def lenet(shape: Shape, num_classes: int, hidden: str = "") -> nn.Module:
    """LeNet-5: two 5x5 convolutions of 6 and 16 channels, 120-84, head.

    Images of 28x28 are padded to 32x32 as usual; larger ones are taken as they are.
    """
    channels, height, width = image(shape, "lenet")
    padding = 2 if min(height, width) <= 28 else 0
    layers: Layers = {}
    height, width = convolve(layers, (channels, 6), (height, width), padding, "lenet")
    height, width = convolve(layers, (6, 16), (height, width), 0, "lenet")
    layers |= {"flatten": nn.Flatten(), "fc1": nn.Linear(16 * height * width, 120)}
    layers |= {"relu3": nn.ReLU(), "fc2": nn.Linear(120, 84), "relu4": nn.ReLU()}
    layers["head"] = nn.Linear(84, num_classes)
    return sequential(layers)


def cnn(shape: Shape, num_classes: int, hidden: str = "") -> nn.Module:
    """PFLlib's CNN: two 5x5 convolutions of 32 and 64 channels without padding, 512, head."""
    channels, height, width = image(shape, "cnn")
    layers: Layers = {}
    height, width = convolve(layers, (channels, 32), (height, width), 0, "cnn")
    height, width = convolve(layers, (32, 64), (height, width), 0, "cnn")
    layers |= {"flatten": nn.Flatten(), "fc1": nn.Linear(64 * height * width, 512)}
    layers |= {"relu3": nn.ReLU(), "head": nn.Linear(512, num_classes)}
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


ZOO: dict[str, Callable[[Shape, int, str], nn.Module]] = {
    "linear": linear,
    "mlp": mlp,
    "lenet": lenet,
    "cnn": cnn,
}
