"""One run of the bench, in a worker that stays: in memory, and what is kept of it as a line."""

from __future__ import annotations

import logging
import platform
import sys
from collections.abc import Mapping
from functools import cache
from importlib import metadata
from typing import Any

import numpy as np

from corsage.app.bench.mine import mark_of, registered
from corsage.app.bench.protocol import Json, config_of, described, digest
from corsage.app.bench.sets import CONSTANT_ROW, rows_of
from corsage.app.output.usage import in_a_line
from corsage.core.configuration.config import Config
from corsage.core.distribution import spread, worst_share
from corsage.core.errors import FOR_ALL, DataError
from corsage.core.measures import ACCURACY, RMSE
from corsage.core.seeding import generator
from corsage.core.version import VERSION
from corsage.datasets.dealing.federated import check_users, simulated
from corsage.datasets.user_data import FederatedData

LINE_NUMBERS = ("rounds", "over_samples", "worst10", "bytes_up", "bytes_down", "gradient_steps")
"""Numbers of a row that a line has."""
PACKAGES = ("numpy", "scipy", "torch", "flwr")


def perform(what: Json, mine: str) -> Json:
    """Do a run; its line, of a run that failed with the reason and no rows.

    Parameters
    ----------
    what : place, method, trial, seed and keys of a `Work`.
    mine : the file of a method of one's own; empty: none.
    """
    registered(mine)
    logging.getLogger("flwr").setLevel(logging.ERROR)
    config = configured(what["keys"], what["method"])
    try:
        rows, data = played(config, what["method"], final=what["seed"] is not None)
        failed = ""
    except FOR_ALL:
        raise
    except Exception as error:
        rows, data, failed = {}, "", in_a_line(error)
    line = {key: what[key] for key in ("place", "method", "trial", "seed")}
    own = described(config)
    line |= {"config": own, "config_hash": digest(own), "data": data}
    return {**line, "versions": versions(mine), "failed": failed, "rows": rows}


def played(config: Config, method: str, final: bool) -> tuple[Json, str]:
    """The rows of a run, and the mark of its data."""
    if method == CONSTANT_ROW:
        return {CONSTANT_ROW: constant(config)}, ""
    from corsage.app.simulation import compared, made
    from corsage.strategies.effort import with_budget

    found = compared(made(with_budget(config)), progress=False)
    results = {str(one["strategy"]): one for one in found.json()}
    wanted = {name: results[name] for name in rows_of(method) if name in results}
    rows = {name: kept(result, final) for name, result in wanted.items()}
    new = results.get(f"{method}+new")
    if final and new:
        measure = new.get("measure", ACCURACY.name)
        cases = [[one["samples"], one[measure]["mean"]] for one in new.get("new_users", ())]
        rows[method] = {**rows[method], "new_users": cases}
    return rows, str(results[method].get("data", ""))


def kept(result: Mapping[str, Any], final: bool) -> Json:
    """A row as a line has it: every user's value, and of tests their samples' sums, too."""
    measure = str(result.get("measure", ACCURACY.name))
    own = {name: result.get(name) for name in LINE_NUMBERS}
    own |= {"measure": measure, "mean": result[measure]["mean"], "std": result[measure]["std"]}
    own |= {"per_user": result["per_user"], "curve": result["curve"]}
    if final:
        own |= {name: result.get(name) for name in ("test_sizes", "outcomes", "untrained")}
    return own


def constant(config: Config) -> Json:
    """The row of one answer a user: of its training labels the mean, or the most frequent class."""
    data = simulated(config.data, config.federation.num_users, config.run.seed)
    values, sizes = constants(data, set(trained(config, data)))
    if not values:
        raise DataError("no user has test samples")
    measure = ACCURACY if data.num_classes else RMSE
    numbers = np.array([*values.values()])
    weights = [sizes[user] for user in values]
    pooled = np.average(numbers if data.num_classes else numbers**2, weights=weights)
    return {
        "measure": measure.name,
        "mean": spread(numbers).mean,
        "std": spread(numbers).std,
        "over_samples": float(pooled if data.num_classes else np.sqrt(pooled)),
        "worst10": worst_share(numbers, 0.1, measure),
        "per_user": values,
        "test_sizes": sizes,
        "curve": [],
        "rounds": 0,
        **dict.fromkeys(("bytes_up", "bytes_down", "gradient_steps"), 0),
    }


def constants(data: FederatedData, users: set[str]) -> tuple[dict[str, float], dict[str, int]]:
    """Each user's score of its constant answer, and its test samples."""
    values, sizes = {}, {}
    for user in (user for user in data.users if user in users):
        own = data[user]
        if not len(own.y_test):
            continue
        sizes[user] = len(own.y_test)
        if data.num_classes:
            answer = np.bincount(own.y_train.astype(np.int64)).argmax()
            values[user] = float((own.y_test == answer).mean())
        else:
            answer = own.y_train.astype(np.float64).mean()
            values[user] = float(np.sqrt(np.square(own.y_test - answer).mean()))
    return values, sizes


def configured(keys: Mapping[str, Any], method: str) -> Config:
    """All keys of a run: without new users where chance makes none of a few, or all, such."""
    config = config_of(keys, method)
    if not config.new.new_users:
        return config
    data = simulated(config.data, config.federation.num_users, config.run.seed)
    if 1 < len(trained(config, data)) < len(data.users):
        return config
    return config_of({**keys, "new-users": 0.0}, method)


def trained(config: Config, data: FederatedData) -> list[str]:
    """The users that are not new: each of them is drawn by itself, as `Members` draws them."""
    seed, share = config.run.seed, config.new.new_users
    return [u for u in data.users if generator(seed, "new user", u).random() >= share]


@cache
def versions(mine: str = "") -> Json:
    """Versions that a number may depend on besides its configuration."""
    own = {name: metadata.version(name) for name in PACKAGES}
    return {"corsage": VERSION, "python": ".".join(map(str, sys.version_info[:2])), **own,
            "machine": platform.machine(), **mark_of(mine)}  # fmt: skip


def check(config: Config) -> None:
    """Prepare the data of a set, or say in a CorsageError why there are none."""
    check_users(simulated(config.data, config.federation.num_users, config.run.seed))
