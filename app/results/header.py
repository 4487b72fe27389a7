"""Header of a file of models: whose they are, and what a prediction needs besides them.

It is JSON in the metadata of a safetensors file. Nothing in it is ever executed; a model of one's
own is named there as `package.module:factory`, and is imported when a prediction is asked for.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any

from corsage.core.arrays import PerChannel
from corsage.core.configuration.key_groups import ModelKeys
from corsage.core.errors import CheckpointError
from corsage.core.keys import flatten, read
from corsage.core.messages.wire import MOST_MODEL_CLASSES, MOST_SAMPLE_NUMBERS

MODELS_FORMAT = "corsage-models-1"
KEY = "corsage"
"""The entry of the metadata."""
KINDS_OF_NUMBERS = ("float32", "float64")
FIELD_TYPES: Mapping[str, tuple[type, ...]] = {
    "str": (str,),
    "int": (int,),
    "bool": (bool,),
    "PerChannel": (int, float, tuple),
    "Mapping[str, Any]": (dict,),
    "Mapping[str, Any] | None": (dict, type(None)),
    "Mapping[str, str]": (dict,),
}
"""The types that fields are checked for, by their annotation."""


@dataclass(frozen=True)
class Header:
    """What a file of models says.

    Parameters
    ----------
    strategy, row, round : which row of which strategy's table, after which round.
    users : whose models they are; tensors of users have a row for each, in this order.
    kept : whether the users' own tensors are in the file, and not only what is shared.
    size : bytes that they take, or would take.
    model, shape, num_classes, seed : what the network is built of.
    inputs, linear, threads : what a prediction is computed in, and on how many threads.
    shift, scale : a sample is `(x - shift) * scale` to the model; one number, or one a channel.
    vectors : samples are numbers of vectors, which only the run's own data know.
    classes : the classes' names, if they have any.
    preparation : how columns of a table become features.
    clusters : each user's cluster, where the method has clusters.
    devices : the users are devices, and the file is their server's.
    combination : of several models of a user's the rule that makes one of them, and its settings.
    """

    strategy: str
    row: str
    round: int
    users: tuple[str, ...]
    kept: bool
    size: int
    model: Mapping[str, Any]
    shape: tuple[int, ...]
    num_classes: int
    seed: int
    inputs: str = "float32"
    linear: str = ""
    threads: int = 1
    shift: PerChannel = 0.0
    scale: PerChannel = 1.0
    vectors: bool = False
    classes: tuple[str, ...] = ()
    preparation: Mapping[str, Any] | None = None
    clusters: Mapping[str, str] = field(default_factory=dict)
    devices: bool = False
    combination: Mapping[str, Any] | None = None

    @property
    def keys(self) -> ModelKeys:
        """The keys of the model."""
        return read(ModelKeys, self.model)

    def metadata(self) -> dict[str, str]:
        """As safetensors has it."""
        own = {f.name: getattr(self, f.name) for f in fields(self)}  # not copied: users may be many
        return {KEY: json.dumps({"format": MODELS_FORMAT, **own})}


def header(metadata: Mapping[str, str] | None, where: str) -> Header:
    """The header in a file's metadata; CheckpointError if they are not Corsage's."""
    try:
        found = json.loads((metadata or {})[KEY])
        form = found.pop("format")
    except (KeyError, ValueError, TypeError, AttributeError, RecursionError):
        raise CheckpointError(f"{where}: not a file of models of Corsage.") from None
    if form != MODELS_FORMAT:
        raise CheckpointError(
            f"{where}: its format is {str(form)[:40]}, this version of Corsage reads "
            f"{MODELS_FORMAT}: load it with the version that wrote it."
        )
    try:
        listed = {name: tuple(found[name]) for name in ("users", "shape", "classes")}
        listed |= {n: tuple(found[n]) for n in ("shift", "scale") if type(found[n]) is list}
        made = Header(**{**found, **listed})
        check(made)
    except Exception as error:
        raise CheckpointError(f"{where}: its header is damaged ({error}).") from None
    return made


def check(head: Header) -> None:
    """ValueError if a field is not of its kind, or beyond what any model has."""
    for f in fields(head):
        value, kinds = getattr(head, f.name), FIELD_TYPES.get(str(f.type))
        if kinds and type(value) not in kinds:
            raise ValueError(f"{f.name} is a {type(value).__name__}")
    words = (*head.users, *head.classes, *head.clusters, *head.clusters.values())
    if set(map(type, words)) - {str} or len(set(head.users)) < len(head.users):
        raise ValueError("names of users, classes or clusters are no names")
    if not all(type(side) is int and 0 <= side <= MOST_SAMPLE_NUMBERS for side in head.shape):
        raise ValueError("the shape of a sample is none")
    if (
        math.prod(head.shape) > MOST_SAMPLE_NUMBERS
        or not 0 <= head.num_classes <= MOST_MODEL_CLASSES
    ):
        raise ValueError("samples of too many numbers, or too many classes")
    if head.inputs not in (*KINDS_OF_NUMBERS, "int64") or head.linear not in (
        "",
        *KINDS_OF_NUMBERS,
    ):
        raise ValueError("inputs of no kind of number")
    for numbers in (head.shift, head.scale):
        each = numbers if isinstance(numbers, tuple) else (numbers,)
        if not all(type(one) in (int, float) and math.isfinite(one) for one in each):
            raise ValueError("shift and scale are not finite")
        if isinstance(numbers, tuple) and (len(head.shape) != 3 or len(each) != head.shape[0]):
            raise ValueError(f"{len(each)} shifts or scales for samples of shape {head.shape}")
    if head.classes and len(head.classes) != head.num_classes:
        raise ValueError(f"{len(head.classes)} names for {head.num_classes} classes")
    if head.keys.model != head.model["model"]:
        raise ValueError("no model is named")
    check_combination(head.combination or {"rule": "", "models": 1, "settings": {}})


def check_combination(said: Mapping[str, Any]) -> None:
    """ValueError if this is no rule for several models."""
    kinds = {"rule": str, "models": int, "settings": dict}
    if {name: type(value) for name, value in said.items()} != kinds or said["models"] < 1:
        raise ValueError("a combination of nothing")


def spec(keys: ModelKeys) -> dict[str, Any]:
    """A model's keys as a header has them."""
    return dict(flatten(keys))
