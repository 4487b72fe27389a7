"""Models of one's own: `package.module:factory`, or an object of this process."""

from __future__ import annotations

import copy
import importlib
import inspect
import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from corsage.core.arrays import Array
from corsage.core.configuration.held_objects import held, is_name
from corsage.core.configuration.key_groups import ModelKeys
from corsage.core.errors import DataError, ModelError
from corsage.core.keys import nearest
from corsage.networks.build import Shape, check_output, first_line, make_module, said
from corsage.networks.criterion import Criterion, output_of
from corsage.networks.run_modes import in_mode

MEANT = (
    *("shape", "input_shape", "outputs", "num_outputs", "out_features", "num_classes", "classes"),
    *("n_classes", "num_labels"),
)
"""Parameters of a factory that are taken for (shape, outputs) though they have a default."""

MOST_WORDS = 2**24
"""All whole numbers up to this one are held in float32, as samples of data sets are."""


def make_own(keys: ModelKeys, shape: Shape, outputs: int) -> nn.Module:
    """Call the factory that the key names."""
    factory = factory_of(keys)
    try:
        module = call(factory, shape, outputs)
    except ModelError:
        raise
    except Exception as error:
        raise ModelError(f"model={said(keys)}: the factory failed: {first_line(error)}") from error
    if not isinstance(module, nn.Module):
        raise ModelError(
            f"model={said(keys)}: the factory returned {type(module).__name__}, "
            "it must return a torch.nn.Module."
        )
    if doubles := [name for name, own in module.named_parameters() if own.dtype == torch.float64]:
        raise ModelError(
            f"model={said(keys)}: {doubles[0]} is float64, samples are float32; "
            "model.float() makes them alike."
        )
    return module


def factory_of(keys: ModelKeys) -> Callable[..., Any]:
    """The factory that the key names."""
    return own_model(keys.model) if is_name(keys.model) else load_factory(keys.model)


def fixed_outputs(keys: ModelKeys, shape: Shape) -> int:
    """The outputs of a model of one's own; 0 if that is asked of it, or it is one."""
    if wanted_arguments(factory_of(keys)):
        return 0
    with torch.random.fork_rng(devices=[]), torch.no_grad():
        module = make_module(keys, shape, 0).eval()
        try:
            output = output_of(module(torch.rand((3, *shape))))
        except RuntimeError:
            output = output_of(module(torch.zeros((3, *shape), dtype=torch.int64)))
        except Exception:  # what is wrong with it is said when it is built for the data
            return 0
    fits = output.dim() == 2 and output.shape[1] > 1
    return int(output.shape[1]) if fits else 0


def example_for(
    keys: ModelKeys, module: nn.Module, numbers: Tensor, outputs: int, criterion: Criterion
) -> Tensor:
    """Samples that a model takes: words, if they go into an embedding, or it takes no numbers."""
    tables = [m for m in module.modules() if isinstance(m, nn.Embedding | nn.EmbeddingBag)]
    words = torch.randint(min((m.num_embeddings for m in tables), default=2), numbers.shape)
    if embeds(module, tables, words):
        return words
    taken = []
    for example in (numbers, words):
        with suppress(ModelError):
            check_output(keys, module, example, outputs, criterion)
            taken.append(example)
    return (taken or [numbers])[0]


def embeds(module: nn.Module, tables: Sequence[nn.Module], x: Tensor) -> bool:
    """Tell whether samples are looked up in an embedding as they are."""
    seen: list[bool] = []
    hooks = [
        table.register_forward_pre_hook(lambda _, given: seen.append(torch.equal(given[0], x)))
        for table in tables
    ]
    with in_mode(module, False), suppress(Exception):
        module(x)
    for hook in hooks:
        hook.remove()
    return any(seen)


def whole_numbers(x: Array) -> Array:
    """Samples for a model that takes words; DataError if they are no whole numbers."""
    good = (x == np.floor(x)) & (np.abs(x) <= MOST_WORDS)
    if not good.all():
        raise DataError(
            f"the model takes whole numbers up to {MOST_WORDS:,}, which go into an embedding; the "
            f"samples have {x[~good].flat[0]:g}: give it numbers of words, or take another model."
        )
    return x


def own_model(name: str) -> Callable[..., Any]:
    """A model that is an object of this process: a factory, or copies of a module as it is."""
    found = held(name)
    if found is None:
        raise ModelError(
            "model: it is an object of another process; give a class or a function that can be "
            "imported there (not one of __main__, a lambda, or a module that is built already)."
        )
    if isinstance(found.thing, nn.Module):
        module = found.thing
        return lambda: copy.deepcopy(module)
    if not callable(found.thing):
        raise ModelError(f"model={found.thing!r:.60}: neither a torch.nn.Module nor callable.")
    factory: Callable[..., Any] = found.thing
    return factory


def load_factory(model: str) -> Callable[..., Any]:
    """Import `package.module:factory`, also from the working directory."""
    name, _, attribute = model.partition(":")
    here = str(Path.cwd())
    path = list(sys.path)
    try:
        sys.path.append(here)
        module = importlib.import_module(name)
    except Exception as error:
        raise ModelError(f"model={model}: cannot import {name}: {first_line(error)}") from error
    finally:
        sys.path[:] = path
    if not hasattr(module, attribute):
        known = [n for n in vars(module) if callable(getattr(module, n)) and not n.startswith("_")]
        raise ModelError(
            f"model={model}: {name} has no {attribute}.{nearest(attribute, known) if known else ''}"
        )
    factory: Callable[..., Any] = getattr(module, attribute)
    if not callable(factory):
        raise ModelError(f"model={model}: {attribute} is not callable; name a function or class.")
    return factory


def call(factory: Callable[..., Any], shape: Shape, outputs: int) -> Any:
    """Call a factory with (shape, outputs), with the outputs alone, or with nothing.

    One that has a default is given another value only if its name says that it is one of these:
    `Net(hidden=64)` keeps its 64, and of `Net(words=5000, classes=2)` the second is the outputs.
    """
    values = (shape, outputs)[2 - wanted_arguments(factory) :]
    taken = wanted(factory)
    if len(taken) < len(values):  # it takes any number
        return factory(*values)
    pairs = [*zip(taken, values, strict=False)]
    by_name = {p.name: v for p, v in pairs if p.default is not p.empty}
    return factory(*(v for p, v in pairs if p.default is p.empty), **by_name)


def wanted(factory: Callable[..., Any]) -> list[inspect.Parameter]:
    """Parameters of a factory that (shape, outputs) are for."""
    return [
        p
        for p in inspect.signature(factory).parameters.values()
        if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)
        and (p.default is p.empty or p.name in MEANT)
    ]


def wanted_arguments(factory: Callable[..., Any]) -> int:
    """The number of (shape, outputs) that a factory takes: both, the outputs alone, or none."""
    parameters = inspect.signature(factory).parameters.values()
    open_ended = any(p.kind is p.VAR_POSITIONAL for p in parameters)
    return 2 if open_ended else min(2, len(wanted(factory)))
