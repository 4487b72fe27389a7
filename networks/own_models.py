"""Models of one's own: `package.module:factory`, or an object of this process."""

from __future__ import annotations

import copy
import importlib
import inspect
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import nn

from corsage.core.configuration.held_objects import held, is_name
from corsage.core.configuration.key_groups import ModelKeys
from corsage.core.errors import ModelError
from corsage.core.keys import nearest
from corsage.networks.build import Shape, first_line, make_module, said
from corsage.networks.criterion import output_of

MEANT = (
    *("shape", "input_shape", "outputs", "num_outputs", "out_features", "num_classes", "classes"),
    *("n_classes", "num_labels"),
)
"""Parameters of a factory that are taken for (shape, outputs) though they have a default."""


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
    """What a factory makes for (shape, outputs), for the outputs alone, or for nothing.

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
