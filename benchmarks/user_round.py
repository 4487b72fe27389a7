"""CPU seconds of one user-round, side by side: the usual loop, the bare loop, Corsage's.

All variants take the same SGD steps on the same random data of Fashion-MNIST's shape. They run by
turns in one process with one thread; the median of the ratios is what counts.

    python -m corsage.benchmarks user-round
"""

from __future__ import annotations

import copy
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from statistics import median

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset

from corsage.benchmarks.measure import Measure
from corsage.benchmarks.turns import one_thread
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


def measure(case: Case, turns: int) -> Measure:
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
        loops = (cpu(lambda: usual(case, model, data)), cpu(lambda: bare(case, model, data)))
        times.append((*loops, mine))
    named = dict(zip(("usual", "bare", "Corsage"), zip(*times[1:], strict=True), strict=True))
    ratio = median(m / h for m, h in zip(named["Corsage"], named[case.against], strict=True))
    words = ", ".join(f"{name} {1e3 * median(each):.1f}" for name, each in named.items())
    return Measure(case.name, ratio, case.target, f"of {case.against}", f"CPU ms: {words}")


def run(turns: int = 3) -> Iterator[Measure]:
    """Measure all cases with one torch thread."""
    with one_thread():
        yield from (measure(case, turns) for case in CASES)
