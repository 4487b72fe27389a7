"""Differences between two records of the same run: nothing, or the first place."""

from __future__ import annotations

import math
from collections import Counter
from typing import Any

from corsage.benchmarks.numbers.runs import Record

NUMBERS = ("results", "rounds", "models")
"""Parts that must be equal bit for bit."""
BESIDE = ("checkpoint", "kept", "findings", "wire")
"""Parts that may change with how things are stored, worded or sent: they are told apart."""


def differences(old: Record, new: Record) -> dict[str, str]:
    """For each part the first place at which it differs; parts that are equal are left out."""
    if "error" in old or "error" in new:
        first = "" if old == new else f"{ending(old)} -> {ending(new)}"
        return {"results": first} if first else {}
    found = {part: first_difference(old[part], new[part]) for part in old}
    return {part: place.lstrip(".") for part, place in found.items() if place}


def ending(record: Record) -> str:
    """How a run ended."""
    return f"failed: {record['error']}" if "error" in record else "ran"


def first_difference(old: Any, new: Any) -> str:
    """The first place at which two JSON values differ, and what stands there; `` if none."""
    if isinstance(old, dict) and isinstance(new, dict):
        return in_mappings(old, new)
    if isinstance(old, list) and isinstance(new, list):
        return in_arrays(old, new) if is_arrays(old) or is_arrays(new) else in_lists(old, new)
    return "" if same(old, new) else f": {old!r} -> {new!r}"


def in_mappings(old: dict[str, Any], new: dict[str, Any]) -> str:
    """The first key that only one has, or whose value differs."""
    for key in [*old, *(key for key in new if key not in old)]:
        if key not in new or key not in old:
            return f".{key}: only in the {'old' if key in old else 'new'} one"
        if place := first_difference(old[key], new[key]):
            return f".{key}{place}"
    return ""


def in_lists(old: list[Any], new: list[Any]) -> str:
    """The first entry that differs, or the lengths."""
    for number, (a, b) in enumerate(zip(old, new, strict=False)):
        if place := first_difference(a, b):
            return f"[{number}]{place}"
    return "" if len(old) == len(new) else f": {len(old)} entries -> {len(new)}"


def is_arrays(values: list[Any]) -> bool:
    """Whether these are arrays as type, shape and hash, whose order says nothing."""
    return bool(values) and isinstance(values[0], str)


def in_arrays(old: list[str], new: list[str]) -> str:
    """How many arrays only one of them has, and the first ones."""
    gone, come = Counter(old) - Counter(new), Counter(new) - Counter(old)
    if not gone and not come:
        return ""
    shown = ", ".join([*(f"- {a}" for a in list(gone)[:1]), *(f"+ {a}" for a in list(come)[:1])])
    return f": {gone.total()} of {len(old)} arrays gone, {come.total()} others ({shown})"


def same(old: object, new: object) -> bool:
    """Equal, bit for bit; what is no number is the same as itself."""
    if isinstance(old, float) and isinstance(new, float):
        return old.hex() == new.hex() or (math.isnan(old) and math.isnan(new))
    return old == new
