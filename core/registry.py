"""The algorithms and the data sets by name: what a newcomer adds a line to.

An algorithm `foo-bar` lies in `strategies/foo_bar.py` and `clients/foo_bar.py`, or in the folder of
its family there. Its classes are named here: `FooBar`, `FooBarClient`, and, if it has keys of its
own, `FooBarKeys` beside the strategy. A preset is another algorithm with some of its keys fixed.

A data set is one file in `datasets/`, which says all about it in its `DATASET`; some files are of
several data sets.

Nothing is imported before it is named.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from importlib import import_module
from importlib.util import find_spec
from logging import getLogger
from typing import TYPE_CHECKING, Any

from corsage.core.errors import ConfigError, NotInstalled
from corsage.core.keys import Keys, NoKeys

if TYPE_CHECKING:
    from corsage.core.configuration.key_groups import DataKeys

log = getLogger("corsage")


@dataclass(frozen=True)
class Algorithm:
    """The place of an algorithm.

    Parameters
    ----------
    cls : its strategy's class.
    family : the folder that its files lie in, if any.
    door : the name of that class in `corsage`, if another has its name there.
    of, fixed : the algorithm that it is a preset of, and the keys that it fixes.
    """

    cls: str
    family: str = ""
    door: str = ""
    of: str = ""
    fixed: Mapping[str, Any] = field(default_factory=dict)

    @property
    def public(self) -> str:
        """Its name in `corsage`."""
        return self.door or self.cls


def solved(cls: str, gamma: str, lam: str, grouping: str) -> Algorithm:
    """A mixed model whose pulls are 0 or infinite."""
    pulls = {"known_gamma": gamma, "known_lambda": lam, "mixed_grouping": grouping}
    return Algorithm(cls, of="mixed-model", fixed={**pulls, "mixed_random": ("all",)})


ALGORITHMS: dict[str, Algorithm] = {
    "fedrep": Algorithm("FedRep", "fedrep"),
    "fedrep-convex": Algorithm("FedRepConvex", "fedrep"),
    "fedrep-known": Algorithm("FedRepKnown", "fedrep"),
    "fedrep-exact": Algorithm("FedRepExact", "fedrep"),
    "fedavg": Algorithm("FedAvg"),
    "local": Algorithm("Local"),
    "fedprox": Algorithm("FedProx"),
    "feddyn": Algorithm("FedDyn"),
    "fedlc": Algorithm("FedLC"),
    "moon": Algorithm("MOON"),
    "fedbn": Algorithm("FedBN"),
    "scaffold": Algorithm("Scaffold"),
    "ditto": Algorithm("Ditto"),
    "fedrod": Algorithm("FedRoD"),
    "mr-mtl": Algorithm("MRMTL"),
    "fedala": Algorithm("FedALA"),
    "feddbe": Algorithm("FedDBE"),
    "pfedme": Algorithm("PFedMe"),
    "l2gd": Algorithm("L2GD"),
    "fedmtl": Algorithm("FedMTL"),
    "ifca": Algorithm("IFCA"),
    "fedem": Algorithm("FedEM"),
    "cfl": Algorithm("CFL"),
    "fedper": Algorithm("FedPer"),
    "lg-fedavg": Algorithm("LGFedAvg"),
    "apfl": Algorithm("APFL"),
    "perfedavg": Algorithm("PerFedAvg"),
    "fedbabu": Algorithm("FedBABU"),
    "fedproto": Algorithm("FedProto"),
    "fedpac": Algorithm("FedPAC"),
    "gpfl": Algorithm("GPFL"),
    "fedamp": Algorithm("FedAMP"),
    "fedfomo": Algorithm("FedFomo"),
    "knn-per": Algorithm("KNNPer"),
    "async-l2gd": Algorithm("AsyncL2GD", "known_clusters"),
    "async-al2sgd": Algorithm("AsyncAL2SGD", "known_clusters"),
    "mixed-model": Algorithm("MixedModel", "known_clusters"),
    "random-intercepts": Algorithm(
        "RandomIntercepts",
        of="mixed-model",
        fixed={"mixed_random": ("intercept",), "mixed_variances": "one"},
    ),
    "single-cluster": Algorithm("SingleCluster", "known_clusters"),
    "exact-cluster": solved("ExactCluster", "inf", "0", "known"),
    "exact-global": solved("ExactGlobal", "inf", "inf", "all"),
    "exact-local": solved("ExactLocal", "0", "0", "all"),
    "convex-clustering": Algorithm(
        "ConvexClustering", "convex_clustering", door="ConvexClusteringStrategy"
    ),
    "local-clusters": Algorithm("LocalClusters", "convex_clustering"),
}


DATASETS: dict[str, str] = {
    "digits": "digits",
    **dict.fromkeys(("fashion-mnist", "mnist"), "idx"),
    **dict.fromkeys(("cifar10", "cifar100"), "cifar"),
    **{name: name for name in ("femnist", "sent140")},
    "csv": "csvfile",
    "npz": "npzfile",
    **{name: name for name in ("mapped", "memory", "chem97", "hierarchical", "donors")},
    **{name: name for name in ("ellipses", "moons")},
    **dict.fromkeys(("school", "heart", "beijing-air", "flights", "tv16"), "natural.tables"),
    **dict.fromkeys(("watch", "spoken-digits"), "natural.signals"),
    **dict.fromkeys(("movielens", "sotu"), "natural.tokens"),
}
"""Each data set's file."""


