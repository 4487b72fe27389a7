"""What a model's `forward` does that none of its layers shows."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from corsage import simulate
from corsage.core.errors import ModelError
from corsage.networks.network import Network


class Own(nn.Module):
    """Two layers; what is between them is the test's."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.middle, self.head = nn.Linear(6, 8), nn.Linear(8, 8), nn.Linear(8, 3)


class DroppingLast(Own):
    """Random, and its head cannot be split off."""

    def forward(self, x: Tensor) -> Tensor:
        return self.head(F.dropout(self.first(x), 0.3, self.training)) * 1.5


class DroppingHead(Own):
    """Random in a head of several layers."""

    def forward(self, x: Tensor) -> Tensor:
        return self.head(F.dropout(self.middle(F.gelu(self.first(x))), 0.3, self.training))


class Calm(Own):
    """A dropout that drops nothing."""

    def forward(self, x: Tensor) -> Tensor:
        return self.head(F.dropout(self.first(x), 0.0, self.training))


class Sized(Own):
    """Another function for larger batches."""

    def forward(self, x: Tensor) -> Tensor:
        h = self.first(x)
        return self.head(h if len(x) < 7 else 2 * h)


class Asking(Own):
    """Another function for other batches."""

    def forward(self, x: Tensor) -> Tensor:
        h = self.first(x)
        return self.head(self.middle(h) if h.sum() > 0 else h)


class Functional(Own):
    """Its last layer is no module that runs."""

    def forward(self, x: Tensor) -> Tensor:
        return F.linear(F.gelu(self.first(x)), self.head.weight, self.head.bias)


def network(module: nn.Module, head: str = "") -> Network:
    torch.manual_seed(0)
    return Network(module, head, torch.rand(3, 6))


@pytest.mark.parametrize("module, head", [(DroppingLast(), ""), (DroppingHead(), "middle,head")])
def test_dropout_by_a_function_is_drawn_by_the_seed(module: nn.Module, head: str) -> None:
    """It was drawn from the global generator: a second run came to something else."""
    rng = np.random.default_rng(0)
    users = [(rng.random((20, 6), np.float32), rng.integers(0, 3, 20)) for _ in range(2)]
    keys = {"num_rounds": 2, "head": head, "progress": False, "scale": "none"}
    runs = [simulate("fedrep", users, model=module, **keys) for _ in range(2)]
    one, other = (run["fedrep"].user("0").state_dict() for run in runs)
    assert all(torch.equal(one[name], other[name]) for name in one)


def test_a_dropout_of_nothing_is_not_random() -> None:
    assert not network(Calm()).stochastic
    assert network(DroppingLast()).stochastic


@pytest.mark.parametrize("kind", [Sized, Asking])
def test_features_that_depend_on_the_batch_are_not_cached(kind: type[Own]) -> None:
    """They were computed once, of all samples."""
    assert not network(kind()).cacheable
    assert network(Calm()).cacheable


def test_a_layer_that_only_its_weights_show_makes_the_head_ambiguous() -> None:
    """The layer before it was taken for the head."""
    with pytest.raises(ModelError, match="ambiguous"):
        network(Functional())
