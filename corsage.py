"""Corsage: personalised federated learning on Flower. Makes its folder the package `corsage`.

In a checkout the folders beside this file are the sub-packages; in the wheel this file is the
package's `__init__.py` beside the same folders. The public names are loaded when they are used.
"""

import os
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

# Before torch: products that its MKL rounds alike wherever in memory their matrices begin.
os.environ.setdefault("MKL_CBWR", "AUTO")
__path__ = [str(Path(__file__).parent)]

from corsage.core.clock import LOADED  # noqa: F401 (first of all: from then on a command's time counts)
from corsage.core.registry import ALGORITHMS
from corsage.core.version import VERSION

if TYPE_CHECKING:  # what type checkers and editors see
    from corsage.app.client_app import app as client_app
    from corsage.app.client_app import make_client_app
    from corsage.app.fitting import fit
    from corsage.app.local_grid import LocalGrid
    from corsage.app.run.loaded import load
    from corsage.app.simulation import simulate
    from corsage.app.study import study
    from corsage.core.configuration.config import Config
    from corsage.solvers.convex_clustering.estimator import ConvexClustering
    from corsage.strategies.apfl import APFL
    from corsage.strategies.cfl import CFL
    from corsage.strategies.convex_clustering.convex_clustering import (
        ConvexClustering as ConvexClusteringStrategy,
    )
    from corsage.strategies.convex_clustering.local_clusters import LocalClusters
    from corsage.strategies.ditto import Ditto
    from corsage.strategies.fedala import FedALA
    from corsage.strategies.fedamp import FedAMP
    from corsage.strategies.fedavg import FedAvg
    from corsage.strategies.fedbabu import FedBABU
    from corsage.strategies.fedbn import FedBN
    from corsage.strategies.feddbe import FedDBE
    from corsage.strategies.feddyn import FedDyn
    from corsage.strategies.fedem import FedEM
    from corsage.strategies.fedfomo import FedFomo
    from corsage.strategies.fedlc import FedLC
    from corsage.strategies.fedmtl import FedMTL
    from corsage.strategies.fedpac import FedPAC
    from corsage.strategies.fedper import FedPer
    from corsage.strategies.fedproto import FedProto
    from corsage.strategies.fedprox import FedProx
    from corsage.strategies.fedrep.fedrep import FedRep
    from corsage.strategies.fedrep.fedrep_convex import FedRepConvex
    from corsage.strategies.fedrep.fedrep_exact import FedRepExact
    from corsage.strategies.fedrep.fedrep_known import FedRepKnown
    from corsage.strategies.fedrod import FedRoD
    from corsage.strategies.gpfl import GPFL
    from corsage.strategies.ifca import IFCA
    from corsage.strategies.knn_per import KNNPer
    from corsage.strategies.known_clusters.async_al2sgd import AsyncAL2SGD
    from corsage.strategies.known_clusters.async_l2gd import AsyncL2GD
    from corsage.strategies.known_clusters.mixed_model import MixedModel
    from corsage.strategies.known_clusters.mixed_model import MixedModel as ExactCluster
    from corsage.strategies.known_clusters.mixed_model import MixedModel as ExactGlobal
    from corsage.strategies.known_clusters.mixed_model import MixedModel as ExactLocal
    from corsage.strategies.known_clusters.mixed_model import MixedModel as RandomIntercepts
    from corsage.strategies.known_clusters.single_cluster import SingleCluster
    from corsage.strategies.l2gd import L2GD
    from corsage.strategies.lg_fedavg import LGFedAvg
    from corsage.strategies.local import Local
    from corsage.strategies.moon import MOON
    from corsage.strategies.mr_mtl import MRMTL
    from corsage.strategies.perfedavg import PerFedAvg
    from corsage.strategies.pfedme import PFedMe
    from corsage.strategies.rounds.base import Strategy
    from corsage.strategies.rounds.callbacks import Callback
    from corsage.strategies.scaffold import Scaffold

__version__ = VERSION

PLACES = {
    "Config": "core.configuration.config",
    "simulate": "app.simulation",
    "fit": "app.fitting",
    "load": "app.run.loaded",
    "study": "app.study",
    "LocalGrid": "app.local_grid",
    "client_app": "app.client_app",
    "make_client_app": "app.client_app",
    "Strategy": "strategies.rounds.base",
    "Callback": "strategies.rounds.callbacks",
    "ConvexClustering": "solvers.convex_clustering.estimator",
}
"""Where the public names are that are no algorithms."""

__all__ = [
    "APFL",
    "CFL",
    "GPFL",
    "IFCA",
    "L2GD",
    "MOON",
    "MRMTL",
    "AsyncAL2SGD",
    "AsyncL2GD",
    "Callback",
    "Config",
    "ConvexClustering",
    "ConvexClusteringStrategy",
    "Ditto",
    "ExactCluster",
    "ExactGlobal",
    "ExactLocal",
    "FedALA",
    "FedAMP",
    "FedAvg",
    "FedBABU",
    "FedBN",
    "FedDBE",
    "FedDyn",
    "FedEM",
    "FedFomo",
    "FedLC",
    "FedMTL",
    "FedPAC",
    "FedPer",
    "FedProto",
    "FedProx",
    "FedRep",
    "FedRepConvex",
    "FedRepExact",
    "FedRepKnown",
    "FedRoD",
    "KNNPer",
    "LGFedAvg",
    "Local",
    "LocalClusters",
    "LocalGrid",
    "MixedModel",
    "PFedMe",
    "PerFedAvg",
    "RandomIntercepts",
    "Scaffold",
    "SingleCluster",
    "Strategy",
    "client_app",
    "fit",
    "load",
    "make_client_app",
    "simulate",
    "study",
]


if not TYPE_CHECKING:  # a name that there is not is an error to type checkers

    def __getattr__(name: str) -> Any:
        """A public name, imported when it is first used."""
        if name in PLACES:
            place = import_module(f"corsage.{PLACES[name]}")
            return place.app if name == "client_app" else getattr(place, name)
        for algorithm, entry in ALGORITHMS.items():
            if entry.public == name:
                return import_module("corsage.strategies").strategy_class(algorithm)
        raise AttributeError(f"corsage has no {name!r}")


def __dir__() -> list[str]:
    """The public names, for completion."""
    return sorted({*globals(), *__all__})


if __name__ == "__main__":  # python -m corsage, in a checkout
    import_module("corsage.app.command").main()
