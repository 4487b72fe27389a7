"""Facts on a node's table: of training rows alone, with sums only where they are wanted."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from corsage.core.arrays import Array, Bools, Floats
from corsage.core.tables.column_facts import CATEGORY, ColumnFacts, Moments, TableFacts, in_order
from corsage.core.tables.preparation import of_numbers


def summed(
    facts: TableFacts, x: Floats, y: Array, train: Bools, sums: bool, shared: bool = True
) -> TableFacts:
    """The facts of a table with what its training rows show.

    Parameters
    ----------
    facts : names, kinds and words of the columns.
    x, y : cells and labels.
    train : which rows count.
    sums : whether means and spreads are wanted.
    shared : whether anything but the names and kinds may be said.
    """
    if not shared:
        columns = [replace(column, levels=()) for column in facts.columns]
        return TableFacts(tuple(columns), replace(facts.label, levels=()))
    columns = [seen(column, x[train, i], sums) for i, column in enumerate(facts.columns)]
    label = facts.label
    if sums and y.dtype.kind == "f":
        label = replace(label, moments=of_numbers(y[train]))
    return TableFacts(tuple(columns), label)


def seen(column: ColumnFacts, cells: Floats, sums: bool) -> ColumnFacts:
    """Facts that the cells of a column show."""
    gaps = np.isnan(cells)
    column = replace(column, gaps=bool(gaps.any()))
    if column.kind == CATEGORY:
        there = np.unique(cells[~gaps]).astype(np.int64)
        return replace(column, levels=in_order(column.levels[k] for k in there))
    return replace(column, moments=of_numbers(cells) if sums else Moments())
