"""CPU seconds of one user-round, side by side: the usual loop, the bare loop, Corsage's.

All variants take the same SGD steps on the same random data of Fashion-MNIST's shape. They run by
turns in one process with one thread; the median of the ratios is what counts.

    python -m corsage.benchmarks.user_round
"""

from __future__ import annotations

import copy
import time
from collections.abc import Callable
from dataclasses import dataclass
from statistics import median

import numpy as np
import torch
from rich.console import Console
from rich.table import Table
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset

from corsage.core.configuration.key_groups import ModelKeys, TrainKeys
from corsage.core.seeding import generator
from corsage.networks.batches import Examples, Order
from corsage.networks.build import build_network
from corsage.networks.local_training import train_bodies, train_heads
from corsage.networks.network import Network
from corsage.networks.training import batches

SHAPE, CLASSES, USERS = (1, 28, 28), 10, 10


@dataclass(frozen=True)
class Case:
    """One line of the benchmark; `against` names the loop that the target is a share of."""

    name: str
    algorithm: str
    model: ModelKeys
    samples: int
    keys: TrainKeys
    against: str
    target: float


PAPER = TrainKeys(batch_size=10, lr=0.01, momentum=0.5, weight_decay=1e-4)
MLP, LENET = ModelKeys(model="mlp"), ModelKeys(model="lenet")
CASES = [
    Case("FedRep, MLP 784-200-10", "fedrep", MLP, 500, PAPER, "usual", 1 / 7),
    Case("FedRep, LeNet-5", "fedrep", LENET, 500, PAPER, "usual", 1 / 6),
]


@dataclass(frozen=True)
class Row:
    """CPU seconds of one user and round, and Corsage's share of the loop it is held against."""

    case: Case
    usual: float
    bare: float
    corsage: float
    ratio: float


def plain_model(keys: ModelKeys) -> nn.Sequential:
    """The model as one writes it: ReLU before pooling."""
    if keys.model == "mlp":
        width = int(keys.hidden)
        layers: list[nn.Module] = [nn.Flatten(), nn.Linear(784, width), nn.ReLU()]
        return nn.Sequential(*layers, nn.Linear(width, CLASSES))
    small = keys.model == "lenet"
    one, two, pad, flat = (6, 16, 2, 400) if small else (32, 64, 0, 1024)
    layers = [nn.Conv2d(1, one, 5, padding=pad), nn.ReLU(), nn.MaxPool2d(2)]
    layers += [nn.Conv2d(one, two, 5), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten()]
    if small:
        layers += [nn.Linear(flat, 120), nn.ReLU(), nn.Linear(120, 84), nn.ReLU()]
        return nn.Sequential(*layers, nn.Linear(84, CLASSES))
    return nn.Sequential(*layers, nn.Linear(flat, 512), nn.ReLU(), nn.Linear(512, CLASSES))


def phases(case: Case, model: nn.Sequential) -> list[tuple[list[nn.Parameter], int]]:
    """Which parameters train for how many epochs, one after the other."""
    if case.algorithm == "fedavg":
        return [(list(model.parameters()), 1)]
    return [(list(model[-1].parameters()), 10), (list(model[:-1].parameters()), 1)]


def optimiser(case: Case, model: nn.Sequential, trained: list[nn.Parameter]) -> torch.optim.SGD:
    """SGD with weight decay on weights; what does not train needs no gradient."""
    mine = {id(p) for p in trained}
    for p in model.parameters():
        p.requires_grad_(id(p) in mine)
    keys = case.keys
    sides = [
        {"params": [p for p in trained if p.dim() > 1], "weight_decay": keys.weight_decay},
        {"params": [p for p in trained if p.dim() == 1], "weight_decay": 0.0},
    ]
    return torch.optim.SGD(sides, lr=keys.lr, momentum=keys.momentum)


def step(model: nn.Sequential, opt: torch.optim.SGD, x: Tensor, y: Tensor) -> None:
    """One SGD step."""
    opt.zero_grad()
    torch.autograd.backward(F.cross_entropy(model(x), y))
    opt.step()


