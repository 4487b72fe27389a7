"""FEMNIST: handwritten characters by writer; LEAF's JSON files, or the Hugging Face hub.

Classes 0-9 are digits, 10-35 upper-case and 36-61 lower-case letters. FedRep trains on ten
lower-case letters, a to j as in Li et al. 2020 (FedProx), and adapts to digits.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from corsage.core.arrays import Array, Ints
from corsage.core.configuration.key_groups import DataKeys
from corsage.core.errors import DataError
from corsage.core.keys import key
from corsage.datasets import hub, leaf
from corsage.datasets.data_set import DataSet
from corsage.datasets.sample_table import Table, check_users, labels_below, standardised

FEMNIST_HUB = "flwrlabs/femnist"
SIDE = 28
TOTAL = 62
FIRST_CLASS = {"letters": 36, "digits": 0}
Part = tuple[Array, Ints, NDArray[np.str_]]


@dataclass(frozen=True)
class FemnistKeys(DataKeys):
    """Keys of FEMNIST."""

    femnist_classes: str = key(
        "letters",
        "lower-case a-j (the paper's: partition=consecutive classes-per-user=3 num-users=150 "
        "mean-samples=148 size-sigma=1.2), digits, both as the known clusters letters and digits "
        "(new-cluster=digits: new users as in the paper), or all 62",
        choices=("letters", "digits", "letters-digits", "all"),
    )


def load(keys: FemnistKeys) -> Table:
    """The images of the wanted classes as (n, 1, 28, 28) uint8 with their writers.

    Paper is white (255), ink black, as published; the model sees -1 to 1. In `letters-digits`
    both are classes 0 to 9, told apart by their cluster, and a writer's digits are another user.
    """
    names, paths, where = (
        keys.femnist_classes,
        leaf.files(keys, FEMNIST_HUB),
        keys.data_dir or FEMNIST_HUB,
    )
    firsts = range(0, TOTAL, 10) if names == "all" else [FIRST_CLASS[n] for n in names.split("-")]
    wanted = np.isin(np.arange(TOTAL), [f + i for f in firsts for i in range(10)])
    if paths:
        parts = [part for path in paths for part in from_leaf(path, wanted)]
    else:
        parts = [from_hub(wanted, leaf.missing(keys, FEMNIST_HUB))]
    if not sum(len(y) for _, y, _ in parts):
        raise DataError(f"{where}: no images of femnist-classes={names} in it.")
    x, y, writers = (np.concatenate(arrays) for arrays in zip(*parts, strict=True))
    check_users(writers, where)
    clusters, classes = None, TOTAL
    if names != "all":
        letters = y >= FIRST_CLASS["letters"]
        y, classes = y - np.where(letters, FIRST_CLASS["letters"], 0), 10
        if names == "letters-digits":
            clusters = np.where(letters, "letters", "digits")
            order = np.argsort(~letters, kind="stable")  # the cluster of letters comes first
            writers = np.where(letters, writers, np.char.add(writers, "-digits"))
            x, y, writers, clusters = (a[order] for a in (x, y, writers, clusters))
    return Table(x, y, writers, clusters, classes, *standardised(0.5, 0.5))


def from_leaf(path: Path, wanted: NDArray[np.bool_]) -> Iterator[Part]:
    """The wanted images of each user of one file."""
    for user, images, labels in leaf.users(path):
        where = f"{path}: user {user}"
        y = labels_below(labels, TOTAL, where)
        rows = np.flatnonzero(wanted[y])
        if len(rows):
            yield pixels([images[i] for i in rows], where), y[rows], np.full(len(rows), user)


def pixels(images: list[Any], where: str) -> Array:
    """LEAF's lists of 784 numbers from 0 to 1, which are bytes divided by 255, as bytes again."""
    try:
        values = np.array(images, np.float32)
    except (ValueError, TypeError) as error:
        raise DataError(f"{where}: images of several sizes, or not of numbers.") from error
    if values.shape != (len(images), SIDE * SIDE) or not ((values >= 0) & (values <= 1)).all():
        raise DataError(
            f"{where}: images of shape {values.shape[1:]} and numbers from {values.min():g} to "
            f"{values.max():g}; expected {SIDE * SIDE} pixels each, from 0 to 1."
        )
    return np.rint(values * 255).astype(np.uint8).reshape(-1, 1, SIDE, SIDE)


def from_hub(wanted: NDArray[np.bool_], absent: DataError) -> Part:
    """The wanted images of the hub's one split; only those are decoded."""
    rows = hub.splits(FEMNIST_HUB, absent)["train"]
    y = labels_below(hub.column(rows, "character"), TOTAL, FEMNIST_HUB)
    chosen = np.flatnonzero(wanted[y])
    rows = rows.select(chosen)
    images = hub.column(rows, "image").astype(np.uint8)
    writers = hub.column(rows, "writer_id").astype(np.str_)
    return images.reshape(-1, 1, SIDE, SIDE), y[chosen], writers


DATASET = DataSet(load, FemnistKeys, partial(leaf.files, hub=FEMNIST_HUB), users="either")
