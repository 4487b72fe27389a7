"""Whole numbers of a table that may be no numbers: those of its rows, identifiers, labels."""

from __future__ import annotations

import numpy as np

from corsage.core.arrays import Array, Floats
from corsage.core.tables.column_facts import NUMBER
from corsage.datasets.columns.typed import FREE_TEXT, IDS, SOME_ROWS
from corsage.datasets.sample_table import Table

IN_TURN = 0.5
"""The share of the whole numbers between the ends that identifiers use, which are given in turn."""
UNIQUE = 0.9
"""The share of rows with a number of their own that tells identifiers from measurements; and of
numbers that have a row."""


def row_numbers(table: Table) -> list[str]:
    """The columns that number the rows, and are called so.

    Up to half of the rows may have been left out since, such as those without a label.
    """
    return [
        name
        for name, column in of_numbers(table)
        if IDS.fullmatch(name) and counts_rows(column, IN_TURN)
    ]


def identifiers(table: Table) -> dict[str, int]:
    """The columns that seem to name something, by their names or shapes, and how many things."""
    return {
        name: len(np.unique(column))
        for name, column in of_numbers(table)
        if names_things(name, column)
    }


def of_numbers(table: Table) -> list[tuple[str, Floats]]:
    """The columns that were taken for numbers, if somebody named them, and enough rows to tell."""
    facts = table.facts.columns if table.facts is not None else ()
    if len(table.y) < SOME_ROWS or all(one.name == f"x{i}" for i, one in enumerate(facts)):
        return []
    return [(one.name, table.x[:, i]) for i, one in enumerate(facts) if one.kind == NUMBER]


def counts_rows(column: Floats, share: float = UNIQUE) -> bool:
    """Tell whether numbers go up from row to row, few left out, as if rows were left out since.

    More than `share` of the numbers between the ends are there.
    """
    if not np.isfinite(column).all() or (column % 1 != 0).any():
        return False
    span = column[-1] - column[0] + 1
    return bool((np.diff(column) >= 1).all()) and len(column) > share * span


def names_things(name: str, column: Floats) -> bool:
    """Tell whether many whole numbers are called an identifier, or were given one after the other.

    Identifiers in turn leave few numbers out; and a table is sorted by them, or each is there once.
    Measurements that are all different leave most numbers out; years and ages come again, unsorted.
    """
    if not np.isfinite(column).all() or (column % 1 != 0).any():
        return False
    known = np.unique(column)
    if counts_rows(column):
        return True
    if len(known) <= FREE_TEXT:
        return False
    dense = len(known) > IN_TURN * (known[-1] - known[0] + 1)
    in_turn = bool((np.diff(column) >= 0).all()) or len(known) > UNIQUE * len(column)
    return bool(IDS.fullmatch(name)) or (dense and in_turn)


def are_scores(y: Array, num_classes: int) -> bool:
    """Tell whether labels that were taken for classes may be counts, or marks.

    Classes are numbered from 0 without a gap; and of two there is nothing to ask.
    """
    return num_classes > 2 and len(np.unique(y)) < num_classes
