"""A preparation from the wire or from a file: every field is in its bounds, or it is refused."""

from __future__ import annotations

import dataclasses
from typing import Any

from corsage.core.configuration.data_keys import MISSING_CHOICES, SCALE_CHOICES
from corsage.core.tables.column_facts import (
    CATEGORY,
    MOST_COLUMNS,
    NUMBER,
    BadColumns,
    read_levels,
    read_word,
)
from corsage.core.tables.preparation import MOST_SCALE, Column, Label, Preparation


def read_preparation(plain: object) -> Preparation:
    """The inverse of `Preparation.json`, every field in its bounds; else BadColumns."""
    found = record(plain, Preparation, "preparation")
    if type(found["columns"]) not in (list, tuple) or len(found["columns"]) > MOST_COLUMNS:
        raise BadColumns(f"columns: no list of at most {MOST_COLUMNS}")
    columns = tuple(read_column(column) for column in found["columns"])
    names = [column.name for column in columns]
    if len(set(names)) < len(names):
        raise BadColumns("a column is named twice")
    for name, choices in (("missing", MISSING_CHOICES), ("scaling", SCALE_CHOICES)):
        if found[name] not in choices:
            raise BadColumns(f"{name}: none of {', '.join(choices)}")
    width = sum(len(column.features) for column in columns)
    if width > MOST_COLUMNS:
        raise BadColumns(f"{width} inputs, the most are {MOST_COLUMNS}")
    return Preparation(
        columns,
        read_label(found["label"]),
        found["missing"],
        found["scaling"],
        read_numbers(found["shift"], "shift", width),
        read_numbers(found["scale"], "scale", width),
        truth(found["numbers"], "numbers"),
    )


def read_column(plain: object) -> Column:
    """One column."""
    found = record(plain, Column, "column")
    where = "a column"
    read_word(found["name"], where)
    if found["kind"] not in (NUMBER, CATEGORY):
        raise BadColumns(f"{where}: no kind of column")
    levels = found["levels"]
    read_levels(list(levels) if type(levels) is tuple else levels, where, found["kind"])
    if found["reference"]:
        read_word(found["reference"], where)
    (fill,) = read_numbers([found["fill"]], where, 1)
    flagged = truth(found["flagged"], where)
    return Column(
        found["name"], found["kind"], tuple(levels), str(found["reference"]), fill, flagged
    )


def read_label(plain: object) -> Label:
    """The label."""
    found = record(plain, Label, "label")
    read_word(found["name"], "label")
    classes = found["classes"]
    read_levels(list(classes) if type(classes) is tuple else classes, "label", CATEGORY)
    mean, scale = read_numbers([found["mean"], found["scale"]], "label", 2)
    if scale <= 0:
        raise BadColumns("label: its scale is not above 0")
    return Label(found["name"], tuple(classes), mean, scale)


def record(plain: object, kind: type[Any], where: str) -> dict[str, Any]:
    """A table of just the fields of a dataclass."""
    if type(plain) is not dict or set(plain) != {f.name for f in dataclasses.fields(kind)}:
        raise BadColumns(f"{where}: not the fields of one")
    return plain


def truth(value: object, where: str) -> bool:
    """True or false."""
    if type(value) is not bool:
        raise BadColumns(f"{where}: not true or false")
    return value


def read_numbers(plain: object, where: str, count: int) -> tuple[float, ...]:
    """So many finite numbers."""
    if type(plain) not in (list, tuple) or len(plain) != count:  # type: ignore[arg-type]
        raise BadColumns(f"{where}: not {count} numbers")
    for one in plain:  # type: ignore[attr-defined]
        if type(one) not in (int, float) or not -MOST_SCALE <= one <= MOST_SCALE:
            raise BadColumns(f"{where}: a number that is not finite")
    return tuple(float(one) for one in plain)  # type: ignore[attr-defined]
