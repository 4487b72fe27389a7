"""All keys as they are declared, with their meanings: what help and documents list.

All algorithms and data sets are imported for it; who needs names and defaults alone asks
`known_keys.py`.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from corsage.core.configuration.key_groups import GROUPS, DataKeys
from corsage.core.configuration.known_keys import OF_SOME
from corsage.core.errors import NotInstalled
from corsage.core.keys import Keys, Value, declared, flatten, kebab, names
from corsage.core.registry import DATASETS, algorithm_keys, data_keys


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
            for own in keys_by_data_set().values():
                yield OF_SOME, own
    for group in algorithm_keys().values():
        yield group.title, group


def keys_by_data_set() -> dict[str, type[DataKeys]]:
    """The keys of each data set that was not taken out."""
    found: dict[str, type[DataKeys]] = {}
    for name in DATASETS:
        with suppress(NotInstalled):
            found[name] = data_keys(name)
    return found


def annotation(kind: Any, field: dataclasses.Field[Any]) -> str:
    """The type of a key's values; texts without fixed choices may be numbers (`0.5` or `auto`)."""
    if own := field.metadata["objects"]:
        return f"{kind.__name__} | {own}"
    if kind == tuple[str, ...]:
        return "str | Sequence[str] | float"
    return "str | float" if kind is str and not field.metadata["choices"] else str(kind.__name__)


def limits(kind: Any, field: dataclasses.Field[Any]) -> str:
    """The values that a key may have, in words; nothing if the type says it all."""
    words = {bool: "true or false", int: "a whole number", float: "a number"}
    low, high, choices = (field.metadata[name] for name in ("low", "high", "choices"))
    if choices and kind is not bool:
        return ", ".join(choices)
    ends = {"from": low, "to": high}
    return " ".join(
        [words.get(kind, "")] + [f"{end} {at:g}" for end, at in ends.items() if at is not None]
    ).strip()


def meaning(title: str, field: dataclasses.Field[Any]) -> str:
    """The meaning of a key, the data sets that have it if not all do, and its choices."""
    whose = f"{', '.join(owners(title, kebab(field.name)))}: " if title == OF_SOME else ""
    choices = field.metadata["choices"]
    return f"{whose}{field.metadata['doc']}" + (f" ({', '.join(choices)})" if choices else "")


def owners(title: str, name: str) -> list[str]:
    """The data sets, or the algorithms, that have a key; none: every run has it."""
    if title == OF_SOME:
        return [each for each, group in keys_by_data_set().items() if name in names(group)]
    return [each for each, group in algorithm_keys().items() if name in names(group)]


def printed_as(title: str, key: Declared) -> str:
    """A key's annotation in `keywords.py`."""
    if not (whose := ", ".join(owners(title, key.name))):
        return key.kind
    return f"Annotated[{key.kind}, Own({title!r}, {key.default!r}, {whose!r})]".replace("'", '"')
