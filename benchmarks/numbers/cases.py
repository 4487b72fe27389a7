"""The small runs whose numbers must not change.

Every algorithm of the registry is in them, with settings that suit it, and the keys that lead an
algorithm down another path. `{data}` stands for the folder of the files that they read.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from corsage.benchmarks.numbers.names import Keys, renamed


@dataclass(frozen=True)
class Case:
    """One run; a killed one is stopped in each of its strategies, and resumed."""

    name: str
    keys: Keys
    killed: bool = False

    @property
    def engine(self) -> str:
        """Where it runs."""
        return str(self.keys.get("engine", "local"))

    def words(self, data: Path, new: bool) -> list[str]:
        """Its command line, in the old words or in the new ones."""
        keys = renamed(self.keys) if new else self.keys
        return [f"{key}={value}".replace("{data}", str(data)) for key, value in keys.items()]


DIGITS: Keys = {
    "num-users": 12,
    "num-rounds": 4,
    "fraction-train": 0.5,
    "hidden": 16,
    "head-epochs": 2,
    "evaluate-every": 2,
    "fine-tune-epochs": 0,
}
NATURAL: Keys = {**DIGITS, "partition": "natural", "num-users": 0}
ELLIPSES: Keys = {
    **NATURAL,
    "dataset": "ellipses",
    "users-per-cluster": 4,
    "model": "linear",
    "loss": "logistic",
}
HIERARCHICAL: Keys = {
    **ELLIPSES,
    "dataset": "hierarchical",
    "loss": "squared",
    "num-features": 4,
    "samples-per-user": 8,
}
TIES: Keys = {"known-gamma": 1, "known-lambda": 1, "single-cluster-lambda": 1}
AUTO: Keys = {"known-gamma": "auto", "known-lambda": "auto"}
CONVEX: Keys = {
    **ELLIPSES,
    "loss": "squared-hinge",
    "ridge": 0.001,
    "num-rounds": 10,
    "convex-lambda": 0.03,
    "convex-tolerance": 1e-13,
    "convex-report": "false",
}
NEW: Keys = {"new-users": 0.3, "adapt-samples": "4,0", "adapt-epochs": "1,3"}
LONG: Keys = {"num-rounds": 100, "evaluate-every": 50}

RIVALS = (
    "fedrep,fedavg,local,fedprox,scaffold,ditto,pfedme,l2gd,fedmtl,ifca,cfl,fedper,lg-fedavg,apfl,"
    "perfedavg"
)
COINS = "async-l2gd,async-al2sgd"
KNOWN = f"{COINS},mixed-model,single-cluster,exact-cluster,exact-global,exact-local"

ONE: Keys = {
    "fraction-train": 1.0,
    "num-rounds": 6,
    "evaluate-every": 3,
    "scaffold-server-lr": 0.5,
    "fedmtl-relations": "mean",
    "fedmtl-inner-rounds": 2,
    "ifca-clusters": 3,
    "ifca-averaging": "gradients",
    "cfl-eps1": 0.6,
    "cfl-eps2": 0.1,
    "lg-fedavg-warmup-rounds": 2,
    "apfl-adaptive-alpha": "true",
    "perfedavg-variant": "fo",
}
OTHER: Keys = {
    "seed": 3,
    "partition": "dirichlet",
    "weighting": "examples",
    "local-epochs": 2,
    "batch-size": 7,
    "momentum": 0.9,
    "weight-decay": 0.01,
    "fedprox-mu": 1.0,
    "ditto-epochs": 2,
    "ditto-lambda": 0.3,
    "pfedme-beta": 0.5,
    "pfedme-steps": 2,
    "l2gd-coins": 7,
    "l2gd-p": 0.3,
    "fedmtl-lambda2": 0.01,
    "apfl-alpha": 0.2,
    "perfedavg-adapt-steps": 2,
}


def rivals() -> Iterator[Case]:
    """FedRep and the methods beside it, on the digits."""
    every: Keys = {**DIGITS, "strategy": RIVALS, "num-nodes": 3}
    tuned = {"fine-tune-epochs": 2, "weighting": "examples", "partition": "iid", "size-sigma": 0.6}
    some = "fedrep,fedavg,local,scaffold,ditto,l2gd,apfl,ifca"
    yield Case("rivals, one node", {**every, "num-nodes": 1})
    yield Case("rivals, three nodes", every)
    yield Case("rivals, fine-tuned, new users", {**every, **tuned, **NEW, "num-nodes": 2})
    yield Case("rivals, other settings", {**every, **ONE})
    yield Case("rivals, yet other settings", {**every, **OTHER})
    yield Case("rivals, on Ray", {**every, "strategy": some, "engine": "ray", "num-nodes": 2})
    yield Case("rivals, resumed", {**every, **LONG, "strategy": "fedrep,scaffold,l2gd"}, True)


def heads() -> Iterator[Case]:
    """FedRep's heads: at home, in clusters that appear, and in known clusters."""
    shared: Keys = {
        **DIGITS,
        "strategy": "fedrep",
        "cluster-map": "{data}/clusters.json",
        "num-nodes": 3,
    }
    convex = {"fedrep-heads": "convex-clustering", "fedrep-heads-lambda": 0.01}
    near = {"fedrep-heads-rho": 0.5, "fedrep-heads-neighbours": 3, "num-nodes": 1}
    known = {"fedrep-heads": "known-clusters", "fedrep-heads-gamma": 2, "fedrep-heads-middle": 3}
    yield Case("heads at home", {**shared, **NEW, "fedrep-heads": "own", "local-epochs": 2})
    yield Case("heads in clusters that appear", {**shared, **NEW, **convex})
    yield Case("heads, their neighbours", {**shared, **convex, **near})
    yield Case("heads in known clusters", {**shared, **NEW, **known, "weighting": "examples"})
    yield Case("heads that appear, resumed", {**shared, **LONG, **convex}, True)
    yield Case("heads in known clusters, resumed", {**shared, **LONG, **known}, True)


