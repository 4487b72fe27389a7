"""Classes on auto: exchanges until the likelihood's slope is 0, and what few exchanges cost.

Strengths of the mixed model with the logistic loss, on made users:

random    20 problems: 10 to 120 users of 3 to 60 records, 1 to 5 clusters, 2 to 7 coefficients
landmine  29 fields on two kinds of ground, 400 to 700 records of 9 features each, 6% mines
donors    20,000 people in five brackets, 5 to 30 letters each, two features, a fifth answered

Reported are the exchanges until it says that it has converged, and the mean test cross-entropy
after 20 exchanges less that after 200. Beside it EM (`mixed-variances=summed`), a step an exchange.

Several classes: the mixed model, Async-AL2SGD+ and convex clustering with the multinomial loss,
beside own models, one for all, and that one tuned by each user, on 50 users with two to five
classes each:

digits    scikit-learn's, all 64 pixels
fashion   20 principal components of Fashion-MNIST's pixels
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from corsage.app.client_app import app
from corsage.app.local_grid import LocalGrid
from corsage.core.arrays import Floats, Ints
from corsage.core.configuration.config import Config
from corsage.core.seeding import generator
from corsage.datasets.dealing.federated import simulated
from corsage.experiments.outcome import Experiment, Figure, Options, Outcome
from corsage.experiments.runner import say
from corsage.strategies import strategy_class

PROBLEMS = 20
EXCHANGES, MANY = 20, 200
NEAR = 1e-4
"""Cross-entropy that 20 exchanges may leave."""


class Shape(NamedTuple):
    """How a problem is drawn: users, clusters, coefficients, records from and to, spreads, rate."""

    users: int
    clusters: int
    d: int
    fewest: int
    most: int
    users_spread: float
    clusters_spread: float
    intercept: float


LANDMINE = Shape(29, 2, 10, 400, 700, 0.4, 0.6, -3.2)
DONORS = Shape(20_000, 5, 3, 5, 30, 0.3, 0.15, -1.4)


class Classes(NamedTuple):
    """Features, class, user and cluster of every record."""

    x: Floats
    y: Ints
    user: Ints
    cluster: Ints


def drawn(shape: Shape, seed: int) -> Classes:
    """Users around their clusters' centres; each coefficient has a spread of its own."""
    rng, d = generator(seed, "classes"), shape.d
    user = np.repeat(np.arange(shape.users), rng.integers(shape.fewest, shape.most, shape.users))
    cluster = np.arange(shape.users) % shape.clusters
    x = np.column_stack([rng.standard_normal((len(user), d - 1)), np.ones(len(user))])
    sizes, wbar = np.exp(0.5 * rng.standard_normal(d)), 0.5 * rng.standard_normal(d)
    wbar[-1] = shape.intercept
    w = wbar + shape.clusters_spread * sizes * rng.standard_normal((shape.clusters, d))
    theta = w[cluster] + shape.users_spread * sizes * rng.standard_normal((shape.users, d))
    y = rng.random(len(user)) < 1 / (1 + np.exp(-(x * theta[user]).sum(1)))
    return Classes(x[:, :-1], y.astype(np.int64), user, cluster[user])


def random_shape(seed: int) -> Shape:
    """Any shape; users of some problems hardly differ, or not at all."""
    rng = generator(seed, "shape")
    users, clusters, d = rng.integers([10, 1, 2], [121, 6, 8]).tolist()
    inner, outer, intercept = rng.uniform([0, 0, -2], [1.5, 1, 0]).tolist()
    return Shape(users, clusters, d, 3, 60, inner, outer, intercept)


class Found(NamedTuple):
    """Exchanges, whether it said that it has converged, and the mean test cross-entropy."""

    exchanges: int
    converged: bool
    loss: float


