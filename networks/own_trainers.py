"""Trainers of an app's own: a function, or a NumPyClient."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import torch
from torch import nn

from corsage.core.errors import ConfigError, ModelError
from corsage.core.seeding import reseed
from corsage.networks.network import Network
from corsage.networks.own_training import OptimizerPull, Words

SYNONYMS: Mapping[str, tuple[str, ...]] = {
    "epochs": ("epochs", "num_epochs", "local_epochs", "n_epochs"),
    "lr": ("lr", "learning_rate"),
    "batch_size": ("batch_size",),
    "momentum": ("momentum",),
    "weight_decay": ("weight_decay",),
    "device": ("device",),
    "part": ("part",),
    "round": ("round", "server_round"),
    "user": ("user",),
    "config": ("config",),
}
"""Arguments of a training function besides the model and the data, and their names."""
MEANINGS = {name: what for what, names in SYNONYMS.items() for name in names}


class FunctionTrainer:
    """A function `train(module, data, ...)`; what else it asks for is in `SYNONYMS`."""

    def __init__(self, function: Callable[..., Any]) -> None:
        self.function, self.asked = function, parameters_of(function)

    def __call__(self, network: Network, data: Any, words: Words, pull: OptimizerPull) -> None:
        """Call it with what it asks for."""
        with pull.on({id(b.tensor): b.where for b in network.blocks}):
            self.function(network.module, data, **{n: words[MEANINGS[n]] for n in self.asked})


def parameters_of(function: Callable[..., Any]) -> list[str]:
    """The names that a training function asks for, beyond the model and the data."""
    if not callable(function):
        raise ConfigError(f"train: a {type(function).__name__}, no function train(model, data).")
    name = getattr(function, "__name__", "train")
    first: list[str] = []
    rest: list[str] = []
    for parameter in inspect.signature(function).parameters.values():
        if parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD):
            continue
        if len(first) < 2 and parameter.kind is not parameter.KEYWORD_ONLY:
            first.append(parameter.name)
        elif parameter.name in MEANINGS:
            rest.append(parameter.name)
        elif parameter.default is parameter.empty:
            raise ConfigError(
                f"{name}(): what is {parameter.name}? Known are {', '.join(MEANINGS)}; give it a "
                "default, or wrap the function (functools.partial)."
            )
    if len(first) < 2:
        raise ConfigError(f"{name}(): it takes no model and data: def train(model, data, config).")
    return rest


class ClientTrainer:
    """A NumPyClient of the app's own: `fit(parameters, config)`, as Flower calls it.

    Its parameters are in the order of the module's state dict. To train a part alone, its own
    module, an attribute of it, is frozen by names.
    """

    def __init__(self, make: Callable[[], Any]) -> None:
        self.make = make

    def __call__(self, network: Network, data: Any, words: Words, pull: OptimizerPull) -> None:
        """A new client, as Flower makes one for each message."""
        client = unwrapped(self.make())
        reseed(torch.initial_seed())  # whatever it drew when it was made
        own = module_of(client, network)
        if own is None and (words["part"] != "model" or pull.given):
            raise ConfigError(
                f"{type(client).__name__}: only its {words['part']} is to be trained, or pulled, "
                "but none of its attributes is the torch module; keep that as self.model, or take "
                "a method that trains the whole model: fedavg, fedper, lg-fedavg or local"
            )
        places = {}
        for block in network.blocks if own is not None else ():
            mine = dict(own.named_parameters()).get(block.name) if own is not None else None
            if mine is not None:
                mine.requires_grad_(block.tensor.requires_grad)
                places[id(mine)] = block.where
        state = network.module.state_dict()
        with pull.on(places):
            sent = [value.cpu().numpy().copy() for value in state.values()]
            settings = {k: v for k, v in words.items() if isinstance(v, int | float | str)}
            back = client.fit(sent, settings)[0]
        if len(back) != len(state):
            raise ModelError(
                f"{type(client).__name__}.fit returned {len(back)} arrays, the model has "
                f"{len(state)}: all of its state dict, in order."
            )
        with torch.no_grad():
            fixed = network.vector.fixed.arrays
            for (name, tensor), value in zip(state.items(), back, strict=True):
                if name in fixed:  # what is not trained is not read either
                    continue
                tensor.copy_(torch.as_tensor(np.asarray(value)).reshape(tensor.shape))


def unwrapped(client: Any) -> Any:
    """The NumPyClient in what `to_client()` made."""
    inner = getattr(client, "numpy_client", client)
    if not hasattr(inner, "fit"):
        raise ConfigError(f"client_fn: it returned a {type(client).__name__}, no NumPyClient.")
    return inner


def module_of(client: Any, network: Network) -> nn.Module | None:
    """The client's own module: the attribute whose parameters are named as the network's."""
    wanted = {name for name, _ in network.module.named_parameters()}
    for value in vars(client).values():
        if isinstance(value, nn.Module) and {n for n, _ in value.named_parameters()} == wanted:
            return value
    return None
