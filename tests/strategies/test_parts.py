"""Methods on models of shared, personal and frozen parts, against plain loops and each other."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from flwr.app import Context, Message
from flwr.clientapp.typing import ClientAppCallable
from torch import Tensor, nn
from torch.nn import functional as F

import corsage
from corsage.app.client_app import make_client_app
from corsage.app.command import run as command
from corsage.app.engines import simulate
from corsage.app.local_grid import LocalGrid
from corsage.clients.parts import samples as features
from corsage.core.errors import ModelError, RoundFailed
from corsage.core.messages.encoding import decode
from tests.support.devices import Devices
from tests.support.federations import CONVEX, KINDS, federate, same_arrays, settings
from tests.support.reference import DECAY, KEYS, chosen, examples, run, user_batches, users_data

HEAD, ROUNDS, DRAWN = 16 * 10 + 10, 4, 6
FC1 = ("fc1.weight", "fc1.bias")
OF_MANY = ("cfl", "ifca", "fedmtl", "fedamp", "fedfomo", "fedrep-known", "fedrep-convex")
OF_MANY += ("fedrep-exact", "fedem")
"""Methods with several models, which their result has by other names."""
OF_FEATURES = ("fedpac", "gpfl")
"""Methods that send what is as wide as the features, too."""
NO_MODEL = ("fedproto", "local")
"""Methods whose server has none."""
DEEP = "tests.strategies.test_parts:Deep"
LORA = "tests.strategies.test_parts:Adapted"


class Deep(nn.Module):
    """Three layers and a norm, in another order than they run in."""

    def __init__(self) -> None:
        super().__init__()
        self.fc3, self.fc1, self.fc2 = nn.Linear(12, 10), nn.Linear(64, 16), nn.Linear(16, 12)
        self.norm = nn.LayerNorm(16)

    def forward(self, x: Tensor) -> Tensor:
        return self.fc3(self.fc2(self.norm(self.fc1(x.flatten(1))).relu()).relu())


class LowRank(nn.Module):
    """A frozen linear layer, and B A beside it."""

    def __init__(self, layer: nn.Linear, rank: int) -> None:
        super().__init__()
        self.layer = layer.requires_grad_(False)
        self.lora_a = nn.Parameter(torch.randn(rank, layer.in_features) / 8)
        self.lora_b = nn.Parameter(torch.zeros(layer.out_features, rank))

    def forward(self, x: Tensor) -> Tensor:
        return self.layer(x) + x @ self.lora_a.T @ self.lora_b.T


class Adapted(nn.Module):
    """A frozen first layer, then one with an adapter, and a head."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(64, 32).requires_grad_(False)
        self.second, self.head = LowRank(nn.Linear(32, 16), 2), nn.Linear(16, 10)
        self.register_buffer("scale", torch.full((1, 32), 2.0))

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.second((self.first(x.flatten(1)) * self.scale).relu()).relu())


@pytest.mark.parametrize("name", ["fedrep", "fedper", "fedbabu", "fedavg"])
def test_a_pattern_that_is_the_head_changes_nothing(name: str) -> None:
    _, plain, _ = federate(name, fine_tune_epochs=1)
    for keys in ({"personal": "head.*"}, {"shared": "fc1"}, {"head": "hea[d]"}):
        _, other, _ = federate(name, fine_tune_epochs=1, **keys)
        assert same_arrays(plain.arrays, other.arrays, tolerance=0)
        for mine, theirs in zip(plain.json(), other.json(), strict=True):
            assert mine["per_user"] == theirs["per_user"] and mine["bytes_up"] == theirs["bytes_up"]


MORE = ("lg-fedavg", "fedbabu", "apfl", "moon", "gpfl")
"""Beside one of every kind, those that cut a model or its features in ways of their own."""


@pytest.mark.parametrize("name", [n for n in (*KINDS, *MORE) if n not in CONVEX])
def test_what_is_frozen_stays_and_never_travels(name: str) -> None:
    """Every method on the whole model, and with its first layer frozen."""
    _, whole, _ = federate(name, num_rounds=2, hidden="16,12")
    strategy, part, _ = federate(name, num_rounds=2, hidden="16,12", frozen="fc1", nodes=2)
    up, less = (found.json()[0]["bytes_up"] for found in (whole, part))
    assert (
        less == up
        if name in ("lg-fedavg", *NO_MODEL)
        else 0 < less < up / (1 if name in OF_FEATURES else 3)
    )
    network = strategy.job.network
    assert network.whole.stop == 17 * 12 + 13 * 10 and set(network.vector.fixed.arrays) == {*FC1}
    assert set(FC1) <= set(decode(part.arrays)) or name in (*OF_MANY, "fedproto")


