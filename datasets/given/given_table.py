"""A table of what many users have, or of one pool of samples."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from corsage.core.arrays import Array, Ints
from corsage.core.errors import DataError
from corsage.core.tables.cells import empty, word_of
from corsage.core.tables.column_facts import NUMBER, NUMBERED_CLASSES, ColumnFacts, TableFacts
from corsage.datasets.columns.typed import Source, categories
from corsage.datasets.given.given_samples import Columns, Samples, is_data_set, samples_of
from corsage.datasets.npzfile import check_samples, is_table, refuse_unheld
from corsage.datasets.npzfile import samples as checked
from corsage.datasets.sample_table import (
    OR_NUMBERS,
    Mask,
    Table,
    check_labels,
    check_users,
    class_labels,
    held,
    id_strings,
    input_numbers,
    number_labels,
    some,
    standardised,
)

WHERE = "data"
FEW_NUMBERS = 20
"""So many different whole numbers, or fewer, written as 0.0, 1.0, ... are classes perhaps."""


def table_of(
    samples: Mapping[str, Samples], clusters: Mapping[str, str], labels: str = ""
) -> Table:
    """All users' samples, one user after the other; `labels` says what labels are, if it is said.

    Either all users have test samples, or none: then each user's samples are split.
    """
    if not samples:
        raise DataError(f"{WHERE}: nobody has any samples.")
    said = {user: own.x_test is not None for user, own in samples.items()}
    if len(set(said.values())) > 1:
        without = next(user for user, tests in said.items() if not tests)
        raise DataError(f"{WHERE}: user {without} has no test samples, others have; give all some.")
    xs: list[Array] = []
    ys, tests, users = [], [], []
    for user, own in samples.items():
        for x, y, test in ((own.x, own.y, False), (own.x_test, own.y_test, True)):
            if x is None or y is None:
                continue
            xs.append(alike(x, xs, f"user {user}"))
            ys.append(y)
            tests.append(np.full(len(y), test))
            users += [user] * len(y)
    names = np.array(users, dtype=np.str_)
    groups = np.array([clusters.get(user, "") for user in users], dtype=np.str_)
    return table(
        np.concatenate(xs),
        np.concatenate(ys),
        names,
        groups if clusters else None,
        np.concatenate(tests) if any(said.values()) else None,
        labels,
    )


def alike(x: Array, others: list[Array], who: str) -> Array:
    """A user's inputs, if they are of the shape and kind of those before."""
    if others and x.shape[1:] != others[0].shape[1:]:
        raise DataError(
            f"{WHERE}: {who}: samples of shape {x.shape[1:]}, others' are {others[0].shape[1:]}."
        )
    if others and (x.dtype == np.uint8) != (others[0].dtype == np.uint8):
        raise DataError(f"{WHERE}: {who}: samples of type {x.dtype}, others' {others[0].dtype}.")
    return x


def table(
    x: Array,
    y: Array,
    users: Any,
    clusters: Any,
    test: Mask | None = None,
    labels: str = "",
    facts: tuple[ColumnFacts, ...] | None = None,
    label: ColumnFacts | None = None,
) -> Table:
    """Arrays as a table: what an NPZ file with the same arrays would be, but for the labels.

    Labels that are whole numbers by their type are classes, others numbers to predict. `facts` and
    `label` are what is known of columns, and of labels that were words.
    """
    if x.ndim == 1:
        x = x[:, None]
    if y.ndim == 1 and y.dtype.kind in "UO" and labels != "numbers":
        y, label = named_classes(y)
    numbers = are_numbers(y, labels)
    if facts is None and is_table(x):
        check_samples(x, f"{WHERE}: x")
        refuse_unheld(held(np.where(np.isnan(x), 0.0, x)), f"{WHERE}: x")
        x, facts = x.astype(np.float64), tuple(ColumnFacts(f"x{i}") for i in range(x.shape[1]))
    x = checked(x, f"{WHERE}: x", exact=numbers) if facts is None else x
    classed = partial(class_labels, otherwise=OR_NUMBERS)
    read: Callable[..., Any] = number_labels if numbers else classed
    found = read(y, f"{WHERE}: labels")
    values, classes = (found, 0) if numbers else found
    ids = [
        None if own is None else ids_of(own, f"{WHERE}: {what}")
        for own, what in ((users, "user"), (clusters, "cluster"))
    ]
    if ids[0] is not None:
        check_users(ids[0], WHERE)
    for name, column in (("labels", values), ("users", ids[0]), ("clusters", ids[1])):
        if column is not None and len(column) != len(x):
            raise DataError(f"{WHERE}: {len(column)} {name} for {len(x)} samples.")
    shift, scale = standardised(0.5, 0.5) if x.dtype == np.uint8 else (0.0, 1.0)
    said = label or ColumnFacts("label", NUMBER if numbers else NUMBERED_CLASSES)
    columns = None if facts is None else TableFacts(facts, said)
    names = () if columns or label is None else label.levels
    made = Table(x, values, ids[0], ids[1], classes, shift, scale, test=test, facts=columns)
    return replace(made, classes=names)


