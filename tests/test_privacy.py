"""What a curious server reads out of what it is sent: the limits that docs/privacy.md states.

These tests show leaks, so that nobody believes that there are none; they fail should one be closed.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
from flwr.app import Message

from corsage.app.client_app import app
from corsage.app.local_grid import LocalGrid
from corsage.core.arrays import Floats
from corsage.core.configuration.config import Config
from corsage.core.messages.encoding import decode
from corsage.datasets.dealing.federated import simulated
from corsage.solvers.known_clusters.mixed_model import ClusterSums
from corsage.strategies import strategy_class

GAMMA = 2.0


class Curious(LocalGrid):
    """A server that keeps what it is sent, and does nothing else that it should not."""

    def __init__(self, nodes: int) -> None:
        super().__init__(app, nodes)
        self.seen: list[Any] = []
        self.sent: list[Any] = []

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
        messages = list(messages)
        self.sent += [message.content for message in messages]
        return super().push_messages(messages)

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
        replies = list(super().pull_messages(message_ids))
        self.seen += [reply.content for reply in replies if not reply.has_error()]
        return replies


def run(grid: Curious, **keys: Any) -> Config:
    config = Config.parse({name.replace("_", "-"): value for name, value in keys.items()})
    strategy_class(config.run.strategy[0])(config, []).start(grid)
    return config


def test_the_sums_of_a_user_with_one_sample_are_that_sample(tmp_path: Path) -> None:
    """`mixed-model`: P has one direction, the inputs', and q tells the label; both to the digit."""
    rng = np.random.default_rng(0)
    lines = [f"{u},{rng.normal()},{rng.normal()},{rng.normal()}" for u in "abc" for _ in range(2)]
    (tmp_path / "my.csv").write_text("user,p,q,label\n" + "\n".join(lines) + "\n")
    grid = Curious(3)
    config = run(
        grid, strategy="mixed-model", dataset="csv", data_file=str(tmp_path / "my.csv"),
        labels="numbers", partition="natural", num_users=0, num_nodes=3, model="linear",
        test_fraction=0.5, num_rounds=1, fraction_train=1.0, known_gamma=GAMMA, known_lambda=1.0,
        known_missing="a", scale="none",
    )  # fmt: skip
    data = simulated(config.data, 0, config.run.seed)
    sent = [decode(content["rows"]) for content in grid.seen if "rows" in content]
    found = [sample(rows["sums"].reshape(-1)) for rows in sent if "sums" in rows]
    for user in data.users:
        own = data[user]
        assert len(own.y_train) == 1
        wanted = np.array([*np.ravel(own.x_train), *np.ravel(own.y_train)])
        assert any(np.allclose(one, wanted, atol=1e-6) for one in found)


def sample(packed: Floats) -> Floats:
    """Inputs and label of a user's only sample, from the sums that the server is sent.

    P = gamma a/(gamma + a) vv' and q = gamma/(gamma + a) b, where a vv' = x x' and b = y x up to a
    factor; the intercept's 1 at the end of x is that factor.
    """
    sums = ClusterSums.unpacked(packed[None], 3)
    values, vectors = np.linalg.eigh(sums.P[0])
    assert np.all(np.abs(values[:-1]) < 1e-9), "of more than one sample"
    length = GAMMA * values[-1] / (GAMMA - values[-1])
    x = vectors[:, -1] * np.sign(vectors[-1, -1])
    scale = length * x[-1] ** 2  # of x x' before: the loss's own factor
    x = x / x[-1]
    b = sums.q[0] * (GAMMA + length) / GAMMA
    return np.array([*x[:-1], b[-1] / scale])


def test_an_update_tells_which_classes_a_user_has() -> None:
    """`fedavg`, a node a user: the biases of the classes that it has go up, the others' down."""
    grid = Curious(4)
    config = run(
        grid, strategy="fedavg", num_users=4, num_nodes=4, num_rounds=1, fraction_train=1.0,
        model="linear", fine_tune_epochs=0, evaluate_every=1,
    )  # fmt: skip
    data = simulated(config.data, 4, config.run.seed)
    updates = [decode(c["arrays"])["model"] for c in grid.seen if "arrays" in c]
    assert len(updates) == 4
    start = next(decode(c["arrays"])["model"] for c in grid.sent if "arrays" in c)
    told = [{int(k) for k in np.argsort((one - start)[-10:])[-2:]} for one in updates]
    has = [{int(k) for k in np.unique(data[user].y_train)} for user in data.users]
    assert sorted(map(sorted, told)) == sorted(map(sorted, has))
