"""A run's memory as dataclasses: where it stands, and what its algorithm keeps.

An algorithm's state is a dataclass of its own, with named and typed fields: arrays, numbers,
texts, lists, dictionaries, or other such dataclasses. `stored` takes any of them apart field by
field, as a checkpoint can hold it, and `restored` puts it together again.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cache
from types import NoneType, UnionType
from typing import Any, TypeVar, Union, cast, get_args, get_origin, get_type_hints

import numpy as np

from corsage.core.arrays import INFINITE, Arrays, Floats32
from corsage.core.errors import CheckpointError
from corsage.core.finite_pieces import finite
from corsage.strategies.rounds.ledger import Crowd, Ledger

D = TypeVar("D")
ARRAY = "array"
"""The key under which the plain part names an array."""


@dataclass
class Traffic:
    """Traffic, counted as one-user devices would exchange it.

    So the numbers compare algorithms, whatever the engine and the number of nodes. `wire_*` is
    what really passed between the server and the nodes of this run, evaluation included.
    """

    bytes_down: int = 0
    bytes_up: int = 0
    messages: int = 0
    evaluation_bytes_down: int = 0
    wire_bytes_down: int = 0
    wire_bytes_up: int = 0
    wire_messages: int = 0


@dataclass
class Progress:
    """A run's progress after a round, whatever its algorithm.

    Parameters
    ----------
    round : the last round that was merged.
    exchange : the number of the last exchange, for algorithms that have several a round.
    questions : exchanges outside the rounds.
    versions : for each user with a personal state the round in which it was last merged.
    trained : the users whose training was merged at least once.
    dropped : how often each user's reply was not usable.
    curve : (round, mean over users) of every evaluation.
    seconds : what it took so far, up to the end of the round's training.
    gradient_steps : gradients that all users computed in training messages; None if none counts.
    """

    round: int = 0
    exchange: int = 0
    questions: int = 0
    versions: Ledger = field(default_factory=Ledger)
    trained: Crowd = field(default_factory=Crowd)
    dropped: dict[str, int] = field(default_factory=dict)
    curve: list[tuple[int, float]] = field(default_factory=list)
    seconds: float = 0.0
    gradient_steps: float | None = None


@dataclass
class Built:
    """Facts that the model was built for at the first start; nodes that come later may show others.

    Parameters
    ----------
    shape, num_classes : of a sample; () before anything is built. No classes: labels are numbers.
    preparation : what was agreed on for the columns of tables, as JSON.
    training_path : how nodes train the model, by its name in `core/paths`; empty: not chosen yet.
    data : a mark of each user's samples, by which they are known again.
    """

    shape: tuple[int, ...] = ()
    num_classes: int = 0
    preparation: str = ""
    training_path: str = ""
    data: Ledger = field(default_factory=Ledger)


@dataclass
class Updates:
    """A memory of earlier rounds' updates, array by array.

    Parameters
    ----------
    lengths : the median norms of the users' updates in the last rounds.
    moments : what the server's optimizer remembers.
    """

    lengths: dict[str, list[float]] = field(default_factory=dict)
    moments: dict[str, Floats32] = field(default_factory=dict)


@dataclass
class NoState:
    """The server remembers nothing."""


@dataclass
class ModelState:
    """One model for all: w^t."""

    model: Floats32


@dataclass
class BodyState:
    """One body for all: phi^t."""

    body: Floats32


def not_finite(value: object, name: str = "state") -> str:
    """The name of the first number in a state that is not finite; none is an empty name.

    Fields that say `metadata=INFINITE` may hold infinities, but nothing that is not a number.
    """
    return next(_unsound(value, name, allowed=False), "")


def _unsound(value: object, name: str, allowed: bool) -> Iterator[str]:
    """The names of numbers that are not finite, or not even numbers where infinity is allowed."""
    if isinstance(value, float | np.floating):
        value = np.asarray(value)
    if isinstance(value, np.ndarray):
        if value.dtype.kind == "f" and not (
            not np.isnan(value).any() if allowed else finite(value)
        ):
            yield name
    elif dataclasses.is_dataclass(value):
        for f in dataclasses.fields(value):
            infinite = allowed or INFINITE.items() <= f.metadata.items()
            yield from _unsound(getattr(value, f.name), f.name, infinite)
    elif isinstance(value, Mapping) and not isinstance(value, Ledger):
        for one in value.values():
            yield from _unsound(one, name, allowed)
    elif isinstance(value, list | tuple):
        for one in value:
            yield from _unsound(one, name, allowed)


def copied(state: D) -> D:
    """A state with arrays and dictionaries of its own, for steps that write into them."""
    own = {n: v.copy() for n, v in _fields(state) if isinstance(v, np.ndarray | dict)}
    return cast(D, dataclasses.replace(cast(Any, state), **own))


def arrays_of(state: object) -> Arrays:
    """The fields that are arrays, by name."""
    values = ((f.name, getattr(state, f.name)) for f in dataclasses.fields(cast(Any, state)))
    return {name: value for name, value in values if isinstance(value, np.ndarray)}


def stored(state: object) -> tuple[dict[str, Any], Arrays]:
    """A dataclass taken apart: what JSON can hold, and the arrays that it names."""
    arrays: Arrays = {}
    return cast(dict[str, Any], _plain(state, "", arrays)), arrays


def _fields(state: object) -> list[tuple[str, Any]]:
    """The fields of a dataclass and nothing else, such as what it has computed."""
    names = [f.name for f in dataclasses.fields(cast(Any, state))]
    return [(name, getattr(state, name)) for name in names]


def _plain(value: Any, name: str, arrays: Arrays) -> Any:
    """A value as JSON can hold it; arrays are put aside under a name that only one has."""
    if isinstance(value, np.ndarray):
        while name in arrays:  # keys of dictionaries may have dots as well
            name += "'"
        arrays[name] = value
        return {ARRAY: name}
    if isinstance(value, Ledger | Crowd):
        arrays |= value.arrays(name)
        return {ARRAY: name}
    if dataclasses.is_dataclass(value):
        return {k: _plain(v, f"{name}.{k}".lstrip("."), arrays) for k, v in _fields(value)}
    if isinstance(value, Mapping):
        pairs = value.items()
        return [[_plain(k, name, arrays), _plain(v, f"{name}.{k}", arrays)] for k, v in pairs]
    values = sorted(value) if isinstance(value, set | frozenset) else value
    if isinstance(values, list | tuple):
        return [_plain(v, f"{name}.{i}", arrays) for i, v in enumerate(values)]
    return value.item() if isinstance(value, np.generic) else value


def restored(kind: type[D], plain: Mapping[str, Any], arrays: Arrays) -> D:
    """The dataclass that `stored` took apart; CheckpointError if the fields are not its own."""
    types, names = _types(kind), {f.name for f in dataclasses.fields(kind)}  # type: ignore[arg-type]
    if set(plain) != names:
        wrong = ", ".join(sorted(set(plain) ^ names))
        raise CheckpointError(f"{kind.__name__}: written by another version ({wrong}).")
    return kind(**{name: _typed(types[name], plain[name], arrays) for name in plain})


_types = cache(get_type_hints)
"""They are compiled: asked once of each dataclass."""


def _typed(kind: Any, plain: Any, arrays: Arrays) -> Any:
    """A plain value as the type of its field says."""
    origin, inner = get_origin(kind), get_args(kind)
    if origin in (Union, UnionType):
        if plain is None:
            return None
        chosen = [k for k in inner if k is not NoneType]
        return _typed(_matching(chosen, plain), plain, arrays)
    if dataclasses.is_dataclass(kind):
        return restored(cast(type[Any], kind), plain, arrays)
    if kind in (Ledger, Crowd):
        return kind.of(plain[ARRAY], arrays)
    if isinstance(plain, Mapping):
        return arrays[plain[ARRAY]]
    return _filled(origin, inner, plain, arrays) if inner else plain


def _filled(origin: Any, inner: tuple[Any, ...], plain: Any, arrays: Arrays) -> Any:
    """A dictionary, list, set or tuple, with what is in it as its type says."""
    if origin is dict:
        return {_typed(inner[0], k, arrays): _typed(inner[1], v, arrays) for k, v in plain}
    if origin is not tuple:
        return origin(_typed(inner[0], value, arrays) for value in plain)
    kinds = [inner[0]] * len(plain) if inner[1:] == (...,) else inner
    return tuple(_typed(k, v, arrays) for k, v in zip(kinds, plain, strict=True))


def _matching(kinds: list[Any], plain: Any) -> Any:
    """Of the types of a union the one that a plain value is of; dataclasses by their fields."""
    whole: list[Any] = [k for k in kinds if isinstance(k, type) and isinstance(plain, k)]
    if isinstance(plain, Mapping):
        classes = [kind for kind in kinds if dataclasses.is_dataclass(kind)]
        whole += [cls for cls in classes if {f.name for f in dataclasses.fields(cls)} == {*plain}]
    return (whole or kinds)[0]
