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
from corsage.core.registry import source
from corsage.core.seeding import generator
from corsage.core.training_paths import AUTO
from corsage.datasets.data_set import data_set, load_table
from corsage.datasets.dealing.dealt import Dealt, deal
from corsage.datasets.memory import Memory
from corsage.datasets.sample_table import Table

FOLDS = 5
FEW_TESTS = 20
"""Test rows a user on average below which a user's error is mostly chance."""
MOST_CROSSED = 20_000
"""Rows beyond which the mean over users is sure enough from one part of them."""
MOST_CROSSED_COLUMNS = 30
"""Columns beyond which a fit takes too long to be done five times."""
SOLVED_LINEAR = ("mixed-model", "single-cluster")
"""What is solved in a moment, and can be again."""
KEYS_OF_FILES = (
    *("user-column", "label-column", "cluster-column"),
    *("feature-columns", "drop-columns", "category-columns"),
)
"""Keys of a file that a table in memory has no use for."""
SCORES_ALONE = {
    "engine": "local",
    "mixed-neighbours": "never",
    "mixed-intervals": "never",
    "mixed-summary": "none",
}
"""Keys of a trial, of which nothing but scores is kept."""


def refits(config: Config) -> bool:
    """True if what is compared is solved exactly, of a table whose test rows are ours to choose."""
    solved = {*map(source, config.run.strategy)} <= {*SOLVED_LINEAR}
    if not solved or config.new.wanted or config.model.model != "linear":
        return False
    return may_train_on_all(config)


def may_train_on_all(config: Config) -> bool:
    """True if test rows are ours to choose, so that none need be."""
    return not data_set(config.data.dataset).arranged and load_table(config.data).test is None


def compared(config: Config) -> Json:
    """The rows of all strategies as they do on held-out rows, and how that was found."""
    table = load_table(config.data)
    dealt = deal(table, config.data, config.federation.num_users, config.run.seed)
    rows, users = sum(map(len, dealt.parts)), len(dealt.users)
    share = config.data.test_fraction
    few = share == DataKeys.test_fraction and rows * share < FEW_TESTS * users
    small = rows <= MOST_CROSSED and table.x.shape[1] <= MOST_CROSSED_COLUMNS
    folds = FOLDS if few and small else 1
    with silence():
        found = [trial(config)] if folds == 1 else crossed(config, table, dealt)
    results = [merged([part[name] for part in found]) for name in found[0]]
    tested = sum(results[0]["test_sizes"].values()) if results else 0
    how = {"folds": folds, "share": share, "rows": tested}
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
    part, own = parts(table, dealt, config.run.seed), of_users(table, dealt)
    rows = np.concatenate(dealt.parts)
    found = [trial(held(config, replace(own, test=part[rows] == k))) for k in range(FOLDS)]
    common = [name for name in found[0] if all(name in one for one in found)]
    guess = None if table.num_classes else own_means(table, dealt, part)
    for one in found:
        for row in one.values():
            row["baseline"] = guess
    return [{name: one[name] for name in common} for one in found]


def own_means(table: Table, dealt: Dealt, part: Ints) -> Json | None:
    """The error of each user's mean of its other rows, on average."""
    errors = []
    for rows in dealt.parts:
        y, fold = table.y[rows], part[rows]
        sums, counts = (np.bincount(fold + 1, own, FOLDS + 1) for own in (y, None))
        left = y.sum() - sums[fold + 1], len(y) - counts[fold + 1]
        if len(y) > 1:
            errors.append(np.sqrt(np.square(y - left[0] / left[1]).mean()))
    answer = "each user's own mean"
    return {"answer": answer, "mean": float(np.mean(errors)), "means": {}} if errors else None


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


def of_users(table: Table, dealt: Dealt) -> Table:
    """The rows that were dealt, each with its user and that user's cluster."""
    rows, sizes = np.concatenate(dealt.parts), [len(part) for part in dealt.parts]
    clusters = np.array([dealt.clusters.get(user, "") for user in dealt.users], np.str_)
    return replace(
        table,
        x=table.x[rows],
        y=table.y[rows],
        users=np.repeat(np.array(dealt.users, np.str_), sizes),
        clusters=np.repeat(clusters, sizes) if dealt.clusters else None,
    )


def held(config: Config, table: Table) -> Config:
    """The configuration on a table in memory that says which rows are for testing."""
    kept = hold(Memory(table))
    labels = "classes" if table.num_classes else "numbers"
    flat = {k: v for k, v in config.flat().items() if k not in KEYS_OF_FILES}
    own = {"dataset": "memory", "data-file": kept.name, "labels": labels, "partition": AUTO}
    return Config.parse({**flat, **own, "num-users": 0, "min-samples": 0, "cluster-map": ""})


def trial(config: Config) -> dict[str, Json]:
    """The rows of one comparison in this process, by their names."""
    from corsage.app import simulation

    here = Config.parse({**config.flat(), **SCORES_ALONE})
    found = simulation.compared(simulation.made(here), progress=False)
    return {row.name: row.numbers for row in found.rows.values()}
