"""Models as people write them: classes with a `body` in their forward, and a `head`."""

from __future__ import annotations

from itertools import pairwise

import torch
from torch import Tensor, nn
from torch.nn import functional as F

CLASSES = 10


class Net(nn.Module):
    """A body, which subclasses write, and a head."""

    head: nn.Module

    def body(self, x: Tensor) -> Tensor:
        """What goes into the head."""
        raise NotImplementedError

    def forward(self, x: Tensor) -> Tensor:
        """The logits."""
        logits: Tensor = self.head(self.body(x))
        return logits


class Perceptron(Net):
    """784-200-10."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.head = nn.Linear(784, 200), nn.Linear(200, CLASSES)

    def body(self, x: Tensor) -> Tensor:
        """One hidden layer."""
        return F.relu(self.first(x.view(x.size(0), -1)))


class Cnn(Net):
    """PFLlib's: two 5x5 convolutions of 32 and 64 channels and 512 units, 582,026 parameters."""

    def __init__(self) -> None:
        super().__init__()
        self.conv1 = nn.Sequential(nn.Conv2d(1, 32, 5), nn.ReLU(inplace=True), nn.MaxPool2d(2))
        self.conv2 = nn.Sequential(nn.Conv2d(32, 64, 5), nn.ReLU(inplace=True), nn.MaxPool2d(2))
        self.fc1 = nn.Sequential(nn.Linear(1024, 512), nn.ReLU(inplace=True))
        self.head = nn.Linear(512, CLASSES)

    def body(self, x: Tensor) -> Tensor:
        """As in PFLlib's FedAvgCNN."""
        return self.fc1(torch.flatten(self.conv2(self.conv1(x)), 1))  # type: ignore[no-any-return]


class DeepHead(Cnn):
    """PFLlib's CNN whose last two layers are a user's own."""

    def __init__(self) -> None:
        super().__init__()
        self.head = nn.Sequential(*self.fc1, self.head)
        self.fc1 = nn.Sequential()


class BatchNormed(Net):
    """Three convolutions of 16, 32 and 64 channels, each with a BatchNorm."""

    def __init__(self) -> None:
        super().__init__()
        widths = (1, 16, 32, 64)
        self.layers = nn.Sequential(*(convolved(a, b) for a, b in pairwise(widths)))
        self.head = nn.Linear(64, CLASSES)

    def body(self, x: Tensor) -> Tensor:
        """The mean over the image."""
        mean: Tensor = self.layers(x).mean([2, 3])
        return mean


def convolved(before: int, after: int) -> nn.Module:
    """A convolution, a BatchNorm, and half of the image."""
    conv = nn.Conv2d(before, after, 3, padding=1, bias=False)
    return nn.Sequential(conv, nn.BatchNorm2d(after), nn.ReLU(), nn.MaxPool2d(2))


def small_features(features: Tensor, outputs: Tensor, y: Tensor) -> Tensor:
    """A loss of a user's own: cross-entropy, and a price of features."""
    return F.cross_entropy(outputs, y) + 0.01 * features.square().mean()


class LeNet(Net):
    """LeNet-5 as LeCun had it: tanh and average pooling."""

    def __init__(self) -> None:
        super().__init__()
        self.c1, self.c2 = nn.Conv2d(1, 6, 5, padding=2), nn.Conv2d(6, 16, 5)
        self.f1, self.f2 = nn.Linear(400, 120), nn.Linear(120, 84)
        self.pool, self.head = nn.AvgPool2d(2), nn.Linear(84, CLASSES)

    def body(self, x: Tensor) -> Tensor:
        """Two convolutions, two layers."""
        x = self.pool(torch.tanh(self.c1(x)))
        x = self.pool(torch.tanh(self.c2(x))).flatten(1)
        return torch.tanh(self.f2(torch.tanh(self.f1(x))))


def norm(channels: int) -> nn.GroupNorm:
    """A group norm of eight groups."""
    return nn.GroupNorm(min(8, channels), channels)