def deep_sgd(start: dict[str, Any], data: Any, steps: Any) -> dict[str, Any]:
    """torch.optim.SGD on all of `Deep`."""
    module = Deep()
    module.load_state_dict({n: torch.from_numpy(np.array(v)) for n, v in start.items()})
    named = dict(module.named_parameters())
    sides: list[dict[str, Any]] = [
        {"params": [p for n, p in named.items() if "bias" not in n], "weight_decay": DECAY},
        {"params": [p for n, p in named.items() if "bias" in n]},
    ]
    optimiser = torch.optim.SGD(sides, lr=KEYS["lr"], momentum=KEYS["momentum"])
    for batch in steps:
        optimiser.zero_grad()
        F.cross_entropy(module(data[0][batch]), data[1][batch]).backward()
        optimiser.step()
    return {n: p.detach().numpy() for n, p in module.named_parameters()}


@pytest.mark.parametrize(
    ("name", "keys", "common"),
    [
        ("lg-fedavg", {"head": "fc2,fc3"}, ("fc2", "fc3")),  # the authors' split
        ("fedper", {"personal": "norm.*"}, ("fc1", "fc2", "fc3")),  # FedBN's
        ("fedper", {"head": "fc2,fc3"}, ("fc1", "norm")),
    ],
)
def test_parts_that_are_averaged_and_parts_that_stay(
    name: str, keys: dict[str, str], common: tuple[str, ...]
) -> None:
    """All learn together; what is common is averaged, the rest stays with each user."""
    data = users_data()
    strategy, result = run(name, model=DEEP, **keys)
    network = strategy.job.network
    start = network.named(network.initial)
    shared = {n: v for n, v in start.items() if n.split(".")[0] in common}
    own: dict[str, dict[str, Any]] = {}
    for number in range(1, ROUNDS + 1):
        models = {
            u: deep_sgd(
                {**start, **own.get(u, {}), **shared},
                examples(data, u),
                user_batches(data, u, "model", number, 1),
            )
            for u in chosen(strategy, number)
        }
        own |= {u: {n: v for n, v in m.items() if n not in shared} for u, m in models.items()}
        shared = {n: np.mean([m[n] for m in models.values()], axis=0) for n in shared}
    named = decode(result.arrays)
    assert set(named) == set(shared)
    assert all(np.allclose(named[n], shared[n], atol=1e-5) for n in shared)
    assert result.json()[0]["bytes_up"] == ROUNDS * DRAWN * sum(v.nbytes for v in shared.values())


@pytest.mark.parametrize("warmup", [0, 2])
def test_lg_fedavg_s_split_may_be_said_by_any_key(warmup: int) -> None:
    """By what is global as the head or as shared, and by what is local."""
    more = {"model": DEEP, "lg_fedavg_warmup_rounds": warmup, "new_users": 0.3}
    _, head, _ = federate("lg-fedavg", head="fc2,fc3", **more)
    for keys in ({"shared": "fc2,fc3"}, {"personal": "fc1,norm"}):
        _, other, _ = federate("lg-fedavg", **keys, **more)
        one, two = decode(head.arrays), decode(other.arrays)
        assert set(one) == set(two) and all(np.allclose(one[n], two[n], atol=1e-6) for n in one)
        for mine, theirs in zip(head.json(), other.json(), strict=True):
            assert mine["per_user"] == pytest.approx(theirs["per_user"])
            assert mine["bytes_up"] == theirs["bytes_up"]


PARTS: list[tuple[str, dict[str, str]]] = [
    ("fedrep", {"model": DEEP, "head": "fc2,fc3"}),
    ("lg-fedavg", {"model": DEEP, "shared": "fc2,fc3"}),
    ("fedavg", {"model": DEEP, "frozen": "fc1.*"}),
    ("fedrep", {"model": LORA, "shared": "*.lora_a"}),
]


@pytest.mark.parametrize(("name", "keys"), PARTS)
def test_parts_on_devices_are_those_of_a_simulation(
    name: str, keys: dict[str, str], tmp_path: Path
) -> None:
    """Bit by bit, where each user has a node of its own."""
    own = {**keys, "num_users": 4, "num_rounds": 2, "training_path": "loop"}
    _, local, _ = federate(name, nodes=4, **own)
    devices = Devices(tmp_path, settings(name, **own), models=keys["model"])
    _, far, notes = federate(name, grid=devices, **own)
    assert not any("dropped" in line or "left out" in line for line in notes.notes)
    assert same_arrays(local.arrays, far.arrays, tolerance=0)
    for mine, theirs in zip(local.json(), far.json(), strict=True):
        assert mine["per_user"] == theirs["per_user"]


