"""Models in parts, and exact heads over an own body, on real SuperNodes: as in this process.

pytest -m slow tests/deploy/test_parts.py
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from corsage.app import engines
from tests.deploy.test_devices import (
    FEDREP,
    Absent,
    assert_same,
    assert_same_states,
    result,
    rows,
    simulated,
    spelled,
)
from tests.deploy.test_devices import KEYS as USUAL
from tests.support.fleet import USERS, Fleet
from tests.support.killing import Point

NETS = '''
"""A model that somebody brings: layers, a norm with a memory, an adapter, convolutions."""

import torch
from torch import nn


class Deep(nn.Module):
    def __init__(self, shape, outputs):
        super().__init__()
        self.fc3, self.fc1, self.fc2 = nn.Linear(12, outputs), nn.Linear(64, 16), nn.Linear(16, 12)
        self.norm = nn.BatchNorm1d(16)

    def forward(self, x):
        return self.fc3(self.fc2(self.norm(self.fc1(x.flatten(1))).relu()).relu())


class LowRank(nn.Module):
    def __init__(self, layer, rank):
        super().__init__()
        self.layer = layer.requires_grad_(False)
        self.lora_a = nn.Parameter(torch.randn(rank, layer.in_features) / 8)
        self.lora_b = nn.Parameter(torch.zeros(layer.out_features, rank))

    def forward(self, x):
        return self.layer(x) + x @ self.lora_a.T @ self.lora_b.T


class Adapted(nn.Module):
    def __init__(self, shape, outputs):
        super().__init__()
        self.first = nn.Linear(64, 32).requires_grad_(False)
        self.second, self.head = LowRank(nn.Linear(32, 16), 2), nn.Linear(16, outputs)

    def forward(self, x):
        return self.head(self.second(self.first(x.flatten(1)).relu()).relu())


class Body(nn.Module):
    def __init__(self, shape, outputs):
        super().__init__()
        self.conv, self.norm = nn.Conv2d(1, 6, 3), nn.BatchNorm2d(6)
        self.pool, self.last = nn.AdaptiveAvgPool2d(2), nn.Linear(24, outputs)

    def forward(self, x):
        return self.last(self.pool(torch.tanh(self.norm(self.conv(x)))).flatten(1))
'''
"""A file beside each device: what its owner lets runs build."""
MODELS = {name: f"nets_of_test_parts:{name}" for name in ("Deep", "Adapted", "Body")}
WORDS = f"num-classes=10 models='zoo,{','.join(MODELS.values())}'"
HELD = {"2": 2, "0": 3}
"""Who stands still before a state of fedper's is kept, and of which round."""
PERSONAL = {"personal": "norm.*,fc2,fc3", "batch-norm": "personal"}
CASES = {
    "fedbn": ("fedavg", "Deep", {"batch-norm": "personal"}),
    "authors' split": ("lg-fedavg", "Deep", {"head": "fc2,fc3"}),
    "frozen": ("fedavg", "Deep", {"frozen": "fc1.*"}),
    "adapters": ("fedrep", "Adapted", {"shared": "*.lora_a"}),
    # Exact heads over features that are nearly alike see the last bits in which paths differ.
    "exact heads, own body": (
        "fedrep-exact",
        "Body",
        {"fedrep-exact-body-rounds": 1, "training-path": "loop", "min-share": 3},
    ),
    "exact heads, deep body": (
        "fedrep-exact",
        "Deep",
        {
            "fedrep-exact-body-rounds": 1,
            "fedrep-exact-centre": "clusters",
            "batch-norm": "frozen",
            "min-share": 3,
        },
    ),
}


@pytest.fixture(scope="module")
def fleet(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Fleet]:
    """Three SuperNodes whose owners have a file of models; two of them can stand still."""
    folder = tmp_path_factory.mktemp("fleet")
    (folder / "nets_of_test_parts.py").write_text(NETS)
    points = {user: Point(f"/state-{user}/fedper-.*/{n}.safetensors$") for user, n in HELD.items()}
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(folder)
        known = os.environ.get("PYTHONPATH", "").split(os.pathsep)
        patch.setenv("PYTHONPATH", os.pathsep.join(filter(None, [str(folder), *known])))
        made = Fleet(folder, dict.fromkeys(USERS, WORDS), points)
        try:
            made.start("seed=3")
            yield made
        finally:
            made.stop()


def words(strategy: str, rounds: int, keys: dict[str, object]) -> str:
    """A run's keys as `flwr run` takes them."""
    text = FEDREP.replace("fedrep", strategy).replace("num-rounds=3", f"num-rounds={rounds}")
    return text + "".join(f" {key}={spelled(value)}" for key, value in keys.items())


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_a_device_of_personal_norms_and_a_deep_head_is_killed(
    fleet: Fleet, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It comes back with its own statistics; all numbers are those of a user that was absent."""
    keys = {**USUAL, **PERSONAL, "model": MODELS["Deep"]}
    run = fleet.run(words("fedper", 3, {**keys, "evaluate-with-training": False}))
    fleet.stands_still("2", run)
    fleet.kill("2")
    (experiment,) = (path.name for path in (fleet.folder / "devices").glob("state-2/fedper-*"))
    before = fleet.states("2", experiment)
    fleet.start_node("2")
    fleet.stands_still("0", run)
    fleet.until(lambda: 3 in fleet.states("2", experiment), run)
    fleet.go_on("0")
    folder = fleet.finish(run)
    assert [row["users"] for row in rows(folder, "fedper")] == [3, 2, 3]
    assert fleet.states("2", experiment)[3] != before[1]
    monkeypatch.setattr(engines, "LocalGrid", Absent)
    own = simulated(tmp_path, strategy="fedper", num_rounds=3, **keys)
    assert_same(folder, own, "fedper")
    assert_same_states(fleet, folder, own, "fedper", 3)
    assert len(set(result(folder, "fedper")["per_user"].values())) > 1


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("case", CASES)
def test_parts_and_exact_heads_are_those_of_a_simulation(
    fleet: Fleet, tmp_path: Path, case: str
) -> None:
    """Every pattern, and BatchNorm's statistics in each of its three ways."""
    strategy, model, own = CASES[case]
    keys = {**USUAL, **own, "model": MODELS[model]}
    folder = fleet.finish(fleet.run(words(strategy, 2, keys)))
    wanted = simulated(tmp_path, strategy=strategy, num_rounds=2, **keys)
    assert_same(folder, wanted, strategy)
    assert not result(folder, strategy)["dropped"]
