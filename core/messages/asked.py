"""Arrays and options that a message may have for a client: named, typed and bounded.

Each client declares what it takes. One of another type or size is refused in one line, and so is an
option that nobody declared; other arrays are never looked at.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from flwr.app import ArrayRecord

from corsage.core.arrays import Arrays
from corsage.core.errors import ConfigError, Refused
from corsage.core.keys import EPOCH_LIMIT
from corsage.core.measures import measures_named
from corsage.core.messages.encoding import plain
from corsage.core.messages.fields import (
    LARGEST_WHOLE,
    Doubt,
    Flag,
    Kind,
    OneOf,
    Real,
    Text,
    Whole,
    shown,
)
from corsage.core.messages.limits import Limits
from corsage.core.messages.wire import (
    DELIVER_OPTION,
    OUTCOMES,
    ROOM_OPTION,
    ROW_OPTION,
    ROWS_BY_USER,
)

ANY = "K"
"""In the shape of an array: any length."""
ARRAY_TYPES = {"f": (np.dtype(np.float32), np.dtype(np.float64)), "i": (np.dtype(np.int64),)}


@dataclass(frozen=True)
class Form:
    """The shape and kind of an array.

    Parameters
    ----------
    sides : lengths; P, B, H are those of the model, its body and its head, F is of the features
        that go into the head, C the number of classes, K is any.
    kind : of its numbers, as NumPy has it: `f` is float32 or float64, `i` int64.
    """

    sides: tuple[str | int, ...]
    kind: str = "f"


def floats(*sides: str | int) -> Form:
    """An array of floats."""
    return Form(sides)


def ints(*sides: str | int) -> Form:
    """An array of whole numbers."""
    return Form(sides, "i")


@dataclass(frozen=True)
class Takes:
    """All that a client takes from a message.

    Parameters
    ----------
    shared : arrays that all users get.
    rows : arrays with one row a user (or cohort), without that axis.
    options : what else may be said; for clients of cohorts, to each of them.
    at_home : options of simulations: devices let them go.
    squares : how many matrices of P x P it holds for each user at once.
    many : rows of points, for each of which it answers with half such a matrix.
    """

    shared: Mapping[str, Form] = field(default_factory=dict)
    rows: Mapping[str, Form] = field(default_factory=dict)
    options: Mapping[str, Kind] = field(default_factory=dict)
    at_home: tuple[str, ...] = ()
    squares: int = 0
    many: str = ""


@dataclass(frozen=True)
class Measures(Text):
    """Names of measures, with commas."""

    def __call__(self, name: str, value: Any, limits: Limits | None = None) -> str:
        """Each of them known."""
        try:
            measures_named(super().__call__(name, value))
        except ConfigError as error:
            raise Refused(str(error)) from None
        return str(value)


USUAL_OPTIONS: Mapping[str, Kind] = {
    "adapt": Flag(),
    "adapt-samples": Whole(),
    "adapt-epochs": Whole(limit=EPOCH_LIMIT),
    "fine-tune": OneOf(("head", "all", "own")),
    ROW_OPTION: Text(60),
    DELIVER_OPTION: Flag(),
    OUTCOMES: Whole(high=1000),
    "measures": Measures(200),
    ROWS_BY_USER: Flag(),
    "clipping_norm": Real(0.0),
}
"""Options of every client: those of evaluations, how to average, and what Flower's mods that clip
at the client read of its wrappers.

`row` is the row of the table that an evaluation is of, and `deliver` says that it is the one which
the table shows: each user is judged alone, as its model will be when it is loaded.
"""


def options_of(said: Mapping[str, Any], takes: Takes, doubt: Doubt) -> dict[str, Any]:
    """The options of a message, each as it may be; Refused if one is not declared."""
    kinds = {**USUAL_OPTIONS, **takes.options}
    for name in said.keys() - kinds.keys() - {ROOM_OPTION, *takes.at_home}:
        raise Refused(f"{shown(name)}={shown(said[name])}: nobody here takes such an option")
    if not doubt.doubts:
        return dict(said)
    return {n: kind(n, said[n], doubt.limits) for n, kind in kinds.items() if n in said}


def arrays_as(
    record: Any, forms: Mapping[str, Form], sizes: Mapping[str, int], rows: int | None = None
) -> Arrays:
    """The declared arrays of a record, each checked before it is decoded; others are left unread.

    Parameters
    ----------
    forms, sizes : what the arrays are like, and what the letters in their shapes stand for.
    rows : how many rows each of them has, if it has one a user.
    """
    if not isinstance(record, ArrayRecord):
        raise Refused(f"arrays came as {type(record).__name__}, not as an ArrayRecord")
    found = {}
    for name, form in forms.items():
        if name not in record:
            continue
        sides = form.sides if rows is None else (rows, *form.sides)
        shape = shape_of(sides, record[name].shape, sizes)
        found[name] = plain(record[name], ARRAY_TYPES[form.kind], shape, f"array {name}").copy()
    return found


def shape_of(
    sides: tuple[str | int, ...], said: tuple[Any, ...], sizes: Mapping[str, int]
) -> tuple[int, ...]:
    """The shape that an array must have; where any length will do, its own."""
    free = {at: n for at, n in enumerate(said) if type(n) is int and 0 <= n <= LARGEST_WHOLE}
    return tuple(
        free.get(at, 0) if side == ANY else side if isinstance(side, int) else sizes[side]
        for at, side in enumerate(sides)
    )