def solved(file: Path, exchanges: int, more: Mapping[str, Any]) -> Found:
    """The mixed model on auto, in so many exchanges."""
    keys = {
        "dataset": "npz", "data-file": str(file), "user-column": "user",
        "cluster-column": "cluster", "model": "linear", "loss": "logistic", "scale": "none",
        "mixed-likelihood": "quasi",
        "num-rounds": exchanges, "evaluate-every": 10**6, "mixed-summary": "none",
        "mixed-neighbours": "never", **more,
    }  # fmt: skip
    strategy = strategy_class("mixed-model")(Config.parse(keys))
    result = strategy.start(LocalGrid(app, 1))
    return Found(strategy.progress.round, strategy.finished(), result.summaries[0].loss.mean)


EM = {"mixed-variances": "summed", "mixed-em-rounds": MANY}
WAYS: dict[str, dict[str, Any]] = {"auto": {}, "EM": EM}
Runs = dict[str, tuple[Found, Found]]
"""After 20 exchanges and after 200, by way."""


def one(shape: Shape, seed: int, folder: Path, ways: Mapping[str, Mapping[str, Any]]) -> Runs:
    """A problem solved in few exchanges and in many."""
    data, path = drawn(shape, seed), folder / "classes.npz"
    np.savez(path, x=data.x, y=data.y, user=data.user, cluster=data.cluster)
    return {
        name: (solved(path, EXCHANGES, more), solved(path, MANY, more))
        for name, more in ways.items()
    }


PEOPLE, TESTED, COMPONENTS = 50, 30, 20
MOST_CPU = 20.0
"""Seconds that a strategy may take on several classes."""
OF_SEVERAL_CLASSES: dict[str, dict[str, Any]] = {
    "local": {"num-rounds": 50, "fraction-train": 1.0, "lr": 0.05},
    "fedavg": {"num-rounds": 50, "fraction-train": 1.0, "lr": 0.05, "fine-tune-epochs": 10},
    "mixed-model": {},
    "async-al2sgd": {
        "known-missing": "all", "known-gamma": 0.1, "known-lambda": 0.1, "known-p0": 0.02,
        "known-p": 0.02, "known-iterations": 1000,
    },
    "convex-clustering": {
        "ridge": 0.001, "fraction-train": 1.0, "num-rounds": 15, "convex-tolerance": 1e-3,
    },
}  # fmt: skip
"""The strategies of several classes, and their keys; nobody tuned them."""


def dealt(dataset: str, classes: int, records: int, seed: int, path: Path) -> None:
    """A file of users with so many classes and training records each."""
    config = Config.parse(
        {"dataset": dataset, "num-users": PEOPLE, "classes-per-user": classes, "model": "linear"}
    )
    data = simulated(config.data, PEOPLE, seed)
    users = [data[user] for user in data.users]
    x = [np.concatenate([u.x_train[:records], u.x_test[:TESTED]]) for u in users]
    y = [np.concatenate([u.y_train[:records], u.y_test[:TESTED]]) for u in users]
    rows = np.concatenate(x).reshape(sum(map(len, x)), -1).astype(np.float64)
    rows = (rows - rows.mean(0)) / rows.std()
    if rows.shape[1] > 100:
        rows = rows @ np.linalg.svd(rows, full_matrices=False)[2][:COMPONENTS].T
        rows /= rows.std()
    user = np.repeat(np.arange(PEOPLE), [len(own) for own in y])
    np.savez(path, x=rows, y=np.concatenate(y), user=user)


def several(options: Options, folder: Path) -> list[Figure]:
    """Accuracy and CPU of each strategy on several classes."""
    found, path = list[Figure](), folder / "several.npz"
    seeds = options.seeds or (0,)
    for dataset in ("digits",) if options.quick else ("digits", "fashion-mnist"):
        for classes, records in (
            [(3, 10)] if options.quick else [(2, 10), (3, 28), (5, 10), (5, 28)]
        ):
            rows: dict[str, list[float]] = {}
            for seed in seeds:
                dealt(dataset, classes, records, seed, path)
                for name, own in OF_SEVERAL_CLASSES.items():
                    for row, value in judged(name, own, path, records).items():
                        rows.setdefault(row, []).append(value)
            case = f"{dataset}, {classes} classes, {records} records"
            for row, values in rows.items():
                high = MOST_CPU if row.endswith("CPU s") else np.inf
                form = ".3f" if row.endswith("entropy") else ".1f"
                found.append(Figure(case, row, tuple(values), high=high, form=form))
    return found


