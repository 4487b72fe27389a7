"""One run of the bench, in a worker that stays: in memory, and what is kept of it as a line."""

from __future__ import annotations

import logging
import math
import platform
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from importlib import metadata
from typing import Any

import numpy as np

from corsage.app.bench.mine import mark_of, registered
from corsage.app.bench.protocol import Json, config_of, described, digest
from corsage.app.bench.sets import CONSTANT_ROW, rows_of
from corsage.app.output.usage import in_a_line
from corsage.app.results.row import Row
from corsage.core.arrays import Array, Ints
from corsage.core.configuration.config import Config
from corsage.core.distribution import spread, worst_share
from corsage.core.errors import FOR_ALL, CorsageError, DataError
from corsage.core.measures import ACCURACY, MEASURES, RMSE
from corsage.core.seeding import generator, some_of
from corsage.core.version import VERSION
from corsage.datasets.dealing.federated import check_users, simulated
from corsage.datasets.user_data import FederatedData

LINE_NUMBERS = ("rounds", "over_samples", "worst10", "bytes_up", "bytes_down", "gradient_steps")
"""Numbers of a row that a line has."""
OTHERS_SAMPLES = 500
"""Test samples that are drawn of a set; each user is judged by those that are not its own."""
PACKAGES = ("numpy", "scipy", "torch", "flwr")


def perform(what: Json, mine: str) -> Json:
    """Do a run; its line, of a run that failed with the reason and no rows.

    Parameters
    ----------
    what : place, method, trial, seed and keys of a `Work`.
    mine : the file of a method of one's own, of which its lines have the mark; empty: none.
    """
    mine = mine if registered(mine) == what["method"] else ""
    logging.getLogger("flwr").setLevel(logging.ERROR)
    config = configured(what["keys"], what["method"])
    try:
        rows, data, failed = played(config, what["method"], final=what["seed"] is not None)
    except FOR_ALL:
        raise
    except Exception as error:
        rows, data, failed = {}, "", in_a_line(error)
    line = {key: what[key] for key in ("place", "method", "trial", "seed")}
    own = described(config)
    line |= {"config": own, "config_hash": digest(own), "data": data}
    return {**line, "versions": versions(mine), "failed": failed, "rows": rows}


def played(config: Config, method: str, final: bool) -> tuple[Json, str, str]:
    """The rows of a run, the mark of its data, and why rows are not there.

    A mean over the users whose models have not diverged is no result.
    """
    if method == CONSTANT_ROW:
        return {CONSTANT_ROW: constant(config)}, "", ""
    from corsage.app.simulation import compared, made
    from corsage.strategies.effort import with_budget

    found = compared(made(with_budget(config)), progress=False)
    results = {str(one["strategy"]): one for one in found.json()}
    wanted = {name: results[name] for name in rows_of(method) if name in results}
    seed = config.run.seed
    data = simulated(config.data, config.federation.num_users, seed)
    users = trained(config, data)
    sizes = data.test_sizes[data.places(users)]
    tested = [user for user, size in zip(users, sizes, strict=True) if size]
    lost = {
        name: sum(u not in result["per_user"] for u in tested) for name, result in wanted.items()
    }
    rows = {name: kept(result, final) for name, result in wanted.items() if not lost[name]}
    failed = [
        f"{name}: {n} of {len(tested)} users' models diverged" for name, n in lost.items() if n
    ]
    if final:
        for name, row in rows.items():
            new = results.get(f"{name}+new") or results.get(f"{method}+new", {})
            cases = {str(one["samples"]): one["per_user"] for one in new.get("new_users", ())}
            row |= {"new_users": cases, **on_others(found[name], users, seed)}
    mark = str(results[method].get("data", "")) if method in rows else ""
    return rows, mark, "; ".join(failed)


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
    users = trained(config, data)
    values, sizes, answers = constants(data, users)
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
        "others": constant_on_others(data, answers, users, config.run.seed),
        "curve": [],
        "rounds": 0,
        **dict.fromkeys(("bytes_up", "bytes_down", "gradient_steps"), 0),
    }


