"""What a curious server reads out of what it is sent: the limits that docs/privacy.md states.

These tests show leaks, so that nobody believes that there are none; they fail should one be closed.
"""

from __future__ import annotations

from collections.abc import Iterable
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from flwr.app import Message

from corsage.app.client_app import app
from corsage.app.local_grid import LocalGrid
from corsage.core.arrays import Floats
from corsage.core.configuration.config import Config
from corsage.core.messages.encoding import decode
from corsage.datasets.dealing.federated import simulated
from corsage.solvers.known_clusters.mixed_model import ClusterSums, unpack
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


# A floor under how few records sums are of (`min-share`): the server reads what combinations of
# columns single out, for which X v is 0 but at one record.

WORDS = {
    "one row has it": [("rare", "no", "no")] + [("usual", "no", "no")] * 11,
    "all rows but one": [("usual", "yes", "no")] * 11 + [("usual", "no", "no")],
    "two words at once": [("rare", "yes", "no"), ("rare", "no", "yes"), ("usual", "yes", "yes")]
    + [("usual", "no", "no")] * 9,
    "one row": [("usual", "yes", "no")],
    "enough of all": [(w, p, q) for w in ("rare", "usual") for p in ("no", "yes")
                      for q in ("no", "yes") for _ in range(8)],
}  # fmt: skip


def words_table(folder: Path) -> Path:
    """A table of words and two numbers, in which four users of five have records that stand out."""
    rng, lines = np.random.default_rng(1), ["user,w,p,q,age,label"]
    for user, rows in WORDS.items():
        for words in rows:
            age, label = rng.normal(size=2).round(6)
            lines.append(",".join([user, *words, str(age), str(label)]))
    (folder / "words.csv").write_text("\n".join(lines) + "\n")
    return folder / "words.csv"


def read_of(sums: Floats, d: int) -> list[Floats]:
    """The records, with their labels, that some small combination of columns singles out."""
    size = d * (d + 1) // 2
    a, b = unpack(sums[None, :size], d)[0], sums[size:-1]
    found = []
    for v in map(np.array, product((-1.0, 0.0, 1.0), repeat=d)):
        total, square = v @ a[:, -1], v @ a @ v  # of X v, and of its squares
        if total > 0.5 and abs(square - total**2) < 1e-6:  # one entry, or they cancel out
            found.append(np.append(a @ v, b @ v) / total)
    return found


@pytest.mark.parametrize(("strategy", "share", "stolen"), [
    ("mixed-model", 0, {*WORDS} - {"enough of all"}), ("mixed-model", 3, set()),
    ("exact-cluster", 3, set()),
])  # fmt: skip
def test_no_record_is_read_out_of_sums_under_the_floor(
    strategy: str, share: int, stolen: set[str], tmp_path: Path
) -> None:
    grid = Curious(len(WORDS))
    config = run(
        grid, strategy=strategy, dataset="csv", data_file=str(words_table(tmp_path)),
        labels="numbers", num_users=0, num_nodes=len(WORDS), model="linear", scale="none",
        fraction_train=1.0, min_share=share, test_fraction=0.0, mixed_summary="none",
        known_missing="a", mixed_neighbours="never", num_rounds=2, cache_dir=str(tmp_path),
    )  # fmt: skip
    assert config.model.min_share == share
    sent = [decode(content["rows"]) for content in grid.seen if "rows" in content]
    sums = [rows["sums"].reshape(-1) for rows in sent if "sums" in rows]
    table = [line.split(",") for line in words_table(tmp_path).read_text().splitlines()[1:]]
    records = {
        (float(w == "usual"), float(p == "yes"), float(q == "yes"), float(age), 1.0, float(y)): user
        for user, w, p, q, age, y in table
    }
    assert len(sums) >= len(WORDS)
    read = [record for one in sums for record in read_of(one, 5)]
    names = {
        user for record, user in records.items() for one in read
        if np.allclose(one, record, atol=1e-5)
    }  # fmt: skip
    assert names == stolen


@pytest.mark.parametrize("share", [0, 3])
def test_features_of_the_one_record_of_a_class_are_read_but_under_the_floor(
    share: int, tmp_path: Path
) -> None:
    """`fedrep-exact`: Z'Y of a class is that record's features, which twin's rows are three times.

    The floor's groups of a class of one have others' features.
    """
    rng = np.random.default_rng(3)
    lines, one = ["user,p,q,r,label"], "0.3,1.2,-0.7"
    rest = lambda n: [",".join(map(str, row)) for row in rng.normal(size=(n, 3)).round(3)]  # noqa: E731
    lines += [f"anna,{row},0" for row in rest(11)] + [f"anna,{one},1"]
    lines += [f"twin,{row},0" for row in rest(9)] + [f"twin,{one},1"] * 3
    (tmp_path / "two.csv").write_text("\n".join(lines) + "\n")
    grid = Curious(2)
    run(
        grid, strategy="fedrep-exact", dataset="csv", data_file=str(tmp_path / "two.csv"),
        num_users=0, num_nodes=2, hidden="4", fraction_train=1.0, min_share=share, num_rounds=1,
        test_fraction=0.0, scale="none", cache_dir=str(tmp_path),
    )  # fmt: skip
    sent = [decode(content["rows"]) for content in grid.seen if "rows" in content]
    of_class = [rows["b"].reshape(-1, 2)[:, 1] for rows in sent if "b" in rows][:2]
    assert sorted(round(float(b[-1])) for b in of_class) == [1, 3]
    anna, twin = sorted(of_class, key=lambda b: float(b[-1]))
    assert np.allclose(anna, twin / 3, atol=1e-4) is (share == 0)
