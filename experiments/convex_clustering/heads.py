"""Clusters of users on top of a shared representation: FedRep's heads by convex clustering.

Fashion-MNIST with a hidden structure: 60 users with 40 training images each, of all classes, in
three groups that nobody tells of. Each group calls the classes by other names (a permutation drawn
by seed), so a body serves everybody and a head serves one group only. How many clusters are found,
do they agree with the groups (adjusted Rand index), and is sharing heads worth anything?

FedRep with heads of one's own is the method to beat. "all pairs" is convex clustering as in Armacki
et al. 2022, (3); without that, users are pulled to near ones only. "told" methods know something
that the others must find: fedrep-known the groups, IFCA their number.

With `data-file` it is MNIST by its writers, and the groups are those of `cluster-column` (hsf).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
from matplotlib.figure import Figure as Drawing
from sklearn.metrics import adjusted_rand_score

from corsage.app.client_app import app
from corsage.app.engines import number_of_nodes
from corsage.app.local_grid import LocalGrid
from corsage.app.output.progress import Watcher
from corsage.app.report import plots
from corsage.core.arrays import Ints
from corsage.core.configuration.config import Config
from corsage.core.configuration.key_groups import DataKeys
from corsage.core.keys import kebab
from corsage.core.seeding import generator
from corsage.datasets import idx
from corsage.experiments.fedrep.table1 import WRITERS
from corsage.experiments.outcome import Experiment, Figure, Options, Outcome
from corsage.experiments.runner import Results, compact, differences, percents, say
from corsage.solvers.convex_clustering.reading import in_order
from corsage.strategies import strategy_class
from corsage.strategies.cfl import CFLState
from corsage.strategies.fedrep.exact_state import FedRepExactState
from corsage.strategies.fedrep.fedrep_convex import FedRepConvexState
from corsage.strategies.ifca import IFCAState
from corsage.strategies.rounds.base import Strategy

USERS, GROUPS, TRAIN, TEST = 60, 3, 40, 60
HIDDEN: dict[str, Any] = {
    "dataset": "npz",
    "partition": "natural",
    "num_users": 0,
    "cluster_column": "group",
    "fraction_train": 0.3,
    "num_rounds": 100,
    "evaluate_every": 5,
    "fine_tune_epochs": 0,
}
ALL_PAIRS = {"fedrep_convex_neighbours": 0, "fedrep_convex_lambda": 0.01}
OURS = "fedrep, convex heads"
EXACT = "exact heads, clusters appear"


@dataclass(frozen=True)
class Method:
    """One row: a strategy under a name of its own, and what it is told."""

    label: str
    strategy: str
    keys: dict[str, Any] = field(default_factory=dict)


METHODS = [
    Method("fedrep", "fedrep"),
    Method(OURS, "fedrep-convex"),
    Method(EXACT, "fedrep-exact", {"fedrep_exact_centre": "clusters"}),
    Method("fedrep, all pairs", "fedrep-convex", ALL_PAIRS),
    Method("fedrep, known heads (told)", "fedrep-known"),
    Method("ifca (told)", "ifca", {"ifca_clusters": GROUPS}),
    Method("cfl", "cfl", {"cfl_eps1": 0.1, "cfl_eps2": 0.1}),
    Method("fedavg", "fedavg"),
    Method("local", "local"),
]


def measure(options: Options) -> Outcome:
    """All methods for each seed, on the groups of that seed."""
    writers = "data_file" in options.keys
    seeds = options.seeds or ((0,) if options.quick else (0, 1, 2))
    keys = {**WRITERS, "cluster_column": "hsf", "fine_tune_epochs": 0} if writers else dict(HIDDEN)
    if options.quick:
        keys |= {"num_rounds": 40}
    results: Results = {}
    for seed in seeds:
        say(f"seed {seed}")
        with TemporaryDirectory() as folder:
            own = {} if writers else {"data_file": str(hidden(Path(folder), seed, options))}
            for method in METHODS:
                row = once(method, {**keys, **own, **options.keys, **method.keys, "seed": seed})
                results.setdefault(method.label, []).append(row)
    return Outcome(
        "FedRep's heads in clusters: accuracy %",
        unit="points",
        figures=figures(results, claims=not writers),
        results=compact(results, "mnist by writer" if writers else "hidden groups"),
        notes=notes(results),
        draw=lambda theme: drawing(results, theme),
    )


def hidden(folder: Path, seed: int, options: Options) -> Path:
    """An NPZ file of users in groups that call the classes by other names."""
    table = idx.load(DataKeys(dataset="fashion-mnist", data_dir=options.keys.get("data_dir", "")))
    rng, each = generator(seed, "hidden groups"), TRAIN + TEST
    rows = rng.permutation(len(table.x))[: USERS * each]
    user = np.repeat(np.arange(USERS), each)
    names = np.stack([rng.permutation(10) for _ in range(GROUPS)])
    path = folder / "hidden.npz"
    np.savez(
        path,
        x=table.x[rows, 0],
        label=names[user % GROUPS, table.y[rows]],
        user=user.astype(str),
        group=(user % GROUPS).astype(str),
        test=np.tile(np.arange(each) >= TRAIN, USERS),
    )
    return path


def once(method: Method, keys: dict[str, Any]) -> dict[str, Any]:
    """One run: its result, and the clusters that were found beside those that there are."""
    values = {kebab(name): value for name, value in keys.items() if name != "data_dir"}
    config = Config.parse({**values, "strategy": [method.strategy]})
    strategy = strategy_class(method.strategy)(config, [Watcher(config.run.num_rounds)])
    row = strategy.start(LocalGrid(app, number_of_nodes(config))).json()[0]
    found = clusters(strategy)
    members = strategy.members.everybody
    if found and all(members[user].cluster for user in found):
        there = numbered({user: members[user].cluster for user in found})
        labels = numbered(found)
        row |= {
            "clusters-found": int(labels.max()) + 1,
            "agreement": float(adjusted_rand_score(labels, there)),
        }
    return {**row, "strategy": method.label, "seed": keys["seed"]}


def clusters(strategy: Strategy[Any, Any]) -> dict[str, int]:
    """Each user's cluster as the method has found it; none if it finds none."""
    state = strategy.state
    if isinstance(state, FedRepConvexState):
        return dict(zip(state.users, state.labels.tolist(), strict=True))
    if isinstance(state, FedRepExactState):
        own = dict(zip(state.members, state.own, strict=True))
        return dict(zip(own, numbered(own).tolist(), strict=True)) if own else {}
    return state.clusters if isinstance(state, IFCAState | CFLState) else {}


