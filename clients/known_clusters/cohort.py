"""The base of clients that work for a whole cohort: its models are one array, a row a user.

A cohort is all the users of one known cluster that a node hosts. It answers as one participant, and
what it keeps is its users' state as a whole; it is judged user by user.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from torch import Tensor

from corsage.clients.base import Got, K, Models, Sent
from corsage.clients.convex import ConvexClient
from corsage.core.arrays import Array, Arrays
from corsage.core.keys import STEP_LIMIT
from corsage.core.measures import GRADIENT_STEPS
from corsage.core.messages.fields import Kind, Listed, Whole
from corsage.core.messages.limits import Limits


class CohortClient(ConvexClient[K]):
    """Base of the clients of known clusters; `users` are one cohort's members.

    What comes and goes in messages has a row a participant, of which there is one here: answers,
    `models` and `adapt` get `Got.rows` without that axis, and give `Sent` without it.
    """

    personal = True
    cohorts = True

    @property
    def state(self) -> Arrays:
        """The state that the cohort kept when it was last merged; empty at first."""
        return self.states[0]

    def respond(self, got: Got) -> Sent:
        """Answer what is asked."""
        sent = super().respond(own(got))
        usual = {"num-examples": self.sizes.sum(), GRADIENT_STEPS.name: self.steps.sum()}
        metrics = {**usual, **sent.metrics}
        return Sent(rows=as_row(sent.rows), keep=as_row(sent.keep), metrics=as_row(metrics))

    def judge(self, got: Got) -> Mapping[str, Array]:
        """The scores of each user's own model."""
        return super().judge(own(got))

    def own_part(self, centre: Tensor, gamma: float) -> Models:
        """argmin f_i(theta) + gamma/2 |theta - w_j|^2, with w_j as a row (users, P) for each."""
        return Models(self.losses.prox(centre, gamma, start=centre).cpu().numpy())

    def facts(self, got: Got) -> Sent:
        """The largest L_i and the smallest mu_i of the cohort."""
        if not self.convex:
            return Sent()
        smooth, strong = self.losses.smoothness().max(), self.losses.convexity().min()
        return Sent(metrics={"smoothness": np.array(smooth), "convexity": np.array(strong)})


def own(got: Got) -> Got:
    """Arrays that came, without the axis of participants."""
    return replace(got, rows={name: rows[0] for name, rows in got.rows.items()})


def as_row(values: Mapping[str, Array]) -> Arrays:
    """Values of one participant, with that axis."""
    return {name: np.asarray(value)[None] for name, value in values.items()}


@dataclass(frozen=True)
class Walk(Kind):
    """Runs of (steps to the centre, local steps, the iteration at which these begin)."""

    def __call__(self, name: str, value: Any, limits: Limits | None = None) -> Any:
        """Of so many steps as the device allows."""
        runs = Listed(Listed(Whole(), 3, 3))(name, value)
        if limits:
            limits.check(STEP_LIMIT, name, sum(r + k for r, k, _ in runs))
        return runs
