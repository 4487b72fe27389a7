"""Models that people bring, by class: they can be imported by any process."""

from __future__ import annotations

import torch
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


class Text(nn.Module):
    """A mean of words' embeddings, and two layers; `attends`: with attention between."""

    def __init__(self, words: int = 20, outputs: int = 3, attends: bool = False) -> None:
        super().__init__()
        self.words, self.places = nn.Embedding(words, 8), nn.Embedding(6, 8)
        self.mix = nn.MultiheadAttention(8, 2, batch_first=True) if attends else None
        self.layer, self.head = nn.Linear(8, 8), nn.Linear(8, outputs)

    def forward(self, x: Tensor) -> Tensor:
        h = self.words(x)
        if self.mix is not None:
            h = h + self.places(torch.arange(x.shape[1]))
            h = h + self.mix(h, h, h, need_weights=False)[0]
        return self.head(torch.relu(self.layer(h.mean(1))))


def attending(outputs: int) -> Text:
    """A model of attention."""
    return Text(outputs=outputs, attends=True)
