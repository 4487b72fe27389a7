"""Arrays of a state that are parts of the model, and the names that its parameters have."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, TypeVar, cast

import numpy as np

from corsage.core.arrays import Array, Arrays, Bools, Floats32
from corsage.core.errors import ModelError
from corsage.core.messages.encoding import as_sent
from corsage.strategies.rounds.state import arrays_of

if TYPE_CHECKING:
    from corsage.networks.network import Network

S = TypeVar("S")
MODEL_PARTS = ("body", "head", "model")  # arrays of these names are parts of the model


def part(network: Network, name: str) -> slice:
    """The slice of a network's flat vector of an array called body, head or model."""
    return {"body": network.body, "head": network.head, "model": network.whole}[name]


def learned(network: Network, name: str) -> Bools:
    """Mark the numbers of a part of the model that are trained, and not running statistics."""
    found = np.zeros(network.whole.stop, dtype=bool)
    for block in network.blocks:
        found[block.where] = block.trained
    return found[part(network, name)]


def without_statistics(network: Network, models: Floats32) -> Floats32:
    """Models, or changes of them, with 0 for running statistics: these follow the data alone."""
    own = learned(network, "model")
    return models if own.all() else np.where(own, models, np.float32(0.0))


def lean(state: S) -> S:
    """A state whose large parts of the model are those of the message that will be sent."""
    own = {n: as_sent(a) for n, a in arrays_of(state).items() if n in MODEL_PARTS}
    return cast(S, replace(cast(Any, state), **own)) if own else state


def by_parameter(network: Network, arrays: Mapping[str, Array]) -> Arrays:
    """The parts of the model among some arrays, parameter by parameter."""
    named = Arrays()
    for name, array in arrays.items():
        if name in MODEL_PARTS:
            named |= network.named(array, part(network, name))
    return named


def parts_of(strategy: str, network: Network, named: Arrays, names: Sequence[str]) -> Arrays:
    """Those parts of the model that a state has, out of a model's state dict."""
    held = [name for name in names if name in MODEL_PARTS]
    if not held:
        raise ModelError(
            f"{strategy}: initial_arrays cannot be given: users begin with the run's own."
        )
    return {name: network.flatten(named, part(network, name)) for name in held}


def check_whole(strategy: str, network: Network) -> None:
    """ModelError if some of a linear model is frozen that is solved for as a whole."""
    if fixed := network.vector.fixed.tensors:
        raise ModelError(
            f"{strategy}: it solves for all of a linear model, and {', '.join(fixed)} is frozen: "
            "leave frozen=... out, or take a method that trains by SGD."
        )


def check_numbers(strategy: str, arrays: Mapping[str, Array]) -> None:
    """ModelError if arrays from outside are no finite numbers in single precision."""
    for name, array in arrays.items():
        if array.dtype.kind not in "fiu":
            raise ModelError(f"{strategy}: {name} is of {array.dtype}, not of numbers.")
        if array.dtype.kind == "f" and not np.all(np.abs(array) <= np.finfo(np.float32).max):
            raise ModelError(f"{strategy}: {name} is not finite: it cannot take the model's place.")


def fitted(strategy: str, arrays: Arrays, like: Arrays) -> Arrays:
    """Arrays from outside as a state has them; ModelError if their shapes are others."""
    for name, array in arrays.items():
        if array.shape != like[name].shape:
            raise ModelError(
                f"{strategy}: {name} has shape {array.shape}, the model {like[name].shape}."
            )
    return {name: array.astype(like[name].dtype) for name, array in arrays.items()}
