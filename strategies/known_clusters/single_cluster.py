"""Personal models around one centre, clusters ignored: the squared penalty, solved exactly.

    min over theta_i of  sum_i f_i(theta_i) + lambda/2 sum_i |theta_i - thbar|^2,

Lyu et al. 2022, section 6.1 (single-cluster); with lambda = 2 N gamma, (4) of Armacki et al. 2022
(in the scale of its sum of losses). It is the mixed model with everybody in one cluster.

lambda is a number; `auto`, by maximum likelihood; or `cv`, by cross-validation over 20 values in
[0.01, 2], as in the paper: two exchanges of sums over five folds of every user's samples.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from corsage.core.arrays import Arrays
from corsage.core.errors import ConfigError
from corsage.core.keys import key
from corsage.solvers.known_clusters.folds import HELD_OUT_FOLDS, SINGLE_CENTRE_GRID, solved
from corsage.solvers.known_clusters.mixed_model import unpack
from corsage.strategies.known_clusters.clusters.cohorts import KnownClusters
from corsage.strategies.known_clusters.clusters.strengths import AUTO
from corsage.strategies.known_clusters.coins.conversation import Request, ask_each, check_enough
from corsage.strategies.known_clusters.mixed_model import MixedModel, solver
from corsage.strategies.known_clusters.mixed_solution import MixedSolution
from corsage.strategies.known_clusters.mixed_state import ALL_COLUMNS, FOUND, MixedModelKeys
from corsage.strategies.rounds.results import Finding
from corsage.strategies.rounds.turns import Script

CV = "cv"


@dataclass(frozen=True)
class SingleClusterKeys(MixedModelKeys):
    """Keys of the single cluster; of the mixed model's it has its own strengths and clusters."""

    title = "Single cluster"
    asks = "numbers or classes"

    single_cluster_lambda: str = key(
        AUTO, "pull of users to their one centre: a number, auto, or cv: by cross-validation"
    )

    @property
    def folded(self) -> bool:
        """True if lambda is found by cross-validation."""
        return self.single_cluster_lambda == CV


class SingleCluster(MixedModel[SingleClusterKeys]):
    """The server of the single cluster."""

    name = "single-cluster"

    @cached_property
    def clusters(self) -> KnownClusters:
        """Everybody is in one."""
        return KnownClusters(self.job, together=True)

    @property
    def solution(self) -> MixedSolution:
        """The mixed model's, with lambda^sc for gamma."""
        wanted = self.keys.single_cluster_lambda
        return self.solution_with("1" if wanted == CV else wanted)

    def solution_with(self, strength: str) -> MixedSolution:
        """The solution with this lambda^sc. Of one cluster w is wbar, whatever lambda_j says."""
        keys = replace(self.keys, known_gamma=strength, known_lambda="1")
        return solver(self.job)(self.job, self.clusters, keys, self.state)

    def opening(self) -> Script[None]:
        """Choose lambda by cross-validation, if that is wanted."""
        if self.keys.mixed_grouping == FOUND:
            raise ConfigError(
                "mixed-grouping=found: single-cluster has one; mixed-model finds them."
            )
        if self.keys.single_cluster_lambda != CV or self.state.strengths.lam:
            yield from super().opening()
            return
        if self.job.loss != "squared":
            raise ConfigError(
                f"single-cluster-lambda=cv: for the squared loss, not loss={self.job.loss}; "
                "set a number, or auto."
            )
        if self.keys.mixed_random != ALL_COLUMNS:
            raise ConfigError(
                "single-cluster-lambda=cv: with mixed-random=all; set a number or auto."
            )
        chosen = yield from self._cross_validated()
        self.solution_with(str(chosen)).begin()

    def _cross_validated(self) -> Script[float]:
        """The lambda of the grid with the least squared error on left-out samples."""
        d, size = len(self.state.model), len(SINGLE_CENTRE_GRID)
        sums = {
            "p": np.zeros((HELD_OUT_FOLDS, size, d * (d + 1) // 2)),
            "q": np.zeros((HELD_OUT_FOLDS, size, d)),
        }
        found = yield from self._sum("folds", {}, sums)
        centres = solved(unpack(found["p"], d), found["q"])
        errors = yield from self._sum("held-out", {"centres": centres}, {"errors": np.zeros(size)})
        return float(SINGLE_CENTRE_GRID[errors["errors"].argmin()])

    def _sum(self, ask: str, rows: Arrays, template: Arrays) -> Script[Arrays]:
        """One exchange; the sum of all answers."""
        asked = ask_each(
            self.job,
            self.clusters.meet(self.state.clusters),
            lambda cohort: Request(cohort, rows, {"ask": ask}, template),
        )
        replies = yield asked
        check_enough(self.job, self.progress.round, replies)
        answers = [answer for group in asked.found.values() for answer in group]
        return {name: np.sum([a.rows[name] for a in answers], axis=0) for name in template}

    def findings(self) -> list[Finding]:
        """The strength, too."""
        found = super().findings()
        how = {CV: ", by cross-validation", AUTO: ", estimated"}
        chosen = f"{self.state.used[0, 0]:.4g}" + how.get(self.keys.single_cluster_lambda, "")
        found[0].rows.append(("lambda", chosen))
        return found
