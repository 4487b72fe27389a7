"""Async-AL2SGD+ at the users: means to go to, local steps with an anchor, and refreshes.

Lyu et al. 2022, Algorithm 2, for all users of a cohort at once; the steps are solvers/known_clusters/katyusha.py's.
"""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from corsage.clients.convex import cached
from corsage.clients.known_clusters.async_l2gd import AsyncL2GDClient
from corsage.clients.known_clusters.cohort import Rows as Answered
from corsage.core.arrays import Floats
from corsage.core.seeding import uniforms, user_keys
from corsage.solvers.known_clusters.katyusha import Oracle, Parameters2, Rows, local_step, pull_step
from corsage.strategies.known_clusters.async_al2sgd import AsyncAL2SGDKeys

KEPT = ("z", "y", "x", "slope")


class AsyncAL2SGDClient(AsyncL2GDClient):
    """The users of Async-AL2SGD+; each keeps z_i, y_i, x_i and nabla f_i(x_i)."""

    def begin(self, config: dict[str, Any]) -> Answered:
        """x = y = z = theta^0, and the gradients there."""
        start = np.zeros((len(self.users), self.network.whole.stop))
        slope = self._gradient(start, np.arange(len(start)))
        for name, rows in zip(KEPT, (start, start, start, slope), strict=True):
            self.keep(name, rows)
        return {"slope": slope.mean(0)}, {}

    def step(self, config: dict[str, Any]) -> Answered:
        """The steps that were missed, the cluster's walk, and perhaps new anchors."""
        rows, settings = self._caught_up(), self._settings()
        keys = self.task.keys
        assert isinstance(keys, AsyncAL2SGDKeys)
        sample = self._sample_gradient if keys.al2sgd_oracle == "sample" else None
        users = np.arange(len(self.users))
        for r, k, first in json.loads(config["walk"]):
            for _ in range(r):
                theta = rows.theta(settings)
                rows = pull_step(rows, settings, theta, (theta.mean(0), None))
            for t in range(first, first + k):
                rows = local_step(rows, settings, t, self._gradient, sample, users)
        x, slope = rows.x, rows.slope
        if config["refresh"]:
            x, slope = rows.y, self._gradient(rows.y, users)
        for name, kept in zip(KEPT, (rows.z, rows.y, x, slope), strict=True):
            self.keep(name, kept)
        means = {"z": rows.z.mean(0), "y": rows.y.mean(0), "slope": slope.mean(0)}
        reach = float(np.linalg.norm(rows.y, axis=1).max())
        return {n: m for n, m in means.items() if n != "slope" or config["refresh"]}, {
            "reach": reach
        }

    def models(self) -> Tensor:
        """y_i."""
        if "y" not in self.state:
            return self.tensor(self.rows["start"]).expand(len(self.users), -1)
        return self.tensor(self._caught_up().y)

    def facts(self, config: dict[str, Any]) -> Answered:
        """L and mu; with one sample a step, L is that of the most curved sample."""
        arrays, numbers = super().facts(config)
        assert isinstance(self.task.keys, AsyncAL2SGDKeys)
        if self.task.keys.al2sgd_oracle == "sample":
            losses = self.losses
            squares = (losses.features**2).sum(1) + float(losses.intercept)
            counts = torch.from_numpy(losses.counts).to(squares.device)
            times = counts.repeat_interleave(counts) if losses.scale == "sum" else 1
            steepest = float((squares * times).max())
            numbers["smoothness"] = losses.loss.bound * steepest + losses.ridge
        return arrays, numbers

    def _caught_up(self) -> Rows:
        """The users after the aggregation steps that the server made for them."""
        n, d = len(self.users), self.network.whole.stop
        if "y" in self.state:
            z, y, x, slope = (np.asarray(self.state[name], np.float64) for name in KEPT)
        else:
            z = y = x = np.tile(self.rows["start"], (n, 1))
            slope = self._gradient(x, np.arange(n))
        settings = self._settings()
        oracle = Oracle(*(np.full(n, value) for value in self.options["oracle"]))
        centre = np.broadcast_to(self.rows["centre"], (n, d))
        rows = Rows(z, y, x, slope, centre, self.rows["middle"], oracle)
        for target in self.rows["targets"] if "y" in self.state else []:
            if target[-1] >= 0:
                middle = target[d : 2 * d] if target[-1] else None
                rows = pull_step(rows, settings, rows.theta(settings), (target[:d], middle))
        return rows

    def _settings(self) -> Parameters2:
        told, nothing = self.options["settings"], np.empty(0)
        return Parameters2(network=0.0, cluster=nothing, tau=nothing, **told)

    def _gradient(self, theta: Floats, users: NDArray[np.int64]) -> Floats:
        """nabla f_i(theta_i); `users` are always all of the cohort."""
        return np.asarray(self.losses.gradient(self.tensor(theta)).double().cpu().numpy())

    def _sample_gradient(self, t: int, theta: Floats, users: NDArray[np.int64]) -> Floats:
        """The gradient of one sample of each user, the one of iteration t, times their number."""
        losses = self.losses
        keys = cached(
            (*self._key, "draws"), lambda: user_keys(self.task.seed, "samples", self.users)
        )
        counts = losses.counts
        chosen = np.cumsum(counts) - counts + (uniforms(keys, t) * counts).astype(np.int64)
        rows = torch.from_numpy(chosen).to(losses.features.device)
        a, at = losses.features[rows], self.tensor(theta)
        if losses.intercept:
            a = torch.cat([a, a.new_ones(len(a), 1)], 1)
        slope = losses.loss.slope((a * at).sum(1), losses.labels[rows])
        if losses.scale == "sum":
            slope = slope * torch.from_numpy(counts).to(slope)
        gradient = slope[:, None] * a
        width = at.shape[1] - int(losses.intercept)
        gradient[:, :width] += losses.ridge * at[:, :width]
        return np.asarray(gradient.double().cpu().numpy())
