"""Values that a message must not have, made of what its fields are declared to be.

A field that is added to a message is attacked without a word here.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping
from typing import Any

from flwr.app import ConfigRecord, RecordDict
from flwr.common.serde import recorddict_to_proto

from corsage.core.messages.fields import (
    MOST_JSON_TEXT,
    Flag,
    Json,
    Kind,
    Listed,
    OneOf,
    Real,
    Table,
    Text,
    Whole,
    declared,
)
from corsage.core.messages.introduction import Facts
from corsage.core.messages.wire import Prepared, Sides

NAN = float("nan")
DEEP = "[" * 10**5


def of_message(message: Any, at: str = "config") -> Iterator[tuple[str, Any]]:
    """A column of a message's record and a value that it must not have, one after the other."""
    for one in declared(message, at).values():
        for column, kind in one.kind.columns(one.name).items():
            yield from (
                (column, value) for value in of_kind(kind) if at != "config" or carried(value)
            )


def carried(value: Any) -> bool:
    """True if Flower has such values in its records of words, and its protobuf as well."""
    try:
        recorddict_to_proto(RecordDict({"config": ConfigRecord({"value": value})}))
    except (TypeError, ValueError):
        return False
    return True


def of_kind(kind: Kind) -> Iterator[Any]:
    """Values that are not of a kind: of another type, or out of its bounds."""
    yield from of_type(kind)
    if isinstance(kind, Whole):
        yield from (kind.low - 1, kind.high + 1, 10**300, NAN)
    elif isinstance(kind, Real):
        yield from (
            value for value in (kind.low - 1, kind.high * 2 + 1, NAN) if not math.isinf(value)
        )
    elif isinstance(kind, Text):
        yield from of_text(kind)
    elif isinstance(kind, Json):
        yield from (DEEP, "", "{", *(json.dumps(one) for one in of_type(kind.of)))
    elif isinstance(kind, Listed):
        yield from of_list(kind)


TYPES: Mapping[type[Kind], tuple[type, ...]] = {
    Whole: (int,), Real: (int, float), Flag: (bool,), Text: (str,), OneOf: (), Facts: (str,),
    Json: (), Listed: (list,), Sides: (list,), Table: (dict,),
    Prepared: (dict, type(None)),
}  # fmt: skip
"""Of which types values of a kind may be."""
VALUES: tuple[Any, ...] = (7, True, 0.5, "text", None, [None], {"a": {"b": []}})


def of_type(kind: Kind) -> Iterator[Any]:
    """Values of other types."""
    fine = next((types for cls, types in TYPES.items() if isinstance(kind, cls)), None)
    if fine is not None:
        yield from (value for value in VALUES if type(value) not in fine)


def of_text(kind: Text) -> Iterator[str]:
    """Texts that are too long, or of what they may not be."""
    if kind.most <= MOST_JSON_TEXT:
        yield "x" * (kind.most + 1)
    if kind.id:
        yield from ("", "  ")
    if kind.printable:
        yield from ("\x1b[2Jx", "a\nb")
    if kind.letters:
        yield "\u202ex"


def of_list(kind: Listed) -> Iterator[list[Any]]:
    """Lists of what may not be in one, or too long, or too short."""
    yield from ([one] for one in of_kind(kind.each))
    yield [[[]]]
    if kind.most < MOST_JSON_TEXT:
        yield [0] * (kind.most + 1)
    if kind.least:
        yield []
