"""CPU seconds of a user-round of models that people bring, beside two loops in plain torch.

Bare: the same steps on one built model, with index batches and torch.optim.SGD. Tuned (FedRep,
where it is exact): that, but with the features of the frozen body computed once for all epochs of
the head. All take the same number of steps on random data, by turns, in one process with one
thread, on the path that the rule chooses (`networks/together/choice`); it stands beside.

    python -m corsage.benchmarks own-models
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from statistics import median

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from corsage.benchmarks import own_nets as nets
from corsage.benchmarks.bare_loop import epoch, optimiser, step
from corsage.benchmarks.measure import Measure
from corsage.benchmarks.turns import one_thread
from corsage.core.configuration.key_groups import TrainKeys
from corsage.core.seeding import generator
from corsage.networks.batches import Examples, Loss, Order
from corsage.networks.local_training import train_bodies, train_heads, train_models
from corsage.networks.network import Network
from corsage.networks.together.path_choice import choose
from corsage.networks.training import batches

PAPER = TrainKeys(batch_size=10, lr=0.01, momentum=0.5, weight_decay=1e-4)
PFLLIB = TrainKeys(batch_size=50, lr=0.01, momentum=0.0, weight_decay=0.0)
GREY, COLOUR = (1, 28, 28), (3, 32, 32)
HEAD_EPOCHS = 10


@dataclass(frozen=True)
class Case:
    """A model under a method; `bare` and `tuned` are the shares of these loops to stay below.

    `loss` is the users' own, of (features, outputs, labels).
    """

    name: str
    make: Callable[[], nets.Net]
    fedrep: bool
    keys: TrainKeys = PAPER
    bare: float | None = None
    tuned: float | None = None
    shape: tuple[int, ...] = GREY
    loss: Loss | None = None
    users: int = 10
    samples: int = 200
    turns: int = 5

    @property
    def title(self) -> str:
        """The method and the model."""
        return f"{'FedRep' if self.fedrep else 'FedAvg'}, {self.name}"


OWN = nets.small_features
SLIM, EIGHTEEN = (16, 32, 64), (64, 128, 256, 512)
CASES = [
    Case("MLP as a class", nets.Perceptron, False, bare=0.6, samples=500),
    Case("MLP as a class", nets.Perceptron, True, bare=0.2, tuned=0.4, samples=500),
    Case("PFLlib's CNN as a class", nets.Cnn, False, PFLLIB, bare=0.75, turns=3),
    Case("PFLlib's CNN as a class", nets.Cnn, True, PFLLIB, bare=0.17, tuned=0.6, turns=3),
    Case("LeNet with tanh and average pooling", nets.LeNet, False, bare=0.6),
    Case("ViT of 4 layers, 96 wide", nets.ViT, False, bare=0.9, samples=50),
    Case("ViT of 4 layers, 96 wide", nets.ViT, True, bare=0.30, samples=50),
    Case("LSTM of 128", nets.Lstm, False, bare=0.9),
    Case("CNN with BatchNorm", nets.BatchNormed, False, bare=1.0),
    Case("CNN with BatchNorm", nets.BatchNormed, True, bare=1.0),
    Case("MLP, a loss of users' own", nets.Perceptron, False, bare=1.0, loss=OWN),
    Case("LeNet with tanh, a loss of users' own", nets.LeNet, False, bare=1.0, loss=OWN),
    Case("PFLlib's CNN, head of two layers", nets.DeepHead, True, bare=1.0, tuned=1.0, turns=3),
    Case("MobileNet-like", nets.MobileNet, True, bare=0.26, samples=50),
    *(
        Case(name, make, True, PAPER, 0.32, 1.05, COLOUR, users=users, samples=samples, turns=3)
        for name, make, users, samples in (
            ("ResNet, slim", lambda: nets.ResNet(*SLIM), 10, 30),
            ("ResNet-18", lambda: nets.ResNet(*EIGHTEEN), 2, 30),
        )
    ),
]


@dataclass
class Loops:
    """The two loops in plain torch on one model."""

    case: Case
    model: nets.Net
    data: Examples

    def sgd(
        self, trained: list[nn.Parameter], function: nn.Module, x: Tensor, y: Tensor, epochs: int
    ) -> None:
        """So many epochs of SGD on some parameters, all others frozen."""
        keys = self.case.keys
        opt = optimiser(self.model, trained, keys)
        for _ in range(epochs):
            for rows in epoch(len(y), keys.batch_size):
                step(opt, self.mean(function, x[rows], y[rows]))

    def mean(self, function: nn.Module, x: Tensor, y: Tensor) -> Tensor:
        """The loss of a batch."""
        if self.case.loss is None:
            return F.cross_entropy(function(x), y)
        features = self.model.body(x)
        return self.case.loss(features, self.model.head(features), y)

    def run(self, tuned: bool) -> None:
        """The round of all users; `tuned`: the head trains on features that are computed once."""
        model, head = self.model, self.model.head
        for u in range(self.case.users):
            x, y = self.data.user(u)
            if not self.case.fedrep:
                self.sgd(list(model.parameters()), model, x, y, 1)
                continue
            if tuned:
                with torch.no_grad():
                    features = torch.cat([model.body(piece) for piece in torch.split(x, 100)])
                self.sgd(list(head.parameters()), head, features, y, HEAD_EPOCHS)
            else:
                self.sgd(list(head.parameters()), model, x, y, HEAD_EPOCHS)
            mine = {id(p) for p in head.parameters()}
            self.sgd([p for p in model.parameters() if id(p) not in mine], model, x, y, 1)


def corsage(case: Case, network: Network, data: Examples, turn: int) -> None:
    """A node's round with all its users, batches drawn included."""

    def orders(phase: str, epochs: int) -> list[Order]:
        rngs = [generator(0, phase, turn, u) for u in range(case.users)]
        return [batches(rng, case.samples, epochs, case.keys.batch_size) for rng in rngs]

    start = network.initial
    if not case.fedrep:
        train_models(network, start, data, orders("model", 1), case.keys)
        return
    body, heads = start[network.body], np.tile(start[network.head], (case.users, 1))
    heads = train_heads(network, body, heads, data, orders("head", HEAD_EPOCHS), case.keys)
    train_bodies(network, body, heads, data, orders("body", 1), case.keys)


