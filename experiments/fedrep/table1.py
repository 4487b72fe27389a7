"""Table 1 of FedRep: every method on every data set that is present.

Collins et al. 2021, section 5.2: r=0.1, batches of 10, SGD with step .01 and momentum .5, 10 epochs
of FedRep's head; the other methods take as many local epochs as FedRep's body. Accuracy is the mean
over all users and the last ten rounds; "+ft" rows are one point after the last round. The paper's
four data sets are run if their files are in `data-dir`; Fashion-MNIST and MNIST by its writers
(`data-file`, users are the writers) stand beside them. A data set that is absent is named. CIFAR's
images are cropped and flipped at each step, as in the official code; how long a column takes is
said first, and what was measured is kept in the folder: an interrupted command goes on.

The paper's numbers are read off its Table 1. They were measured on the data sets' own test images,
with the official code; ours on a fifth of each user's samples.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from corsage.app.output.summary import human_seconds
from corsage.core.configuration.config import Config
from corsage.core.errors import DataError
from corsage.core.keys import kebab
from corsage.core.registry import ALGORITHMS
from corsage.datasets.dealing.federated import simulated
from corsage.experiments.fedrep.fashion_mnist import CASES, PROTOCOL
from corsage.experiments.outcome import Experiment, Figure, Options, Outcome
from corsage.experiments.runner import Results, compact, percents, run, say
from corsage.strategies import strategy_class
from corsage.strategies.effort import as_set
from corsage.strategies.rounds.results import LAST_ROUNDS

PAPER: dict[str, tuple[float, ...]] = {
    "local": (89.79, 70.68, 78.30, 75.29, 41.29, 69.88, 60.86),
    "fedavg": (42.65, 51.78, 44.31, 23.94, 31.97, 52.75, 51.64),
    "fedavg+ft": (87.65, 73.68, 82.04, 79.34, 55.44, 71.92, 72.41),
    "fedprox": (39.92, 50.99, 21.93, 20.17, 28.52, 52.33, 18.89),
    "fedprox+ft": (85.81, 72.75, 75.41, 78.52, 55.09, 71.21, 53.54),
    "scaffold": (37.72, 47.33, 33.79, 20.32, 22.52, 51.31, 17.65),
    "scaffold+ft": (86.35, 68.23, 78.24, 78.88, 44.34, 71.49, 52.11),
    "fedmtl": (80.46, 58.31, 76.53, 71.47, 41.25, 71.20, 54.11),
    "perfedavg": (82.27, 67.20, 67.36, 72.05, 52.49, 68.45, 71.51),
    "lg-fedavg": (84.14, 63.02, 77.48, 72.44, 38.76, 70.37, 62.08),
    "l2gd": (81.04, 59.98, 71.96, 72.13, 42.84, 70.67, 66.18),
    "apfl": (83.77, 72.29, 82.39, 78.20, 55.44, 69.87, 70.74),
    "ditto": (85.39, 70.34, 80.36, 78.91, 56.34, 71.04, 68.28),
    "fedper": (87.13, 73.84, 81.73, 76.00, 55.68, 72.12, 76.91),
    "fedrep": (87.70, 75.68, 83.27, 79.15, 56.10, 72.41, 78.56),
}
"""CIFAR10 (100, 2), (100, 5), (1000, 2), CIFAR100 (100, 5), (100, 20), Sent140, FEMNIST."""

BEYOND = ("pfedme", "ifca", "cfl")
TIMED_EPOCHS = 2


@dataclass(frozen=True)
class Column:
    """One column: its title, its keys, and where it stands in the paper's table, if it does.

    `outside` is a reference that is not the paper's, `local` the keys of local training in it.
    """

    title: str
    keys: dict[str, Any] = field(default_factory=dict)
    place: int | None = None
    outside: dict[str, float] = field(default_factory=dict)
    local: dict[str, Any] = field(default_factory=dict)

    def reference(self, name: str) -> float | None:
        """What the paper, or a measurement outside of this library, says of a method."""
        if self.place is not None and name in PAPER:
            return PAPER[name][self.place]
        return self.outside.get(name)


def fashion(classes: int, samples: int) -> Column:
    """Fashion-MNIST in one of the four regimes of `fedrep-fashion-mnist`."""
    keys = {**PROTOCOL, "classes_per_user": classes, "max_train_samples": samples}
    cases = [c for c in CASES if (c.model, c.classes, c.samples) == ("mlp", classes, samples)]
    title = f"fashion-mnist (100, {classes}), {samples} a user"
    return Column(title, keys, outside=cases[0].reference, local=cases[0].local)


def cifar(name: str, users: int, classes: int, place: int) -> Column:
    """CIFAR with 50,000/n training samples a user."""
    epochs = 1 if (name, users, classes) == ("cifar10", 100, 2) else 5
    keys = {
        **PROTOCOL,
        "dataset": name,
        "num_users": users,
        "classes_per_user": classes,
        "test_fraction": 1 / 6,
        "model": f"cnn-{name}",
        "local_epochs": epochs,
        "augment": "crop,flip",
        "normalize": "channels",
    }
    return Column(f"{name} ({users}, {classes})", keys, place)


WRITERS = {
    **PROTOCOL,
    "dataset": "npz",
    "partition": "natural",
    "num_users": 0,
    "user_column": "writer",
    "label_column": "y",
    "test_fraction": 0.2,
}
FEMNIST = {
    **PROTOCOL,
    "dataset": "femnist",
    "partition": "consecutive",
    "classes_per_user": 3,
    "num_users": 150,
    "mean_samples": 148,
    "size_sigma": 1.2,
    "test_fraction": 0.2,
    "num_rounds": 200,
    "local_epochs": 5,
    "evaluate_every": 200,
}
SENT140 = {
    **PROTOCOL,
    "dataset": "sent140",
    "partition": "natural",
    "num_users": 183,
    "min_samples": 50,
    "test_fraction": 0.2,
    "num_rounds": 50,
    "batch_size": 4,
    "local_epochs": 5,
    "model": "lstm",
    "evaluate_every": 50,
}
COLUMNS = [
    fashion(2, 50),
    fashion(5, 50),
    fashion(2, 500),
    fashion(5, 500),
    Column("mnist by writer", WRITERS),
    cifar("cifar10", 100, 2, 0),
    cifar("cifar10", 100, 5, 1),
    cifar("cifar10", 1000, 2, 2),
    cifar("cifar100", 100, 5, 3),
    cifar("cifar100", 100, 20, 4),
    Column("sent140 (183, 2)", SENT140, 5),
    Column("femnist (150, 3)", FEMNIST, 6),
]


def measure(options: Options) -> Outcome:
    """All methods on all data sets that are present."""
    seeds = options.seeds or (0,)
    outcome = Outcome("FedRep, Table 1: accuracy %", unit="points")
    columns = [column for column in COLUMNS if wanted(column, options)]
    methods = [name for name in ALGORITHMS if name in PAPER or name in BEYOND]
    for number, column in enumerate(columns, 1):
        keys = {**column.keys, **own_keys(column, options)}
        if absent := why_absent(column, keys):
            outcome.notes.append(f"{column.title}: absent. {absent}")
            continue
        takes = human_seconds(len(seeds) * seconds(methods, keys))
        named = ", ".join(map(str, seeds))
        say(f"[{number}/{len(columns)}] {column.title}, seeds {named}: about {takes} of CPU time")
        results = run_column(column, methods, seeds, keys, options.keys, options.out)
        for name in order(list(results)):
            values = percents(results, name)
            figure = Figure(column.title, name, values, column.reference(name))
            outcome.figures.append(figure)
        outcome.results += compact(results, column.title)
    return outcome


def wanted(column: Column, options: Options) -> bool:
    """Tell whether a column is asked for: by its data set, or as one of the cheapest."""
    name = options.choices.get("data", "all")
    return column in COLUMNS[:2] if options.quick else name in ("all", column.keys["dataset"])


def seconds(methods: list[str], keys: dict[str, Any]) -> float:
    """CPU seconds of a seed, by an epoch of FedAvg's, timed, and the epochs of each method.

    Epochs of heads count as those of whole models, which cost more; methods that take none count
    as one.
    """
    config = Config.parse({"work": "as-set", **{kebab(n): v for n, v in keys.items()}})
    one = {**keys, "fine_tune_epochs": 0, "num_rounds": 1}
    short, long = (
        run(["fedavg"], [0], **{**one, "local_epochs": n})["fedavg"][0]["cpu_seconds"]
        for n in (1, 1 + TIMED_EPOCHS)
    )
    epoch = max(long - short, 0.0) / TIMED_EPOCHS
    rounds = config.run.num_rounds * sum(as_set(config, name) or 1.0 for name in methods)
    tuned = sum(len(strategy_class(name).tuned) for name in methods)
    rounds += tuned * config.train.fine_tune_epochs / config.federation.fraction_train
    return float(epoch * rounds + short * LAST_ROUNDS * len(methods))


def run_column(
    column: Column,
    methods: list[str],
    seeds: tuple[int, ...],
    keys: dict[str, Any],
    changed: Mapping[str, Any],
    kept: Path | None = None,
) -> Results:
    """All methods of one column; local training has the amount of work that its reference has."""
    others = [name for name in methods if name != "local" or not column.local]
    found = run(others, seeds, kept, **keys)
    if not column.local:
        return found
    return {**found, **run(["local"], seeds, kept, **{**keys, **column.local, **changed})}


def own_keys(column: Column, options: Options) -> dict[str, Any]:
    """What the user changed; a data file is of the writers alone, a data folder of the others."""
    changed = dict(options.keys)
    file, folder = changed.pop("data_file", ""), changed.pop("data_dir", "")
    if column.keys["dataset"] == "npz":
        return {**changed, "data_file": file}
    if column.keys["dataset"] == "fashion-mnist" or not folder:
        return changed
    return {**changed, "data_dir": str(Path(str(folder)) / column.keys["dataset"])}


def why_absent(column: Column, keys: dict[str, Any]) -> str:
    """What is missing for a column, in one sentence; empty if nothing is."""
    if column.keys["dataset"] == "npz" and not keys["data_file"]:
        return "Give its file: data-file=FILE (x, y, writer)."
    if column.place is not None and "data_dir" not in keys:
        folder = f"FOLDER/{column.keys['dataset']}"
        return f"Put the publisher's files into {folder} and give data-dir=FOLDER."
    config = Config.parse({kebab(name): value for name, value in keys.items()})
    try:
        simulated(config.data, config.federation.num_users, config.run.seed)
    except DataError as error:
        return str(error)
    return ""


def order(names: list[str]) -> list[str]:
    """The rows as the paper has them, then those beyond its table."""
    return [name for name in PAPER if name in names] + [n for n in names if n not in PAPER]


EXPERIMENT = Experiment(
    what="every method on every data set that is present (data-file=, data-dir=)",
    takes="30 min for Fashion-MNIST and the writers; --quick 4 min; --data cifar10: it says so",
    measure=measure,
    choices={"data": ("all", *dict.fromkeys(column.keys["dataset"] for column in COLUMNS))},
)
