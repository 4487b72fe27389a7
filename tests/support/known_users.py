"""Users in known clusters as plain arrays, for the references of the methods' tests.

All users have equally many samples, so that a loss is a few lines of NumPy: nothing here is what
the methods themselves compute with.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from corsage.clients.base import Got
from corsage.clients.convex import ConvexClient
from corsage.core.arrays import Floats
from corsage.core.configuration.config import Config
from corsage.core.messages.replies import reading_order
from corsage.datasets.dealing.federated import simulated
from corsage.solvers.known_clusters.hierarchy import Hierarchy, alpha_of
from corsage.strategies.rounds.base import Result, Strategy
from corsage.strategies.rounds.job import Job
from corsage.strategies.rounds.roster import Member
from tests.support.federations import federate, settings

Models = dict[str, Floats]
HIERARCHICAL: dict[str, Any] = {
    "dataset": "hierarchical",
    "loss": "squared",
    "num_clusters": 3,
    "users_per_cluster": 4,
    "num_features": 3,
    "samples_per_user": 5,
}
LOGISTIC: dict[str, Any] = {"dataset": "ellipses", "loss": "logistic"}
SEVERAL: dict[str, Any] = {
    "dataset": "npz",
    "loss": "cross-entropy",
    "user_column": "user",
    "cluster_column": "cluster",
    "label_column": "y",
    "test_fraction": 0.25,
    "users_per_cluster": 20,
    "scale": "none",
}
"""Keys for `several`, which is their data file."""
UNEVEN = {"a": list("01234"), "b": ["5", "6", "7", "8"], "c": ["9", "10"], "d": ["11"]}
"""Clusters of different sizes, one of which is a single user."""


def several(folder: Path) -> str:
    """Twelve users in three clusters, twelve records of four features in three classes each."""
    rng = np.random.default_rng(5)
    user = np.repeat(np.arange(12), 12)
    x, cluster = rng.normal(size=(len(user), 4)), user % 3
    far = rng.normal(size=(3, 4, 3))[cluster] + rng.gumbel(size=(len(user), 1, 3))
    y = (x[:, None] @ far)[:, 0].argmax(1)
    np.savez(folder / "several.npz", x=x, y=y, user=user, cluster=cluster)
    return str(folder / "several.npz")


class Users:
    """The users of a run: their samples, and clusters by number.

    Parameters
    ----------
    config : the run's.
    """

    def __init__(self, config: Config) -> None:
        data = simulated(config.data, config.federation.num_users, config.run.seed)
        self.names = sorted(data.users, key=lambda user: (len(user), user))
        parts = [data[user] for user in self.names]
        x = np.stack([part.x_train for part in parts]).astype(np.float64)
        ones = np.ones((*x.shape[:2], 1))
        self.x = np.concatenate([x, ones], 2) if config.model.intercept else x
        self.y = np.stack([part.y_train for part in parts]).astype(np.float64)
        self.classes = data.num_classes > 0
        known = [data.clusters[user] for user in self.names]
        self.clusters = sorted(set(known), key=lambda name: (len(name), name))
        self.cluster = np.array([self.clusters.index(name) for name in known])
        self.outputs = data.num_classes if data.num_classes > 2 else 1
        self.n, self.k = len(self.names), len(self.clusters)
        self.d = self.outputs * self.x.shape[2]

    def softmax(self, theta: Floats, x: Floats, y: Floats) -> Floats:
        """The gradient of the cross-entropy on rows x (u, m, p) at theta = [W, b] (u, P)."""
        classes = np.arange(self.outputs)
        w, b = np.split(theta, [self.outputs * (x.shape[2] - 1)], axis=1)
        scores = (
            x[..., :-1] @ w.reshape(len(w), self.outputs, x.shape[2] - 1).swapaxes(1, 2)
            + b[:, None]
        )
        told = np.exp(scores - scores.max(2, keepdims=True))
        told = told / told.sum(2, keepdims=True) - (y[..., None] == classes)
        inner = told.swapaxes(1, 2) @ x
        return np.concatenate([inner[..., :-1].reshape(w.shape), inner[..., -1]], 1)

    def slopes(self, scores: Floats, y: Floats) -> Floats:
        """phi', of the logistic loss or of half the squared error."""
        return 1 / (1 + np.exp(-scores)) - y if self.classes else scores - y

    def gradient(self, theta: Floats, users: NDArray[np.int64]) -> Floats:
        """nabla f_i of some users at their rows of theta; f_i is a sum."""
        x = self.x[users]
        if self.outputs > 1:
            return self.softmax(theta, x, self.y[users])
        slopes = self.slopes(np.einsum("umd,ud->um", x, theta), self.y[users])
        return np.einsum("um,umd->ud", slopes, x)

    def smoothness(self) -> float:
        """The largest L_i."""
        bound = 0.5 if self.outputs > 1 else 0.25 if self.classes else 1.0
        return bound * float(np.linalg.eigvalsh(np.einsum("umd,ume->ude", self.x, self.x)).max())

    def convexity(self) -> float:
        """The smallest mu_i that is known: 0 for the logistic loss."""
        if self.classes:
            return 0.0
        least = np.linalg.eigvalsh(np.einsum("umd,ume->ude", self.x, self.x)).min()
        return max(float(least), 0.0)

    def hierarchy(self, gamma: float | Mapping[str, float], lam: float) -> Hierarchy:
        """gamma as a number, or by cluster or user, and one lambda."""
        if isinstance(gamma, Mapping):
            by_user = set(self.names) <= set(gamma)
            owners = self.names if by_user else [self.clusters[j] for j in self.cluster]
            values = np.array([gamma[owner] for owner in owners])
        else:
            values = np.full(self.n, float(gamma))
        totals = np.bincount(self.cluster, values, self.k)
        return Hierarchy(self.cluster, values, alpha_of(lam, totals))

    def rows(self, models: Models) -> Floats:
        """The models as rows in the order of the users."""
        return np.stack([models[user] for user in self.names])


