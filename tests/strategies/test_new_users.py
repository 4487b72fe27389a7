"""New users: never part of training, they adapt by the method's own rule at the end."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.nn import functional as F

from corsage.core.configuration.config import Config
from corsage.core.errors import ConfigError
from corsage.core.registry import ALGORITHMS
from corsage.core.seeding import generator
from corsage.datasets.dealing.federated import simulated
from corsage.datasets.sample_table import model_input
from corsage.networks.training import batches
from tests.support.federations import SMALL, federate

NEW: dict[str, Any] = {"new_users": 0.3, "weight_decay": 0.0, "momentum": 0.0, "lr": 0.05}


@pytest.mark.parametrize("name", list(ALGORITHMS))
def test_new_users_take_no_part_and_are_evaluated_in_every_case(name: str) -> None:
    more = {**NEW, "adapt_samples": "4,0", "adapt_epochs": "1,20", "num_rounds": 6}
    strategy, result, _ = federate(name, **more)
    new = result.json()[-1]
    assert new["strategy"] == f"{name}+new"
    assert set(new["per_user"]) == set(strategy.members.new_users)
    assert not set(strategy.members.new_users) & set(strategy.progress.trained)
    assert set(result.json()[0]["per_user"]) == set(strategy.members.users)
    assert len(strategy.members.users) + len(strategy.members.new_users) == 12
    cases = {(c["samples"], c["epochs"]): c["accuracy"]["mean"] for c in new["new_users"]}
    assert list(cases) == [(4, 1), (4, 20), (0, 1), (0, 20)]
    assert new["accuracy"]["mean"] == cases[0, 20]
    _, other, _ = federate(name, nodes=4, **more)
    assert other.json()[-1]["per_user"] == pytest.approx(new["per_user"])


def test_fedrep_adapts_the_head_and_nothing_else() -> None:
    strategy, result, _ = federate("fedrep", **NEW, adapt_samples="6", adapt_epochs="15")
    body = result.arrays.to_torch_state_dict()
    config = Config.parse({**SMALL, **{k.replace("_", "-"): v for k, v in NEW.items()}})
    data = simulated(config.data, 12, 0)
    network = strategy.job.network
    named = network.named(network.initial[network.head], network.head)
    for user, accuracy in result.json()[-1]["per_user"].items():
        mine = data[user]
        rows = np.sort(generator(0, "new user's samples", user).permutation(len(mine.y_train))[:6])
        x, test = (
            features(body, model_input(part, data.shift, data.scale))
            for part in (mine.x_train[rows], mine.x_test)
        )
        y = torch.from_numpy(np.array(mine.y_train[rows]))
        w, b = (torch.from_numpy(v.copy()).requires_grad_() for v in named.values())
        for batch in batches(generator(0, "head", 4, user), 6, 15, 10):
            loss = F.cross_entropy(x[batch] @ w.T + b, y[batch])
            for p, g in zip((w, b), torch.autograd.grad(loss, (w, b)), strict=True):
                p.data -= 0.05 * g
        labels = torch.from_numpy(np.array(mine.y_test))
        right = ((test @ w.T + b).argmax(1) == labels).float().mean()
        assert accuracy == pytest.approx(float(right))


def features(body: dict[str, torch.Tensor], x: np.ndarray) -> torch.Tensor:
    return torch.relu(torch.from_numpy(x).flatten(1) @ body["fc1.weight"].T + body["fc1.bias"])


def test_a_known_cluster_can_be_new(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    users = np.repeat([f"u{i}" for i in range(6)], 20)
    group = np.repeat(["old", "young"], 60)
    x = rng.normal(size=(120, 4)).astype(np.float32)
    np.savez(tmp_path / "d.npz", x=x, label=np.arange(120) % 2, user=users, group=group)
    data = {
        "dataset": "npz",
        "data_file": str(tmp_path / "d.npz"),
        "cluster_column": "group",
        "partition": "natural",
        "num_users": 0,
    }
    strategy, result, _ = federate("fedrep", new_cluster="young", **data)
    assert strategy.members.new_users == ["u3", "u4", "u5"]
    assert set(result.json()[-1]["per_user"]) == {"u3", "u4", "u5"}
    with pytest.raises(ConfigError, match="Known clusters: old, young"):
        federate("fedrep", new_cluster="middle", **data)


def test_bad_cases_are_refused_at_the_start() -> None:
    with pytest.raises(ConfigError, match="adapt-samples=few"):
        Config.parse({"adapt-samples": "1,few"})
    with pytest.raises(ConfigError, match="some must be"):
        federate("fedavg", new_users=0.001)
