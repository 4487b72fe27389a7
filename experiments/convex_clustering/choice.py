"""Does `convex-lambda=clusters` ever hurt? Beside one model, own models, k-means and the truth.

Users with few and many samples, with three hidden groups, one, or none at all. `chosen` is what the
choice takes; `k-means + silhouette` clusters the local models, the number of clusters by the
silhouette, and refits. Seeds are fresh: defaults were set on others (from 1000 on).
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

from corsage.core.arrays import Floats, Ints
from corsage.experiments.convex_clustering.drawn import Drawn, digits, ellipses, scattered
from corsage.experiments.outcome import Experiment, Figure, Options, Outcome
from corsage.experiments.runner import say
from corsage.solvers.convex_clustering.batched import AtHand, Batched
from corsage.solvers.convex_clustering.edges import Edges
from corsage.solvers.convex_clustering.newton import Clusters, Task
from corsage.solvers.convex_clustering.reading import in_order
from corsage.solvers.convex_clustering.selection import (
    GLOBAL,
    LOCAL,
    MODELS,
    MOST,
    choose_for_clusters,
    k_means,
    one_cluster,
)

SAMPLES = (5, 10, 20, 40, 100)
USERS = 10
"""Users a group."""
SEEDS, QUICK = tuple(range(20)), (0, 1)
ONE = "one cluster, m=10"
CASES: dict[str, Callable[[int], Drawn]] = {
    **{f"ellipses, m={m}": partial(ellipses, samples=m, users=USERS) for m in SAMPLES},
    "rotated digits, m=40": lambda seed: digits(seed, 40, USERS),
    ONE: lambda seed: ellipses(seed, 10, 3 * USERS, 1),
    "no clusters, m=10": lambda seed: scattered(seed, 10, 3 * USERS),
    "no clusters, m=40": lambda seed: scattered(seed, 40, 3 * USERS),
}
NOTE = (
    "False clusters are choices of two clusters and more where there is one. Worst and mean are "
    "over seeds of points of accuracy."
)


def measure(options: Options) -> Outcome:
    """All cases, for each seed."""
    seeds = options.seeds or (QUICK if options.quick else SEEDS)
    outcome = Outcome("A choice of clusters that does not hurt: accuracy %", "points")
    for case, make in CASES.items():
        say(case)
        rows = [once(make(seed), seed) for seed in seeds]
        outcome.figures += figures(case, rows)
        outcome.results += [
            {"case": case, "seed": s, **r} for s, r in zip(seeds, rows, strict=True)
        ]
    outcome.notes = [NOTE]
    return outcome


def once(users: Drawn, seed: int) -> dict[str, Any]:
    """What each way gives for one draw."""
    n, d = len(users.l), users.a.shape[2] + 1
    oracle = AtHand(users)
    asked = Batched(oracle, n, d)
    found = choose_for_clusters(asked, Edges.all_pairs(n), seed)
    local = asked.known[None][0].y
    wanted = {
        "global": one_cluster(n),
        "local": np.arange(n),
        "k-means + silhouette": silhouette(local, seed),
        "true groups": in_order(users.groups),
    }
    exchanges = len(oracle.exchanges)
    solved = asked.solve([Task(Clusters(labels), certain=False) for labels in wanted.values()])
    right = {name: users.accuracy(each.x) for name, each in zip(wanted, solved, strict=True)}
    clusters = found.chosen.clusters if found.chosen.kind not in (GLOBAL, LOCAL, MODELS) else 1
    chosen = {"chosen": users.accuracy(found.models), "kind": found.chosen.kind}
    return {**right, **chosen, "clusters": clusters, "exchanges": exchanges}


def silhouette(local: Floats, seed: int) -> Ints:
    """k-means with the number of clusters of the largest mean silhouette."""
    from sklearn.metrics import silhouette_score

    tried = [k_means(local, count, seed) for count in range(2, min(MOST, len(local) - 1) + 1)]
    tried = [labels for labels in tried if labels.max() > 0]
    scored = [float(silhouette_score(local, labels)) for labels in tried]
    return tried[int(np.argmax(scored))]


def figures(case: str, rows: list[dict[str, Any]]) -> list[Figure]:
    """The means, what the choice loses at worst, and what it took."""

    def column(name: str) -> Floats:
        return np.array([row[name] for row in rows])

    names = ("global", "local", "k-means + silhouette", "true groups", "chosen")
    found = [Figure(case, name, tuple(column(name).tolist()), form=".1f") for name in names]
    better = np.maximum(column("global"), column("local"))
    worst = float((column("chosen") - better).min())
    found.append(
        Figure(case, "chosen, at worst above global and local", (worst,), low=-1.0, form=".1f")
    )
    above = tuple((column("chosen") - column("k-means + silhouette")).tolist())
    found.append(Figure(case, "chosen above k-means", above, low=0.0, form=".1f"))
    if case == ONE:
        false = 100 * float((column("clusters") > 1).mean())
        found.append(Figure(case, "false clusters, % of draws", (false,), high=5.0, form=".0f"))
    most = float(column("exchanges").max())
    return [*found, Figure(case, "exchanges, at most", (most,), high=25.0, form=".0f")]


EXPERIMENT = Experiment(
    what="the choice of clusters beside one model, own models, k-means and the truth",
    takes="10 min; --quick 1 min",
    measure=measure,
)
