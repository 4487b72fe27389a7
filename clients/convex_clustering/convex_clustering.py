"""Convex clustering at the users: one proximal step a round, and answers about f_i.

Armacki et al. 2022, (16): a user solves argmin f_i(x) + kappa/2 |x - p|^2 for the p and kappa that
the server sends; it keeps nothing between rounds.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import numpy as np
import torch

from corsage.clients.base import Got, Models, Sent
from corsage.clients.convex import Answer
from corsage.clients.convex_clustering.folded import FoldedClient, doubles, numbers
from corsage.core.arrays import Arrays, Floats
from corsage.core.messages.asked import Takes, floats
from corsage.core.messages.fields import Flag, Listed, Real, Text, Whole
from corsage.networks.batches import Examples
from corsage.solvers.convex_clustering.exact.costs import user_terms
from corsage.solvers.convex_clustering.expansions import Expansion, Probe, answer
from corsage.solvers.losses.convex import SmoothLosses
from corsage.solvers.losses.held_out import Fold
from corsage.strategies.convex_clustering.models import WEAK_PULL

PROBE_POINTS, SLOPES = "points", "slopes"
"""Rows of probes: several points and slopes a user."""
MOST_FOLDS, MOST_POINTS = 100, 10_000


class ConvexClusteringClient(FoldedClient):
    """The users of convex clustering."""

    takes = Takes(
        shared={"known": floats("K", "P")},
        rows={name: floats("P") for name in ("p", "x", "v", "slope")}
        | {
            "kappa": floats(),
            "own": floats(),
            PROBE_POINTS: floats("K", "P"),
            SLOPES: floats("K", "P"),
        },
        options={
            "ask": Text(40),
            "fold": Text(100),
            "fold-number": Whole(high=1000),
            "fold-share": Real(0, 1),
            "folds": Listed(Text(100), MOST_FOLDS),
            "fold-numbers": Listed(Whole(high=1000), MOST_FOLDS),
            "fold-shares": Listed(Real(0, 1), MOST_FOLDS),
            "of-fold": Listed(Whole(high=MOST_FOLDS), MOST_POINTS),
            "shares": Listed(Real(0), MOST_POINTS),
            "bounds": Listed(Flag(), MOST_POINTS),
            "refit": Flag(),
            "chosen": Flag(),
        },
        squares=4,
        many=PROBE_POINTS,
    )

    usual_question = "prox"

    def answers(self) -> Mapping[str, Answer]:
        """The questions that the server may ask."""
        return {
            "prox": self.prox,
            "gradient": self.gradient,
            "hessian": self.hessian,
            "minimise": self.minimise,
            "slack": self.slack,
            "facts": self.facts,
            "held_out": self.held_out,
            "expand": self.expand,
        }

    def respond(self, got: Got) -> Sent:
        """Answer what is asked; by default a proximal step."""
        sent = super().respond(got)
        return replace(sent, metrics={"num-examples": self.sizes, **sent.metrics})

    def models(self, got: Got) -> Models:
        """Each user's model, as the server has it; its own best one if it is left out there."""
        x = self.tensor(got.rows["x"])
        if "own" in got.rows:
            kappa = WEAK_PULL * self.tensor(self.facts(got).metrics["curvature"])
            best, held = self.problem.minimise(), self.problem.prox(x, kappa, start=x)
            alone = self.tensor(got.rows["own"])[:, None] > 0
            x = torch.where(alone, torch.where(best.isfinite(), best, held), x)
        return Models(numbers(x))

    def adapt(self, got: Got, data: Examples, epochs: int) -> Models:
        """A new user takes the federation's model that fits its own samples best."""
        known = self.tensor(got.shared["known"])
        alike = (model.expand(len(self.users), -1) for model in known)
        losses = torch.stack([self.problem.value(x) for x in alike])
        return Models(numbers(known[losses.argmin(0)]))

    # Answers.

    def prox(self, got: Got) -> Sent:
        """(16): x_i; a user without neighbours (kappa 0) minimises f_i alone."""
        p, kappa = self.tensor(got.rows["p"]), self.tensor(got.rows["kappa"])
        x = self.problem.prox(p, torch.where(kappa > 0, kappa, 1.0))
        if bool((kappa == 0).any()):
            best = self.problem.minimise(start=p)
            x = torch.where((kappa == 0)[:, None] & best.isfinite(), best, x)
        return Sent(rows={"x": doubles(x)})

    def gradient(self, got: Got) -> Sent:
        """f_i(x_i) and its gradient."""
        x = self.tensor(got.rows["x"])
        value = doubles(self.problem.value(x))
        return Sent(rows={"gradient": doubles(self.problem.gradient(x))}, metrics={"value": value})

    def hessian(self, got: Got) -> Sent:
        """The Hessian of f_i at x_i."""
        return Sent(rows={"hessian": doubles(self.problem.hessian(self.tensor(got.rows["x"])))})

    def minimise(self, got: Got) -> Sent:
        """argmin f_i(x) + <slope_i, x>, and whether there is one."""
        x = doubles(self.problem.minimise(self.tensor(got.rows["slope"])))
        found = np.asarray(np.isfinite(x).all(1))
        rows = {"x": np.where(found[:, None], x, 0.0)}
        return Sent(rows=rows, metrics={"found": found.astype(np.float64)})

    def slack(self, got: Got) -> Sent:
        """The two floats of the certificate, f_i(x) + <v, x> and its minimum; and f_i(x)."""
        x, v = (np.asarray(got.rows[name], np.float64) for name in ("x", "v"))
        at_x, least = user_terms(self.problem, x, v)
        found = np.isfinite(least)
        metrics = {
            "at_x": at_x,
            "least": np.where(found, least, 0.0),
            "found": found.astype(np.float64),
            "value": doubles(self.problem.value(self.tensor(x))),
        }
        return Sent(metrics=metrics)

    def facts(self, got: Got) -> Sent:
        """Facts on f_i: curvature and slope at 0, bounds, and whether it is coercive."""
        losses = self.problem
        zero = torch.zeros(len(self.users), losses.d, dtype=losses.dtype, device=losses.device)
        trace = losses.trace(zero)
        smooth = trace if isinstance(losses, SmoothLosses) else losses.smoothness()
        metrics = {
            "curvature": trace / losses.d,
            "slope": losses.gradient(zero).norm(dim=1),
            "smoothness": smooth,
            "convexity": losses.convexity(),
            "coercive": losses.coercive(),
        }
        return Sent(metrics={name: doubles(each) for name, each in metrics.items()})

    def held_out(self, got: Got) -> Sent:
        """The mean loss on the held-out samples, without ridge."""
        lost = self.lost(self.tensor(got.rows["x"]), self.fold)
        found = np.isfinite(lost)
        return Sent(metrics={"value": np.where(found, lost, 0.0), "found": found.astype(float)})

    def expand(self, got: Got) -> Sent:
        """f_i and its derivatives near each of several points, and what makes duality gaps."""
        folds, probes = self.asked_folds(got), []
        points, slopes = (
            np.moveaxis(np.asarray(got.rows[name], np.float64), 1, 0)
            for name in (PROBE_POINTS, SLOPES)
        )
        words = (got.options[name] for name in ("of-fold", "shares", "bounds"))
        for x, v, fold, share, bound in zip(points, slopes, *words, strict=True):
            probes.append(Probe(x, v, share, folds[fold - 1] if fold else None, bound))
        found = [packed(answer(self.on(p.fold), p, self.lost_by(p))) for p in probes]
        rows = {name: np.stack([each[name] for each in found], 1) for name in found[0]}
        return Sent(rows=rows)

    def asked_folds(self, got: Got) -> list[Fold]:
        """The folds that the probes of a message are about."""
        names = ("folds", "fold-numbers", "fold-shares")
        return [
            Fold(*of) for of in zip(*(got.options.get(name, []) for name in names), strict=True)
        ]

    def lost_by(self, probe: Probe) -> Floats:
        """The loss of x_i on the samples that its probe leaves out."""
        if probe.fold is None:
            return np.full(len(self.users), np.nan)
        return self.lost(self.tensor(probe.x), probe.fold)


def packed(found: Expansion) -> Arrays:
    """An expansion as rows: of the Hessian what is on and above its diagonal; numbers as one."""
    upper = np.triu_indices(found.y.shape[1])
    held = np.isfinite(found.held)
    numbers = found.value, found.at_x, found.least, found.found, np.where(held, found.held, 0), held
    facts = found.curvature, found.coercive
    return {
        "y": found.y,
        "gradient": found.gradient,
        "hessian": found.hessian[:, upper[0], upper[1]],
        "numbers": np.stack([*numbers, *facts], 1).astype(np.float64),
    }
