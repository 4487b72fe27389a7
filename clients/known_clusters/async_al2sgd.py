"""Async-AL2SGD+ at the users: means to go to, local steps with an anchor, and refreshes.

Lyu et al. 2022, Algorithm 2, for all users of a cohort at once; the steps are those of
solvers/known_clusters/coins/katyusha.py.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import numpy as np

from corsage.clients.base import Got, Models, Sent
from corsage.clients.convex import Answer
from corsage.clients.known_clusters.cohort import CohortClient, Walk
from corsage.core.arrays import Floats, Ints
from corsage.core.messages.asked import Takes, floats
from corsage.core.messages.fields import Flag, Listed, Real, Table, Text
from corsage.core.seeding import uniforms, user_keys
from corsage.networks.batches import Examples
from corsage.solvers.known_clusters.coins.al2sgd_coalescing import Missed, catch_up
from corsage.solvers.known_clusters.coins.katyusha import (
    Momenta,
    Oracle,
    Rows,
    local_step,
    pull_step,
)
from corsage.strategies.known_clusters.async_al2sgd import AsyncAL2SGDKeys


class AsyncAL2SGDClient(CohortClient[AsyncAL2SGDKeys]):
    """The users of Async-AL2SGD+; each keeps z_i, y_i, x_i and nabla f_i(x_i)."""

    takes = Takes(
        rows={
            "missed": floats("K", 2, "P"),
            **{name: floats("P") for name in ("start", "xbar", "xbar_j")},
        },
        options={
            "ask": Text(40),
            "gamma": Real(),
            "global": Listed(Flag()),
            "momenta": Table(dict.fromkeys(("eta", "a1", "a2", "b1", "b2"), Real())),
            "oracle": Listed(Real(), 6),
            "walk": Walk(),
            "refresh": Flag(),
        },
    )

    def answers(self) -> Mapping[str, Answer]:
        """The first gradients, steps of the algorithm, and facts about the losses."""
        return {"begin": self.begin, "step": self.step, "facts": self.facts}

    def begin(self, got: Got) -> Sent:
        """x = y = z = theta^0 = 0, and the gradients there."""
        start = np.zeros((len(self.users), self.network.whole.stop))
        slope = self.gradient(start, np.arange(len(start)))
        keep = {"z": start, "y": start, "x": start, "slope": slope}
        return Sent(rows={"slope": slope.mean(0)}, keep=keep)

    def step(self, got: Got) -> Sent:
        """The steps that were missed, the cluster's walk, and perhaps a refresh."""
        rows, momenta = self.caught_up(got), Momenta(**got.options["momenta"])
        sample = self.sample_gradient if self.keys.al2sgd_oracle == "sample" else None
        users = np.arange(len(self.users))
        for r, k, first in got.options["walk"]:
            for _ in range(r):
                theta = rows.theta(momenta)
                rows = pull_step(rows, momenta, theta, (theta.mean(0), None))
            for t in range(first, first + k):
                rows = local_step(rows, momenta, t, self.gradient, sample, users)
        means = {"z": rows.z.mean(0), "y": rows.y.mean(0)}
        if got.options["refresh"]:
            rows = replace(rows, x=rows.y, slope=self.gradient(rows.y, users))
            means["slope"] = rows.slope.mean(0)
        keep = {"z": rows.z, "y": rows.y, "x": rows.x, "slope": rows.slope}
        return Sent(rows=means, keep=keep, metrics={"reach": np.linalg.norm(rows.y, axis=1).max()})

    def models(self, got: Got) -> Models:
        """y_i."""
        if "y" not in self.state:
            return Models(np.tile(got.rows["start"], (len(self.users), 1)))
        return Models(self.caught_up(got).y)

    def adapt(self, got: Got, data: Examples, epochs: int) -> Models:
        """A new user minimises its own part of (2.3), f_i + gamma/2 |theta - w_j|^2."""
        return self.own_part(self.tensor(self.models(got).whole), got.options["gamma"])

    def facts(self, got: Got) -> Sent:
        """L and mu; with one sample a step, L is that of the most curved sample."""
        sent = super().facts(got)
        if self.keys.al2sgd_oracle != "sample":
            return sent
        steepest = np.array(self.losses.sample_smoothness())
        return replace(sent, metrics={**sent.metrics, "smoothness": steepest})

    def caught_up(self, got: Got) -> Rows:
        """The users after the aggregation steps that the server made for them."""
        n, d = len(self.users), self.network.whole.stop
        oracle = Oracle(*(np.full(n, value) for value in got.options["oracle"]))
        anchors = np.broadcast_to(got.rows["xbar_j"], (n, d)), got.rows["xbar"], oracle
        if "y" not in self.state:
            start = np.tile(got.rows["start"], (n, 1))
            slope = self.gradient(start, np.arange(n))
            return Rows(start, start, start, slope, *anchors)
        names = ("z", "y", "x", "slope")
        z, y, x, slope = (np.asarray(self.state[name], np.float64) for name in names)
        missed = Missed(got.rows["missed"], got.options["global"])
        momenta = Momenta(**got.options["momenta"])
        return catch_up(Rows(z, y, x, slope, *anchors), momenta, missed.targets)

    def gradient(self, theta: Floats, users: Ints) -> Floats:
        """nabla f_i(theta_i); `users` are always all of the cohort."""
        self.count(1)
        return np.asarray(self.losses.gradient(self.tensor(theta)).double().cpu().numpy())

    def sample_gradient(self, t: int, theta: Floats, users: Ints) -> Floats:
        """The gradient of one sample of each user, the one of iteration t, times their number."""
        losses, seed = self.losses, self.task.seed
        self.count(1)
        keys = self.prepared("draws", lambda: user_keys(seed, "samples", self.users))
        chosen = (uniforms(keys, t) * losses.counts).astype(np.int64)
        gradient = losses.sample_gradient(self.tensor(theta), chosen)
        return np.asarray(gradient.double().cpu().numpy())
