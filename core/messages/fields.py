"""Fields of messages, declared once: what each may be, how it is written, and how it is read.

A message is a dataclass whose fields are `said(kind, ...)`. `put` writes them as the values of a
record, and `take` reads them again: one that nobody declared is refused, and so is a value that is
not of its kind, where what came is not believed.
"""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar

from corsage.core.errors import Refused
from corsage.core.keys import kebab, nearest

if TYPE_CHECKING:
    from corsage.core.messages.limits import Limits

R = TypeVar("R")
LARGEST_WHOLE = 2**53
"""No number that counts is larger: floats hold each of those up to here."""
MOST_JSON_TEXT = 2**20
"""Characters of one text in a message, and entries of one list."""
EMPTY_VALUES: tuple[Any, ...] = ("", [], {}, None)


@dataclass(frozen=True)
class Kind:
    """A kind of value: anything, here.

    A kind bounds values by its own fields, where whoever makes bad ones sees them, too. One that
    `converts` writes and reads also what is believed; a `wide` one is given all of a record to
    read, since it has several columns of it.
    """

    converts: ClassVar[bool] = False
    wide: ClassVar[bool] = False

    def __call__(self, name: str, value: Any, limits: Limits | None = None) -> Any:
        """A field's value out of a record's; Refused in one line if it may not be, on a device
        also beyond its limits."""
        return value

    def fit(self, values: list[Any]) -> bool:
        """Look at many values in one go; true if all are surely fine."""
        return False

    def columns(self, name: str) -> Mapping[str, Kind]:
        """The columns of a record that a field of this kind takes: one, of its name."""
        return {name: self}

    def put(self, record: dict[str, Any], name: str, value: Any) -> None:
        """Write a field into a record."""
        record[name] = value


@dataclass(frozen=True)
class Doubt:
    """The doubts with which a message is read: by the bounds of its fields, on a device also within
    its limits; or as it is, without any."""

    limits: Limits | None = None
    doubts: bool = True


BELIEVING = Doubt(doubts=False)
"""A simulation believes its own server."""


@dataclass(frozen=True)
class Whole(Kind):
    """A whole number, perhaps within one of the device's limits."""

    low: int = 0
    high: int = LARGEST_WHOLE
    limit: str = ""

    def __call__(self, name: str, value: Any, limits: Limits | None = None) -> int:
        """By its bounds."""
        if type(value) is not int:  # a truth value is no number here
            raise Refused(f"{name}={shown(value)}: not a whole number")
        if not self.low <= value <= self.high:
            raise Refused(f"{name}={shown(value)}: not from {self.low} to {self.high}")
        if self.limit and limits:
            limits.check(self.limit, name, value)
        return value

    def fit(self, values: list[Any]) -> bool:
        """By the least and the largest."""
        typed = not self.limit and set(map(type, values)) == {int}
        return typed and self.low <= min(values) and max(values) <= self.high


@dataclass(frozen=True)
class Real(Kind):
    """A number, which may be infinite."""

    low: float = -math.inf
    high: float = math.inf

    def __call__(self, name: str, value: Any, limits: Limits | None = None) -> float:
        """By its bounds, in which NaN is not."""
        if type(value) not in (int, float) or not self.low <= value <= self.high:  # NaN is not
            raise Refused(f"{name}={shown(value)}: not a number from {self.low:g} to {self.high:g}")
        return float(value)


@dataclass(frozen=True)
class Flag(Kind):
    """True or false."""

    def __call__(self, name: str, value: Any, limits: Limits | None = None) -> bool:
        """Nothing else."""
        if type(value) is not bool:
            raise Refused(f"{name}={shown(value)}: not true or false")
        return value


@dataclass(frozen=True)
class Text(Kind):
    """A text of bounded length; `printable`, nothing in it moves a terminal, nor is an `id` blank.

    `letters`, if there are any, are all that may be in it.
    """

    most: int = MOST_JSON_TEXT
    printable: bool = False
    id: bool = False
    letters: str = ""

    def __call__(self, name: str, value: Any, limits: Limits | None = None) -> str:
        """By its length and letters."""
        if type(value) is not str:
            raise Refused(f"{name}={shown(value)}: not a text")
        if len(value) > self.most:
            long = f"a text of {len(value)} characters, at most {self.most} are read"
            raise Refused(f"{name}: {long}")
        if self.id and not value.strip():
            raise Refused(f"{name}: an id is empty")
        if self.printable and not value.isprintable():
            raise Refused(f"{name}={shown(value)}: has characters that cannot be printed")
        if self.letters and set(value) - set(self.letters):
            raise Refused(f"{name}={shown(value)}: has others than {self.letters}")
        return value

    def fit(self, values: list[Any]) -> bool:
        """By the longest, and whether anything is odd in any."""
        if set(map(type, values)) != {str} or max(map(len, values)) > self.most or self.letters:
            return False
        printable = not self.printable or "".join(values).isprintable()
        return printable and (not self.id or all(map(str.strip, values)))


@dataclass(frozen=True)
class OneOf(Kind):
    """One of some words."""

    choices: tuple[str, ...]

    def __call__(self, name: str, value: Any, limits: Limits | None = None) -> str:
        """Or the nearest of them."""
        if type(value) is not str or value not in self.choices:
            near = nearest(value[:40], self.choices) if type(value) is str else ""
            raise Refused(f"{name}={shown(value)}: not possible.{near}")
        return value


