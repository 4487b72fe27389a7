"""Keys of the configuration: declared in dataclasses, with their meanings and limits."""

from __future__ import annotations

import dataclasses
import difflib
import math
from collections.abc import Iterable, Mapping
from dataclasses import field
from functools import cache
from typing import Any, ClassVar, TypeVar, get_type_hints

from corsage.core.errors import ConfigError

EPOCH_LIMIT, STEP_LIMIT = "max-epochs", "max-steps"
"""The limits that a device sets to keys; see core/messages/limits.py."""
Value = bool | int | float | str
K = TypeVar("K", bound="Keys")


def key(
    default: Any,
    doc: str,
    *,
    low: float | None = None,
    high: float | None = None,
    choices: tuple[str, ...] | None = None,
    limit: str = "",
    objects: str = "",
    tuned: tuple[float, float] | None = None,
) -> Any:
    """A documented key: its default, what it means, and which values are allowed.

    `limit` names the limit that a device sets to it (messages/limits.py); `objects` are what may be
    given from Python instead of a text, as an annotation; from `tuned` the bench draws its trials.
    """
    limits: dict[str, Any] = {"doc": doc, "low": low, "high": high, "choices": choices}
    limits |= {"limit": limit, "objects": objects, "tuned": tuned}
    return field(default=default, metadata=limits)


class Keys:
    """Base of the dataclasses that declare keys.

    `title` heads their group in `--help`. Of an algorithm's, `example` are keys that show what it
    is for, where nobody names data; `needs` are keys that must have another value than usual,
    `prefers` those that had better; `asks` says which data it takes, if not any.
    """

    title: ClassVar[str] = ""
    example: ClassVar[Mapping[str, str]] = {}
    needs: ClassVar[Mapping[str, str]] = {}
    prefers: ClassVar[Mapping[str, str]] = {}
    asks: ClassVar[str] = ""


@dataclasses.dataclass(frozen=True)
class NoKeys(Keys):
    """No keys."""


@dataclasses.dataclass(frozen=True)
class Own:
    """A key that only some algorithms or data sets have, as keywords.py lists it.

    Parameters
    ----------
    title : the heading of its group.
    default : its value where nobody sets it.
    owners : the algorithms or data sets that have it, with commas.
    """

    title: str
    default: Value
    owners: str


@cache
def kebab(name: str) -> str:
    """A field's name as a key."""
    return name.replace("_", "-")


def names(group: type[Keys]) -> list[str]:
    """The keys that a dataclass declares or inherits."""
    return [kebab(f.name) for f in dataclasses.fields(group)]  # type: ignore[arg-type]


def flatten(keys: Keys) -> dict[str, Value]:
    """One group as flat kebab-case keys; lists become words with commas."""
    values = ((f.name, getattr(keys, f.name)) for f in dataclasses.fields(keys))  # type: ignore[arg-type]
    return {kebab(n): ",".join(v) if isinstance(v, tuple) else v for n, v in values}


def word(value: Any) -> str:
    """A value as the command line has it."""
    if isinstance(value, (list, tuple)):
        return ",".join(map(word, value))
    return str(value).lower() if isinstance(value, bool) else str(value)


def nearest(word: str, known: Iterable[str]) -> str:
    """` Did you mean X?` for a misspelt word, else the list of what is known."""
    known = list(known)
    close = difflib.get_close_matches(word, known, n=1)
    return f" Did you mean {close[0]}?" if close else f" Known: {', '.join(known)}."


def read(group: type[K], values: Mapping[str, Any]) -> K:
    """One group's keys out of flat values, each converted to its type and checked."""
    found = {}
    for name, kind, f in declared(group):
        if name in values:
            found[f.name] = convert(name, values[name], kind)
            check_limits(name, found[f.name], f.metadata)
    return group(**found)


def declared(group: type[Keys]) -> list[tuple[str, Any, dataclasses.Field[Any]]]:
    """Each key of a group, its type, and its field."""
    hashable: Any = group  # mypy takes a class for one of its instances
    return _declared(hashable)


@cache
def _declared(group: Any) -> list[tuple[str, Any, dataclasses.Field[Any]]]:
    """Types are compiled: they are asked once."""
    types = get_type_hints(group)
    return [(kebab(f.name), types[f.name], f) for f in dataclasses.fields(group)]


def convert(name: str, value: Any, kind: type) -> Any:
    """A word of the command line, or a value of TOML or Flower, as the key's type."""
    if kind == tuple[str, ...]:
        words = value if isinstance(value, (list, tuple)) else str(value).split(",")
        return tuple(str(word).strip() for word in words if str(word).strip())
    if kind is str:
        return str(value)
    text = str(value).strip().lower()
    try:
        if kind is bool:
            return {"true": True, "1": True, "yes": True, "false": False, "0": False, "no": False}[
                text
            ]
        if isinstance(value, bool):
            raise ValueError
        return kind(text)
    except (KeyError, ValueError):
        wanted = {bool: "true or false", int: "a whole number", float: "a number"}[kind]
        several = " Several values are for a study." * isinstance(value, list | tuple)
        raise ConfigError(f"{name}={value}: not {wanted}.{several}") from None


def check_limits(name: str, value: Any, limits: Mapping[str, Any]) -> None:
    """Refuse a value out of the key's range or not among its choices."""
    for one in value if isinstance(value, tuple) else (value,):
        if limits["choices"] and one not in limits["choices"]:
            raise ConfigError(f"{name}={one}: not possible.{nearest(one, limits['choices'])}")
    if isinstance(value, float) and math.isnan(value):
        raise ConfigError(f"{name}={value}: not a number.")
    if isinstance(value, float) and math.isinf(value):
        raise ConfigError(f"{name}={value}: must be finite.")
    if limits["low"] is not None and value < limits["low"]:
        raise ConfigError(f"{name}={value}: must be at least {limits['low']:g}.")
    if limits["high"] is not None and value > limits["high"]:
        raise ConfigError(f"{name}={value}: must be at most {limits['high']:g}.")
