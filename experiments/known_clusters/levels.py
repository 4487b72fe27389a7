"""More levels than two: classes in grades of schools in kinds of school (STAR, R package mlmRev).

24,613 mathematics scores of pupils in 1,380 classes (a teacher each) of 80 schools in Tennessee,
kindergarten to third grade. A user is a class, and its cluster is a path, `kind/school/grade`:
classes in a school's grades, these in schools, these in inner city, suburb, town or country. What
is known of a pupil: its grade, sex, race, free lunch, and whether its class is a small one.

A fifth of each class's scores are held out. Beside the paths the same clusters as names like any
others (two levels), a school as cluster, one model for all, one a cluster and one a class; with 5
and with 2 scores of each class to learn from, too, where what stands above a class counts most.
"""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import numpy as np

from corsage.experiments.known_clusters.scores import root_mean_square
from corsage.experiments.known_clusters.variances import Records, frame, keys_of, records
from corsage.experiments.outcome import Experiment, Figure, Options, Outcome
from corsage.experiments.pictures import few
from corsage.experiments.runner import say

SEEDS = 3
ROWS = ("all", "5", "2")
"""Scores of a class that are for training."""
PATH, SCHOOL = "path", "school"
METHODS: dict[str, tuple[str, str, dict[str, Any]]] = {
    "paths: four levels": (PATH, "mixed-model", {}),
    "the same names: two levels": (PATH, "mixed-model", {"mixed_paths": False}),
    "schools: two levels": (SCHOOL, "mixed-model", {}),
    "one for all": (SCHOOL, "exact-global", {}),
    "one a school": (SCHOOL, "exact-cluster", {}),
    "one a class": (SCHOOL, "exact-local", {}),
}


def star(cluster: str) -> Records:
    """Pupils' scores in mathematics; without the few of whom something is not known."""
    data = frame("mlmRev", "star")
    names = ["math", "gr", "sx", "eth", "ses", "cltype", "sch", "schtype", "tch"]
    data = data[names].dropna()
    columns = [data["gr"].astype(str) == grade for grade in ("1", "2", "3")]
    columns += [data["sx"] == "M", data["eth"] == "B", data["ses"] == "F"]
    columns.append(data["cltype"].astype(str) == "small")
    path = data["schtype"].astype(str) + "/" + data["sch"].astype(str)
    clusters = path + "/" + data["gr"].astype(str) if cluster == PATH else data["sch"]
    return records(columns, data["math"], data["tch"], clusters)


def some(data: Records, rows: str, seed: int) -> tuple[Records, Any]:
    """The records in a random order, a fifth of each user's for testing; of others only `rows`."""
    order = np.random.default_rng(seed).permutation(len(data.y))
    mixed = Records(*(column[order] for column in data))
    _, place, counts = np.unique(mixed.user, return_inverse=True, return_counts=True)
    by_user = np.argsort(place, kind="stable")
    rank = np.empty(len(place), np.int64)
    rank[by_user] = np.concatenate([np.arange(count) for count in counts])
    held = np.maximum(counts // 5, 1)[place]
    test = rank < held
    most = len(place) if rows == "all" else int(rows)
    keep = test | (rank < held + most)
    return Records(*(column[keep] for column in mixed)), test[keep]


def measure(options: Options) -> Outcome:
    """All methods, every seed of the split."""
    seeds = options.seeds or ((0,) if options.quick else tuple(range(SEEDS)))
    found: dict[str, dict[str, tuple[float, ...]]] = {}
    with tempfile.TemporaryDirectory() as folder:
        for rows in ROWS[:1] if options.quick else ROWS:
            own = found[rows] = {}
            for name, (cluster, method, keys) in METHODS.items():
                say(f"{rows} scores a class: {name}")
                own[name] = tuple(
                    error(cluster, method, {**keys, **options.keys}, rows, seed, Path(folder))
                    for seed in seeds
                )
    return Outcome(
        "More levels than two: classes in grades, schools and kinds of school",
        unit="RMSE of held-out scores",
        figures=[
            Figure(f"{rows} scores a class", name, values, form=".3f")
            for rows, own in found.items()
            for name, values in own.items()
        ],
        results=[{"rmse": found, "seeds": seeds}],
        notes=few(seeds, SEEDS),
    )


def error(
    cluster: str, method: str, keys: dict[str, Any], rows: str, seed: int, folder: Path
) -> float:
    """Of held-out scores; random intercepts on all levels."""
    data, test = some(star(cluster), rows, seed)
    file = folder / "star.npz"
    np.savez(file, x=data.x, y=data.y, user=data.user, cluster=data.cluster, test=test)
    usual = {**keys_of(file), "mixed_random": "intercept", "mixed_neighbours": "never"}
    return root_mean_square(method, {**usual, "mixed_summary": "none", "seed": seed, **keys})


EXPERIMENT = Experiment(
    what="more levels than two: STAR's classes in grades of schools, beside two levels",
    takes="2 min; --quick 20 s",
    measure=measure,
)
"""What `python -m corsage.experiments known-clusters-levels` runs."""
