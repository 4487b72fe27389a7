"""Heads in closed form at the end equal plain loops, on any nodes, whoever the users are."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from flwr.clientapp.mod import LocalDpMod
from torch import nn

import corsage
from corsage.app.client_app import app, make_client_app
from corsage.app.local_grid import LocalGrid
from corsage.app.run.model_files import held
from corsage.benchmarks.attack import lying, times
from corsage.clients.fedrep.end_heads import EndHeadsClient
from corsage.core.configuration.config import Config
from corsage.core.messages.replies import Replies
from corsage.core.registry import ALGORITHMS
from corsage.datasets.dealing.federated import simulated
from corsage.networks.exact import closed_heads
from corsage.networks.exact.closed_heads import (
    EXACT_HEAD,
    GAUSS_HEAD,
    PRIOR_HEAD,
    Means,
    Own,
    Strength,
)
from corsage.strategies import strategy_class
from corsage.strategies.fedrep.heads_at_end import counted
from corsage.strategies.rounds.base import Result
from tests.support.devices import Devices
from tests.support.federations import Notes, federate

Arr = np.ndarray[Any, np.dtype[np.float64]]
CLASSES, WIDTH = 4, 5


def records(seed: int, n: int, classes: tuple[int, ...] = (0, 1, 2)) -> tuple[Arr, Any]:
    """Features with a 1 last, and labels of some classes: nobody has the last one."""
    rng = np.random.default_rng(seed)
    y = rng.choice(classes, n)
    return np.c_[rng.normal(size=(n, WIDTH)) * 3 + y[:, None], np.ones(n)], y


def own(z: Arr, y: Any, logits: Arr | None = None) -> Own:
    """A user's records as the formulas take them."""
    labels, said = torch.from_numpy(y), None if logits is None else torch.from_numpy(logits)
    one_hot = torch.nn.functional.one_hot(labels, CLASSES).double()
    return Own(torch.from_numpy(z), one_hot, labels, said)


def of_all(users: list[tuple[Arr, Any]]) -> Means:
    """The mean over users of what their records come to."""
    each = [Means.of(one.z, one.y) for one in (own(*user) for user in users)]
    second = torch.stack([m.second for m in each]).mean(0)
    return Means(second, torch.stack([m.first for m in each]).mean(0))


USERS = [records(0, 9), records(1, 6, (0, 1)), records(2, 7, (1,)), records(3, 1, (2,))]
"""The third has one class, the last one record."""


def test_exact_heads_equal_a_plain_solve() -> None:
    means, strength = of_all(USERS), Strength(ridge=0.01, pull=3.0, heat=2.2)
    unit = np.sqrt(np.mean([np.mean(np.mean(z[:, :-1] ** 2, 0)) for z, _ in USERS]))
    scale = np.r_[np.full(WIDTH, unit), 1.0]
    zs, ys = [z / scale for z, _ in USERS], [np.eye(CLASSES)[y] for _, y in USERS]
    s = np.mean([z.T @ z / len(z) for z in zs], 0) + np.diag(np.r_[np.full(WIDTH, 0.01), 1e-9])
    w = np.linalg.solve(s, np.mean([z.T @ y / len(z) for z, y in zip(zs, ys, strict=True)], 0))
    for (raw, labels), z, y in zip(USERS, zs, ys, strict=True):
        theta = np.linalg.solve(z.T @ z + 3.0 * np.eye(WIDTH + 1), z.T @ y + 3.0 * w)
        found = closed_heads.head(EXACT_HEAD, own(raw, labels), means, strength).numpy()
        assert found == pytest.approx(2.2 * theta / scale[:, None])


