"""Models that people bring, by class: they can be imported by any process."""

from __future__ import annotations

from torch import Tensor, nn
from torch.nn import functional as F


class Gelu(nn.Module):
    """A perceptron that is no chain of plain layers."""

    def __init__(self, shape: tuple[int, ...], outputs: int) -> None:
        super().__init__()
        self.first, self.head = nn.Linear(64, 12), nn.Linear(12, outputs)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(F.gelu(self.first(x.flatten(1))))


class Dropping(Gelu):
    """One that draws random numbers in training."""

    def forward(self, x: Tensor) -> Tensor:
        return self.head(F.dropout(self.first(x.flatten(1)), 0.2, self.training))