def constants(
    data: FederatedData, users: Sequence[str]
) -> tuple[dict[str, float], dict[str, int], dict[str, float]]:
    """Each user's score of its constant answer, its test samples, and the answer."""
    values, sizes, answers = {}, {}, {}
    for user in users:
        own = data[user]
        if not len(own.y_test):
            continue
        sizes[user] = len(own.y_test)
        if data.num_classes:
            answer = float(np.bincount(own.y_train.astype(np.int64)).argmax())
            values[user] = float((own.y_test == answer).mean())
        else:
            answer = float(own.y_train.astype(np.float64).mean())
            values[user] = float(np.sqrt(np.square(own.y_test - answer).mean()))
        answers[user] = answer
    return values, sizes, answers


@dataclass(frozen=True)
class Drawn:
    """Test samples of several users, the same ones for all rows of a set and seed.

    Parameters
    ----------
    users : whose they are, in the order of the samples.
    x, y : the samples.
    sizes : each user's number of them.
    """

    users: Sequence[str]
    x: Array
    y: Array
    sizes: Ints

    @classmethod
    def of(cls, data: FederatedData, users: Sequence[str], seed: int) -> Drawn:
        """Some of all their test samples."""
        rows, sizes = data.rows(users, test=True)
        picked = some_of(generator(seed, "others' data"), len(rows), OTHERS_SAMPLES)
        owners = np.repeat(np.arange(len(users)), sizes)[picked]
        counts = np.bincount(owners, minlength=len(users))
        some = [user for user, count in zip(users, counts, strict=True) if count]
        return cls(some, data.x[rows[picked]], data.y[rows[picked]], counts[counts > 0])

    def without(self, user: str) -> Array:
        """Mark the users that are others."""
        return np.array([one != user for one in self.users])


def on_others(row: Row, users: Sequence[str], seed: int) -> Json:
    """The score of each user's model on the others' test samples, or why there is none."""
    try:
        return {"others": elsewhere(row, users, seed)}
    except CorsageError as error:
        return {"others": {}, "others_failed": in_a_line(error)}


def elsewhere(row: Row, users: Sequence[str], seed: int) -> dict[str, float]:
    """The score of each user's model on the others' test samples; none of one that diverged."""
    from corsage.clients.parts.samples import units_of
    from corsage.networks.user_scores import score

    data, measure = row.prepared, MEASURES[row.measure]
    some = Drawn.of(data, users, seed)
    units, network, found = units_of(data, some.users), None, {}
    for user in (one for one in users if one in row.file.place):
        model = row.user(user)
        if not all(np.isfinite(array).all() for array in model.arrays.values()):
            continue
        if network is not None and not network.vector.fixed.tensors:
            vars(model)["network"] = network  # nothing in it is the user's
        network = model.network
        examples = replace(model.examples(some.x, some.y), sizes=some.sizes, units=units)
        scores = score(network.criterion, model.of_arrays(some.x), examples, [measure])
        counts = {**scores.counts, "num-examples": scores.n.astype(np.float64)}
        there = some.without(user)
        value = measure.pooled({name: own[there] for name, own in counts.items()})
        if value is not None and math.isfinite(value):
            found[user] = float(value)
    return found


def constant_on_others(
    data: FederatedData, answers: Mapping[str, float], users: Sequence[str], seed: int
) -> dict[str, float]:
    """The same of one answer a user."""
    some, found = Drawn.of(data, users, seed), {}
    for user, answer in answers.items():
        y = some.y[np.repeat(some.without(user), some.sizes)]
        if len(y):
            error = float(np.square(y - answer).mean())
            found[user] = float((y == answer).mean()) if data.num_classes else math.sqrt(error)
    return found


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
