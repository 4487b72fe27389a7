"""Large models: what a round of FedAvg costs beyond the bare loop, in CPU seconds and in memory.

Five steps a user, five users on a node, batches of 10, momentum .5, weight decay. The bare loop
has one built model: for each user it copies the global parameters in, takes the same number of
steps, and adds what came of them to a sum; it keeps the global model, the sum and the momentum.
Both by turns in one process, on one thread. Memory is the peak of a process of its own beyond
what it had when all was imported, in sizes of the model, its data counted apart. It is what the
system has given the process (VmHWM), with what malloc holds back: free blocks below 32 MB stay with
the process. What must be there at once is 5 models: the global one, the user's, its momentum, and
the sum of all in double precision.

    python -m corsage.benchmarks large
"""

from __future__ import annotations

import gc
import subprocess
import sys
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from corsage.app.client_app import app
from corsage.app.local_grid import LocalGrid
from corsage.benchmarks.measure import Measure
from corsage.benchmarks.turns import Turns, take, training_data, unevaluated
from corsage.core.configuration.config import Config
from corsage.networks.batches import Examples
from corsage.networks.build import build_network
from corsage.networks.network import is_weight
from corsage.strategies import strategy_class

USERS, STEPS, TURNS, LIMIT, SIZES = 5, 5, 3, 1.15, 6.0
SIDE = 28
PROBLEM: dict[str, Any] = {
    "dataset": "fashion-mnist",
    "partition": "shards",
    "num-users": USERS,
    "mean-samples": 100,
    "fraction-train": 1.0,
    "batch-size": 10,
    "local-steps": STEPS,
    "fine-tune-epochs": 0,
    "strategy": "fedavg",
}


def wide(shape: tuple[int, ...], outputs: int, hidden: tuple[int, ...]) -> nn.Module:
    """Linear layers: a step takes few operations for each parameter, so copies weigh most."""
    sizes = (torch.Size(shape).numel(), *hidden)
    layers: list[nn.Module] = [nn.Flatten()]
    for before, after in pairwise(sizes):
        layers += [nn.Linear(before, after), nn.ReLU()]
    return nn.Sequential(*layers, nn.Linear(sizes[-1], outputs))


def small(shape: tuple[int, ...], outputs: int) -> nn.Module:
    """5.6 million parameters."""
    return wide(shape, outputs, (2048, 1900, 50))


def huge(shape: tuple[int, ...], outputs: int) -> nn.Module:
    """40.8 million parameters."""
    return wide(shape, outputs, (6144, 5776, 80))


