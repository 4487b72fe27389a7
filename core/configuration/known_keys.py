"""All keys by name, with their defaults and whose they are, out of a printed table.

Nothing is imported for them but the groups that every run has: a run loads the algorithms and the
data sets that it names, and a mistake in the file of another one is none of its business.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from functools import cache
from typing import Any, get_args

from corsage.core.configuration.key_groups import GROUPS
from corsage.core.configuration.keywords import Keywords
from corsage.core.keys import Own, Value, flatten, kebab
from corsage.core.registry import ALGORITHMS, DATASETS, source

OF_SOME = "Some data sets"
"""The title of the keys that only some data sets have."""


@dataclass(frozen=True)
class Known:
    """A key as the table has it.

    Parameters
    ----------
    title : the heading of its group.
    default : its value where nobody sets it.
    kind : its annotation as a keyword argument.
    owners : the algorithms or the data sets that have it; none: every run has it.
    """

    title: str
    default: Value
    kind: Any
    owners: tuple[str, ...] = ()


@cache
def known_keys() -> dict[str, Known]:
    """Every key, in the order in which documents list them."""
    common = {k: (g.title, v) for g in GROUPS.values() for k, v in flatten(g()).items()}
    table = {}
    for field, kind in Keywords.__annotations__.items():
        name, parts = kebab(field), get_args(kind)
        if parts and isinstance(parts[-1], Own):
            own = parts[-1]
            owners = tuple(own.owners.split(", "))
            table[name] = Known(own.title, own.default, parts[0], owners)
        else:
            table[name] = Known(*common[name], kind)
    return table


def defaults() -> dict[str, Value]:
    """Every key and its default."""
    return {name: known.default for name, known in known_keys().items()}


def keys_of_algorithms() -> dict[str, tuple[str, ...]]:
    """The keys that only algorithms have, and which of them."""
    return {n: k.owners for n, k in known_keys().items() if set(k.owners) & set(ALGORITHMS)}


def keys_of_data_sets() -> dict[str, tuple[str, ...]]:
    """The keys that only some data sets have, and which of them."""
    return {n: k.owners for n, k in known_keys().items() if set(k.owners) & set(DATASETS)}


def idle_keys(strategies: Collection[str]) -> set[str]:
    """The keys of algorithms that none of these strategies uses.

    An algorithm may use others of its family on its way.
    """
    families = {ALGORITHMS[source(name)].family for name in strategies} - {""}
    used = {source(name) for name in strategies}
    used |= {name for name, entry in ALGORITHMS.items() if entry.family in families}
    return {key for key, owners in keys_of_algorithms().items() if not used & {*owners}}
