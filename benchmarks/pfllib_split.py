"""Softmax regression on the split of MNIST that PFLlib ships: its FedAvg beside a plain loop.

Dir(.1), 20 users, all in every round, lr .005, batches of 10. PFLlib hands FedAvg its model as a
base and a head: the last layer is cut off, and what is left of the class is called before it. Of
its softmax regression the log-softmax of the outputs is left, which thus takes the 784 *pixels*.
`pixels through log-softmax` is the plain loop with that, and nothing else, changed. PFLlib's
`Local` is not split, and learns what the plain loop learns.

    python -m corsage.benchmarks pfllib-split [FILE.npz]

FILE has `x_train` (bytes), `y_train`, `client_train` and the same of `test`, PFLlib's own split;
without it MNIST is dealt by `partition=dirichlet-by-class`. Accuracies are over all test samples.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from corsage.app.simulation import simulate
from corsage.core.configuration.config import Config
from corsage.datasets.dealing.federated import simulated
from corsage.experiments.runner import say
from corsage.experiments.words import Parser

SEEDS, ROUNDS, RATE, BATCH = (0, 1), 3, 0.005, 10
User = tuple[Tensor, Tensor, Tensor, Tensor]
"""Inputs and labels to train on, and to be tested on."""


def shipped(path: Path) -> list[User]:
    """The users of PFLlib's own split."""
    with np.load(path) as found:
        parts = {part: [found[f"{n}_{part}"] for n in "xy"] for part in ("train", "test")}
        owners = {part: found[f"client_{part}"] for part in ("train", "test")}
    users = range(int(owners["train"].max()) + 1)
    return [
        scaled(*(a[owners[part] == user] for part, arrays in parts.items() for a in arrays))
        for user in users
    ]


def dealt() -> list[User]:
    """Users of the same kind, where PFLlib's file is not at hand."""
    keys = {"dataset": "mnist", "partition": "dirichlet-by-class", "alpha": 0.1, "min-samples": 40}
    config = Config.parse({**keys, "test-fraction": 0.25, "strategy": "fedavg"})
    data = simulated(config.data, 20, 0)
    own = [data[user] for user in data.users]
    return [scaled(one.x_train, one.y_train, one.x_test, one.y_test) for one in own]


def scaled(x: Any, y: Any, x_test: Any, y_test: Any) -> User:
    """Pixels between -1 and 1, flat."""
    flat = [
        torch.tensor(a.reshape(len(a), -1) / 127.5 - 1, dtype=torch.float32) for a in (x, x_test)
    ]
    return flat[0], torch.tensor(y.astype(int)), flat[1], torch.tensor(y_test.astype(int))


def plain(
    users: Sequence[User], seed: int, before: Callable[[Tensor], Tensor], rounds: int = ROUNDS
) -> list[float]:
    """Accuracies of FedAvg, a loop, after each round; `before` is what inputs go through."""
    torch.manual_seed(seed)
    model, found = nn.Linear(users[0][0].shape[1], 10), []
    total = sum(len(user[1]) for user in users)
    for _ in range(rounds):
        start = [p.detach().clone() for p in model.parameters()]
        mean = [torch.zeros_like(p) for p in start]
        for x, y, *_ in users:
            for p, first in zip(model.parameters(), start, strict=True):
                p.data.copy_(first)
            for batch in torch.randperm(len(y))[: len(y) // BATCH * BATCH].view(-1, BATCH):
                step(model, functional.cross_entropy(model(before(x[batch])), y[batch]))
            for added, p in zip(mean, model.parameters(), strict=True):
                added.add_(p.detach(), alpha=len(y) / total)
        for p, new in zip(model.parameters(), mean, strict=True):
            p.data.copy_(new)
        found.append(right(model, users, before))
    return found


def step(model: nn.Module, loss: Tensor) -> None:
    """One step of plain SGD."""
    for p, gradient in zip(
        model.parameters(), torch.autograd.grad(loss, [*model.parameters()]), strict=True
    ):
        p.data -= RATE * gradient


@torch.no_grad()
def right(model: nn.Module, users: Sequence[User], before: Callable[[Tensor], Tensor]) -> float:
    """The share of all test samples that a model gets right."""
    hits = [model(before(x)).argmax(1) == y for *_, x, y in users]
    return float(torch.cat(hits).float().mean())


def corsage(users: Sequence[User], seed: int) -> list[float]:
    """Accuracies of Corsage's FedAvg after each round."""
    keys: dict[str, Any] = {"lr": RATE, "batch_size": BATCH, "momentum": 0.0, "seed": seed}
    keys |= {"fraction_train": 1.0, "weighting": "examples", "fine_tune_epochs": 0, "scale": "none"}
    torch.manual_seed(seed)
    model = nn.Sequential(nn.Linear(users[0][0].shape[1], 10))
    runs = (
        simulate("fedavg", users, model=model, num_rounds=n, progress=False, **keys)
        for n in range(1, ROUNDS + 1)
    )
    return [float(run["fedavg"].over_samples) for run in runs]


def main(words: Sequence[str]) -> int:
    """Print the three, seed by seed: accuracies after each round."""
    parser = Parser("python -m corsage.benchmarks pfllib-split")
    parser.add_argument("file", nargs="?", type=Path, metavar="FILE.npz", help="PFLlib's split")
    file = parser.parse_args(words).file
    users = shipped(file) if file else dealt()
    sizes = sorted(len(user[1]) + len(user[3]) for user in users)
    say(f"{len(users)} users, {sizes[0]:,} to {sizes[-1]:,} samples")
    for seed in SEEDS:
        for name, found in (
            ("Corsage's FedAvg", corsage(users, seed)),
            ("plain loop", plain(users, seed, lambda x: x)),
            (
                "pixels through log-softmax",
                plain(users, seed, lambda x: functional.log_softmax(x, 1)),
            ),
        ):
            print(f"seed {seed}  {name:28}" + "  ".join(f"{value:.3f}" for value in found))
    return 0