def strengths(kind: str, users: Users, folder: Path) -> tuple[float | dict[str, float], str]:
    """gamma as one number, or different by cluster or by user: the values, and the key's text."""
    if kind == "number":
        return 1.5, "1.5"
    names = users.clusters if kind == "cluster" else users.names
    values = {name: round(0.5 + 0.4 * place, 1) for place, name in enumerate(names)}
    return values, written(folder, values, "gamma")


def written(folder: Path, content: Any, name: str = "map") -> str:
    """A JSON file's name."""
    path = folder / f"{name}.json"
    path.write_text(json.dumps(content))
    return str(path)


def hosting(nodes: Mapping[int, Mapping[str, list[str]]], job: Job | None = None) -> Job:
    """A job whose nodes host these users, by cluster; or what has become of one."""
    config = Config.parse()
    job = job or Job("async-l2gd", config, [], "e")
    roster = job.members.roster
    roster.nodes, job.agreed.shape = set(nodes), (3,)
    roster.members = {
        user: Member(node, 5, 5, cluster)
        for node, clusters in nodes.items()
        for cluster, users in clusters.items()
        for user in users
    }
    roster.users = sorted(roster.members, key=reading_order)
    return job


class Seen:
    """Every user's model as it was when it was last evaluated."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.models: Models = {}
        judge = ConvexClient.judge

        def spy(client: ConvexClient[Any], got: Got) -> Any:
            found = judge(client, got)
            assert client.judged is not None
            rows = client.judged.whole.astype(np.float64)
            self.models |= dict(zip(client.users, rows, strict=True))
            return found

        monkeypatch.setattr(ConvexClient, "judge", spy)

    def run(
        self, name: str, nodes: int = 1, **more: Any
    ) -> tuple[Strategy[Any, Any], Result, Models]:
        """Run a strategy (see `federate`); each user's model when it was evaluated last."""
        self.models = {}
        strategy, result, _ = federate(name, nodes, **{"evaluate_every": 10**6, **more})
        return strategy, result, dict(self.models)


def users_of(name: str, **keys: Any) -> Users:
    """The users of such a run."""
    return Users(settings(name, **keys))


def far(one: Floats, other: Floats) -> float:
    """The largest difference, relative to the size of the second."""
    return float(np.abs(one - other).max() / np.abs(other).max())
