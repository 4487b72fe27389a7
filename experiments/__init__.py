"""Experiments of the papers, one file an experiment.

`EXPERIMENTS` is the registry: a name, and the module of this package that has it as `EXPERIMENT`.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from corsage.experiments.outcome import Experiment

EXPERIMENTS: dict[str, str] = {
    "fedrep-figure1": "fedrep_figure1",
    "fedrep-figure3": "fedrep_figure3",
    "fedrep-figure4": "fedrep_figure4",
    "fedrep-figure5": "fedrep_figure5",
    "fedrep-figure6": "fedrep_figure6",
    "fedrep-table1": "fedrep_table1",
    "fedrep-fashion-mnist": "fedrep_fashion_mnist",
    "known-clusters-table1": "known_clusters_table1",
    "known-clusters-convergence": "known_clusters_convergence",
    "known-clusters-donors": "known_clusters_donors",
    "known-clusters-chem97": "known_clusters_chem97",
    "convex-clustering-figures": "convex_clustering_figures",
    "convex-clustering-pdmm": "convex_clustering_pdmm",
    "convex-clustering-path": "convex_clustering_path",
    "convex-clustering-classic": "convex_clustering_classic",
    "convex-clustering-heads": "convex_clustering_heads",
}


def experiment(name: str) -> Experiment:
    """The experiment of that name in the registry."""
    module = import_module(f"corsage.experiments.{EXPERIMENTS[name]}")
    return module.EXPERIMENT  # type: ignore[no-any-return]
