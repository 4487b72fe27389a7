"""gamma and lambda on `auto`: how the users' sums become variances, and variances strengths.

Lyu et al. 2022, Theorem 5.1: gamma_j = 1/s_j^2, lambda = 1/sb^2, in units of the noise. With the
squared loss restricted maximum likelihood (solvers/known_clusters/reml.py), one exchange and `known-refine`
more; with others EM (solvers/known_clusters/laplace.py), a step a round.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from flwr.serverapp import Grid

from corsage.app.cohorts import Cohort
from corsage.core.arrays import Floats
from corsage.core.errors import ConfigError
from corsage.core.replies import Outcome
from corsage.networks.criterion import criterion_of
from corsage.solvers.known_clusters.laplace import LaplaceSums, laplace_sums, laplace_variances
from corsage.solvers.known_clusters.reml import GRID, RemlSums, Variances, fit, refined_grid, shares
from corsage.strategies.known_clusters.base import Clustered
from corsage.strategies.known_clusters.conversation import Request, Talk
from corsage.strategies.known_clusters.strengths import AUTO

SMALLEST = 1e-6
"""Variances that EM finds below this are taken for this: strengths stay finite."""
Table = dict[str, Any]


class Estimated(Clustered):
    """A method that can estimate the strengths."""

    @property
    def loss_name(self) -> str:
        """The loss, `auto` resolved."""
        return criterion_of(self.config.model, self.roster.num_classes).name

    @property
    def exact(self) -> bool:
        """Whether the losses are quadratic."""
        return self.loss_name == "squared"

    @property
    def estimates(self) -> bool:
        """Whether one of the strengths is on auto."""
        return AUTO in (self.cluster_keys.known_gamma, self.cluster_keys.known_lambda)

    def check_estimates(self) -> None:
        """Refuse settings under which variances mean nothing."""
        if not self.estimates:
            return
        keys, model = self.cluster_keys, self.config.model
        if model.loss_scale == "mean" or model.ridge:
            raise ConfigError(
                f"loss-scale={model.loss_scale} ridge={model.ridge:g}: strengths on auto are of "
                "losses that are sums, without a ridge: set loss-scale=sum ridge=0, or numbers for "
                "known-gamma and known-lambda."
            )
        given = {keys.known_gamma, keys.known_lambda} - {AUTO}
        if not self.exact and given & {"0", "0.0", "inf"}:
            raise ConfigError(
                f"known-gamma={keys.known_gamma} known-lambda={keys.known_lambda}: with "
                f"loss={self.loss_name} and the other one on auto it must be finite and above 0."
            )

    def count_sums(self, requests: list[Request]) -> None:
        """Count what devices of one user would exchange: what is shown down, their sums up."""
        traffic = self.state.traffic
        for request in requests:
            users = len(request.cohort.users)
            down, up = (
                users * sum(array.nbytes for array in arrays.values())
                for arrays in (request.rows, request.template)
            )
            traffic.bytes_down += down
            traffic.bytes_up += up
            traffic.messages += users * ((down > 0) + (up > 0))

    # The squared loss: restricted maximum likelihood.

    def reml(self, grid: Grid) -> tuple[RemlSums, Variances, Outcome]:
        """The sums, what is fitted to them, and who answered."""
        ratios: Floats = np.tile(GRID, (len(self.here), 1))
        for _ in range(1 + self.cluster_keys.known_refine):
            heard: dict[str, dict[str, Floats]] = {}
            groups = self.cohorts_by_cluster()
            talks = {
                name: self._ask_reml(group, ratios[self.here.index(name)], heard)
                for name, group in groups.items()
            }
            outcome = self.converse(grid, talks)
            self.check_heard(self.state.round + 1, outcome)
            if missing := [name for name in self.here if name not in heard]:
                raise ConfigError(f"{self.name}: no user of cluster {missing[0]} answered.")
            parts = [heard[name] for name in self.here]
            rows = {what: np.stack([part[what] for part in parts]) for what in parts[0]}
            sums = RemlSums.from_arrays(rows, ratios)
            found = fit(sums)
            ratios = refined_grid(found)
        self.state.scalars["variances"] = told_variances(found, self.here)
        return sums, found, outcome

    def _ask_reml(
        self, cohorts: list[Cohort], ratios: Floats, heard: dict[str, dict[str, Floats]]
    ) -> Talk:
        """One cluster's sums for these ratios rho, added up over its cohorts."""
        size, d = len(ratios), len(self.state.arrays["model"])
        shapes: dict[str, tuple[int, ...]] = {
            "p": (size, d * (d + 1) // 2), "q": (size, d), "yy": (size,), "ld": (size,),
            "records": (), "users": (), "trace": (),
        }  # fmt: skip
        template = {name: np.zeros(shape) for name, shape in shapes.items()}
        options = {"ask": "reml", "ratios": ratios.tolist()}
        requests = [Request(cohort, {}, options, template) for cohort in cohorts]
        answers = yield requests
        self.count_sums(requests)
        heard[cohorts[0].cluster] = {
            name: np.sum([answer.rows[name] for answer in answers], axis=0) for name in template
        }

    # Other losses: EM.

    def expected_gamma(self, parts: list[LaplaceSums]) -> Floats:
        """gamma by coordinate (k, d) from the users' squares and spreads: one for all clusters."""
        names = ("squares", "spreads", "users")
        sums = LaplaceSums(*(np.concatenate([getattr(p, n) for p in parts]) for n in names))
        variances = np.maximum(laplace_variances(sums), SMALLEST)
        self.state.scalars["spread"] = {"users": variances[0].tolist()}
        return np.asarray(1 / variances)

    def expected_lambda(self, p: Floats, q: Floats, lam: Floats, top: Floats) -> Floats:
        """lambda by coordinate (d,): clusters are to wbar what users are to w_j."""
        k = len(p)
        middle = np.broadcast_to(self.state.arrays["model"], q.shape)
        around = np.broadcast_to(top, p.shape)
        sums = laplace_sums(p, q, lam, middle, around, np.zeros(k, np.int64), 1)
        variances = np.maximum(laplace_variances(sums)[0], SMALLEST)
        self.state.scalars["spread"]["clusters"] = variances.tolist()
        return np.asarray(1 / variances)

    # What was found, in words.

    def variance_findings(self) -> list[Table]:
        """Variances and shares, as a mixed-model package prints them."""
        scalars = self.state.scalars
        if found := scalars.get("variances"):
            return [reml_table(found)]
        if spread := scalars.get("spread"):
            title = "variances by coefficient (Laplace's approximation)"
            return [{"title": title, "rows": [[k, numbers(v)] for k, v in spread.items()]}]
        return []


def told_variances(found: Variances, names: list[str]) -> Table:
    """A fit as the checkpoint can hold it."""
    return {
        "sigma2": found.sigma2,
        "user": dict(zip(names, np.broadcast_to(found.user, len(names)).tolist(), strict=True)),
        "cluster": found.cluster,
        "shares": list(shares(found)),
        "middle": found.centres.wbar.tolist(),
        "loglik": found.loglik,
        "aic": found.aic,
        "common": found.common,
    }


def reml_table(found: Table) -> Table:
    """A fit as rows of text."""
    records, users, clusters = (f"{100 * share:.2f}% of the variance" for share in found["shares"])
    spread = list(found["user"].values())
    user = f"{spread[0]:.5g}" if found["common"] else f"{min(spread):.4g} to {max(spread):.4g}"
    how = "one for all clusters" if found["common"] else "one for each cluster"
    rows = [
        ["between records (sigma^2)", f"{found['sigma2']:.5g}, {records}"],
        ["between users (s^2)", f"{user}, {users} ({how}, by AIC)"],
        ["between clusters (sb^2)", f"{found['cluster']:.5g}, {clusters}"],
        ["middle (wbar)", numbers(found["middle"])],
        ["log likelihood", f"{found['loglik']:.3f} (AIC {found['aic']:.3f})"],
    ]
    if len(spread) == 1:
        rows[1][1], rows[2:3] = f"{user}, {users}", []
    return {"title": "variances (restricted maximum likelihood)", "rows": rows}


def numbers(values: list[float]) -> str:
    """Some numbers in one line."""
    words = [f"{value:.4g}" for value in values[:8]]
    return ", ".join(words) + (f", ... ({len(values)} in all)" if len(values) > 8 else "")