def numbered(found: Mapping[str, Any]) -> Ints:
    """Clusters as numbers, in the order of the users."""
    return in_order(np.unique(list(found.values()), return_inverse=True)[1])


def figures(results: Results, claims: bool) -> list[Figure]:
    """Accuracy, what sharing heads is worth, the clusters; bands where the groups are ours."""
    low, least = (0.0, 0.9) if claims else (-np.inf, -np.inf)
    rows = [Figure("accuracy %", name, percents(results, name)) for name in results]
    for name in (OURS, EXACT):
        rows.append(
            Figure("points", f"{name} - fedrep", differences(results, name, "fedrep"), low=low)
        )
    for name, own in results.items():
        if all("clusters-found" in row for row in own):
            count = tuple(float(row["clusters-found"]) for row in own)
            agree = tuple(row["agreement"] for row in own)
            ours = least if name in (OURS, EXACT) else -np.inf
            rows.append(Figure("clusters found", name, count, form=".0f"))
            rows.append(Figure("agreement with the groups", name, agree, low=ours, form=".2f"))
    return sorted(rows, key=lambda row: [r.case for r in rows].index(row.case))


def notes(results: Results) -> list[str]:
    """What became of the heads, in the methods' own words, for the first seed."""
    found = [
        (name, label, text)
        for name in (OURS, "fedrep, all pairs")
        for finding in results[name][0].get("findings", [])
        for label, text in finding["rows"][:2]
    ]
    return [f"{name}: {label}: {text}" for name, label, text in found]


def drawing(results: Results, theme: plots.Theme) -> Drawing:
    """Accuracy by rounds, the mean over seeds."""
    figure, axes = plots.canvas(theme, "rounds", "accuracy over users (%)")
    look = plots.styles(results, theme)
    ends = {}
    for name, own in results.items():
        rounds = np.array([point[0] for point in own[0]["curve"]])
        means = 100 * np.mean([[point[1] for point in row["curve"]] for row in own], axis=0)
        plots.draw(axes, (rounds, means), name, look[name])
        ends[name] = float(means[-1])
    plots.label_ends(axes, ends, look)
    return figure


EXPERIMENT = Experiment(
    what="FedRep's heads in clusters on hidden groups (data-file=: MNIST by writer)",
    takes="5 min; --quick 1 min",
    measure=measure,
)