class Block(nn.Module):
    """A basic block of a residual network."""

    def __init__(self, before: int, after: int, stride: int) -> None:
        super().__init__()
        self.c1 = nn.Conv2d(before, after, 3, stride, 1, bias=False)
        self.c2 = nn.Conv2d(after, after, 3, 1, 1, bias=False)
        self.n1, self.n2, self.short = norm(after), norm(after), nn.Sequential()
        if stride != 1 or before != after:
            self.short = nn.Sequential(nn.Conv2d(before, after, 1, stride, bias=False), norm(after))

    def forward(self, x: Tensor) -> Tensor:
        """Two convolutions and the way around them."""
        y = self.n2(self.c2(F.relu(self.n1(self.c1(x)))))
        return F.relu(y + self.short(x))


class ResNet(Net):
    """A residual network with group norms, of two blocks a width."""

    def __init__(self, *widths: int) -> None:
        super().__init__()
        first = widths[0]
        self.conv, self.norm = nn.Conv2d(3, first, 3, 1, 1, bias=False), norm(first)
        pairs = [
            Block(widths[max(i - (not b), 0)], width, 2 if i and not b else 1)
            for i, width in enumerate(widths)
            for b in (False, True)
        ]
        self.blocks, self.head = nn.Sequential(*pairs), nn.Linear(widths[-1], CLASSES)

    def body(self, x: Tensor) -> Tensor:
        """All blocks, and the mean over the image."""
        return F.adaptive_avg_pool2d(self.blocks(F.relu(self.norm(self.conv(x)))), 1).flatten(1)


class ViT(Net):
    """A vision transformer of four layers, 96 wide, on patches of 7x7; dropout of 0."""

    def __init__(self, width: int = 96, layers: int = 4) -> None:
        super().__init__()
        self.patches = nn.Conv2d(1, width, 7, 7)
        self.token = nn.Parameter(torch.zeros(1, 1, width))
        self.place = nn.Parameter(0.02 * torch.randn(1, 17, width))
        layer = nn.TransformerEncoderLayer(
            width, 4, 2 * width, 0.0, "gelu", batch_first=True, norm_first=True
        )
        self.encoder = nn.TransformerEncoder(layer, layers, enable_nested_tensor=False)
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, CLASSES)

    def body(self, x: Tensor) -> Tensor:
        """What becomes of the class token."""
        x = self.patches(x).flatten(2).transpose(1, 2)
        x = torch.cat([self.token.expand(x.shape[0], -1, -1), x], dim=1) + self.place
        first: Tensor = self.norm(self.encoder(x))[:, 0]
        return first


class Lstm(Net):
    """An LSTM of 128 over the 28 lines of an image."""

    def __init__(self) -> None:
        super().__init__()
        self.cells, self.head = nn.LSTM(28, 128, batch_first=True), nn.Linear(128, CLASSES)

    def body(self, x: Tensor) -> Tensor:
        """The output after the last line."""
        last: Tensor = self.cells(x.squeeze(1))[0][:, -1]
        return last


class Inverted(nn.Module):
    """An inverted residual: wider, depthwise, narrower."""

    def __init__(self, before: int, after: int, factor: int, stride: int) -> None:
        super().__init__()
        wide, self.around = before * factor, stride == 1 and before == after
        self.steps = nn.Sequential(
            nn.Conv2d(before, wide, 1, bias=False),
            norm(wide),
            nn.ReLU6(),
            nn.Conv2d(wide, wide, 3, stride, 1, groups=wide, bias=False),
            norm(wide),
            nn.ReLU6(),
            nn.Conv2d(wide, after, 1, bias=False),
            norm(after),
        )

    def forward(self, x: Tensor) -> Tensor:
        """With a way around where shapes allow it."""
        y: Tensor = self.steps(x)
        return x + y if self.around else y


class MobileNet(Net):
    """Like MobileNetV2, small: depthwise convolutions and group norms."""

    def __init__(self) -> None:
        super().__init__()
        plan = ((16, 16, 2, 1), (16, 24, 4, 2), (24, 24, 4, 1), (24, 32, 4, 2))
        self.steps = nn.Sequential(
            *(nn.Conv2d(1, 16, 3, 2, 1, bias=False), norm(16), nn.ReLU6()),
            *(Inverted(*one) for one in plan),
            *(nn.Conv2d(32, 96, 1, bias=False), norm(96), nn.ReLU6()),
        )
        self.head = nn.Linear(96, CLASSES)

    def body(self, x: Tensor) -> Tensor:
        """The mean over the image."""
        mean: Tensor = self.steps(x).mean([2, 3])
        return mean
