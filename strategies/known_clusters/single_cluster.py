"""Personal models around one centre, clusters ignored: the squared penalty, solved exactly.

    min over theta_i of  sum_i f_i(theta_i) + lambda/2 sum_i |theta_i - thbar|^2,

Lyu et al. 2022, section 6.1 (single-cluster); with lambda = 2 N gamma, (4) of Armacki et al. 2022
(in the scale of its sum of losses). It is the mixed model with everybody in one cluster.

lambda is a number; `auto`, by maximum likelihood; or `cv`, by cross-validation over 20 values in
[0.01, 2], as in the paper: two exchanges of sums over five folds of every user's samples.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from flwr.serverapp import Grid

from corsage.app.cohorts import Cohort
from corsage.core.arrays import Arrays
from corsage.core.errors import ConfigError
from corsage.core.keys import Keys, key
from corsage.solvers.known_clusters.mixed_model import unpack
from corsage.solvers.known_clusters.pooling import FOLDS, SINGLE_CENTRE_GRID, solved
from corsage.strategies.known_clusters.conversation import Request
from corsage.strategies.known_clusters.mixed_model import MixedModel, MixedModelKeys
from corsage.strategies.known_clusters.strengths import AUTO

CV = "cv"


@dataclass(frozen=True)
class SingleClusterKeys(Keys):
    """Keys of the single cluster."""

    title = "Single cluster"

    single_cluster_lambda: str = key(
        AUTO, "pull of users to their one centre: a number, auto, or cv: by cross-validation"
    )


class SingleCluster(MixedModel):
    """The server of the single cluster."""

    name = "single-cluster"
    together = True

    @property
    def wanted(self) -> str:
        """The strength as it is asked for."""
        assert isinstance(self.keys, SingleClusterKeys)
        return self.keys.single_cluster_lambda

    @property
    def mixed_keys(self) -> MixedModelKeys:
        """The mixed model's, with lambda^sc for gamma."""
        chosen = self.state.scalars.get("chosen", self.wanted)
        gamma = "1" if chosen == CV else str(chosen)
        # Of one cluster w is wbar, whatever lambda_j says.
        return replace(super().mixed_keys, known_gamma=gamma, known_lambda="1")

    def open(self, grid: Grid) -> None:
        """Choose lambda by cross-validation, if that is wanted."""
        if self.wanted == CV and "chosen" not in self.state.scalars:
            if not self.exact:
                raise ConfigError(
                    f"single-cluster-lambda=cv: for the squared loss, not loss={self.loss_name}; "
                    "set a number, or auto."
                )
            self.state.scalars["chosen"] = self._cross_validated(grid)
        super().open(grid)

    def _cross_validated(self, grid: Grid) -> float:
        """The lambda of the grid with the least squared error on left-out samples."""
        d, size = len(self.state.arrays["model"]), len(SINGLE_CENTRE_GRID)
        sums = {
            "p": np.zeros((FOLDS, size, d * (d + 1) // 2)),
            "q": np.zeros((FOLDS, size, d)),
        }
        found = self._sum(grid, {}, "folds", sums)
        centres = solved(unpack(found["p"], d), found["q"])
        errors = self._sum(grid, {"centres": centres}, "held_out", {"errors": np.zeros(size)})
        return float(SINGLE_CENTRE_GRID[errors["errors"].argmin()])

    def _sum(self, grid: Grid, rows: Arrays, ask: str, template: Arrays) -> Arrays:
        """One exchange; the sum of all answers."""
        nobody = Cohort("", "", 0, ())
        answers = self.ask_all(grid, Request(nobody, rows, {"ask": ask}, template))
        return {name: np.sum([a.rows[name] for a in answers], axis=0) for name in template}

    def findings(self) -> list[dict[str, Any]]:
        """The strength, too."""
        found = super().findings()
        strength = float(self.state.arrays["used"][0, 0])
        how = {CV: ", by cross-validation", AUTO: ", estimated"}.get(self.wanted, "")
        found[0]["rows"].append(["lambda", f"{strength:.4g}{how}"])
        return found
