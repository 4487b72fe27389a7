"""From the configuration to a `Network`: a built-in model, or a user's own."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import lru_cache

import numpy as np
import torch
from torch import Tensor, nn

from corsage.core.arrays import Arrays
from corsage.core.configuration.held_objects import held, is_name
from corsage.core.configuration.key_groups import ModelKeys
from corsage.core.errors import ConfigError, ModelError
from corsage.core.keys import nearest
from corsage.core.registry import attached
from corsage.core.seeding import reseed, torch_seed
from corsage.core.training_paths import AUTO
from corsage.networks import batch_norm
from corsage.networks.criterion import Criterion, criterion_of, output_of
from corsage.networks.network import NETWORK_LOCK, Network
from corsage.networks.parameter_groups import Words
from corsage.networks.zoo import ZOO

Shape = tuple[int, ...]
BATCH_NORM = "@*BatchNorm*"
"""The pattern of layers that normalise by the batch."""


def build_network(
    keys: ModelKeys,
    shape: Shape,
    num_classes: int,
    seed: int,
    device: str = "cpu",
    fixed: Arrays | None = None,
) -> Network:
    """The network of a configuration, built once a process; `num_classes` 0: labels are numbers.

    The caller sets the parameters before each use: another user's are in it. `initial` are
    those of the seed. The global random state is left alone.

    `fixed` has what nobody trains, by name, as a file has it: where that is not what the factory
    makes, the network is another, of which nobody else has a hold.
    """
    facts = tuple(int(side) for side in shape), int(num_classes), int(seed), device
    found = _build(keys, *facts)
    for name, own in found.vector.fixed.arrays.items() if fixed else ():
        if fixed and name in fixed and not np.array_equal(fixed[name], own):
            return _made(keys, *facts, fixed).along(keys.training_path)
    return found


def measure_model(keys: ModelKeys, shape: Shape, num_classes: int) -> tuple[int, int]:
    """Parameters of a built-in model, and its widest linear layer; nothing is allocated.

    ModelError if it is none, or too large to count.
    """
    if keys.model not in ZOO:
        raise ModelError(f"model={keys.model}: no such model.{nearest(keys.model, ZOO)}")
    outputs = criterion_of(keys, num_classes).outputs(num_classes)
    try:
        with torch.device("meta"):
            module = make_module(keys, shape, outputs)
    except (RuntimeError, OverflowError, TypeError, ValueError) as error:
        raise ModelError(f"model={keys.model}: too large to be built") from error
    widths = [m.out_features for m in module.modules() if isinstance(m, nn.Linear)]
    return sum(p.numel() for p in module.parameters()), max(widths)


def check_available(device: str) -> None:
    """Refuse a device that this machine does not have."""
    kind, _, number = device.partition(":")
    if kind == "cpu":
        return
    module = getattr(torch, kind, None)
    if module is None or not module.is_available() or int(number or 0) >= module.device_count():
        raise ModelError(f"device={device}: this machine has no such device; device=cpu always is.")


@lru_cache(maxsize=8)
def _build(keys: ModelKeys, shape: Shape, num_classes: int, seed: int, device: str) -> Network:
    """One network a model: those of its paths have the same vector."""
    found = _auto(replace(keys, training_path=AUTO), shape, num_classes, seed, device)
    return found if keys.training_path == AUTO else found.along(keys.training_path)


@lru_cache(maxsize=8)
def _auto(keys: ModelKeys, shape: Shape, num_classes: int, seed: int, device: str) -> Network:
    return _made(keys, shape, num_classes, seed, device, {})


def _made(
    keys: ModelKeys, shape: Shape, num_classes: int, seed: int, device: str, fixed: Arrays
) -> Network:
    check_available(device)
    criterion = criterion_of(keys, num_classes)

    def fresh() -> tuple[nn.Module, Tensor]:
        """The module with its own values, and samples that it was tried on."""
        outputs = criterion.outputs(num_classes)
        module = make_module(keys, shape, outputs)
        load_known(module, fixed)
        if keys.batch_norm == "frozen":
            batch_norm.freeze(module)
        example = torch.rand((3, *shape))
        if keys.model not in ZOO:
            example = attached("own models").example_for(keys, module, example, outputs, criterion)
        check_output(keys, module, example, outputs, criterion)
        return module, example

    def again() -> nn.Module:
        with seeded(seed):
            return fresh()[0]

    with seeded(seed):
        module, example = fresh()
        with refusing(keys):
            also = BATCH_NORM if keys.batch_norm == "personal" else ""
            words = Words(keys.head, keys.shared, keys.personal, keys.frozen, also)
            network = Network(module, words, example, device, criterion)
    if not is_name(keys.model):  # an object of this process may be another one by then
        network.vector.remake = again
    return network


@contextmanager
def refusing(keys: ModelKeys) -> Iterator[None]:
    """Turn torch's complaint about a model into a line of its own."""
    try:
        yield
    except RuntimeError as error:
        raise ModelError(f"model={said(keys)}: {first_line(error)}") from error


@contextmanager
def seeded(seed: int) -> Iterator[None]:
    """Models are drawn from the seed, and the global random state is left alone."""
    with NETWORK_LOCK, torch.random.fork_rng(devices=[]):
        reseed(torch_seed(seed, "model"))
        yield


def load_known(module: nn.Module, values: Arrays) -> None:
    """Put values in the place of a module's own, as far as it has such; no others are read."""
    with torch.no_grad():
        for name, tensor in module.state_dict(keep_vars=True).items():
            if isinstance(tensor, Tensor) and name in values:
                given = values[name]
                if given.shape != tuple(tensor.shape):
                    raise ModelError(f"{name} is {tuple(tensor.shape)} there, not {given.shape}.")
                tensor.copy_(torch.from_numpy(np.array(given)))


def make_module(keys: ModelKeys, shape: Shape, outputs: int) -> nn.Module:
    """Call the model's factory."""
    if keys.model != "linear" and not keys.intercept:
        raise ConfigError("intercept=false: only model=linear can go without; leave it out.")
    if keys.model in ZOO:
        return ZOO[keys.model](shape, outputs, keys)
    if ":" not in keys.model and not is_name(keys.model):
        raise ModelError(
            f"model={said(keys)}: no such model.{nearest(keys.model, ZOO)} "
            "One's own is package.module:factory."
        )
    own: nn.Module = attached("own models").make_own(keys, shape, outputs)
    return own


def said(keys: ModelKeys) -> str:
    """The model as messages name it."""
    found = held(keys.model)
    if found is None:
        return keys.model
    return str(getattr(found.thing, "__name__", type(found.thing).__name__))


def check_output(
    keys: ModelKeys, module: nn.Module, example: Tensor, outputs: int, criterion: Criterion
) -> None:
    """Refuse a model that does not take the data, or returns other outputs than its loss needs."""
    was = module.training
    wanted = (len(example), outputs)
    try:
        with torch.no_grad():
            output = output_of(module.eval()(example))
    except ModelError as error:
        raise ModelError(f"model={said(keys)}: {error}") from error
    except Exception as error:
        raise ModelError(
            f"model={said(keys)}: fails on data of shape {tuple(example.shape)}: "
            f"{first_line(error)}"
        ) from error
    finally:
        module.train(was)
    shape = tuple(output.shape)
    if shape != wanted:
        raise ModelError(
            f"model={said(keys)}: returns {shape} for data of shape {tuple(example.shape)}, "
            f"it must return {wanted}: {criterion.wants}."
        )


def first_line(error: BaseException) -> str:
    """An error in one line."""
    return next(iter(str(error).splitlines()), "") or type(error).__name__