def named_classes(y: Array) -> tuple[Ints, ColumnFacts]:
    """Labels that are words as numbers of their classes, and what these are called."""
    cells = ["" if empty(cell) else word_of(cell) for cell in y.tolist()]
    words, codes = np.unique(np.array(cells, np.str_), return_inverse=True)
    source = Source(WHERE, lambda name, is_it: f"{name} {[*map(is_it, cells)].index(True)}", False)
    found, facts = categories("label", codes.astype(np.float64), words.tolist(), source, True)
    return found.astype(np.int64), facts


def ids_of(given: Any, where: str) -> NDArray[np.str_]:
    """Ids out of a column, an array or a list; a missing one is empty, and 7.0 is 7."""
    cells = np.asarray(given)
    if cells.dtype.kind == "O" or (cells.dtype.kind == "f" and np.isnan(cells).any()):
        cells = np.array(["" if gone(cell) else word_of(cell) for cell in cells.tolist()], np.str_)
    return id_strings(cells, where)


def gone(cell: Any) -> bool:
    """Tell whether an id is missing; of words none says so, since a user may be called NA."""
    return not isinstance(cell, str) and empty(cell)


def as_it_is(given: Table) -> Table:
    """The same samples without columns that would be prepared.

    Words as labels are refused: other nodes have others, and nobody sees all of them.
    """
    words = given.facts.label.levels if given.facts else given.classes
    if words:
        raise DataError(
            f"{WHERE}: labels are words ({some(list(words))}), which other nodes would number in "
            "another way: number the classes 0, 1, 2, ..., alike everywhere."
        )
    if given.facts is None:
        return given
    refuse_unheld(held(given.x), f"{WHERE}: x")
    return replace(given, x=input_numbers(given.x, exact=not given.num_classes), facts=None)


def are_numbers(y: Array, labels: str) -> bool:
    """Tell whether labels are numbers to predict; where that cannot be seen, a key must say it."""
    if labels:
        return labels == "numbers"
    check_labels(y, f"{WHERE}: labels", "classes are 0, 1, 2, ..., and numbers are numbers")
    if y.dtype.kind != "f":
        return False
    values = np.unique(y)
    if len(values) <= FEW_NUMBERS and np.array_equal(values, np.arange(len(values))):
        raise DataError(
            f"{WHERE}: labels are {', '.join(f'{v:g}' for v in values[:3])}, ... with a decimal "
            "point: classes, or numbers to predict? Make them whole (y.astype(int)), or say "
            'labels="classes" or labels="numbers".'
        )
    return True


# Users.


def users_of(given: Any, columns: Columns) -> dict[str, Samples]:
    """Users and their samples: of a list (numbered from 0), a dictionary, a partitioner."""
    found = {}
    for user, own in entries(given):
        try:
            found[user] = samples_of(own, columns)
        except DataError as error:
            raise DataError(f"{WHERE}: user {user}: {error}") from error
    return found


def entries(given: Any) -> Iterable[tuple[str, Any]]:
    """Users and what each has."""
    if isinstance(given, Mapping):
        return ((str(user), own) for user, own in given.items())
    if hasattr(given, "load_partition"):
        return partitions(given)
    return ((str(number), own) for number, own in enumerate(given))


def partitions(given: Any) -> Iterator[tuple[str, Any]]:
    """The partitions of a partitioner of flwr-datasets, or of a federated data set that has one."""
    partitioner = given
    if hasattr(given, "partitioners"):
        of_split = given.partitioners
        if len(of_split) != 1:
            raise DataError(
                f"{WHERE}: partitioners of {', '.join(of_split) or 'nothing'}; name one."
            )
        partitioner = next(iter(of_split.values()))
        given.load_partition(0)  # which gives the partitioner its data
    for number in range(partitioner.num_partitions):
        yield str(number), given.load_partition(number)


def is_many(given: Any) -> bool:
    """Tell whether something holds users, each with samples of its own: not one pool of samples."""
    if isinstance(given, Mapping):
        names = set(map(str, given))
        return not names & {"x", "y", "x_train", "train"}
    if hasattr(given, "load_partition"):
        return True
    return isinstance(given, list) and not is_data_set(given)
