"""Devices whose tables are out of all proportion to the others'.

What they say would spoil what all agree on, or end the run before it begins. They are left out of
that, as long as they are few. They are asked again later: an honest one may come back then, and is
prepared by what the others agreed on.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from statistics import median

from corsage.core.errors import line
from corsage.core.tables.column_facts import MOST_COLUMNS, MOST_LEVELS, ColumnFacts, TableFacts

OUTLYING_TIMES = 1e6
"""Numbers so many times as large as those of most nodes are of another unit, or of none."""
Tables = Mapping[int, TableFacts]


def outlying(tables: Tables) -> dict[int, str]:
    """The nodes to be left out, and why: fewer than half of those with the usual columns."""
    names = Counter(frozenset(table.names) for table in tables.values())
    usual = max(names, key=names.__getitem__, default=frozenset())
    alike = {node: table for node, table in tables.items() if frozenset(table.names) == usual}
    found = far_off(alike)
    found |= wordy({node: table for node, table in alike.items() if node not in found})
    return found if 2 * len(found) < len(alike) else {}


def far_off(tables: Tables) -> dict[int, str]:
    """Those whose numbers are far larger than those of most."""
    whys: dict[int, str] = {}
    for name, said in by_column(tables).items():
        sizes = {node: size(column) for node, column in said.items() if column.moments.count}
        usual = median(sizes.values()) if sizes else 0.0
        for node in [node for node in sizes if usual and sizes[node] > OUTLYING_TIMES * usual]:
            why = f"has numbers of the size {sizes[node]:.3g}, the others' {usual:.3g}"
            whys.setdefault(node, f"its column {line(repr(name), 60)} {why}")
    return whys


def size(column: ColumnFacts) -> float:
    """The size of a column's numbers."""
    return max(abs(column.moments.mean), column.moments.std)


def wordy(tables: Tables) -> dict[int, str]:
    """Those without whose words all the others' are not too many for a model."""
    words = {node: set(words_of(table)) for node, table in tables.items()}
    counts = Counter(word for mine in words.values() for word in mine)
    rare = {node: sum(2 * counts[w] <= len(words) for w in mine) for node, mine in words.items()}
    whys: dict[int, str] = {}
    for node in sorted(words, key=lambda node: -rare[node]):
        if not too_many(tables, {w for n, mine in words.items() if n not in whys for w in mine}):
            break
        whys[node] = (
            f"it has {rare[node]:,} words that few others have, and all together are more than "
            f"{MOST_LEVELS:,} in a column"
        )
    return whys


def words_of(table: TableFacts) -> Iterator[tuple[str, str]]:
    """Every word of a table, with its column."""
    for column in (table.label, *table.columns):
        yield from ((column.name, level) for level in column.levels)


def too_many(tables: Tables, words: set[tuple[str, str]]) -> bool:
    """True if a column has too many words, one for gaps among them, or all too many inputs."""
    most = max(Counter(column for column, _ in words).values(), default=0)
    columns = len(next(iter(tables.values())).columns)
    return most >= MOST_LEVELS or len(words) + 2 * columns > MOST_COLUMNS


def by_column(tables: Tables) -> dict[str, dict[int, ColumnFacts]]:
    """The nodes' facts of each column, the label among them."""
    columns: dict[str, dict[int, ColumnFacts]] = {}
    for node, table in tables.items():
        for column in (table.label, *table.columns):
            columns.setdefault(column.name, {})[node] = column
    return columns
