"""Who the users are where nobody says how samples are dealt."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from corsage.core.configuration.config import Config
from corsage.core.configuration.key_groups import SOME_USERS
from corsage.core.registry import DATASETS
from corsage.datasets.data_set import data_set
from corsage.datasets.dealing.federated import simulated
from tests.support.federations import federate

PUPILS = [f"{i},{-i},{'abc'[i % 3]},{i % 2}\n" for i in range(30)]


@pytest.fixture
def words(tmp_path: Path) -> dict[str, Any]:
    path = tmp_path / "d.csv"
    path.write_text("x,z,user,label\n" + "".join(PUPILS))
    return {"dataset": "csv", "data-file": str(path), "cache-dir": str(tmp_path / "cache")}


def users(words: dict[str, Any], **more: Any) -> list[str]:
    config = Config.parse({**words, **{k.replace("_", "-"): v for k, v in more.items()}})
    assert Config.parse(config.flat()) == config
    return simulated(config.data, config.federation.num_users, config.run.seed).users


def test_a_file_that_names_its_users_is_not_pooled(words: dict[str, Any]) -> None:
    """It used to be dealt in shards to fifty users that nobody knows."""
    assert users(words) == ["a", "b", "c"]
    assert users(words, partition="natural", num_users=0) == ["a", "b", "c"]
    assert len(users(words, num_users=2)) == 2
    assert len(set(users(words, num_users=2)) - {"a", "b", "c"}) == 0


def test_who_asks_for_a_partition_gets_it(words: dict[str, Any]) -> None:
    assert users(words, partition="iid", num_users=5) == list("01234")
    keys = {"user_column": "", "feature_columns": "x,z", "num_users": 4}
    assert users(words, **keys) == users(words, partition="shards", **keys) == list("0123")
    numbers = {**keys, "labels": "numbers"}
    assert users(words, **numbers) == users(words, partition="iid", **numbers)


@pytest.mark.parametrize("name", DATASETS)
def test_what_is_automatic(name: str) -> None:
    """Only data of one's own and such without a choice; others are dealt as they were."""
    own = data_set(name).users == "own" or name in ("csv", "npz", "memory")
    config = Config.parse({"dataset": name})
    assert config.data.dealing == ("natural" if own else "shards")
    assert config.federation.num_users == (0 if own else SOME_USERS)
    asked = Config.parse({"dataset": name, "partition": "natural"})
    assert asked.federation.num_users == SOME_USERS


def test_a_run_needs_no_more_words(words: dict[str, Any]) -> None:
    keys = {**words, "model": "linear", "num-users": -1, "hidden": "200"}
    _, result, _ = federate("local", **keys)
    assert set(result.summaries[0].per_user) == {"a", "b", "c"}
