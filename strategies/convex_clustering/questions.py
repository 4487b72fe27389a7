"""Strategies whose server holds all models and asks users about their losses, round or no round."""

from __future__ import annotations

from typing import Any

import numpy as np
from flwr.serverapp import Grid

from corsage.core.arrays import Arrays, Floats
from corsage.core.errors import RoundFailed
from corsage.core.replies import Outcome, by_cause, merge_replies
from corsage.core.wire import encode
from corsage.strategies.convex_clustering.remote_losses import RemoteLosses
from corsage.strategies.rounds.base import Strategy
from corsage.strategies.rounds.exchange import exchange


class Asking(Strategy):
    """A strategy that asks; `state.scalars["users"]` are the users, in the order of its rows."""

    _grid: Grid

    @property
    def models(self) -> Floats:
        """X (N, d) of the users in the problem."""
        raise NotImplementedError

    def ask(
        self, question: str, rows: Arrays, options: dict[str, Any], template: Arrays,
        strict: bool = True,
    ) -> Outcome:  # fmt: skip
        """One exchange with all users in the problem, outside the rounds.

        Rows are in the order of the users, down and up. `strict`: all of them must answer.
        """
        users: list[str] = self.state.scalars["users"]
        place = {user: row for row, user in enumerate(users)}
        asked, messages = self.roster.by_node([u for u in users if u in self.roster.members]), []
        nothing = encode({})
        for node, group in asked.items():
            own = {name: array[[place[user] for user in group]] for name, array in rows.items()}
            task = self._task(self.state.round, group, {**options, "ask": question})
            messages.append(self._letter("train", node, nothing, own, task))
        replies, _ = exchange(self._grid, messages, self._timeout)
        outcome = merge_replies(replies, asked, template, ("num-examples",))
        self._noted(outcome, version=self.state.round)
        scalars = self.state.scalars
        scalars["questions"] = int(scalars.get("questions", 0)) + 1
        if strict and len(outcome.users) < len(users):
            raise RoundFailed(
                f"{self.name}: all users must answer about their losses ({question}). "
                + "; ".join(by_cause(outcome.dropped)[:3])
            )
        order = np.argsort([place[user] for user in outcome.users], kind="stable")
        outcome.users = [outcome.users[i] for i in order]
        outcome.rows = {name: array[order] for name, array in outcome.rows.items()}
        outcome.metrics = {name: values[order] for name, values in outcome.metrics.items()}
        return outcome

    @property
    def losses(self) -> RemoteLosses:
        """f_i at the users."""
        return RemoteLosses(self.ask, *self.models.shape)
