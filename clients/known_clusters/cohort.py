"""The base of clients that work for a whole cohort: its models are one array, a row a user.

A cohort is all the users of one known cluster that a node hosts. `fit` returns one row for all of
them together (such as their mean), `evaluate` numbers for each of them.
"""

from __future__ import annotations

from typing import Any

from numpy.typing import NDArray
from torch import Tensor

from corsage.clients.base import Evaluation, Fit
from corsage.clients.convex import ConvexClient

Rows = tuple[dict[str, NDArray[Any]], dict[str, float]]


class CohortClient(ConvexClient):
    """Base of the clients of known clusters.

    `self.users` are the cohort's members, `self.state` what they kept (arrays with a row a user),
    `self.rows` what the server sent to this cohort.
    """

    personal = True
    cohorts = True
    averaged = False

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self.options: dict[str, Any] = {}  # what the server says to this cohort beside the rows

    @property
    def state(self) -> dict[str, NDArray[Any]]:
        """What the cohort kept when it was last merged; empty at first."""
        return self._states[0]

    def fit(self, parameters: list[NDArray[Any]], config: dict[str, Any]) -> Fit:
        """Do what is asked: a step of the algorithm, or numbers that the server needs first."""
        self.options = config
        rows, metrics = getattr(self, str(config.get("ask", "step")))(config)
        self.returns = tuple(rows)
        count = int(self.sizes.sum())
        return list(rows.values()), count, {"num-examples": count, **metrics}

    def step(self, config: dict[str, Any]) -> Rows:
        """One step of the algorithm: arrays without a user axis, and numbers, of the cohort."""
        raise NotImplementedError

    def models(self) -> Tensor:
        """Each user's own model, as the algorithm's personal state and the server's rows say."""
        raise NotImplementedError

    def evaluate(self, parameters: list[NDArray[Any]], config: dict[str, Any]) -> Evaluation:
        """Each user's own model on its test data."""
        self.options = config
        return self.scored(self.models())

    def facts(self, config: dict[str, Any]) -> Rows:
        """The largest L_i and the smallest mu_i of the cohort."""
        if not self.convex:
            return {}, {}
        losses = self.losses
        smooth, strong = losses.smoothness().max(), losses.convexity().min()
        return {}, {"smoothness": float(smooth), "convexity": float(strong)}