def judged(strategy: str, own: Mapping[str, Any], path: Path, records: int) -> dict[str, float]:
    """The scores of each of a strategy's rows, and the CPU seconds of the run."""
    keys = {
        "dataset": "npz", "data-file": str(path), "user-column": "user", "label-column": "y",
        "scale": "none", "model": "linear", "loss": "cross-entropy", "evaluate-every": 10**6,
        "test-fraction": TESTED / (TESTED + records), **own,
    }  # fmt: skip
    say(f"{strategy}: {path.stem}")
    begin = time.process_time()
    result = strategy_class(strategy)(Config.parse(keys)).start(LocalGrid(app, 1))
    spent = time.process_time() - begin
    found = dict[str, float]()
    for row in result.json():
        name = str(row["strategy"])
        found[name] = 100 * float(row["accuracy"]["mean"])
        found[f"{name}: worst tenth"] = 100 * float(row["worst10"])
        found[f"{name}: cross-entropy"] = float(row["loss"]["mean"])
    return {**found, f"{strategy}: CPU s": spent}


def measure(options: Options) -> Outcome:
    """Random problems, and both shapes; several classes."""
    problems = options.seeds or tuple(range(3 if options.quick else PROBLEMS))
    cases = {"landmine": [(LANDMINE, 0)], "donors": [] if options.quick else [(DONORS, 0)]}
    cases["random"] = [(random_shape(seed), seed) for seed in problems]
    figures, results = [], []
    with tempfile.TemporaryDirectory() as folder:
        for case, shapes in cases.items():
            ways = {"auto": WAYS["auto"]} if case == "donors" else WAYS
            say(f"{case}: {len(shapes)} problems")
            runs = [one(shape, seed, Path(folder), ways) for shape, seed in shapes]
            figures += shown(case, runs) if runs else []
            results.append({"case": case, "runs": [str(run) for run in runs]})
        figures += several(options, Path(folder))
    return Outcome(
        "Known clusters: classes on auto, converged", "", figures, results,
        notes=["EM is not run on donors, where 200 exchanges take minutes."],
    )  # fmt: skip


def shown(case: str, runs: list[Runs]) -> list[Figure]:
    """Exchanges, and the loss that is left after 20."""
    found = []
    for name in runs[0]:
        ours = name == "auto"
        few, many = zip(*(run[name] for run in runs), strict=True)
        exchanges = tuple(float(one.exchanges) for one in many)
        left = tuple(abs(a.loss - b.loss) for a, b in zip(few, many, strict=True))
        worst = float(max(exchanges))
        high = EXCHANGES if ours else np.inf
        found += [
            Figure(case, f"{name}: exchanges", exchanges, high=high, form=".1f"),
            Figure(case, f"{name}: exchanges, the most", (worst,), high=high, form=".0f"),
            Figure(case, f"{name}: says converged", tuple(float(o.converged) for o in many)),
            Figure(
                case,
                f"{name}: loss left after {EXCHANGES}",
                (max(left),),
                high=NEAR if ours else np.inf,
                form=".1g",
            ),
            Figure(case, f"{name}: cross-entropy", tuple(o.loss for o in many), form=".5f"),
        ]
    return found


EXPERIMENT = Experiment(
    what="classes on auto: exchanges until converged, beside EM, on landmine's and donors' shapes",
    takes="5 min; --quick 30 s",
    measure=measure,
)
