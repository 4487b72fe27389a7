"""All keys there are, with their defaults and meanings: what help, documents and reports list."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from corsage.core.configuration.groups import GROUPS, DataKeys
from corsage.core.keys import Keys, Value, declared, flatten, kebab
from corsage.core.registry import DATASETS, algorithm_keys, data_keys, users_of

OF_SOME = "Some data sets"
"""The title of the keys that only some data sets have."""


@dataclass(frozen=True)
class Declared:
    """One key as it is documented."""

    name: str
    default: Value
    meaning: str
    kind: str  # as an annotation
    limits: str = ""  # the values that it may have, in words


def catalogue() -> dict[str, list[Declared]]:
    """Every key once, by the title of its group; one that several groups share is in the first."""
    found: dict[str, dict[str, Declared]] = {}
    seen: set[str] = set()
    for title, group in titled():
        defaults = flatten(group())
        for name, kind, field in declared(group):
            if name not in seen:
                seen.add(name)
                own = Declared(
                    name,
                    defaults[name],
                    meaning(title, field),
                    annotation(kind, field),
                    limits(kind, field),
                )
                found.setdefault(title, {})[name] = own
    return {title: list(keys.values()) for title, keys in found.items()}


def titled() -> Iterator[tuple[str, type[Keys]]]:
    """Every dataclass that declares keys, and the title that they are listed under."""
    for group in GROUPS.values():
        yield group.title, group
        if group is DataKeys:
            for name in DATASETS:
                yield OF_SOME, data_keys(name)
    for group in algorithm_keys().values():
        yield group.title, group


def annotation(kind: Any, field: dataclasses.Field[Any]) -> str:
    """What may be given for a key; texts without fixed choices may be numbers (`0.5` or `auto`)."""
    if own := field.metadata["objects"]:
        return f"{kind.__name__} | {own}"
    if kind == tuple[str, ...]:
        return "str | Sequence[str] | float"
    return "str | float" if kind is str and not field.metadata["choices"] else str(kind.__name__)


def limits(kind: Any, field: dataclasses.Field[Any]) -> str:
    """Which values a key may have, in words; nothing if the type says it all."""
    words = {bool: "true or false", int: "a whole number", float: "a number"}
    low, high, choices = (field.metadata[name] for name in ("low", "high", "choices"))
    if choices and kind is not bool:
        return ", ".join(choices)
    ends = {"from": low, "to": high}
    return " ".join(
        [words.get(kind, "")] + [f"{end} {at:g}" for end, at in ends.items() if at is not None]
    ).strip()


def meaning(title: str, field: dataclasses.Field[Any]) -> str:
    """What a key says, which data sets have it if not all do, and what it may be."""
    whose = f"{', '.join(users_of(kebab(field.name)))}: " if title == OF_SOME else ""
    choices = field.metadata["choices"]
    return f"{whose}{field.metadata['doc']}" + (f" ({', '.join(choices)})" if choices else "")


def defaults() -> dict[str, Value]:
    """Every key and its default."""
    return {name: value for _, group in titled() for name, value in flatten(group()).items()}
