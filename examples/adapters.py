"""A small vision transformer trained by Corsage; then low-rank adapters and heads for 100 users.

    python examples/adapters.py [ROUNDS]

First FedAvg trains the whole model on the users' digits as they come. Then its backbone is frozen,
and a hundred users with two classes each train adapters (LoRA: W x + B A x) and heads: A is shared,
B and the head are a user's own. What is frozen never travels, and is stored once.
"""

from __future__ import annotations

import resource
import sys
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

import corsage

WIDTH, HEADS, DEPTH, RANK = 64, 4, 4, 4


class LowRank(nn.Module):
    """A linear layer with an adapter beside it, which begins as nothing."""

    def __init__(self, layer: nn.Linear, rank: int = RANK) -> None:
        super().__init__()
        self.layer = layer
        self.lora_a = nn.Parameter(torch.randn(rank, layer.in_features) * layer.in_features**-0.5)
        self.lora_b = nn.Parameter(torch.zeros(layer.out_features, rank))

    def forward(self, x: Tensor) -> Tensor:
        """W x + b + B A x."""
        return self.layer(x) + F.linear(F.linear(x, self.lora_a), self.lora_b)


class Block(nn.Module):
    """Attention and two layers, each added to what came in."""

    def __init__(self) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.qkv: nn.Module = nn.Linear(WIDTH, 3 * WIDTH)
        self.out = nn.Linear(WIDTH, WIDTH)
        self.wide, self.narrow = nn.Linear(WIDTH, 2 * WIDTH), nn.Linear(2 * WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        """(batch, tokens, width) in and out."""
        q, k, v = self.qkv(self.norm1(x)).unflatten(-1, (3, HEADS, -1)).permute(2, 0, 3, 1, 4)
        mixed = F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2)
        x = x + self.out(mixed)
        return x + self.narrow(F.gelu(self.wide(self.norm2(x))))


class VisionTransformer(nn.Module):
    """Patches of 2 x 2 pixels of 8 x 8 images."""

    def __init__(self) -> None:
        super().__init__()
        self.patches = nn.Conv2d(1, WIDTH, 2, 2)
        self.places = nn.Parameter(torch.randn(16, WIDTH) * 0.02)
        self.blocks = nn.Sequential(*(Block() for _ in range(DEPTH)))
        self.norm, self.head = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, 10)

    def forward(self, x: Tensor) -> Tensor:
        """Logits (batch, 10)."""
        tokens = self.patches(x).flatten(2).transpose(1, 2) + self.places
        return self.head(self.norm(self.blocks(tokens)).mean(1))


def adapted(state: dict[str, Tensor], last: int = 2) -> nn.Module:
    """The model with a trained backbone, and adapters in its last blocks."""
    model = VisionTransformer()
    model.load_state_dict(state, strict=True)
    for block in model.blocks[-last:]:
        block.qkv = LowRank(block.qkv)
    return model


def main(rounds: int, **more: Any) -> Any:
    """Train the backbone, then what is each user's own; `more` are keys of Corsage's."""
    backbone: dict[str, Any] = {"partition": "iid", "local_epochs": 2, "lr": 0.05, **more}
    first = corsage.simulate(
        "fedavg", model=VisionTransformer, num_users=20, num_rounds=2 * rounds, **backbone
    )
    print(first)
    model = adapted(first.results["fedavg"].arrays.to_torch_state_dict())
    users: dict[str, Any] = {"num_users": 100, "num_rounds": rounds, "fraction_train": 0.2, **more}
    parts = {"shared": "*.lora_a", "frozen": "*,!*.lora_*,!head"}
    found = corsage.simulate("fedper,fedavg", model=model, lr=0.05, **users, **parts)
    print(found)
    say(found, model, rounds)
    return found


def say(found: Any, model: nn.Module, rounds: int) -> None:
    """What it took."""
    whole = sum(p.numel() for p in model.parameters())
    row = found["fedper"].json()
    up = row["bytes_up"] / (rounds * 20)
    print(f"{whole:,} parameters, {4 * whole:,} bytes; a user sends {up:,.0f} bytes a round.")
    own = found["fedper"].user(found["fedper"].users[0]).state_dict()
    adapted(first_of(own)).load_state_dict(own, strict=True)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    print(f"Peak memory: {peak:,.0f} MB.")


def first_of(state: dict[str, Tensor]) -> dict[str, Tensor]:
    """A state dict of the model with adapters, as one without."""
    plain = {n.replace(".qkv.layer.", ".qkv."): v for n, v in state.items()}
    return {name: value for name, value in plain.items() if ".lora_" not in name}


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 20)