class Residual(nn.Module):
    """Two convolutions and what came before them, with group normalisation."""

    def __init__(self, before: int, after: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(before, after, 3, stride, 1, bias=False)
        self.conv2 = nn.Conv2d(after, after, 3, 1, 1, bias=False)
        self.norm1, self.norm2 = nn.GroupNorm(2, after), nn.GroupNorm(2, after)
        same = stride == 1 and before == after
        self.short = nn.Identity() if same else nn.Conv2d(before, after, 1, stride, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        """The sum of both ways."""
        h = self.norm2(self.conv2(F.relu(self.norm1(self.conv1(x)))))
        return F.relu(h + self.short(x))


def resnet18(shape: tuple[int, ...], outputs: int) -> nn.Module:
    """ResNet-18 for small images, with group normalisation: 11.2 million parameters."""
    widths = (64, 64, 64, 128, 128, 256, 256, 512, 512)
    first = nn.Conv2d(shape[0], 64, 3, 2, 1, bias=False)
    blocks = [Residual(one, other, 1 + (one != other)) for one, other in pairwise(widths)]
    ends = [nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(512, outputs)]
    return nn.Sequential(first, nn.GroupNorm(2, 64), nn.ReLU(), *blocks, *ends)


MODELS = {"linear layers": "small", "ResNet-18, group norm": "resnet18", "wide layers": "huge"}


def parted(shape: tuple[int, ...], outputs: int) -> nn.Module:
    """646,106 parameters, of which the 3,850 of the last layer are to be trained."""
    return wide(shape, outputs, (352, 496, 384))


class Bare:
    """The loop without a house."""

    def __init__(self, config: Config, model: nn.Module, data: Examples) -> None:
        self.keys, self.model, self.data = config.train, model, data
        self.trained = dict(model.named_parameters())
        self.whole = [p.detach().clone() for p in model.parameters()]

    def __call__(self) -> None:
        """One round."""
        sums = [torch.zeros_like(p) for p in self.whole]
        for u in range(USERS):
            with torch.no_grad():
                for p, start in zip(self.model.parameters(), self.whole, strict=True):
                    p.copy_(start)
            self.user(*self.data.user(u))
            with torch.no_grad():
                for total, p in zip(sums, self.model.parameters(), strict=True):
                    total.add_(p, alpha=1 / USERS)
        self.whole = sums

    def user(self, x: Tensor, y: Tensor) -> None:
        """One user's steps."""
        keys = self.keys
        decayed = [p for name, p in self.trained.items() if is_weight(name, p)]
        rest = [p for name, p in self.trained.items() if not is_weight(name, p)]
        sides: list[dict[str, Any]] = [
            {"params": decayed, "weight_decay": keys.decay},
            {"params": rest},
        ]
        optimiser = torch.optim.SGD(sides, lr=keys.lr, momentum=keys.momentum)
        self.model.train()
        for _ in range(STEPS):
            rows = torch.randperm(len(y))[: keys.batch_size]
            optimiser.zero_grad()
            torch.autograd.backward(F.cross_entropy(self.model(x[rows]), y[rows]))
            optimiser.step()


def config_of(model: str) -> Config:
    """A run of one of the models."""
    return unevaluated({**PROBLEM, "model": f"corsage.benchmarks.large:{model}"})


def seconds(title: str, model: str) -> Measure:
    """CPU seconds of a round, as a share of the bare loop's."""
    config = config_of(model)
    data = training_data(config, USERS)
    plain = globals()[model]((1, SIDE, SIDE), 10)
    count = sum(p.numel() for p in plain.parameters())
    turns = Turns(TURNS, Bare(config, plain, data))
    take(turns, config)
    house, beside = (seconds / USERS for seconds in turns.seconds)
    words = f"CPU s a user: bare loop {beside:.3f}, Corsage {house:.3f}"
    return Measure(f"{title}, {count / 1e6:.1f} M", turns.ratio, LIMIT, "of bare", words)


def traffic() -> Measure:
    """Bytes of a user and round, up and down, over a frozen backbone, beside all of the model's."""
    keys = {**PROBLEM, "model": "corsage.benchmarks.large:parted", "num-rounds": 1, "seed": 0}
    frozen = Config.parse({**keys, "frozen": "1,3,5"})
    found = strategy_class("fedavg")(frozen, []).start(LocalGrid(app, 1)).json()[0]
    own, whole = ((found["bytes_up"] + found["bytes_down"]) / USERS, 2 * 4 * 646_106)
    words = f"the whole model takes {whole:,} bytes, {whole / own:.0f} times as many"
    return Measure("FedAvg, 3,850 of 646,106 train", own, 2 * 4 * 3_850, "bytes", words)


def memory(title: str, model: str) -> Measure:
    """The peak of a process of its own, in sizes of the model."""
    (count, grown), (_, beside) = (grown_by(model, kind) for kind in ("house", "bare"))
    words = f"{grown / 1e6:.0f} MB beyond imports and data, the bare loop {beside / 1e6:.0f}, "
    words += f"the model {4e-6 * count:.0f} MB"
    return Measure(f"{title}, memory", grown / (4 * count), SIZES, "models", words)


def grown_by(model: str, kind: str) -> tuple[float, float]:
    """Parameters, and by how many bytes a process grew that ran the house or the bare loop."""
    command = [sys.executable, "-m", "corsage.benchmarks.large", model, kind]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    count, grown = (float(word) for word in done.stdout.split()[-2:])
    return count, grown


def resident(word: str) -> float:
    """Bytes that this process has (VmRSS), or the most that it has had (VmHWM)."""
    lines = Path("/proc/self/status").read_text(encoding="ascii").splitlines()
    return 1024.0 * next(float(line.split()[1]) for line in lines if line.startswith(word))


def one_run(model: str, kind: str) -> None:
    """Three rounds, and the number of parameters and the bytes that they took, on stdout."""
    warm = config_of("tiny")
    take(Turns(1, lambda: None), warm)
    data = training_data(warm, USERS)
    Bare(warm, tiny((1, SIDE, SIDE), 10), data)()
    gc.collect()
    before = resident("VmRSS")
    Path("/proc/self/clear_refs").write_text("5", encoding="ascii")  # the peak begins anew
    config = config_of(model)
    if kind == "house":
        take(Turns(2, lambda: None), config)
        count = build_network(config.model, (1, SIDE, SIDE), 10, 0).whole.stop
    else:
        plain = Bare(config, globals()[model]((1, SIDE, SIDE), 10), data)
        count = sum(p.numel() for p in plain.whole)
        for _ in range(3):
            plain()
    print(count, resident("VmHWM") - before - data.x.numel() * 4)


def tiny(shape: tuple[int, ...], outputs: int) -> nn.Module:
    """What runs before anything is measured: all is imported then, and the data are there."""
    first = [nn.Conv2d(shape[0], 4, 3), nn.GroupNorm(2, 4), nn.ReLU(), nn.AdaptiveAvgPool2d(4)]
    return nn.Sequential(*first, nn.Flatten(), nn.Linear(64, outputs))


def run() -> Iterator[Measure]:
    """Bytes; of all models the time, then the memory."""
    yield traffic()
    yield from (seconds(title, model) for title, model in MODELS.items())
    yield from (memory(title, model) for title, model in MODELS.items())


if __name__ == "__main__":
    one_run(sys.argv[1], sys.argv[2])
