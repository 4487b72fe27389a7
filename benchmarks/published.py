"""Rows that others have published, at their settings: FLamby's hearts, schools, PFLlib's MNIST.

heart   Fed-Heart-Disease of FLamby: its split, inputs, initial models (seeds 42 to 46), and the
        keys of its `config_heart_disease.json`; 15 rounds of 100 steps. Beside it are the five
        result files of its repository, a seed's value the mean over the four hospitals.
school  the schools of Liu, Hu, Wu and Smith 2022: the five splits of their code (a fifth of each
        school, seeds 100, 1100, ..., 4100), marks between 0 and 1, MSE over all test pupils. Beside
        it is what their README prints *with* privacy of records, epsilon = 6.
mnist   the split of MNIST that PFLlib ships, 20 rounds, the last one, over all test samples.
        Beside it is PFLlib's own code (commit d832e76): `-gr 20 -mu 1`, softmax regression
        (`-m MLR`) at its defaults `-lr .005 -lbs 10`, and its `FedAvgCNN` with conv1 and conv2 of
        8 and 16 channels and stride 2 instead of pooling, no fc1, at `-lr .05 -lbs 50`. A run has
        one of three seeds wherever it says `torch.manual_seed(0)`.

    python -m corsage.benchmarks published heart FOLDER
    python -m corsage.benchmarks published school FOLDER
    python -m corsage.benchmarks published mnist FILE.npz

FOLDER has the publishers' files, as data.md says; FILE.npz is as in `pfllib-split`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from sklearn.model_selection import train_test_split
from torch import nn
from torch.nn import functional

from corsage.app.simulation import simulate
from corsage.benchmarks.pfllib_split import plain, shipped
from corsage.core.arrays import Array
from corsage.core.configuration.config import Config
from corsage.datasets.data_set import load_table
from corsage.datasets.sample_table import Table
from corsage.experiments.words import Parser

Samples = tuple[Array, Array, Array, Array]
"""Inputs and labels to train on, and to be tested on."""
Found = tuple[str, list[float], list[float]]
"""A row: its name, Corsage's value for each seed, and the publisher's."""
ALIKE: dict[str, Any] = {
    "momentum": 0.0, "weight_decay": 0.0, "fraction_train": 1.0, "fine_tune_epochs": 0,
    "weighting": "examples", "scale": "none", "work": "as-set", "progress": False,
}  # fmt: skip
"""Keys that both of the federated libraries stand for."""
HEART_SEEDS, HEART_ROUNDS = range(42, 47), 15
SERVER = {"server_lr": 0.01, "server_tau": 1e-8, "server_beta2": 0.999}
HEART: dict[str, tuple[str, dict[str, Any], list[float]]] = {
    "FedAvg": ("fedavg", {"lr": 0.001}, [0.6915, 0.7198, 0.6427, 0.6943, 0.6765]),
    "FedProx": ("fedprox", {"lr": 0.001, "fedprox_mu": 0.01},
                [0.6915, 0.7198, 0.6427, 0.6943, 0.6765]),
    "Scaffold": ("scaffold", {"lr": 0.001}, [0.6891, 0.7198, 0.6427, 0.6919, 0.6765]),
    "FedAdam": ("fedavg", {"lr": 0.01, "server_optimizer": "adam", **SERVER},
                [0.7212, 0.7115, 0.7461, 0.7322, 0.7167]),
    "FedYogi": ("fedavg", {"lr": 0.003162, "server_optimizer": "yogi", **SERVER},
                [0.7240, 0.7194, 0.7513, 0.7350, 0.7271]),
}  # fmt: skip
"""FLamby's methods: strategy, keys, and its published accuracy for each seed."""
SCHOOL_SEEDS = range(100, 4101, 1000)
SCHOOL = {"mixed-model": [0.02394], "exact-global": [0.02564], "exact-local": [0.02628]}
"""Their MR-MTL, FedAvg and local training, with noise for privacy."""


