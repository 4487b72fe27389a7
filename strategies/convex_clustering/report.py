"""What convex clustering asks for besides its rounds: lambda before, clusters after them."""

from __future__ import annotations

from typing import Any

import numpy as np
from flwr.app import ConfigRecord
from flwr.serverapp import Grid

from corsage.core.arrays import Floats, Ints
from corsage.solvers.convex_clustering import recovery, sum_of_norms
from corsage.solvers.convex_clustering.edges import Edges
from corsage.solvers.convex_clustering.lambda_choice import choose_for_clusters, choose_for_models
from corsage.solvers.convex_clustering.reading import (
    Reading,
    candidates,
    fused,
    judged,
    read,
    refit,
)
from corsage.solvers.losses.convex import Losses
from corsage.strategies.convex_clustering.questions import Asking
from corsage.strategies.convex_clustering.remote_losses import RemoteUsers

PATH = 1e-6
"""Relative gap of the solutions that lambda is chosen from."""
NAMED = 12
"""Clusters that are listed one by one."""


class Reported(Asking):
    """Convex clustering's questions and its report."""

    @property
    def edges(self) -> Edges:
        """Whom the penalty joins."""
        raise NotImplementedError

    # lambda.

    def choose_lambda(self) -> float:
        """lambda by held-out samples, or by the clusters that it proposes."""
        users, scalars = RemoteUsers(self.ask, *self.models.shape), self.state.scalars

        def path(losses: Losses, lams: Floats) -> list[Floats]:
            solutions = sum_of_norms.path(losses, lams.tolist(), self.edges, tolerance=PATH)
            return [solution.x for solution in solutions]

        if self.config.algorithm[self.name].convex_lambda == "clusters":  # type: ignore[attr-defined]
            found = choose_for_clusters(users, path)
            scalars["labels"] = found.labels.tolist()
            scalars["gain"] = None if np.isnan(found.gain) else [found.gain, found.error]
            lam = found.lam
        else:
            lam = choose_for_models(users, path).lam
        scalars["questions-for-lambda"] = scalars["questions"]
        return lam

    # Clusters.

    def _finish(self, grid: Grid, config: ConfigRecord) -> list[dict[str, Any]]:
        """Certify and read the models before the final results are made."""
        last = self._last_evaluation
        if self.state.scalars.get("certified-round") != self.state.round:
            self.certify()
        if "reading" not in self.state.scalars:
            self.state.scalars["reading"] = self._read()
        self._last_evaluation = last
        return super()._finish(grid, config)

    def certify(self) -> None:
        """Compute the duality gap."""
        raise NotImplementedError

    def extra_evaluations(self) -> dict[str, dict[str, Any]]:
        """The clusters' own models, without any pull between them."""
        return {f"{self.name}+refit": {"refit": True}} if "refit" in self.state.arrays else {}

    def _read(self) -> dict[str, Any]:
        """The clusters of the models, whether they are exact, and what theory says of them."""
        scalars, x, losses, edges = self.state.scalars, self.models, self.losses, self.edges
        distinct, lam = fused(x), float(scalars["lambda"])
        reading: dict[str, Any] = {"distinct": int(distinct.max()) + 1}
        wanted = self.config.algorithm[self.name].convex_report  # type: ignore[attr-defined]
        labels = distinct
        if "labels" in scalars:
            labels = np.array(scalars["labels"])
        elif lam > 0 and not wanted:
            labels = next(candidates(x), distinct)
        if wanted and lam > 0 and len(edges):
            chosen = "labels" in scalars
            found = judged(losses, labels, lam, edges) if chosen else read(losses, x, lam, edges)
            labels = found.labels
            reading |= self._theory(losses, found, edges)
        reading["labels"] = labels.tolist()
        if wanted:
            reading["not-refitted"] = self._refit(losses, labels)
        return reading

    def _refit(self, losses: Losses, labels: Ints) -> int:
        """The clusters' own models; how many clusters have none, and keep the mean instead."""
        x, models = self.models, refit(losses, labels)
        usable = np.isfinite(models.sum(1))
        fallback = np.stack([x[labels == k].mean(0) for k in range(len(models))])
        self.state.arrays["refit"] = np.where(usable[:, None], models, fallback)[labels]
        return int((~usable).sum())

    def _theory(self, losses: Losses, found: Reading, edges: Edges) -> dict[str, Any]:
        """The certificate of a partition, and the bounds on lambda of section III."""
        labels = found.labels
        told: dict[str, Any] = {"exact": found.exact, "gap": found.gap}
        if edges.complete:
            told["necessary"] = recovery.necessary(losses, labels, found.models)
            told["theorem1"] = recovery.theorem1(losses, labels, found.models)
            if len(found.models) > 1:
                told["theorem2"] = recovery.theorem2(losses, labels, found.models)
        return told

    # In words.

    def findings(self) -> list[dict[str, Any]]:
        """The certificate and the clusters."""
        scalars = self.state.scalars
        reading = scalars.get("reading", {})
        found = [{"title": "solution", "rows": self._solution(scalars)}]
        if reading:
            found.append({"title": "clusters", "rows": self._clusters(reading)})
        return found

    def _solution(self, scalars: dict[str, Any]) -> list[list[str]]:
        relative, asked = scalars.get("relative"), scalars.get("questions-for-lambda")
        how = f" (found by {asked:,} exchanges)" if asked else ""
        proof = "not certified: not all users answered, or one has no best model under its duals"
        if relative is not None:
            proof = f"certified: relative gap {relative:.0e}"
        rows = [["lambda", f"{scalars['lambda']:.6g}{how}"], ["optimality", proof]]
        if scalars.get("value") is not None:
            rows.append(["objective", f"{scalars['value']:.8g}"])
        rows.append(["exchanges besides the rounds", f"{scalars.get('questions', 0):,}"])
        return rows

    def _clusters(self, reading: dict[str, Any]) -> list[list[str]]:
        """Counts, exactness, bounds, names and sizes."""
        labels, users = np.array(reading["labels"]), self.state.scalars["users"]
        count = int(labels.max()) + 1
        how = {True: "exact", False: "approximate", None: "not certified"}[reading.get("exact")]
        rows = [
            ["distinct models", str(reading["distinct"])],
            ["clusters", f"{count}, {how}" + gap_of(reading)],
        ]
        if count == 1 and reading.get("exact"):
            rows.append(["", "lambda is at or above consensus: this is the global model"])
        if gain := self.state.scalars.get("gain"):
            rows.append(["gain over one model", f"{gain[0]:.3g} ± {gain[1]:.2g} (held-out loss)"])
        lam = float(self.state.scalars["lambda"])
        for name, needs, holds in (
            ("necessary", "necessary: lambda at least", lam >= reading.get("necessary", 0)),
            ("theorem1", "sufficient, Theorem 1: at least", lam >= reading.get("theorem1", np.inf)),
            ("theorem2", "sufficient, Theorem 2: below", lam < reading.get("theorem2", 0)),
        ):
            if name in reading:
                rows.append([needs, f"{reading[name]:.6g}: {'yes' if holds else 'no'}"])
        if reading.get("not-refitted"):
            rows.append(["clusters without a best model", f"{reading['not-refitted']}"])
        if reading.get("exact") and 1 < count < len(labels):
            rows.append(
                ["", "such a window of lambda can be narrow, or not exist for other samples"]
            )
        for k in range(min(count, NAMED)):
            own = [user for user, label in zip(users, labels, strict=True) if label == k]
            some = ", ".join(own[:6]) + (", ..." if len(own) > 6 else "")
            rows.append([f"cluster {k}", f"{len(own)} users: {some}"])
        return rows


def gap_of(reading: dict[str, Any]) -> str:
    """The certificate of a partition in words."""
    return f" (relative gap of the fused models {reading['gap']:.0e})" if "gap" in reading else ""
