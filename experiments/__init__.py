"""Experiments of the papers, one file an experiment.

`EXPERIMENTS` is the registry: a name, and the module of this package that has it as `EXPERIMENT`.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from corsage.experiments.outcome import Experiment

EXPERIMENTS: dict[str, str] = {
    "fedrep-figure1": "fedrep.figure1",
    "fedrep-figure3": "fedrep.figure3",
    "fedrep-figure4": "fedrep.figure4",
    "fedrep-figure5": "fedrep.figure5",
    "fedrep-figure6": "fedrep.figure6",
    "fedrep-table1": "fedrep.table1",
    "fedrep-fashion-mnist": "fedrep.fashion_mnist",
    "fedrep-exact": "fedrep.exact",
    "heads": "fedrep.end_heads",
    "three-papers": "three_papers",
    "known-clusters-table1": "known_clusters.table1",
    "known-clusters-donors": "known_clusters.donors",
    "known-clusters-variances": "known_clusters.variances",
    "known-clusters-classes": "known_clusters.classes",
    "known-clusters-levels": "known_clusters.levels",
    "found": "known_clusters.found",
    "convex-clustering-figures": "convex_clustering.figures",
    "convex-clustering-pdmm": "convex_clustering.pdmm",
    "convex-clustering-partition": "convex_clustering.partition",
    "convex-clustering-heads": "convex_clustering.heads",
}


def experiment(name: str) -> Experiment:
    """The experiment of that name in the registry."""
    module = import_module(f"corsage.experiments.{EXPERIMENTS[name]}")
    return module.EXPERIMENT  # type: ignore[no-any-return]
