"""Data given from Python as keys: in memory, or a file and its columns."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path
from typing import Any

from corsage.core.configuration.config import Config
from corsage.core.configuration.held_objects import Held, hold
from corsage.core.configuration.key_groups import SOME_USERS
from corsage.core.configuration.known_keys import defaults
from corsage.core.errors import ConfigError
from corsage.core.keys import kebab
from corsage.datasets.columns.typed import MANY_CLASSES
from corsage.datasets.given.reading import Given, read
from corsage.datasets.memory import Memory

COLUMN_KEYS = {"user": "user-column", "label": "label-column", "cluster": "cluster-column"}
NAMING = ("feature_columns", "drop_columns", "category_columns")
"""Keys that say what in the data is meant: they are not those of the data in memory."""
Chosen = Mapping[str, tuple[str, ...]]
"""The columns that each of them names."""
ARGUMENTS = ("data", "x", "y", "user", "label", "cluster", "progress", "callbacks", "strategies")
"""Arguments of `simulate`, `fit` and `study` that are no keys."""
FILE_KINDS = {".csv": "csv", ".tsv": "csv", ".txt": "csv", ".npz": "npz"}


@dataclass(frozen=True)
class Data:
    """Data as keys; what is held for them, if they are in memory."""

    keys: Mapping[str, Any]
    held: Held | None = None

    def among(self, keywords: Mapping[str, Any]) -> dict[str, Any]:
        """Keywords with those of the data, which stand for what the caller called them by."""
        own = {name.replace("-", "_"): value for name, value in self.keys.items()}
        said = NAMING if own else ()
        return {**{k: v for k, v in keywords.items() if k not in said}, **own}


NOTHING_GIVEN = Data({})


def data_of(
    data: Any, arrays: tuple[Any, Any], columns: Mapping[str, Any], keys: Mapping[str, Any]
) -> Data:
    """The arguments of `simulate` and `fit` as keys.

    `arrays` are x and y, `columns` what user, label and cluster are, `keys` the others that are
    given.
    """
    check_arguments(keys)
    named = {what: value for what, value in columns.items() if value is not None}
    chosen = {name: words(keys.get(name, ())) for name in NAMING}
    if any(part is not None for part in arrays):
        if data is not None or any(part is None for part in arrays):
            raise ConfigError("x, y: give both, and no data beside them.")
        data = arrays
    if data is None:
        refuse_idle(named)
        return NOTHING_GIVEN
    if "dataset" in keys:
        raise ConfigError(f"dataset={keys['dataset']}: data are given too; leave one of them out.")
    if isinstance(data, str | Path):
        return Data(of_file(Path(data), named, chosen))
    return in_memory(data, named, chosen, keys)


def check_arguments(keys: Mapping[str, Any]) -> None:
    """Refuse what is nearly an argument; what is nearly a key is refused with the keys."""
    known = [*ARGUMENTS, *(key.replace("-", "_") for key in defaults())]
    for name in (name for name in keys if kebab(name) not in defaults()):
        close = get_close_matches(name, known, 1)
        if close and close[0] in ARGUMENTS:
            raise ConfigError(f"{name}: no such argument. Did you mean {close[0]}?")


def words(value: Any) -> tuple[str, ...]:
    """Names, with commas or as a list."""
    return (
        tuple(value.split(",") if value else ())
        if isinstance(value, str)
        else tuple(map(str, value))
    )


def refuse_idle(named: Mapping[str, Any]) -> None:
    """Without data there are no columns to be named."""
    for what, value in named.items():
        key = COLUMN_KEYS[what].replace("-", "_")
        raise ConfigError(f"{what}={value!r:.40}: no data are given; of a file it is {key}=.")


def of_file(path: Path, named: Mapping[str, Any], chosen: Chosen) -> dict[str, Any]:
    """A file of one's own and its columns."""
    kind = FILE_KINDS.get(path.suffix.lower())
    if kind is None:
        raise ConfigError(
            f"{path}: neither a CSV nor an NPZ file, by its name; read it with pandas and give "
            "the frame, or save it as CSV."
        )
    for what, value in named.items():
        if not isinstance(value, str):
            raise ConfigError(f"{what}: of a file it is the name of a column.")
    columns = {COLUMN_KEYS[what]: value for what, value in named.items()}
    wanted = {what.replace("_", "-"): names for what, names in chosen.items() if names}
    return {"dataset": kind, "data-file": str(path), **columns, **wanted}


def in_memory(data: Any, named: Mapping[str, Any], chosen: Chosen, keys: Mapping[str, Any]) -> Data:
    """Data that are held in this process."""
    label, labels = named.get("label", ""), str(keys.get("labels", ""))
    if not isinstance(label, str):
        raise ConfigError("label: the name of a column; labels of arrays are y.")
    features, drop, categories = (chosen[what] for what in NAMING)
    whose = {what: named.get(what) for what in ("user", "cluster")}
    missing = str(keys.get("missing", "refuse"))
    said = {"missing": missing} | ({"labels": labels} if labels else {})
    Config.parse({"dataset": "memory", **said})  # a slip in them is no mistake in the table
    given = Given(
        data, label=label, features=features, labels=labels, drop=drop, categories=categories,
        missing=missing, **whose,
    )  # fmt: skip
    table = read(given)
    kept = hold(Memory(table))
    check_classes(table.num_classes, table.x.ndim == 2, labels)
    kind = "classes" if table.num_classes else "numbers"
    return Data({"dataset": "memory", "data-file": kept.name, "labels": kind}, kept)


def check_classes(number: int, flat: bool, said: str) -> None:
    """Ask whether many whole numbers of a table are classes: they may be scores, or euros."""
    if number > MANY_CLASSES and flat and not said:
        raise ConfigError(
            f"label: whole numbers up to {number - 1}: classes, or numbers to predict? Say "
            'labels="classes" or labels="numbers".'
        )


def moved(config: Config, data: Data) -> Config:
    """A configuration on other data; users that nobody chose are those of the data."""
    flat = config.flat()
    if flat["num-users"] == SOME_USERS:
        flat["num-users"] = -1
    own = {"feature-columns", "user-column", "label-column", "cluster-column"}
    return Config.parse({**{k: v for k, v in flat.items() if k not in own}, **data.keys})