def test_gaussian_heads_equal_discriminants_class_by_class() -> None:
    means, (_, pull, heat, count, _) = of_all(USERS), (strength := Strength(0.1, 3.0, 0.6, 2.0))
    unit = np.sqrt(np.mean([np.mean(z[:, :-1] ** 2) for z, _ in USERS]))
    rows = [(z[:, :-1] / unit, y) for z, y in USERS]
    g = np.array([np.mean([np.mean(y == c) for _, y in rows]) for c in range(CLASSES)])
    m = [
        np.mean([(z * (y == c)[:, None]).mean(0) for z, y in rows], 0) / g[c]
        if g[c]
        else np.mean([z.mean(0) for z, _ in rows], 0)
        for c in range(CLASSES)
    ]
    v = 0.1 * np.eye(WIDTH)
    for z, y in rows:
        v += sum(np.outer(a - m[c], a - m[c]) for a, c in zip(z, y, strict=True)) / len(z) / 4
    g = (g + 1e-3 / CLASSES) / 1.001
    for (raw, labels), (z, y) in zip(USERS, rows, strict=True):
        theta = closed_heads.head(GAUSS_HEAD, own(raw, labels), means, strength).numpy()
        for c in range(CLASSES):
            n = np.sum(y == c)
            mu = (z[y == c].sum(0) + pull * m[c]) / (n + pull)
            chance = (n + count * g[c]) / (len(y) + count)
            least = -0.5 * ((z - mu) @ np.linalg.inv(v) * (z - mu)).sum(1)
            alike = -0.5 * (z @ np.linalg.inv(v) * z).sum(1)  # of all classes
            wanted = heat * (least - alike) + np.log(chance)
            assert raw @ theta[:, c] == pytest.approx(wanted, rel=1e-6)


