"""The bare loop: the SGD steps of a user-round on one built model in plain torch, nothing else."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from corsage.core.configuration.key_groups import ModelKeys, TrainKeys
from corsage.networks.batches import Examples

CLASSES, USERS = 10, 10


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


def optimiser(model: nn.Module, trained: list[nn.Parameter], keys: TrainKeys) -> torch.optim.SGD:
    """SGD with weight decay on weights; what does not train needs no gradient."""
    own = {id(p) for p in trained}
    for p in model.parameters():
        p.requires_grad_(id(p) in own)
    sides = [
        {"params": [p for p in trained if p.dim() > 1], "weight_decay": keys.weight_decay},
        {"params": [p for p in trained if p.dim() == 1], "weight_decay": 0.0},
    ]
    return torch.optim.SGD(sides, lr=keys.lr, momentum=keys.momentum)


def epoch(samples: int, size: int) -> tuple[Tensor, ...]:
    """The rows of an epoch's batches."""
    return torch.randperm(samples).split(size)  # type: ignore[no-untyped-call, no-any-return]


def step(opt: torch.optim.SGD, loss: Tensor) -> None:
    """One SGD step."""
    opt.zero_grad()
    torch.autograd.backward(loss)
    opt.step()


def user_rounds(fedrep: bool, model: nn.Sequential, data: Examples, keys: TrainKeys) -> None:
    """All users' epochs: of FedRep ten of the head and one of the body, else one of all."""
    phases = [(list(model.parameters()), 1)]
    if fedrep:
        phases = [(list(model[-1].parameters()), 10), (list(model[:-1].parameters()), 1)]
    for u in range(USERS):
        x, y = data.user(u)
        for trained, epochs in phases:
            opt = optimiser(model, trained, keys)
            for _ in range(epochs):
                for rows in epoch(len(y), keys.batch_size):
                    step(opt, F.cross_entropy(model(x[rows]), y[rows]))