ATTACHED: dict[str, str] = {
    "answer": "app.answer.answering",
    "augment": "networks.augment",
    "baseline": "clients.parts.baseline",
    "classes": "strategies.known_clusters.several_classes",
    "classes at home": "clients.known_clusters.several_classes",
    "combined": "clients.parts.combined",
    "cut": "networks.cut",
    "devices": "strategies.devices.devices",
    "families": "core.families",
    "heads at home": "clients.fedrep.end_heads",
    "heads at the end": "strategies.fedrep.heads_at_end",
    "found groups": "strategies.known_clusters.found_groups",
    "groups at home": "clients.known_clusters.found_groups",
    "likelihood": "strategies.known_clusters.likelihood_rounds",
    "likelihood at home": "clients.known_clusters.likelihood",
    "objective": "networks.training_objective",
    "own models": "networks.own_models",
    "outcomes": "clients.parts.outcomes",
    "outside": "strategies.rounds.outside",
    "own steps": "clients.parts.own_steps",
    "pairs": "core.pairs.sums",
    "prepared tables": "datasets.dealing.prepared_tables",
    "report": "app.report.document",
    "riding": "strategies.devices.riding",
    "robust": "core.robust",
    "round lines": "app.output.round_lines",
    "same data": "strategies.rounds.same_data",
    "sequence models": "networks.sequences",
    "server step": "strategies.rounds.server_step",
    "side by side": "app.studies.side_by_side",
    "sizes": "strategies.rounds.sizes",
    "stopping": "strategies.rounds.stopping",
    "studies": "app.studies.performing",
    "summed tables": "datasets.columns.summed",
    "tables": "core.tables",
    "together": "networks.together",
    "tracking": "app.tracking.tracker",
    "wrappers": "strategies.rounds.wrappers",
}
"""What attaches to a run only where it is of use, by the name of its place: who reads a round need
not know it."""


LIKELIHOODS = ("binomial", "poisson", "negative-binomial", "gamma")
"""Losses that are those of `families`, besides the logistic one; their labels keep their unit."""


def attached(place: str) -> Any:
    """The module that attaches at a place; NotInstalled if it was taken out."""
    return part(ATTACHED[place], place)


def part(module: str, what: str) -> Any:
    """A module of Corsage, which `what` needs; NotInstalled if it, or what it needs, is gone.

    A line names a file that is no Python.
    """
    try:
        return import_module(f"corsage.{module}")
    except ModuleNotFoundError as error:
        if not_installed(error) is None:
            raise
        raise NotInstalled(f"{what}: {not_installed(error)}") from error
    except SyntaxError as error:
        raise ConfigError(f"{what}: {error.filename}:{error.lineno}: {error.msg}.") from error


def not_installed(error: ModuleNotFoundError) -> str | None:
    """The line on a part of Corsage that is gone; None if the module is somebody else's."""
    floor, _, place = (error.name or "").partition(".")
    if floor != "corsage":
        return None
    return f"{place.replace('.', '/')} is not in this installation of Corsage."


def attachment(place: str) -> Any:
    """The module that attaches at a place, or None where its folder was taken out."""
    module = f"corsage.{ATTACHED[place]}"
    there = all(map(find_spec, (module.rpartition(".")[0], module)))
    return import_module(module) if there else None


def found(name: str, floor: str, suffix: str = "") -> Any:
    """A class of an algorithm, out of its file on a floor: `strategies` or `clients`."""
    module = part(place_of(name, floor), f"strategy={name}")
    cls = ALGORITHMS[name].cls + suffix
    if not hasattr(module, cls):
        raise ConfigError(f"strategy={name}: no class {cls} in {module.__file__}; see ALGORITHMS.")
    return getattr(module, cls)


def place_of(name: str, floor: str = "strategies") -> str:
    """The module of an algorithm, or of what it is a preset of, on a floor."""
    file = source(name)
    family = ALGORITHMS[file].family
    folder = f"{floor}.{family}" if family else floor
    return f"{folder}.{file.replace('-', '_')}"


def source(name: str) -> str:
    """The algorithm whose files an algorithm uses: itself, or what it is a preset of."""
    return ALGORITHMS[name].of or name


def keys_class(name: str) -> type[Keys]:
    """The keys of an algorithm's own; those of a preset are those of what it is a preset of."""
    declared: type[Keys] = found(source(name), "strategies").keys_class
    return declared


def algorithm_keys() -> dict[str, type[Keys]]:
    """The keys of each algorithm that has some, and was not taken out; presets have none.

    Who is at work on an algorithm is told of a mistake in its file, and helped all the same.
    """
    classes: dict[str, type[Keys]] = {}
    for name in (name for name, entry in ALGORITHMS.items() if not entry.of):
        try:
            classes[name] = keys_class(name)
        except NotInstalled:
            continue
        except ConfigError as error:
            log.warning("%s", error)
    return {name: cls for name, cls in classes.items() if cls is not NoKeys}


def data_set(name: str) -> Any:
    """The declaration of a data set in its file, or the one by its name of several there."""
    found = part(f"datasets.{DATASETS[name]}", f"dataset={name}").DATASET
    return found[name] if isinstance(found, dict) else found


def data_keys(name: str) -> type[DataKeys]:
    """The keys that a data set reads: those that all share, and those of its own."""
    declared: type[DataKeys] = data_set(name).keys
    return declared


def device_keys() -> type[DataKeys]:
    """The keys that say how a device reads a file of its own: those of CSV files."""
    declared: type[DataKeys] = import_module("corsage.datasets.shared_keys").CsvKeys
    return declared
