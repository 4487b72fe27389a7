"""New users: never part of training, they adapt by the method's own rule at the end."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from corsage.core.configuration.config import Config
from corsage.core.errors import ConfigError
from corsage.core.registry import ALGORITHMS
from tests.support.federations import KINDS, federate


@pytest.mark.parametrize("name", list(ALGORITHMS))
def test_new_users_take_no_part_and_are_evaluated_in_every_case(name: str) -> None:
    more: dict[str, Any] = {
        "new_users": 0.3,
        "adapt_samples": "4,0",
        "adapt_epochs": "1,5",
        "num_rounds": 2,
    }
    strategy, result, _ = federate(name, **more)
    new = result.json()[-1]
    assert new["strategy"] == f"{name}+new"
    assert set(new["per_user"]) == set(strategy.members.new_users)
    assert not set(strategy.members.new_users) & set(strategy.progress.trained)
    assert set(result.json()[0]["per_user"]) == set(strategy.members.users)
    assert len(strategy.members.users) + len(strategy.members.new_users) == 12
    cases = {(c["samples"], c["epochs"]): c["accuracy"]["mean"] for c in new["new_users"]}
    assert list(cases) == [(4, 1), (4, 5), (0, 1), (0, 5)]
    assert new["accuracy"]["mean"] == cases[0, 5]
    if name in KINDS:
        _, other, _ = federate(name, nodes=4, **more)
        assert other.json()[-1]["per_user"] == pytest.approx(new["per_user"])


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