def known() -> Iterator[Case]:
    """The methods for known clusters."""
    ties: Keys = {**ELLIPSES, **TIES, "strategy": KNOWN, "num-nodes": 3}
    linear: Keys = {**HIERARCHICAL, **TIES, "strategy": KNOWN, "num-nodes": 3}
    coins: Keys = {**ties, "strategy": COINS}
    gammas, lambdas = (f"{{data}}/{name}.json" for name in ("gammas", "lambdas"))
    missing = {"cluster-map": "{data}/some-clusters.json", "known-missing": "rest"}
    sample = {"al2sgd-oracle": "sample", "al2sgd-mu": 0.1, "known-iterations": 150}
    network = {"model": "mlp", "loss": "auto", "hidden": 8, "known-eta": 0.05, "known-p0": 0.2}
    ray = {"engine": "ray", "num-nodes": 2}
    refined = {"strategy": "mixed-model", "known-refine": 1}
    yield Case("known clusters, one node", {**ties, "num-nodes": 1})
    yield Case("known clusters, three nodes", ties)
    yield Case("known clusters, on Ray", {**ties, **ray, "strategy": f"{COINS},mixed-model"})
    yield Case("known clusters, squared loss", {**linear, **NEW})
    yield Case("known clusters, a new one", {**linear, "new-cluster": 2, "adapt-samples": "3,0"})
    yield Case("known clusters, some missing", {**linear, **missing})
    yield Case("strengths on auto, squared", {**linear, **AUTO, "single-cluster-lambda": "cv"})
    yield Case("strengths on auto, one", {**linear, **AUTO, "single-cluster-lambda": "auto"})
    yield Case("strengths refined", {**linear, **AUTO, **refined})
    yield Case("strengths on auto, logistic", {**ties, **AUTO, "mixed-em-rounds": 5})
    yield Case("strengths by user", {**ties, **NEW, "known-gamma": gammas})
    yield Case("strengths by cluster", {**ties, "known-lambda": lambdas})
    yield Case("no pull apart, float32", {**ties, "known-lambda": "inf", "precision": "float32"})
    yield Case("one coin for both pulls", {**coins, "known-p": 0})
    yield Case("gradients of samples", {**coins, **sample})
    yield Case("gradients of samples, by user", {**coins, **sample, "known-gamma": gammas})
    yield Case("coins and a network", {**ties, **network, "strategy": "async-l2gd"})
    yield Case("coins, resumed", {**coins, **LONG}, True)


