"""Training by somebody else's function, in the place of Corsage's SGD.

The function gets the module with the part that is to be trained requiring gradients and the rest
frozen, and trains it as it likes. A pull (FedProx, Ditto) is added to the gradients before each
step of whatever torch optimizer it uses.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor
from torch.optim import Optimizer
from torch.optim.optimizer import register_optimizer_step_pre_hook
from torch.utils.data import TensorDataset

from corsage.core.arrays import Floats32
from corsage.core.configuration.key_groups import TrainKeys
from corsage.core.configuration.train_keys import LEARNING
from corsage.core.errors import ConfigError
from corsage.core.seeding import reseed, torch_seed
from corsage.networks.batches import Examples
from corsage.networks.network import Network
from corsage.networks.proximal import Drift, Pull

Words = Mapping[str, Any]


@dataclass(frozen=True)
class Lesson:
    """The training that an app is asked for.

    Parameters
    ----------
    name, part : "model", "body" or "head", and where that lies in the model.
    epochs, keys : how long and how, as the server says.
    seed, round : of the run.
    """

    name: str
    part: slice
    epochs: int
    keys: TrainKeys
    seed: int
    round: int

    def words(self, user: str, device: torch.device) -> dict[str, Any]:
        """It in the words of `own_trainers.SAME`, for a function of the app's own."""
        keys = self.keys
        said = {
            "epochs": self.epochs,
            "lr": keys.lr,
            "batch_size": keys.batch_size,
            "momentum": keys.momentum,
            "weight_decay": keys.decay,
            "device": device,
            "part": self.name,
            "round": self.round,
            "user": user,
        }
        return {**said, "config": dict(said)}


class Trainer(Protocol):
    """Trains the network in place, on what the app gave as the user's data."""

    def __call__(self, network: Network, data: Any, words: Words, pull: OptimizerPull) -> None:
        """One user's training; what is pulled is said to `pull.parameters`."""


class OptimizerPull:
    """Adds a pull to the gradients before each step of any torch optimizer."""

    def __init__(self, network: Network, part: slice, drift: Drift | None) -> None:
        self.network, self.part, self.drift, self.steps = network, part, drift, 0

    @property
    def given(self) -> bool:
        """Tell whether there is one."""
        return self.drift is not None

    @contextmanager
    def on(self, places: Mapping[int, slice]) -> Iterator[None]:
        """While a function trains the parameters of these ids, at these places of the model."""

        def add(optimizer: Optimizer, *_: Any) -> None:
            self.steps += 1
            for group in optimizer.param_groups:
                for tensor in group["params"]:
                    if id(tensor) in places and tensor.grad is not None:
                        self.add(tensor, places[id(tensor)])

        handle = register_optimizer_step_pre_hook(add)
        try:
            yield
        finally:
            handle.remove()

    def add(self, tensor: Tensor, where: slice) -> None:
        """Add it to one parameter's gradient."""
        start = where.start - self.part.start
        if self.drift is None or not 0 <= start < self.part.stop - self.part.start:
            return
        assert tensor.grad is not None and self.drift.constant is not None
        constant = self.drift.constant[0, start : start + tensor.numel()]
        rate = self.drift.rate
        strength = float(rate[0]) if isinstance(rate, Tensor) else float(rate)
        with torch.no_grad():
            tensor.grad.add_(tensor, alpha=strength).add_(constant.view(tensor.shape))


def refuse_unheard(keys: TrainKeys) -> None:
    """ConfigError for keys that a training function of the app's own would never hear of."""
    names = [name for name in LEARNING if name != "lr_schedule"]
    for name, value in keys.changed(tuple(names)).items():
        raise ConfigError(
            f"{name}={value}: the app trains by a function of its own, which decides that; leave "
            "it out."
        )


class OwnTraining:
    """The training of an app's own, for the users of a node.

    Parameters
    ----------
    trainer : who trains.
    originals : what the app gave as each user's training data; a TensorDataset of the samples
        where that was arrays.
    """

    def __init__(self, trainer: Trainer, originals: Mapping[str, Any]) -> None:
        self.trainer, self.originals = trainer, originals

    def train(
        self,
        network: Network,
        rows: Floats32,
        users: list[str],
        data: Examples,
        lesson: Lesson,
        pull: Pull | None,
    ) -> tuple[Floats32, list[int]]:
        """The trained part of each user's model, of which `rows` (users, P) is the start.

        And how many steps of an optimizer each took.
        """
        if lesson.keys.local_steps:
            raise ConfigError(
                f"local-steps={lesson.keys.local_steps}: an app's own training goes by epochs; "
                "leave it out"
            )
        part, steps = lesson.part, [0] * len(users)
        refuse_unheard(lesson.keys)
        out = np.array(rows[:, part], np.float32)
        if pull is not None and pull.every:
            raise ConfigError("a pull whose centre follows needs Corsage's own steps")
        pull = None if pull is None or pull.idle else pull
        for u, user in enumerate(users):
            if lesson.epochs and any(b.trained for b in network.blocks_of(part)):
                network.set(network.whole, rows[u])
                steps[u] = self.one(network, user, data.user(u), lesson, pull and pull.pick([u]))
                out[u] = network.get(part)
        return out, steps

    def one(
        self,
        network: Network,
        user: str,
        pair: tuple[Tensor, Tensor],
        lesson: Lesson,
        pull: Pull | None,
    ) -> int:
        """One user's training, in place; its random numbers are those of user and round."""
        part = lesson.part
        size = part.stop - part.start
        whole = slice(0, size)
        drift = None if pull is None else pull.drift(whole, [size], 1, 0.0, network.flat)
        pulling = OptimizerPull(network, part, drift)
        original = self.originals.get(user)
        seed = torch_seed(lesson.seed, lesson.name, lesson.round, user)
        network.activate(part)
        network.train()
        devices = [network.device] if network.device.type == "cuda" else []
        with network.vector.fixed.guarded(), torch.random.fork_rng(devices=devices):
            reseed(seed)
            given = TensorDataset(*pair) if original is None else original
            self.trainer(network, given, lesson.words(user, network.device), pulling)
        network.gather()
        if pull is not None and not pulling.steps:
            raise ConfigError(
                "a pull to another model is added at the steps of a torch optimizer, and the "
                "training function has none; use one of torch.optim"
            )
        return pulling.steps
