"""What a message may say to a client: its arrays and options, named, typed and bounded.

Each client declares what it takes. A device reads nothing else; a word that is not declared is
never looked at, and one of another type or size is refused in one line.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from flwr.app import ArrayRecord

from corsage.core.arrays import Arrays
from corsage.core.encoding import BadMessage, plain
from corsage.core.errors import ConfigError, Refused
from corsage.core.keys import EPOCHS, nearest
from corsage.core.limits import Limits
from corsage.core.measures import measures_named

MOST = 2**53
"""No number that counts is larger: floats hold each of those up to here."""
MOST_TEXT = 2**20
"""Characters of one text in a message."""
ANY = "K"
"""In the shape of an array: any length."""
DTYPES = {
    "f": (np.dtype(np.float32), np.dtype(np.float64)),
    "i": (np.dtype(np.int64),),
}
Check = Callable[[str, Any, Limits], Any]
"""(name, value, limits of the device) -> the value; Refused if it is not what may be there."""


def whole(low: int = 0, high: int = MOST, limit: str = "") -> Check:
    """A whole number, perhaps within one of the device's limits."""

    def check(name: str, value: Any, limits: Limits) -> int:
        if type(value) is not int:
            raise Refused(f"{name}={shown(value)}: not a whole number")
        if not low <= value <= high:
            raise Refused(f"{name}={shown(value)}: not from {low} to {high}")
        if limit:
            limits.check(limit, name, value)
        return value

    return check


def number(low: float = -math.inf, high: float = math.inf) -> Check:
    """A number, which may be infinite."""

    def check(name: str, value: Any, limits: Limits) -> float:
        if type(value) not in (int, float) or not low <= value <= high:  # NaN is in no range
            raise Refused(f"{name}={shown(value)}: not a number from {low:g} to {high:g}")
        return float(value)

    return check


def flag(name: str, value: Any, limits: Limits) -> bool:
    """True or false."""
    if type(value) is not bool:
        raise Refused(f"{name}={shown(value)}: not true or false")
    return value


def text(most: int = MOST_TEXT) -> Check:
    """Words of bounded length."""

    def check(name: str, value: Any, limits: Limits) -> str:
        if type(value) is not str:
            raise Refused(f"{name}={shown(value)}: not a text")
        if len(value) > most:
            raise Refused(f"{name}: a text of {len(value)} characters, at most {most} are read")
        return value

    return check


def word(*choices: str) -> Check:
    """One of some words."""

    def check(name: str, value: Any, limits: Limits) -> str:
        if type(value) is not str or value not in choices:
            near = nearest(value[:40], choices) if type(value) is str else ""
            raise Refused(f"{name}={shown(value)}: not possible.{near}")
        return value

    return check


def listed(each: Check, most: int = MOST_TEXT) -> Check:
    """A list of values of one kind."""

    def check(name: str, value: Any, limits: Limits) -> list[Any]:
        if type(value) is not list:
            raise Refused(f"{name}={shown(value)}: not a list")
        if len(value) > most:
            raise Refused(f"{name}: {len(value)} entries, at most {most} are read")
        return [each(name, entry, limits) for entry in value]

    return check


def fields(**kinds: Check) -> Check:
    """A table of just these values."""

    def check(name: str, value: Any, limits: Limits) -> dict[str, Any]:
        if type(value) is not dict or set(value) != set(kinds):
            raise Refused(f"{name}={shown(value)}: not {', '.join(kinds)}")
        return {k: kind(f"{name}.{k}", value[k], limits) for k, kind in kinds.items()}

    return check


def shown(value: Any) -> str:
    """A value in a few characters, for a message."""
    if isinstance(value, int) and not -MOST <= value <= MOST:
        return "a huge number"  # as text it may be refused by Python itself
    if isinstance(value, list | dict):
        return f"a {type(value).__name__} of {len(value)}"
    return str(value)[:40]


@dataclass(frozen=True)
class Form:
    """The shape and kind of an array.

    Parameters
    ----------
    sides : lengths; P, B, H are those of the model, its body and its head, K is any.
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
    """What a client takes from a message.

    Parameters
    ----------
    shared : arrays that all users get.
    rows : arrays with one row a user (or cohort), without that axis.
    options : what else may be said; for clients of cohorts, to each of them.
    squares : how many matrices of P x P it holds for each user at once.
    many : rows of points, for each of which it answers with half such a matrix.
    """

    shared: Mapping[str, Form] = field(default_factory=dict)
    rows: Mapping[str, Form] = field(default_factory=dict)
    options: Mapping[str, Check] = field(default_factory=dict)
    squares: int = 0
    many: str = ""


def measured(name: str, value: Any, limits: Limits) -> str:
    """Names of measures, with commas."""
    try:
        measures_named(text(LONGEST_NAMES)(name, value, limits))
    except ConfigError as error:
        raise Refused(str(error)) from None
    return str(value)


LONGEST_NAMES = 200
"""Characters of the names of all measures."""
USUAL: Mapping[str, Check] = {
    "adapt": flag,
    "adapt-samples": whole(),
    "adapt-epochs": whole(limit=EPOCHS),
    "fine-tune": flag,
    "row": text(60),
    "deliver": flag,
    "measures": measured,
}
"""Options of every client: those of evaluations.

`row` is the row of the table that an evaluation is of, and `deliver` says that it is the one which
the table shows: each user is judged alone, as its model will be when it is loaded.
"""


def checked(
    options: Mapping[str, Any], kinds: Mapping[str, Check], limits: Limits
) -> dict[str, Any]:
    """The options that are declared, each as it may be; others are let go unread."""
    return {
        name: kind(name, options[name], limits) for name, kind in kinds.items() if name in options
    }


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
        try:
            found[name] = plain(record[name], DTYPES[form.kind], shape, f"array {name}").copy()
        except BadMessage as why:
            raise Refused(str(why)) from None
    return found


def shape_of(
    sides: tuple[str | int, ...], said: tuple[Any, ...], sizes: Mapping[str, int]
) -> tuple[int, ...]:
    """What a shape must be; where any length will do, it is what the array says of itself."""
    free = {at: n for at, n in enumerate(said) if type(n) is int and 0 <= n <= MOST}
    return tuple(
        free.get(at, 0) if side == ANY else side if isinstance(side, int) else sizes[side]
        for at, side in enumerate(sides)
    )