def table(dataset: str, folder: str) -> Table:
    """A published table, whole."""
    keys = {"dataset": dataset, "data-dir": folder, "strategy": "fedavg"}
    return load_table(Config.parse(keys).data)


def hospitals(folder: str) -> dict[str, Samples]:
    """Four hospitals with FLamby's split, columns in its order, each scaled by its own patients."""
    found = table("heart", folder)
    facts = found.facts.columns if found.facts else ()
    columns = [found.x[:, i] for i, fact in enumerate(facts) if not fact.levels]
    for i, fact in enumerate(facts):
        columns += [found.x[:, i] == level for level in range(1, len(fact.levels))]
    cells, owners = np.stack(columns, 1).astype(float), found.users
    users: dict[str, Samples] = {}
    assert owners is not None
    for name in dict.fromkeys(owners.tolist()):
        x, y = cells[owners == name], found.y[owners == name]
        rare = np.bincount(y, minlength=2).min() <= 2
        first, last = train_test_split(
            np.arange(len(y)), test_size=1 - 0.66, train_size=0.66, random_state=43,
            stratify=None if rare else y,
        )  # fmt: skip
        x = ((x - x[first].mean(0)) / (x[first].std(0, ddof=1) + 1e-9)).astype(np.float32)
        users[name] = x[first], y[first], x[last], y[last]
    return users


def heart(folder: str) -> Iterator[Found]:
    """Accuracies, the mean over the hospitals."""
    users = hospitals(folder)
    sure = [max(np.mean(y), 1 - np.mean(y)) for *_, y in users.values()]
    print(f"always a hospital's most frequent answer: {np.mean(sure):.4f}")
    for name, (strategy, keys, theirs) in HEART.items():
        ours = []
        for seed in HEART_SEEDS:
            torch.manual_seed(seed)
            run = simulate(
                strategy, users, model=nn.Sequential(nn.Linear(13, 1)), loss="logistic",
                num_rounds=HEART_ROUNDS, evaluate_every=HEART_ROUNDS, batch_size=4,
                local_steps=100, seed=seed, **ALIKE, **keys,
            )  # fmt: skip
            ours.append(run[strategy].score.mean)
        yield name, ours, theirs


def schools(folder: str, seed: int) -> dict[str, Samples]:
    """139 schools, a fifth of each for testing, with marks of 1 to 70 as 0 to 1."""
    found = table("school", folder)
    users: dict[str, Samples] = {}
    owners = found.users
    assert owners is not None
    for name in dict.fromkeys(owners.tolist()):
        own = owners == name
        x, x_test, y, y_test = train_test_split(
            found.x[own], (found.y[own] - 1) / 69, test_size=0.2, random_state=seed
        )
        users[name] = x, y, x_test, y_test
    return users


def school(folder: str) -> Iterator[Found]:
    """Mean squared errors over all test pupils, without privacy."""
    keys: dict[str, Any] = {
        "model": "linear", "measures": "mse", "mixed_neighbours": "never", "progress": False,
    }  # fmt: skip
    runs = [simulate(",".join(SCHOOL), schools(folder, n), **keys) for n in SCHOOL_SEEDS]
    print(f"rounds of each, an exchange of sums: {[run.rounds for run in runs[0].rows.values()]}")
    for name, theirs in SCHOOL.items():
        yield name, [float(run[name].over_samples) for run in runs], theirs


def beside(rows: Iterator[Found]) -> None:
    """Print each row when it is there: means, standard deviations, and how far they are apart."""
    print(f"{'':28}{'Corsage':22}{'published':22}apart, in its sd")
    for name, ours, theirs in rows:
        sd = np.std(theirs, ddof=1) if len(theirs) > 1 else np.nan
        apart = (np.mean(ours) - np.mean(theirs)) / sd
        gap = "" if np.isnan(apart) else f"{apart:+.1f}"
        print(f"{name:28}{text(ours):22}{text(theirs):22}{gap}", flush=True)
        print("    " + "  ".join(" ".join(f"{v:.4f}" for v in own) for own in (ours, theirs)))