@pytest.mark.parametrize("name", ["fedrep", "ditto"])
def test_a_run_of_adapters_gives_whole_models(name: str, tmp_path: Path) -> None:
    """A is shared, B and the head are a user's own, all else is frozen; on any number of nodes."""
    keys: dict[str, Any] = {"model": LORA, "shared": "*.lora_a", "num_users": 6, "num_rounds": 2}
    own = {**keys, "strategy": name, "run_dir": str(tmp_path)}
    one = corsage.load(simulate(settings(name, **own)))
    many = corsage.simulate(name, progress=False, num_nodes=3, fine_tune_epochs=1, **keys)
    for row in (one[name], many[name]):
        assert row.evaluate() == row.per_user
        state = row.user("3").state_dict()
        module = Adapted()
        module.load_state_dict(state, strict=True)
        x = torch.rand(4, 1, 8, 8)
        assert torch.equal(module.eval()(x), row.user("3").module()(x))
    Adapted().load_state_dict(row.user("0").state_dict(), strict=True)
    up = many[name].json()["bytes_up"]
    moving = 64 if name == "fedrep" else 64 + 32 + HEAD
    assert up == 2 * 5 * 4 * moving  # five of six users a round


def test_results_of_a_global_model_load_strictly() -> None:
    _, result, _ = federate("fedavg", model=LORA)
    Adapted().load_state_dict(result.arrays.to_torch_state_dict(), strict=True)


def test_features_of_the_frozen_part_are_computed_once(monkeypatch: pytest.MonkeyPatch) -> None:
    counted: list[int] = []
    plain = features.features_of

    def counting(network: Any, x: Tensor) -> Tensor:
        counted.append(len(x))
        return plain(network, x)

    monkeypatch.setattr("corsage.clients.parts.samples.features_of", counting)
    keys = {"model": LORA, "num_rounds": 3, "evaluate_every": 1, "fraction_train": 1.0}
    _, held, _ = federate("fedavg", grid=LocalGrid(make_client_app(), 1), **keys)
    assert len(counted) == 2 * 12  # of each user for training and for testing
    monkeypatch.setattr(features, "FEATURE_BYTES", 0)
    _, again, _ = federate("fedavg", grid=LocalGrid(make_client_app(), 1), **keys)
    assert len(counted) > 5 * 12 and same_arrays(held.arrays, again.arrays, tolerance=0)


def test_a_run_with_a_frozen_part_goes_on_where_it_was(tmp_path: Path) -> None:
    words = ["strategy=fedrep", "num-users=6", "num-rounds=3", f"model={LORA}", "shared=*.lora_a"]
    assert command([*words, f"run-dir={tmp_path}"], "") == 0
    (folder,) = tmp_path.iterdir()
    whole = json.loads((folder / "summary.json").read_text())["results"][0]
    assert command(["--resume", str(folder), "--from-round", "1"], "") == 0
    again = json.loads((folder / "summary.json").read_text())["results"][0]
    assert whole["per_user"] == again["per_user"] and whole["loss"] == again["loss"]


@pytest.fixture
def first_node() -> Iterator[Any]:
    """A client app whose first node has another frozen part, as it says or as it is told."""

    def make(kind: str) -> LocalGrid:
        def mod(message: Message, context: Context, call: ClientAppCallable) -> Message:
            mine = context.node_config["partition-id"] == 0
            config: Any = message.content["config"]
            if mine and kind == "train" and "frozen" in config:
                message.content = message.content.copy()
                message.content["config"] = type(config)({**config, "frozen": "ab" * 16})
            reply = call(message, context)
            if mine and kind == "query" and message.metadata.message_type == "query":
                said: Any = reply.content["config"]
                said["frozen"] = "ab" * 16
            return reply

        return LocalGrid(make_client_app(mods=[mod]), 3)

    yield make


def test_a_node_with_another_frozen_part_is_left_out_and_named(first_node: Any) -> None:
    strategy, _, notes = federate("fedavg", grid=first_node("query"), model=LORA)
    assert any("is left out: its frozen part is not the server's" in text for text in notes.notes)
    assert len(strategy.members.users) == 8
    _, _, notes = federate("fedavg", grid=first_node("train"), model=LORA)
    text = next(text for text in notes.notes if "frozen" in text)
    assert "dropped: train: " in text and "its frozen part is not the server's (fingerprint" in text


def test_a_frozen_part_that_all_nodes_lack_fails_the_round() -> None:
    def mod(message: Message, context: Context, call: ClientAppCallable) -> Message:
        config: Any = message.content["config"]
        if "frozen" in config:
            config["frozen"] = "ab" * 16
        return call(message, context)

    with pytest.raises(RoundFailed, match="its frozen part is not the server's"):
        federate("fedavg", grid=LocalGrid(make_client_app(mods=[mod]), 1), model=LORA)


@pytest.mark.parametrize("name", ["mixed-model", "convex-clustering", "async-l2gd"])
def test_what_is_solved_for_is_not_frozen(name: str) -> None:
    with pytest.raises(ModelError, match=r"it solves for all of a linear model, and head\.bias is"):
        federate(name, frozen="head.bias")
