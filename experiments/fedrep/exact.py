"""FedRep beside FedRep with exact heads: accuracy, exchanges, bytes and CPU seconds of each.

shards   Fashion-MNIST under the protocol of `fedrep-fashion-mnist`: 100 users, 500 images each of
         two or five classes
digits   scikit-learn's digits, 50 users with two classes each
hidden   the users of `convex-clustering-heads`: three groups call the classes by other names
writers  MNIST by its writers, with `data-file`: that alone

`fedrep-exact` stands there with the squared and the multinomial loss, and with each centre that
heads may be drawn to: one, clusters that appear, and known ones where users have any (the groups
are told then). All of a case run one after the other in this process, on the same users and draws,
so that what they cost can be compared; CPU seconds are of the run with its evaluations, of which
FedRep has ten. What was measured is kept in the folder: an interrupted command goes on.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from corsage.experiments.convex_clustering import heads
from corsage.experiments.fedrep.fashion_mnist import PROTOCOL
from corsage.experiments.fedrep.table1 import WRITERS
from corsage.experiments.measured import Measured, measured, percent
from corsage.experiments.outcome import Experiment, Figure, Options, Outcome
from corsage.experiments.runner import say

SHARE = 0.2
"""What exact heads may cost of FedRep's bytes and CPU seconds."""
DIGITS = {**PROTOCOL, "dataset": "digits", "partition": "shards", "num_users": 50, "hidden": "200"}
FEDREP = "fedrep"
Found = dict[str, list[Measured]]
"""A method's runs, one a seed."""


@dataclass(frozen=True)
class Case:
    """Some users: their keys, and what was asked of exact heads there.

    `aims` are accuracies by method, `most` the exchanges it may take.
    """

    title: str
    keys: Mapping[str, Any]
    groups: bool = False
    aims: Mapping[str, float] = field(default_factory=dict)
    most: float = 5


def shards(classes: int, aim: float) -> Case:
    """Fashion-MNIST with 500 images a user."""
    keys = {**PROTOCOL, "model": "mlp", "classes_per_user": classes, "max_train_samples": 500}
    return Case(f"fashion-mnist, S={classes}", keys, aims={"multinomial": aim})


CASES = {
    "s2": shards(2, 97.2),
    "s5": shards(5, 92.0),
    "digits": Case("digits, S=2", {**DIGITS, "classes_per_user": 2}),
    "hidden": Case("hidden groups", heads.HIDDEN, groups=True, aims={"squared, clusters": 78.3}),
}
BY_WRITER = Case(
    "mnist by writer",
    {**WRITERS, "cluster_column": "hsf"},
    groups=True,
    aims={"squared, clusters": 94.9},
    most=20,
)


def methods(case: Case) -> dict[str, dict[str, Any]]:
    """The keys of each row of exact heads, by its name."""
    losses = ("squared", "multinomial")
    found = {
        **{loss: (loss, "one") for loss in losses},
        **{f"{loss}, clusters": (loss, "clusters") for loss in losses},
    }
    if case.groups:
        found["squared, known (told)"] = ("squared", "known")
    return {
        name: {"fedrep_exact_loss": loss, "fedrep_exact_centre": centre}
        for name, (loss, centre) in found.items()
    }


def measure(options: Options) -> Outcome:
    """All cases that were asked for."""
    seeds = options.seeds or ((0,) if options.quick else (0, 1, 2))
    outcome = Outcome("FedRep beside exact heads: accuracy %, and what it costs", unit="points")
    for case in chosen(options):
        say(f"{case.title}, seeds {', '.join(map(str, seeds))}")
        found = runs(case, seeds, options)
        outcome.figures += figures(case, found)
        outcome.notes += lines(case, found)
        outcome.results += rows(case, found)
    return outcome


def chosen(options: Options) -> list[Case]:
    """By writer if there is a file of them, else those of the option; the quick one is digits."""
    if "data_file" in options.keys:
        return [BY_WRITER]
    case = options.choices.get("case", "all")
    names = ["digits"] if options.quick and case == "all" else [case]
    return list(CASES.values()) if names == ["all"] else [CASES[name] for name in names]