def text(values: Sequence[float]) -> str:
    """A mean, and its standard deviation if there are several values."""
    sd = f" ± {np.std(values, ddof=1):.4f}" if len(values) > 1 else ""
    return f"{np.mean(values):.4f}{sd}"


PFLLIB: dict[str, dict[str, list[float]]] = {
    "softmax": {
        "local": [0.9729, 0.9725, 0.9733],
        "fedavg": [0.8190, 0.8179, 0.8128],
        "fedavg as shipped": [0.7613],
        "ditto": [0.9692],
    },
    "cnn": {
        "local": [0.9844, 0.9842, 0.9858],
        "fedavg": [0.8876, 0.8902],
        "fedper": [0.9814],
        "fedrep": [0.9826, 0.9825, 0.9829],
        "ditto": [0.9770, 0.9777],
    },
}
"""Accuracies of PFLlib's own code after round 20, a run each. `fedavg` of the softmax regression is
given the model whole. `as shipped` it passes the pixels through a log-softmax, as the loop does
that stands in Corsage's place there; its FedRep ends with an empty list of parameters."""
MNIST_ROUNDS = 20


def mnist(file: str) -> Iterator[Found]:
    """Accuracies over all test samples."""
    flat = shipped(Path(file))
    images = [(x.view(-1, 1, 28, 28), y, t.view(-1, 1, 28, 28), s) for x, y, t, s in flat]
    for model, users, make, keys in (
        ("softmax", flat, softmax, {"lr": 0.005, "batch_size": 10}),
        ("cnn", images, small_cnn, {"lr": 0.05, "batch_size": 50}),
    ):
        for name, theirs in PFLLIB[model].items():
            ours = [accuracy(name, users, make, seed, keys) for seed in range(len(theirs))]
            yield f"{model}: {name}", ours, theirs


def accuracy(
    name: str,
    users: Sequence[Any],
    make: Callable[[], nn.Sequential],
    seed: int,
    keys: dict[str, Any],
) -> float:
    """Corsage's accuracy; that of a loop with PFLlib's cut for `as shipped`."""
    if name == "fedavg as shipped":
        return plain(users, seed, lambda x: functional.log_softmax(x, 1), MNIST_ROUNDS)[-1]
    torch.manual_seed(seed)
    own: dict[str, dict[str, Any]] = {
        "fedrep": {"head_epochs": 1}, "ditto": {"ditto_lambda": 1.0, "ditto_epochs": 1},
    }  # fmt: skip
    run = simulate(
        name, users, model=make(), num_rounds=MNIST_ROUNDS, evaluate_every=MNIST_ROUNDS,
        seed=seed, **ALIKE, **keys, **own.get(name, {}),
    )  # fmt: skip
    return float(run[name].over_samples)


def softmax() -> nn.Sequential:
    """A softmax regression."""
    return nn.Sequential(nn.Linear(784, 10))


def small_cnn() -> nn.Sequential:
    """Two convolutions and a linear head: 6,002 parameters."""
    return nn.Sequential(
        nn.Conv2d(1, 8, 5, 2), nn.ReLU(), nn.Conv2d(8, 16, 5, 2), nn.ReLU(), nn.Flatten(),
        nn.Linear(256, 10),
    )  # fmt: skip


TABLES = {"heart": heart, "school": school, "mnist": mnist}


def main(words: Sequence[str]) -> int:
    """Print one of the tables."""
    parser = Parser("python -m corsage.benchmarks published")
    parser.add_argument("table", choices=TABLES)
    parser.add_argument("place", help="the folder, or for mnist the file, of the data")
    asked = parser.parse_args(words)
    beside(TABLES[asked.table](asked.place))
    return 0
