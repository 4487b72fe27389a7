"""Does `convex-lambda=clusters` ever hurt? Beside one model, own models, k-means and the truth.

Users with few and many samples, with three hidden groups, one, or none at all. `chosen` is what the
choice takes; `k-means + silhouette` clusters the local models, the number of clusters by the
silhouette, and refits. Seeds are fresh: defaults were set on others (from 1000 on).
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from scipy.stats import beta

from corsage.core.arrays import Bools, Floats, Ints
from corsage.experiments.convex_clustering.drawn import Drawn, digits, ellipses, scattered
from corsage.experiments.outcome import Experiment, Figure, Options, Outcome
from corsage.experiments.runner import say
from corsage.solvers.convex_clustering.batched import AtHand, Batched
from corsage.solvers.convex_clustering.couplings import Clusters
from corsage.solvers.convex_clustering.exact.edges import Edges
from corsage.solvers.convex_clustering.partitions import (
    MOST_CLUSTERS,
    ONE_MODEL,
    OWN_MODELS,
    k_means,
    one_cluster,
)
from corsage.solvers.convex_clustering.reading import in_order
from corsage.solvers.convex_clustering.runs import Task
from corsage.solvers.convex_clustering.selection import (
    MODELS,
    choose_for_clusters,
)

SAMPLES = (5, 10, 20, 40, 100)
USERS = 10
"""Users a group."""
SEEDS, QUICK = tuple(range(20)), (0, 1)
SMALL, OFTEN, FEW = 12, tuple(range(100, 200)), (100, 101)
"""Users of the small federations of one cluster, and their seeds, whatever the others are."""
ONE, MANY = "one cluster, m=10", f"one cluster, m=10, {SMALL} users"
CASES: dict[str, Callable[[int], Drawn]] = {
    **{f"ellipses, m={m}": partial(ellipses, samples=m, users=USERS) for m in SAMPLES},
    "rotated digits, m=40": lambda seed: digits(seed, 40, USERS),
    ONE: lambda seed: ellipses(seed, 10, 3 * USERS, 1),
    "no clusters, m=10": lambda seed: scattered(seed, 10, 3 * USERS),
    "no clusters, m=40": lambda seed: scattered(seed, 40, 3 * USERS),
    MANY: lambda seed: ellipses(seed, 10, SMALL, 1),
}
NOTE = (
    "False clusters are choices of two clusters and more where there is one. Worst and mean are "
    "over seeds of points of accuracy; an error is that of finitely many test samples."
)


def measure(options: Options) -> Outcome:
    """All cases, for each seed; what an interrupted run has measured is not measured again."""
    seeds = options.seeds or (QUICK if options.quick else SEEDS)
    outcome = Outcome("A choice of clusters that does not hurt: accuracy %", "points")
    wanted = list(draws(seeds, FEW if options.quick else OFTEN))
    outcome.results = drawn_anew(wanted, options.out / "draws.jsonl")
    for case in CASES:
        rows = [row for row in outcome.results if row["case"] == case]
        outcome.figures += figures(case, rows)
        outcome.notes += misses(case, rows)
    outcome.notes.append(NOTE)
    return outcome


def draws(seeds: tuple[int, ...], often: tuple[int, ...]) -> Iterator[tuple[str, int]]:
    """Cases and seeds, seed by seed; the small federations last."""
    for seed in seeds:
        yield from ((case, seed) for case in CASES if case != MANY)
    yield from ((MANY, seed) for seed in often)


def drawn_anew(wanted: list[tuple[str, int]], file: Path) -> list[dict[str, Any]]:
    """The rows of all draws; each is written when it is measured, those in the file are taken."""
    known: dict[tuple[str, int], dict[str, Any]] = {}
    if file.exists():
        rows = [json.loads(line) for line in file.read_text().splitlines()]
        known = {(row["case"], row["seed"]): row for row in rows}
        say(f"{file}: {len(known)} draws of an earlier run are taken as they are")
    for case, seed in wanted:
        if (case, seed) not in known:
            say(f"{case}, seed {seed}")
            known[case, seed] = {"case": case, "seed": seed, **once(CASES[case](seed), seed)}
            with file.open("a") as lines:
                lines.write(json.dumps(known[case, seed]) + "\n")
    return [known[key] for key in wanted]


def once(users: Drawn, seed: int) -> dict[str, Any]:
    """What each way gives for one draw."""
    n, d = len(users.l), users.a.shape[2] + 1
    oracle = AtHand(users)
    asked = Batched(oracle, n, d)
    found = choose_for_clusters(asked, Edges.all_pairs(n), seed)
    exchanges, local = len(oracle.exchanges), asked.known[None][0].y
    wanted = {
        "global": one_cluster(n),
        "local": np.arange(n),
        "k-means + silhouette": silhouette(local, seed),
        "true groups": in_order(users.groups),
    }
    solved = asked.solve([Task(Clusters(labels), certain=False) for labels in wanted.values()])
    models = {name: each.x for name, each in zip(wanted, solved, strict=True)}
    right = {name: users.accuracy(x) for name, x in models.items()}
    better = models[max(("global", "local"), key=right.__getitem__)]
    clusters = (
        found.chosen.clusters if found.chosen.kind not in (ONE_MODEL, OWN_MODELS, MODELS) else 1
    )
    return {
        **right,
        "chosen": users.accuracy(found.models),
        "noise": users.noise(found.models, better),
        "kind": found.chosen.kind,
        "clusters": clusters,
        "exchanges": exchanges,
    }


def silhouette(local: Floats, seed: int) -> Ints:
    """k-means with the number of clusters of the largest mean silhouette."""
    from sklearn.metrics import silhouette_score

    tried = [
        k_means(local, count, seed) for count in range(2, min(MOST_CLUSTERS, len(local) - 1) + 1)
    ]
    tried = [labels for labels in tried if labels.max() > 0]
    scored = [float(silhouette_score(local, labels)) for labels in tried]
    return tried[int(np.argmax(scored))]


def column(rows: list[dict[str, Any]], name: str) -> Floats:
    """One number of all draws."""
    return np.array([row[name] for row in rows])


def above(rows: list[dict[str, Any]]) -> Floats:
    """How far the choice is above the better one of one model and own models."""
    return column(rows, "chosen") - np.maximum(column(rows, "global"), column(rows, "local"))


def figures(case: str, rows: list[dict[str, Any]]) -> list[Figure]:
    """The means, what the choice loses at worst, and what it took."""
    names = ("global", "local", "k-means + silhouette", "true groups", "chosen")
    found = [Figure(case, name, tuple(column(rows, name).tolist()), form=".1f") for name in names]
    worst = float(above(rows).min())
    found.append(
        Figure(case, "chosen, at worst above global and local", (worst,), low=-1.0, form=".1f")
    )
    better = column(rows, "chosen") - column(rows, "k-means + silhouette")
    found.append(Figure(case, "chosen above k-means", tuple(better.tolist()), low=0.0, form=".1f"))
    if case in (ONE, MANY):
        false = column(rows, "clusters") > 1
        share = 100 * float(false.mean())
        found.append(Figure(case, "false clusters, % of draws", (share,), high=5.0, form=".0f"))
        found.append(Figure(case, "at most, 95% sure", (at_most(false),), form=".1f"))
    most = float(column(rows, "exchanges").max())
    return [*found, Figure(case, "exchanges, at most", (most,), high=25.0, form=".0f")]


def at_most(false: Bools) -> float:
    """A bound in % that the share of false clusters keeps with 95% (Clopper and Pearson)."""
    count, of = int(false.sum()), len(false)
    return 100.0 if count == of else 100 * float(beta.ppf(0.95, count + 1, of - count))


def misses(case: str, rows: list[dict[str, Any]]) -> list[str]:
    """The draws in which the choice hurts by more than a point."""
    return [
        f"{case}, seed {row['seed']}: {apart:+.1f} ± {row['noise']:.1f} ({row['kind']})"
        for row, apart in zip(rows, above(rows), strict=True)
        if apart < -1
    ]


EXPERIMENT = Experiment(
    what="the choice of clusters beside one model, own models, k-means and the truth",
    takes="30 min; --quick 3 min",
    measure=measure,
)