@pytest.mark.parametrize("name", [EXACT_HEAD, GAUSS_HEAD, PRIOR_HEAD, "prior over a body"])
def test_what_is_left_out_is_left_out(name: str) -> None:
    """Each vote is that of heads that are fitted anew without each record, user by user."""
    means, head = of_all(USERS), name.split(maxsplit=1)[0]
    for number, (z, y) in enumerate(USERS):
        logits = np.random.default_rng(number).normal(size=(len(y), CLASSES))
        said = logits if name == PRIOR_HEAD else None
        mine, others = own(z, y, said), [u for u in USERS if u[0] is not z]
        without = means.without(Means.of(mine.z, mine.y), 1 / len(USERS))
        assert without.second.numpy() == pytest.approx(of_all(others).second.numpy())
        grid = closed_heads.grid(head, False, said is not None)
        votes = closed_heads.votes(head, mine, without, False).numpy()
        assert votes.shape == (2, len(grid))
        for place in range(0, len(grid), max(len(grid) // 7, 1)):
            scores = []
            for r in range(len(y)):
                rest = np.arange(len(y)) != r
                some = own(z[rest], y[rest], None if said is None else said[rest])
                theta = closed_heads.head(head, some, without, grid[place]).numpy()
                scores.append(z[r] @ theta if said is None else logits[r] + theta)
            told = np.array(scores) - np.logaddexp.reduce(scores, axis=1)[:, None]
            assert votes[0, place] == pytest.approx(-told[np.arange(len(y)), y].mean())
            assert votes[1, place] == pytest.approx(np.mean(told.argmax(1) != y))


KEYS: dict[str, Any] = {
    "num-users": 6,
    "num-rounds": 2,
    "hidden": "8",
    "fraction-train": 0.33,
    "classes-per-user": 2,
    "fine-tune-epochs": 0,
    "end-heads": ["exact", "gauss", "prior", "auto"],
}


def result(strategy: str, nodes: int = 1, noted: Notes | None = None, **keys: Any) -> Result:
    """A small run."""
    config = {**KEYS, "strategy": strategy, **{k.replace("_", "-"): v for k, v in keys.items()}}
    return strategy_class(strategy)(config, [noted] if noted else []).start(LocalGrid(app, nodes))


@pytest.mark.parametrize("strategy", ["fedavg", "fedper"])
def test_rows_are_the_same_on_any_nodes(strategy: str) -> None:
    ends = ("", "+exact", "+gauss", "+prior", "+auto")
    one, three = (result(strategy, nodes, weighting="examples") for nodes in (1, 3))
    assert [row.strategy for row in one.summaries] == [strategy + end for end in ends]
    for end in ends:
        assert one[strategy + end].per_user == three[strategy + end].per_user
    assert one[f"{strategy}+auto"].score.mean > one[strategy].score.mean
    d, plain, row = 9, one[strategy].traffic, one[f"{strategy}+gauss"].traffic
    votes = (
        4
        * 2
        * sum(
            len(closed_heads.grid(n, False, strategy == "fedavg"))
            for n in ("exact", "gauss", "prior")
        )
    )
    assert row.bytes_up - plain.bytes_up == 6 * (4 * (d * (d + 1) // 2 + 10 * d) + votes)


def test_sums_far_from_all_others_are_set_aside_under_a_robust_rule() -> None:
    keys = {"num_users": 10, "fraction_train": 1.0, "end_heads": ["exact", "gauss"]}
    honest = result("fedavg", robust="median", **keys)
    with lying(EndHeadsClient, {"3"}, times(-1e4)):
        found = result("fedavg", noted=(noted := Notes()), robust="median", **keys)
    assert "user 3 is set aside: far from all others" in " ".join(noted.notes)
    for row in ("fedavg+exact", "fedavg+gauss"):
        assert found[row].score.mean > honest[row].score.mean - 0.05


@pytest.mark.parametrize("rounds", [1, 12])
def test_a_head_that_has_seen_the_records_is_no_candidate(rounds: int) -> None:
    """After a round most users were never drawn, and vote; after twelve nobody is left."""
    keys = {"num_users": 12, "num_rounds": rounds, "end_heads": "auto", "evaluate_every": 50}
    result("fedavg", noted=(noted := Notes()), **keys)
    assert ("users who were never drawn" in " ".join(noted.notes)) == (rounds == 1)
    assert ("prior" in " ".join(noted.notes)) and ("no candidate" in " ".join(noted.notes)) == (
        rounds == 12
    )


WITHOUT = ("local", "exact-local")
"""Who is alone is the bar, of which no line says that it has no common body."""
OWN_KEYS: dict[str, dict[str, Any]] = {
    "fedavg": {"server_optimizer": "adam", "server_lr": 0.01},
    "ditto": {"weighting": "examples"},
}


@pytest.mark.parametrize("name", ALGORITHMS)
def test_every_method_has_heads_over_its_own_body_or_says_why_not(name: str) -> None:
    """The ridge around all users' head, in numpy, over the body that the method shares."""
    keys = {"num_rounds": 2, "hidden": "16", "end_heads": "exact", **OWN_KEYS.get(name, {})}
    strategy, found, noted = federate(name, **keys)
    if f"{name}+exact" not in {row.strategy for row in found.summaries}:
        line = f"no heads at the end (end-heads): {name} has no body that all users share"
        assert (line in noted.notes) == (name not in WITHOUT)
        return
    config, shared = strategy.config, strategy.shared()
    net, data = strategy.job.network, simulated(config.data, 12, config.run.seed)
    flat = shared["model"][net.body] if "model" in shared else shared["body"]
    w, b = net.named(flat, net.body).values()

    def features(x: Arr) -> Arr:
        raw = ((x - data.shift) * data.scale).reshape(len(x), -1)
        return np.c_[np.maximum(raw @ w.T + b, 0), np.ones(len(x))]

    own = {
        user: (features(data[user].x_train), np.eye(10)[data[user].y_train]) for user in data.users
    }
    n = np.array([len(y) if config.train.weighting == "examples" else 1.0 for _, y in own.values()])
    s, c = (
        np.average([z.T @ q / len(z) for z, q in rows], 0, n)
        for rows in ([(z, z) for z, _ in own.values()], [*own.values()])
    )
    unit = np.r_[np.full(16, np.sqrt(np.diag(s)[:-1].mean())), 1.0]
    ridge, pull = (strategy.deliveries[f"{name}+exact"].options[k] for k in ("ridge", "pull"))
    cross = s / np.outer(unit, unit) + np.diag(np.r_[np.full(16, ridge), 1e-9])
    middle = np.linalg.solve(cross, c / unit[:, None])
    for user, (z, y) in own.items():
        a, q = z / unit, features(data[user].x_test) / unit
        theta = np.linalg.solve(a.T @ a + pull * np.eye(17), a.T @ y + pull * middle)
        right = np.mean((q @ theta).argmax(1) == data[user].y_test)
        assert found[f"{name}+exact"].per_user[user] == pytest.approx(right, abs=1e-9)


def test_what_has_no_heads_says_why() -> None:
    for strategy, keys, why in (
        ("lg-fedavg", {}, "lg-fedavg has no body that all users share"),
        ("fedavg", {"model": "linear"}, "the model is a head and nothing else"),
        ("fedavg", {"hidden": "8,8", "head": "fc2,head"}, "the head must be one linear layer"),
        ("fedper", {"hidden": "8,8", "personal": "fc2,head"}, "users' own parts are more than"),
    ):
        found = result(strategy, noted=(noted := Notes()), **{"num_rounds": 1, **keys})
        assert [row.strategy for row in found.summaries] == [strategy]
        assert f"no heads at the end (end-heads): {why}" in " ".join(noted.notes)


@pytest.mark.parametrize("name", ["fedavg", "fedper"])
def test_heads_stand_over_a_body_that_is_frozen(name: str) -> None:
    """A body that came trained: all that travels is a head."""
    rng, net = np.random.default_rng(0), nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 3))
    data = {}
    for user in range(6):
        x = rng.normal(size=(30, 4)).astype(np.float32)
        data[str(user)] = (x, x[:, :3].argmax(1))
    keys = {"num_rounds": 1, "frozen": "0", "end_heads": "exact", "new_users": 0.17}
    run = corsage.simulate(name, data, model=net, scale="none", progress=False, **keys)
    for row in (run[f"{name}+exact"], run[f"{name}+exact+new"]):
        assert row.evaluate() == row.per_user and row.score.mean > run[name].score.mean
        own = row.user(row.users[0]).module()
        assert torch.equal(own[0].weight, net[0].weight)


class Normed(nn.Module):
    """A body with BatchNorm."""

    def __init__(self, shape: tuple[int, ...], outputs: int) -> None:
        super().__init__()
        self.fc, self.norm, self.head = nn.Linear(4, 8), nn.BatchNorm1d(8), nn.Linear(8, outputs)

    def forward(self, x: torch.Tensor) -> Any:
        return self.head(self.norm(self.fc(x)).relu())


@pytest.mark.parametrize(
    ("name", "keys"),
    [
        ("fedavg", {"batch_norm": "personal"}),  # has no own parts: all are averaged
        ("fedper", {"batch_norm": "personal"}),
        ("fedper", {"personal": "norm.*"}),  # FedBN
        ("fedrep", {"batch_norm": "personal"}),
        ("fedbn", {}),
    ],
)
def test_features_come_through_a_users_own_batch_norm(name: str, keys: dict[str, Any]) -> None:
    """Users whose inputs have units of their own; heads in numpy over each one's own features."""
    rng, data = np.random.default_rng(0), {}
    for user in range(6):
        x = rng.normal(size=(40, 4)).astype(np.float32)
        data[str(user)] = (x * 4.0**user + user, (x[:, 0] > x[:, 1]).astype(int))
    keys |= {"model": Normed, "num_rounds": 6, "fraction_train": 1.0}
    keys["end_heads"] = "exact,prior"
    run = corsage.simulate(name, data, new_users=0.17, progress=False, scale="none", **keys)
    ends, new = run[f"{name}+exact"], run[f"{name}+exact+new"]
    assert ends.evaluate() == ends.per_user and new.evaluate() == new.per_user
    norms = set()
    for user in ends.users:
        one, other = (run[row].user(user).state_dict() for row in (name, f"{name}+exact"))
        for part in one.keys() - {"head.weight", "head.bias"}:
            assert torch.equal(one[part], other[part])
        norms.add(tuple(other["norm.running_mean"].tolist()))
    assert len(norms) == (1 if name == "fedavg" else len(ends.users))
    assert ends.score.mean > run[name].score.mean - 0.05
    assert name == "fedavg" or new.score.mean > 0.5
    if name == "fedbn":  # the one of these with a head for all over such features
        assert run["fedbn+prior"].score.mean > run[name].score.mean - 0.05


def test_new_users_have_heads_and_numbers_have_one(capsys: pytest.CaptureFixture[str]) -> None:
    found = result("fedbabu", new_users=0.34)
    assert {"fedbabu+gauss", "fedbabu+gauss+new", "fedbabu+new"} <= {
        row.strategy for row in found.summaries
    }
    assert found["fedbabu+gauss+new"].users == 2
    rng = np.random.default_rng(0)
    data = {}
    for user in range(4):
        x = rng.normal(size=(30, 6)).astype(np.float32)
        data[str(user)] = (x, x @ np.arange(6.0) + 10 * user)
    run = corsage.simulate("fedavg", data, num_rounds=5, hidden="8", end_heads="exact,gauss,auto")
    assert [*run][-2:] == ["fedavg+exact", "fedavg+auto"]
    assert run["fedavg+exact"].score.mean < 0.7 * run["fedavg"].score.mean
    assert "there is exact alone" in capsys.readouterr().err


def test_heads_are_drawn_to_those_of_a_users_cluster(tmp_path: Path) -> None:
    """Two known clusters call the same inputs otherwise: few records a user, so centres count."""
    rng, data, own = np.random.default_rng(0), {}, {}
    for user in range(40):
        x = rng.normal(size=(15, 6)).astype(np.float32)
        y = (x[:, 0] > 0).astype(int) + 2 * (x[:, 1] > 0)
        data[str(user)], own[str(user)] = (x, (y + user % 2) % 4), "ab"[user % 2]
    keys = {"num_rounds": 3, "hidden": "16", "end_heads": "exact,gauss", "new_users": 0.2}
    (tmp_path / "map.json").write_text(json.dumps(own))
    told, alone = (
        corsage.simulate("fedavg", data, scale="none", progress=False, **keys, **more)
        for more in ({"cluster_map": str(tmp_path / "map.json"), "num_nodes": 3}, {})
    )
    for row in ("fedavg+exact", "fedavg+gauss"):
        assert told[f"{row}+new"].evaluate() == told[f"{row}+new"].per_user
        assert told[row].score.mean > alone[row].score.mean + 0.05
    for row, pooled in ((told["fedavg+exact"], True), (alone["fedavg+exact"], False)):
        assert ("share of all users in each cluster's" in row.summary()) == pooled
    sent = [run["fedavg+exact"].traffic.messages for run in (told, alone)]
    assert sent[0] == sent[1]


def test_devices_answer_as_a_simulation_does(tmp_path: Path) -> None:
    """Through what a device admits; the server has no file of models that it does not know."""
    keys = {"num-users": 3, "num-nodes": 3, "new-users": 0.34, "end-heads": ["gauss", "auto"]}
    config = Config.parse({**KEYS, **keys, "num-rounds": 1, "strategy": "fedper"})
    strategy = strategy_class("fedper")(config)
    found = strategy.start(Devices(tmp_path, config))
    wanted = strategy_class("fedper")(config).start(LocalGrid(app, 3))
    for row in ("fedper+gauss", "fedper+auto", "fedper+gauss+new"):
        assert found[row].per_user == wanted[row].per_user
    own = held(strategy, strategy.deliveries["fedper+gauss"])
    assert len(own) < 2000 < strategy.state.body.nbytes


def test_a_class_that_one_user_has_is_nobody_elses_after_rounding() -> None:
    """Sums come in single precision: the rest of a class is no class mean."""
    for z, y in (USERS[0], records(9, 5, (3,))):
        whole = of_all([*USERS[1:], (z, y)])
        sent = Means(whole.second.float().double(), whole.first.float().double())
        mine, wanted = own(z, y), of_all(USERS[1:])
        left = sent.without(Means.of(mine.z, mine.y), 0.25)
        for found, true in zip(left.classes, wanted.classes, strict=True):
            assert found.numpy() == pytest.approx(true.numpy(), rel=1e-4)


def flat(votes: Arr) -> Arr:
    """The same of each strength."""
    return np.full_like(votes, 1e15)


@pytest.mark.parametrize("lie", [flat, np.negative])
def test_votes_that_no_records_come_to_are_left_out(lie: Any) -> None:
    keys = {"num_users": 10, "fraction_train": 1.0}
    honest = result("fedavg", noted=(before := Notes()), **keys)
    with lying(EndHeadsClient, {"3"}, lambda n, true, came: lie(true) if n == "votes" else true):
        found = result("fedavg", noted=(noted := Notes()), **keys)
    assert "by records of 10 training users" in " ".join(before.notes)
    assert "by records of 9 training users" in " ".join(noted.notes)
    for row in ("fedavg+exact", "fedavg+gauss", "fedavg+auto"):
        assert found[row].score.mean > honest[row].score.mean - 0.05


def test_the_line_says_what_share_is_right() -> None:
    """Most voters err under no strength; who does is heard, and not silenced, in what is said."""
    votes = np.zeros((8, 2, 2))
    votes[0, 1], votes[:, 0, 0] = (0.4, 0.8), 0.1
    replies = Replies(users=[*"abcdefgh"], rows={"votes": votes.astype(np.float32)})
    found = counted({}, {"exact": [Strength(), Strength(1.0)]}, replies, True)
    assert found.left_out["exact"] == pytest.approx((0, 0, 0.1))


def test_a_mod_that_protects_models_has_no_heads_at_the_end() -> None:
    """It would end the run: sums are not what it was handed."""
    strategy = strategy_class("fedavg")({**KEYS, "strategy": "fedavg"}, [noted := Notes()])
    found = strategy.start(LocalGrid(make_client_app(train_mods=[LocalDpMod(1, 1, 1, 0.5)]), 6))
    assert [row.strategy for row in found.summaries] == ["fedavg"]
    assert "LocalDpMod protects models, not the sums of end-heads" in " ".join(noted.notes)