def runs(case: Case, seeds: tuple[int, ...], options: Options) -> Found:
    """FedRep and all rows of exact heads, for each seed."""
    found: Found = {}
    for seed in seeds:
        own = files(case, seed, options)
        changed = from_a_file(options.keys) if own or case is BY_WRITER else options.keys
        keys = {**case.keys, **own, **changed, "seed": seed}
        kept = options.out / "runs"
        found.setdefault(FEDREP, []).append(measured(FEDREP, keys, kept))
        for name, own in methods(case).items():
            found.setdefault(name, []).append(measured("fedrep-exact", {**keys, **own}, kept))
    return found


def from_a_file(keys: Mapping[str, Any]) -> dict[str, Any]:
    """Keys without `data-dir`, where Fashion-MNIST is."""
    return {key: value for key, value in keys.items() if key != "data_dir"}


def files(case: Case, seed: int, options: Options) -> dict[str, Any]:
    """The file of users in hidden groups, which is made once."""
    if case is not CASES["hidden"]:
        return {}
    folder = options.out.expanduser() / f"hidden-{seed}"
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "hidden.npz"
    return {"data_file": str(path if path.is_file() else heads.hidden(folder, seed, options))}


def figures(case: Case, found: Found) -> list[Figure]:
    """Accuracies, and of exact heads what they cost beside FedRep."""
    low = case.aims
    accuracy = [
        Figure(
            case.title,
            name,
            percent(own, FEDREP if name == FEDREP else "fedrep-exact"),
            low.get(name),
            low.get(name, -math.inf),
        )
        for name, own in found.items()
    ]
    return accuracy + [figure for name in low for figure in costs(case, name, found)]


def costs(case: Case, name: str, found: Found) -> list[Figure]:
    """Exchanges, and shares of FedRep's bytes and CPU seconds."""
    pairs = list(zip(found[name], found[FEDREP], strict=True))
    exchanges = tuple(float(own.exchanges) for own in found[name])
    sent = tuple(own.sent / other.sent for own, other in pairs)
    cpu = tuple(own.cpu / other.cpu for own, other in pairs)
    return [
        Figure(case.title, f"{name}: exchanges", exchanges, high=case.most, form=".0f"),
        Figure(case.title, f"{name}: bytes of FedRep's", sent, high=SHARE, form=".2f"),
        Figure(case.title, f"{name}: CPU of FedRep's", cpu, high=SHARE, form=".2f"),
    ]


def lines(case: Case, found: Found) -> list[str]:
    """A line for each method: means over the seeds."""

    def mean(values: list[float]) -> float:
        return sum(values) / len(values)

    told = [f"{case.title}: exchanges, MB, CPU s, clusters"]
    for name, own in found.items():
        clusters = mean([float(len(set(run.clusters.values())) or 1) for run in own])
        numbers = [
            f"{mean([run.exchanges for run in own]):.0f}",
            f"{mean([run.sent / 1e6 for run in own]):,.0f}",
            f"{mean([run.cpu for run in own]):.1f}",
            "" if name == FEDREP else f"{clusters:.1f}",
        ]
        told.append(f"  {name}: {', '.join(n for n in numbers if n)}")
    return told


def rows(case: Case, found: Found) -> list[dict[str, Any]]:
    """All runs for the JSON file."""
    return [
        {
            "case": case.title,
            "method": name,
            "accuracy": run.accuracy,
            "exchanges": run.exchanges,
            "bytes_up": run.bytes_up,
            "bytes_down": run.bytes_down,
            "cpu_seconds": run.cpu,
            "clusters": len(set(run.clusters.values())) or 1,
        }
        for name, own in found.items()
        for run in own
    ]


EXPERIMENT = Experiment(
    what="FedRep beside exact heads: accuracy, exchanges, bytes, CPU (data-file=: MNIST by writer)",
    takes="6 min; --quick 20 s",
    measure=measure,
    choices={"case": ("all", *CASES)},
)