def convex() -> Iterator[Case]:
    """Convex clustering, and clusters of local models."""
    both: Keys = {**CONVEX, "strategy": "convex-clustering,local-clusters", "num-nodes": 3}
    own: Keys = {**CONVEX, "strategy": "convex-clustering", "num-nodes": 2}
    pdmm: Keys = {**own, "convex-solver": "pdmm"}
    drawn = {"convex-eta": 0.1, "convex-pairs": 0.3, "convex-tau": 0.2, "convex-rho": 0.05}
    knn = {"convex-graph": "knn", "convex-neighbours": 3}
    report = {"convex-report": "true"}
    huber = {"loss": "huber", "huber-delta": 0.5, "ridge": 0, "convex-lambda": 0.2}
    means = {"strategy": "local-clusters", "local-clusters-by": "kmeans", **NEW}
    yield Case("convex clustering, one node", {**both, "num-nodes": 1})
    yield Case("convex clustering, three nodes", both)
    yield Case("convex clustering, on Ray", {**both, "engine": "ray", "num-nodes": 2})
    yield Case("convex clustering, report", {**both, **report, "num-rounds": 60})
    yield Case("convex clustering, neighbours", {**own, **knn, **NEW})
    yield Case("PDMM", pdmm)
    yield Case("PDMM, drawn pairs", {**pdmm, **drawn})
    yield Case("PDMM, neighbours", {**pdmm, **knn, **NEW, "loss": "logistic"})
    yield Case("lambda on auto", {**own, **report, "convex-lambda": "auto"})
    yield Case("convex clustering, numbers", {**both, **HIERARCHICAL, **huber, **report})
    yield Case("local clusters, k-means", {**both, **means, "local-clusters-number": 3})
    yield Case("convex clustering, resumed", {**own, **LONG}, True)
    yield Case("PDMM, resumed", {**pdmm, **LONG}, True)


def data() -> Iterator[Case]:
    """Other data, and other networks."""
    three = {"strategy": "fedrep,fedavg,local", "fine-tune-epochs": 1}
    images = {**NATURAL, **three, "dataset": "npz", "data-file": "{data}/images.npz"}
    random = {"model": "cnn-cifar100", "strategy": "fedrep,fedper"}
    sequences = {**images, "data-file": "{data}/sequences.npz", "model": "lstm"}
    table = {**NATURAL, **three, "dataset": "csv", "data-file": "{data}/table.csv"}
    kinds = {"cluster-column": "group", "label-column": "kind", "min-samples": 5}
    numbers = {"labels": "numbers", "label-column": "b", "feature-columns": "a,c", "loss": "huber"}
    classes = {"partition": "classes", "classes-per-user": 3, "max-train-samples": 20}
    linear = {"model": "linear", "partition": "consecutive", "test-fraction": 0.4}
    donors = {**ELLIPSES, **TIES, "dataset": "donors", "users-per-cluster": 3}
    yield Case("images, cnn", {**images, "model": "cnn"})
    yield Case("images, lenet", {**images, "model": "lenet"})
    yield Case("images, random features", {**images, **random})
    yield Case("sequences, lstm", sequences)
    yield Case("table of classes", {**table, **kinds})
    yield Case("table of numbers", {**table, **numbers})
    yield Case("digits by classes", {**DIGITS, **three, **classes, "mean-samples": 60})
    yield Case("digits, linear", {**DIGITS, **linear, "strategy": "fedavg,local,apfl,pfedme"})
    yield Case("donors", {**donors, "strategy": "async-l2gd,mixed-model,single-cluster"})


CASES: tuple[Case, ...] = (*rivals(), *heads(), *known(), *convex(), *data())
