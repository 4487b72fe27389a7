"""Keys as they are written: `key=value` words, TOML files, and what is taken where nobody says."""

from __future__ import annotations

import tomllib
from collections.abc import Iterable, Mapping
from functools import cache
from pathlib import Path
from typing import Any

from corsage.core.configuration.config import check_names, needed, strategies_of, without
from corsage.core.configuration.key_groups import DataKeys
from corsage.core.configuration.known_keys import defaults, known_keys
from corsage.core.errors import ConfigError
from corsage.core.keys import names, word
from corsage.core.registry import DATASETS, keys_class

OF_DATA = [name for name in names(DataKeys) if name != "cache-dir"]
"""Keys with which somebody says which data are meant."""


def exampled(values: Mapping[str, Any]) -> tuple[dict[str, Any], str]:
    """The keys, and the line that says what nobody set: what strategies need, and the data.

    Where no data are named, the first strategy's example is taken, if the others suit it; `parse`
    adds what strategies need.
    """
    names, found, said = strategies_of(values), dict(values), []
    kind = Path(str(values.get("data-file", ""))).suffix.removeprefix(".").lower()
    if "dataset" not in values and kind in DATASETS:
        found["dataset"] = kind
        said.append(f"dataset={kind}, as the file's name says")
    if names and not (set(OF_DATA) | {"data-file"}) & set(values):
        example, must = keys_class(names[0]).example, needed(values)
        check_suited(names)
        own = {k: v for k, v in example.items() if k not in values and must.get(k, v) == v}
        found |= own
        said += [f"{spelled(own)}, the example of {names[0]}"] if own else []
    usual = defaults()
    wanted = {key: value for key, value in needed(found).items() if key not in found}
    own = {key: value for key, value in wanted.items() if value != usual[key]}
    for name in names:
        wants = {**keys_class(name).prefers, **keys_class(name).needs}
        mine = {k: v for k, v in own.items() if wants.get(k) == v}
        said += [f"{spelled(mine)}, which {name} needs"] if mine else []
        own = without(own, mine)
    said += [f"{spelled(own)}, which suits {found['dataset']}"] if own else []
    return found, f"Not set: {'; '.join(said)}." if said else ""


def check_suited(names: list[str]) -> None:
    """Refuse strategies that cannot have the first one's example, where no data are named."""
    if keys_class(names[0]).example:
        return  # two classes or numbers, in known clusters: it suits all
    unfit = [name for name in names if keys_class(name).asks]
    if unfit:
        other = keys_class(unfit[0])
        raise ConfigError(
            f"strategy={','.join(names)}: the digits, on which {names[0]} runs where no data are "
            f"named, do not fit {', '.join(unfit)} ({other.asks}); name data that fit all, such as "
            f"{spelled(other.example)}."
        )


def spelled(values: Mapping[str, str]) -> str:
    """Keys as the command line has them."""
    return " ".join(f"{key}={value}" for key, value in values.items())


def read_words(words: Iterable[str]) -> dict[str, Any]:
    """`key=value` words and TOML files of the command line; later ones win."""
    values: dict[str, Any] = {}
    for text in words:
        if text.endswith(".toml") and "=" not in text:
            values.update(read_toml(Path(text)))
        elif "=" in text:
            name, value = text.split("=", 1)
            values[name.strip().removeprefix("--")] = value.strip().strip("'\"")
        else:
            raise ConfigError(f"{text}: expected key=value or a TOML file.")
    return values


def read_toml(path: Path) -> dict[str, Any]:
    """Flat keys of a TOML file; tables in it only group them."""
    try:
        tables = tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigError(f"{path}: cannot be read ({error.strerror}).") from error
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(f"{path}: not valid TOML ({error}).") from error
    values: dict[str, Any] = {}
    for name, value in tables.items():
        values.update(value if isinstance(value, dict) else {name: value})
    return values


def each_of(values: Mapping[str, Any]) -> dict[str, list[Any]]:
    """The values of each key; several of one make a study.

    Numbers, true or false, and names of a fixed choice are several with commas. `|` is between
    several values of any key, also of those that are lists or texts themselves: `hidden=200|64,32`.
    """
    check_names(values)
    return {key: several(key, value) or [value] for key, value in values.items()}


def several(key: str, value: Any) -> list[str]:
    """The values of a key as words; one alone if it has one.

    A list is one value of a key that is a list; a list of lists is several.
    """
    if isinstance(value, (list, tuple, range)) or hasattr(value, "tolist"):
        nested = any(isinstance(one, (list, tuple)) for one in value)
        return [] if key in lists() and not nested else [word(one) for one in value]
    if not isinstance(value, str):
        return [word(value)]
    parts = value.split("|")
    if len(parts) == 1 and key in single():
        parts = value.split(",")
    return [part.strip() for part in parts if part.strip()] or [value]


@cache
def single() -> frozenset[str]:
    """The keys of which no value has a comma: numbers, true or false, one of some choices."""
    return frozenset(n for n, key in known_keys().items() if key.kind in (int, float, bool, str))


@cache
def lists() -> frozenset[str]:
    """The keys that are lists themselves."""
    return frozenset(name for name, key in known_keys().items() if "Sequence" in str(key.kind))