@dataclass
class Row:
    """CPU seconds of a user and round: of the loops, and Corsage's; one entry a turn."""

    path: str
    bare: list[float] = field(default_factory=list)
    tuned: list[float] = field(default_factory=list)
    ours: list[float] = field(default_factory=list)

    def share(self, of: list[float]) -> float:
        """Corsage's seconds as a share of a loop's, the median of the turns."""
        return median(a / b for a, b in zip(self.ours, of, strict=True))

    @property
    def words(self) -> str:
        """All three side by side."""
        ours, bare = 1e3 * median(self.ours), 1e3 * median(self.bare)
        words = f"CPU ms a user: bare {bare:.1f}"
        if self.tuned:
            words += f", tuned {1e3 * median(self.tuned):.1f}"
        words += f", Corsage {ours:.1f}; of bare {self.share(self.bare):.3f}"
        if self.tuned:
            words += f", of tuned {self.share(self.tuned):.3f}"
        return f"{words}; path {self.path}"


def seconds(work: Callable[[], None], users: int) -> float:
    """CPU seconds of one user."""
    begin = time.process_time()
    work()
    return (time.process_time() - begin) / users


def measure(case: Case) -> Row:
    """All by turns; the first warms up."""
    rng, n = generator(0, "benchmark"), case.users * case.samples
    x = torch.from_numpy(rng.random((n, *case.shape), np.float32))
    y = torch.from_numpy(rng.integers(0, nets.CLASSES, n))
    own = [case.loss] * case.users if case.loss else None
    data = Examples(x, y, np.full(case.users, case.samples), own)
    model, example = case.make(), x[:3].clone()
    path = choose(Network(case.make(), "head", example), case.shape, nets.CLASSES, case.keys).name
    network = Network(case.make(), "head", example).along(path)
    loops, row = Loops(case, model, data), Row(path)
    for turn in range(case.turns + 1):
        taken = (
            (row.ours, lambda turn=turn: corsage(case, network, data, turn)),
            (row.bare, lambda: loops.run(tuned=False)),
            (row.tuned, lambda: loops.run(tuned=True)),
        )
        for column, work in taken[: 3 if case.fedrep and network.cacheable else 2]:
            took = seconds(work, case.users)
            if turn:
                column.append(took)
    return row


def run(cases: list[Case] | None = None) -> Iterator[Measure]:
    """Measure the cases one after the other; each is given as soon as it is there."""
    with one_thread():
        for case in cases or CASES:
            row = measure(case)
            for name, most, of in (("bare", case.bare, row.bare), ("tuned", case.tuned, row.tuned)):
                if most is not None:
                    yield Measure(case.title, row.share(of), most, f"of {name}", row.words)
