"""Strategies compared on rows that they were not fitted to; cross-validated where these are few."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace

import numpy as np
from flwr.supercore.logger import FLOWER_LOGGER

from corsage.app.answer.merged import Json, merged
from corsage.core.arrays import Ints
from corsage.core.configuration.config import Config
from corsage.core.configuration.held_objects import hold
from corsage.core.configuration.key_groups import DataKeys
from corsage.core.errors import CorsageError
from corsage.core.registry import source
from corsage.core.seeding import generator
from corsage.core.training_paths import AUTO
from corsage.datasets.data_set import data_set, load_table
from corsage.datasets.dealing.dealt import Dealt, deal
from corsage.datasets.memory import Memory
from corsage.datasets.sample_table import Mask, Table

FOLDS = 5
FEW_TESTS = 20
"""Test rows a user on average below which a user's error is mostly chance."""
MOST_CROSSED = 20_000
"""Rows beyond which the mean over users is sure enough from one part of them."""
SOLVED = ("mixed-model", "single-cluster")
"""What is solved in a moment, and can be again."""
OF_FILES = ("user-column", "label-column", "cluster-column")
OF_FILES += ("feature-columns", "drop-columns", "category-columns")
"""Keys of a file that a table in memory has no use for."""


def refits(config: Config) -> bool:
    """True if what is compared is solved exactly, of a table whose test rows are ours to choose."""
    kind, names = data_set(config.data.dataset), config.run.strategy
    if kind.arranged or config.new.wanted or config.model.model != "linear":
        return False
    return {*map(source, names)} <= {*SOLVED} and load_table(config.data).test is None


def compared(config: Config, who: str = "") -> Json:
    """The rows of all strategies as they do on held-out rows, and how that was found.

    `who` is what users are called.
    """
    table = load_table(config.data)
    dealt = deal(table, config.data, config.federation.num_users, config.run.seed)
    rows, users = sum(map(len, dealt.parts)), len(dealt.users)
    share = config.data.test_fraction
    few = share == DataKeys.test_fraction and rows * share < FEW_TESTS * users
    folds = FOLDS if few and rows <= MOST_CROSSED else 1
    with silence():
        found = [trial(config)] if folds == 1 else crossed(config, table, dealt)
    results = [merged([part[name] for part in found]) for name in found[0]]
    tested = sum(results[0]["test_sizes"].values()) if results else 0
    how = {"folds": folds, "share": share, "rows": tested, "who": who}
    return {"how": how, "results": results}


@contextmanager
def silence() -> Iterator[None]:
    """Let no trial say what the fit to all rows says again."""
    level = FLOWER_LOGGER.level
    FLOWER_LOGGER.setLevel(logging.ERROR)
    try:
        yield
    finally:
        FLOWER_LOGGER.setLevel(level)


def crossed(config: Config, table: Table, dealt: Dealt) -> list[dict[str, Json]]:
    """A comparison for each part of every user's rows, which is its test; where all succeeded."""
    part = parts(table, dealt, config.run.seed)
    found = [trial(held(config, table, part == k)) for k in range(FOLDS)]
    common = [name for name in found[0] if all(name in one for one in found)]
    return [{name: one[name] for name in common} for one in found]


def parts(table: Table, dealt: Dealt, seed: int) -> Ints:
    """The fold that each row is tested in; -1 of a user's only row, which is for training.

    Each user's rows are spread evenly over the folds, and so are its classes.
    """
    fold = np.full(len(table.y), -1)
    for user, rows in zip(dealt.users, dealt.parts, strict=True):
        if len(rows) > 1:
            rng = generator(seed, "folds", user)
            order = rng.permutation(len(rows))
            order = order[table.strata[rows[order]].argsort(kind="stable")]
            fold[rows[order]] = (np.arange(len(rows)) + rng.integers(FOLDS)) % FOLDS
    return fold


def held(config: Config, table: Table, test: Mask) -> Config:
    """The configuration on the same table in memory, with these rows as its test."""
    kept = hold(Memory(replace(table, test=test)))
    labels = "classes" if table.num_classes else "numbers"
    flat = {k: v for k, v in config.flat().items() if k not in OF_FILES}
    dealing = AUTO if config.data.dealing == "natural" else config.data.dealing
    own = {"dataset": "memory", "data-file": kept.name, "labels": labels, "partition": dealing}
    return Config.parse({**flat, **own})


def trial(config: Config) -> dict[str, Json]:
    """The rows of one comparison in this process, by their names; none if nothing was judged."""
    from corsage.app import simulation

    here = replace(config, run=replace(config.run, engine="local"))
    try:
        found = simulation.compared(simulation.made(here), progress=False)
    except CorsageError:
        return {}
    return {row.name: row.numbers for row in found.rows.values()}