def usual(case: Case, start: nn.Sequential, data: Examples) -> None:
    """(a) A copy of the model and a DataLoader for each user, the whole network in every epoch."""
    for u in range(USERS):
        model = copy.deepcopy(start)
        loader = DataLoader(TensorDataset(*data.user(u)), case.keys.batch_size, shuffle=True)
        for trained, epochs in phases(case, model):
            opt = optimiser(case, model, trained)
            for _ in range(epochs):
                for x, y in loader:
                    step(model, opt, x, y)


def bare(case: Case, model: nn.Sequential, data: Examples) -> None:
    """The same steps on one built model with index batches, and nothing else."""
    for u in range(USERS):
        xs, ys = data.user(u)
        for trained, epochs in phases(case, model):
            opt = optimiser(case, model, trained)
            for _ in range(epochs):
                for rows in torch.randperm(len(ys)).split(case.keys.batch_size):  # type: ignore[no-untyped-call]
                    step(model, opt, xs[rows], ys[rows])


def corsage(case: Case, network: Network, data: Examples, turn: int) -> None:
    """What a node does in a round with all its users, batches drawn included."""

    def orders(phase: str, epochs: int) -> list[Order]:
        rngs = [generator(0, phase, turn, u) for u in range(USERS)]
        return [batches(rng, case.samples, epochs, case.keys.batch_size) for rng in rngs]

    start = network.initial
    body, heads = start[network.body], np.tile(start[network.head], (USERS, 1))
    heads = train_heads(network, body, heads, data, orders("head", 10), case.keys)
    train_bodies(network, body, heads, data, orders("body", 1), case.keys)


def cpu(work: Callable[[], None]) -> float:
    """CPU seconds of one user."""
    start = time.process_time()
    work()
    return (time.process_time() - start) / USERS


def measure(case: Case, turns: int) -> Row:
    """Run the three variants by turns; medians of seconds and of ratios."""
    rng = generator(0, "benchmark")
    n = USERS * case.samples
    x = torch.from_numpy(rng.random((n, *SHAPE), np.float32))
    data = Examples(x, torch.from_numpy(rng.integers(0, CLASSES, n)), np.full(USERS, case.samples))
    network = build_network(case.model, SHAPE, CLASSES, 0)
    model = plain_model(case.model)
    times = []
    for turn in range(turns + 1):
        mine = cpu(lambda turn=turn: corsage(case, network, data, turn))  # type: ignore[misc]
        times.append(
            (cpu(lambda: usual(case, model, data)), cpu(lambda: bare(case, model, data)), mine)
        )
    usuals, bares, mines = zip(*times[1:], strict=True)
    held = usuals if case.against == "usual" else bares
    ratio = median(m / h for m, h in zip(mines, held, strict=True))
    return Row(case, median(usuals), median(bares), median(mines), ratio)


def run(turns: int = 3, cases: list[Case] | None = None) -> list[Row]:
    """Measure all cases with one torch thread."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        return [measure(case, turns) for case in cases or CASES]
    finally:
        torch.set_num_threads(threads)


def report(rows: list[Row], console: Console | None = None) -> None:
    """A table with the bare loop's bound beside each."""
    table = Table(title=f"one user-round, CPU milliseconds ({USERS} users on a node)")
    for name in ("", "usual loop", "bare loop", "Corsage", "of usual", "of bare", "target"):
        table.add_column(name, justify="left" if not name else "right")
    for row in rows:
        held = f"{row.ratio:.3f} <= {row.case.target:.3f} of {row.case.against}"
        style = "green" if row.ratio <= row.case.target else "red"
        seconds = [f"{1e3 * s:.1f}" for s in (row.usual, row.bare, row.corsage)]
        shares = [f"{row.corsage / row.usual:.3f}", f"{row.corsage / row.bare:.3f}"]
        table.add_row(row.case.name, *seconds, *shares, f"[{style}]{held}[/]")
    (console or Console()).print(table)


if __name__ == "__main__":
    report(run())
