"""The base of every client: what the users of a node do in one round.

An algorithm overrides `fit` and `evaluate` of Flower's `NumPyClient`. They work for several users
at once: what they return has a leading axis, one row a user (one row on a device). The client app
restores the users' personal states before and keeps what `keep` was given after, and it averages
the rows, unless the algorithm's server needs them one by one (`averaged = False`).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any, ClassVar

import numpy as np
from flwr.client import NumPyClient
from numpy.typing import NDArray

from corsage.core.arrays import Arrays
from corsage.core.errors import UserError
from corsage.core.seeding import generator
from corsage.core.wire import Task
from corsage.datasets.federated import FederatedData, UserData
from corsage.networks.network import Network
from corsage.networks.training import (
    Examples,
    Order,
    Scores,
    batches,
    evaluate,
    to_tensors,
)

Fit = tuple[list[NDArray[Any]], int, dict[str, Any]]
Evaluation = tuple[float, int, dict[str, Any]]
Pair = tuple[NDArray[Any], NDArray[Any]]


class Client(NumPyClient):
    """Base of Corsage's clients.

    Parameters
    ----------
    task : what the server asks for; `task.train` and `task.keys` are the settings.
    users : the users to work for.
    data : the node's data.
    network : the model, whose parameters are to be set before use.
    states : what each user kept when it was last merged; empty at first.
    rows : what the server sent, one row a user.
    names : names of the arrays in `parameters`.
    """

    personal: ClassVar[bool] = False  # does a user keep anything between rounds?
    averaged: ClassVar[bool] = True  # does the server need only the mean over users?
    cohorts: ClassVar[bool] = False  # are all users of a known cluster at a node one participant?
    returns: tuple[str, ...] = ()  # names of the arrays that `fit` returns, if not those sent
    singly: tuple[str, ...] = ()  # of these, those that the server needs one by one all the same

    def __init__(
        self,
        task: Task,
        users: list[str],
        data: FederatedData,
        network: Network,
        states: list[Arrays],
        rows: Arrays,
        names: list[str],
    ) -> None:
        self.task, self.users, self.network = task, users, network
        self.settings = task.train
        self.rows, self.names = rows, names
        self.notes: list[str] = []
        self.kept: Arrays = {}
        self._data, self._states = data, states

    def fit(self, parameters: list[NDArray[Any]], config: dict[str, Any]) -> Fit:
        """Train; returns arrays with one row a user, the number of samples, metrics a user."""
        raise NotImplementedError

    def evaluate(self, parameters: list[NDArray[Any]], config: dict[str, Any]) -> Evaluation:
        """Evaluate each user's own model on its test data."""
        raise NotImplementedError

    def adapt(self, parameters: list[NDArray[Any]], config: dict[str, Any]) -> Evaluation:
        """A new user: what it does in a round, for `adapt-epochs`, and then its evaluation.

        What it would send is let go. An algorithm with another rule for new users overrides this.
        """
        self.settings = replace(self.settings, local_epochs=int(config["adapt-epochs"]))
        self.fit(parameters, config)
        places = range(len(self.users))
        self._states = [{name: rows[i] for name, rows in self.kept.items()} for i in places]
        return self.evaluate(parameters, config)

    # What algorithms build on.

    def remembered(self, name: str, initial: NDArray[Any]) -> NDArray[Any]:
        """What the users kept under a name, one row a user; `initial` for those that have none."""
        rows = [state.get(name, initial) for state in self._states]
        for user, row in zip(self.users, rows, strict=True):
            if row.shape != initial.shape:
                raise UserError(
                    user,
                    "restore",
                    f"{name} has shape {row.shape}, the model needs {initial.shape}",
                )
        return np.stack(rows)

    def keep(self, name: str, rows: NDArray[Any]) -> None:
        """Remember something for the users' next round, one row a user."""
        self.kept[name] = rows

    def train_data(self) -> Examples:
        """The users' training examples, one user after the other; new users may have fewer."""
        limit = int(self.task.options.get("adapt-samples", 0))
        if not limit:
            return self._examples(lambda d: (d.x_train, d.y_train))

        def some(user: UserData) -> Pair:
            n = len(user.y_train)
            rows = generator(self.task.seed, "new user's samples", user.user).permutation(n)
            return user.x_train[np.sort(rows[:limit])], user.y_train[np.sort(rows[:limit])]

        return self._examples(some)

    def test_data(self) -> Examples:
        """The users' test examples."""
        return self._examples(lambda d: (d.x_test, d.y_test))

    def orders(self, purpose: str, data: Examples, epochs: int) -> list[Order]:
        """The batches of each user: drawn for this purpose, round and user, and nothing else."""
        size = self.settings.batch_size
        return [
            batches(generator(self.task.seed, purpose, self.task.round, user), int(n), epochs, size)
            for user, n in zip(self.users, data.sizes, strict=True)
        ]

    def scored_heads(self, body: NDArray[Any], heads: NDArray[Any]) -> Evaluation:
        """The evaluation of one body under each user's own head."""
        return self.report(evaluate(self.network, body, heads, self.test_data()))

    def report(self, scores: Scores) -> Evaluation:
        """Scores as Flower's evaluation: mean loss, number of samples, metrics a user."""
        metrics = {
            self.network.criterion.measure.counted: scores.counted,
            "loss": scores.loss / scores.n,
            "num-examples": scores.n,
        }
        return float(scores.loss.sum() / scores.n.sum()), int(scores.n.sum()), metrics

    def _user(self, user: str) -> UserData:
        try:
            return self._data[user]
        except Exception as error:
            raise UserError(user, "load", str(error)) from error

    def _examples(self, pick: Callable[[UserData], Pair]) -> Examples:
        """Some of the users' data, as the model takes them."""
        pairs = [pick(self._user(user)) for user in self.users]
        for user, (_, labels) in zip(self.users, pairs, strict=True):
            if len(labels) == 0:
                raise UserError(user, "load", "no samples")
        x, y = (np.concatenate(arrays) for arrays in zip(*pairs, strict=True))
        shift, scale = self._data.shift, self._data.scale
        if self._data.vectors is not None:
            x = self._data.vectors[x]
        tensors = to_tensors(x, y, shift, scale, self.network.device)
        return Examples(*tensors, np.array([len(labels) for _, labels in pairs], np.int64))