@dataclass(frozen=True)
class Listed(Kind):
    """A list of values of one kind."""

    each: Kind
    most: int = MOST_JSON_TEXT
    least: int = 0

    def __call__(self, name: str, value: Any, limits: Limits | None = None) -> list[Any]:
        """Entry by entry."""
        if type(value) is not list:
            raise Refused(f"{name}={shown(value)}: not a list")
        if not self.least <= len(value) <= self.most:
            allowed = f"from {self.least} to {self.most}" if self.least else f"at most {self.most}"
            raise Refused(f"{name}: {len(value)} entries, {allowed} are read")
        if not value or self.each.fit(value):
            return value
        return [self.each(f"{name}[{place}]", one, limits) for place, one in enumerate(value)]


@dataclass(frozen=True)
class Table(Kind):
    """A table of just these values; without any, of `others` by any names."""

    values: Mapping[str, Kind] = field(default_factory=dict)
    others: Kind = Kind()

    def __call__(self, name: str, value: Any, limits: Limits | None = None) -> dict[str, Any]:
        """Value by value."""
        if type(value) is not dict or (self.values and set(value) != set(self.values)):
            wanted = f" of {', '.join(self.values)}" if self.values else ""
            raise Refused(f"{name}={shown(value)}: not a table{wanted}")
        kinds = {k: self.values.get(k, self.others) for k in value}
        return {k: kinds[k](f"{name}.{shown(k)}", one, limits) for k, one in value.items()}


@dataclass(frozen=True)
class Json(Kind):
    """A text that has a value of some kind as JSON."""

    of: Kind
    most: int = MOST_JSON_TEXT
    converts = True

    def __call__(self, name: str, value: Any, limits: Limits | None = None) -> Any:
        """Out of JSON, of whatever depth it says it is."""
        try:
            plain = json.loads(Text(self.most)(name, value))
        except (ValueError, RecursionError):
            raise Refused(f"{name}: not JSON") from None
        return self.of(name, plain, limits)

    def put(self, record: dict[str, Any], name: str, value: Any) -> None:
        """As JSON."""
        record[name] = json.dumps(value)


@dataclass(frozen=True)
class JsonTables(Listed):
    """A list of texts, each of which has a table as JSON."""

    each: Kind = Json(Table())
    converts = True

    def put(self, record: dict[str, Any], name: str, value: Any) -> None:
        """A text each."""
        record[name] = [json.dumps(one) for one in value]


def shown(value: Any) -> str:
    """A value in a few characters, for a line."""
    if isinstance(value, int) and not -LARGEST_WHOLE <= value <= LARGEST_WHOLE:
        return "a huge number"  # as text it may be refused by Python itself
    if isinstance(value, list | dict):
        return f"a {type(value).__name__} of {len(value)}"
    return str(value)[:40]


@dataclass(frozen=True)
class Said:
    """A field of a message, as it is declared.

    Parameters
    ----------
    kind : what it may be.
    name, at : what it is called on the wire, if not as here, and in which record it is.
    needed : a message without it is refused.
    spare : it is not sent where it is false or 0; what is empty is never sent.
    device : whether devices read it; what is else said of it is not even looked at there.
    columns : all names that a record has of it.
    """

    kind: Kind
    name: str = ""
    at: str = "config"
    needed: bool = False
    spare: bool = False
    device: bool = True
    columns: frozenset[str] = frozenset()


def said(kind: Kind, default: Any = dataclasses.MISSING, **words: Any) -> Any:
    """A field of a message, as `Said` has it; a default that is a class is made anew each time."""
    own = Said(kind, **{"needed": default is dataclasses.MISSING, **words})
    made = "default_factory" if isinstance(default, type) else "default"
    return field(**{made: default}, metadata={"said": own})


@cache
def declared(message: Any, at: str = "config") -> dict[str, Said]:
    """The fields of a message that are in a record, by their names in the class."""
    found = {}
    for f in dataclasses.fields(message):
        if f.metadata and f.metadata["said"].at == at:
            one: Said = f.metadata["said"]
            name = one.name or kebab(f.name)
            columns = frozenset(one.kind.columns(name))
            found[f.name] = dataclasses.replace(one, name=name, columns=columns)
    return found


@cache
def columns_of(message: Any, at: str = "config") -> frozenset[str]:
    """All columns that a message has in a record."""
    return frozenset().union(*(one.columns for one in declared(message, at).values()))


def put(message: Any, at: str = "config") -> dict[str, Any]:
    """The values of a record of a message, without empty ones: Flower knows no size of these."""
    record: dict[str, Any] = {}
    kind: Any = type(message)  # mypy takes a class for one of its instances
    for attribute, one in declared(kind, at).items():
        value = getattr(message, attribute)
        if value in EMPTY_VALUES or (one.spare and not value):
            continue
        if one.kind.converts:
            one.kind.put(record, one.name, value)
        else:
            record[one.name] = value
    return record


def take(
    message: Any, record: Mapping[str, Any], doubt: Doubt, at: str = "config", more: bool = False
) -> dict[str, Any]:
    """The fields of a message that are in a record.

    What else is in it is refused, since whoever said it meant something by it; with `more` it is
    the caller's matter.
    """
    found = {}
    if not more and (others := record.keys() - columns_of(message, at)):
        raise Refused(f"{shown(min(others))}: unknown; is the other side of another version?")
    for attribute, one in declared(message, at).items():
        if doubt.limits and not one.device:
            continue
        if one.columns.isdisjoint(record):
            if one.needed:
                raise Refused(f"{one.name}: it is missing")
            continue
        value = record if one.kind.wide else record[one.name]
        reads = doubt.doubts or one.kind.converts
        found[attribute] = one.kind(one.name, value, doubt.limits) if reads else value
    return found


def record_of(content: Mapping[str, Any], name: str, kind: type[R]) -> R:
    """A record of a message, of the kind that it must be."""
    if name not in content:
        raise Refused(f"{name}: it is missing")
    if not isinstance(record := content[name], kind):
        raise Refused(f"{name}: it is no {kind.__name__}")
    return record
