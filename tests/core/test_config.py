"""Keys: parsed, checked, documented once, and the same wherever they are written."""

from __future__ import annotations

import dataclasses
import tomllib
from pathlib import Path
from typing import Any

import pytest

import corsage
from corsage.core.config import GROUPS, RETIRED, Config, declared_groups, read_words
from corsage.core.errors import ConfigError
from corsage.core.keys import flatten
from corsage.core.registry import ALGORITHMS, algorithm_keys

ROOT = Path(corsage.__file__).parent


def test_pyproject_has_every_key_with_its_default() -> None:
    """Flower refuses to override a key that is not there."""
    declared = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["flwr"]["app"]["config"]
    assert declared == Config.parse().flat()
    assert [type(v) for v in declared.values()] == [type(v) for v in Config.parse().flat().values()]


def test_no_key_is_declared_twice() -> None:
    """Methods may share keys; those of one name are one declaration, inherited."""
    names = [field.name for _, fields in declared_groups() for field in fields]
    assert len(names) == len(set(names))
    found: dict[str, Any] = {}
    for group in (*GROUPS.values(), *algorithm_keys().values()):
        for field in dataclasses.fields(group):  # type: ignore[arg-type]
            known = found.setdefault(field.name, field)
            assert (field.metadata, field.default) == (known.metadata, known.default), field.name


def test_flat_and_parse_are_inverse() -> None:
    config = Config.parse({"strategy": "local,fedavg", "lr": "0.5", "num-users": 7, "head": "fc"})
    assert Config.parse(config.flat()) == config
    assert config.run.strategy == ("local", "fedavg")
    assert config.train.lr == 0.5
    assert config.federation.num_users == 7


def test_words_and_files_and_the_later_wins(tmp_path: Path) -> None:
    file = tmp_path / "my.toml"
    file.write_text('lr = 0.1\n[data]\ndataset = "mnist"\n')
    values = read_words([str(file), "lr=0.2", "--seed=3"])
    config = Config.parse(values)
    assert (config.train.lr, config.data.dataset, config.run.seed) == (0.2, "mnist", 3)


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"num-round": 5}, "num-round: no such key. Did you mean num-rounds?"),
        ({"strategy": "fedrap"}, "strategy=fedrap: no such strategy. Did you mean fedrep?"),
        ({"strategy": ""}, "strategy=: name at least one"),
        ({"strategy": "fedrep,fedrep"}, "strategy=fedrep,fedrep: fedrep is named twice"),
        ({"dataset": "fashion"}, "dataset=fashion: not possible. Did you mean fashion-mnist?"),
        ({"num-rounds": 0}, "num-rounds=0: must be at least 1."),
        ({"num-rounds": "many"}, "num-rounds=many: not a whole number."),
        ({"num-rounds": 2.5}, "num-rounds=2.5: not a whole number."),
        ({"num-rounds": True}, "num-rounds=True: not a whole number."),
        ({"lr": "fast"}, "lr=fast: not a number."),
        ({"lr": float("nan")}, "lr=nan: not a number."),
        ({"lr": "inf"}, "lr=inf: must be finite."),
        ({"fraction-train": 1.5}, "fraction-train=1.5: must be at most 1."),
        ({"device": "gpu9"}, "device=gpu9: "),
        ({"fedrep-heads": "own"}, "fedrep-heads=own: no longer a key: say strategy=fedrep."),
        (
            {"fedrep-heads": "known-clusters"},
            "fedrep-heads=known-clusters: no longer a key: say strategy=fedrep-known.",
        ),
        (
            {"fedrep-heads-rho": 0.5},
            "fedrep-heads-rho=0.5: no longer a key: say fedrep-convex-rho (of strategy=fedrep-con",
        ),
    ],
)
def test_bad_values_are_one_clear_line(values: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        Config.parse(values)
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


def test_what_is_said_of_retired_keys_is_true() -> None:
    """Each names a strategy and a key that there are."""
    assert not set(RETIRED) & set(Config.parse().flat())
    for said in RETIRED.values():
        words = said.replace("(of ", "").replace(",", "").rstrip(")").split()
        named = [w.removeprefix("strategy=") for w in words if w not in ("say", "or")]
        assert named and set(named) <= {*ALGORITHMS, *Config.parse().flat()}


def test_fedrep_and_its_neighbours_share_the_epochs_of_the_head() -> None:
    config = Config.parse({"head-epochs": 3})
    for name in ("fedrep", "fedrep-convex", "fedrep-known"):
        assert flatten(config.keys_of(name))["head-epochs"] == 3


def test_bad_words_and_files(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="expected key=value or a TOML file"):
        read_words(["fedrep"])
    with pytest.raises(ConfigError, match="cannot be read"):
        read_words(["absent.toml"])
    (tmp_path / "x.toml").write_text("lr = = 1")
    with pytest.raises(ConfigError, match="not valid TOML"):
        read_words([str(tmp_path / "x.toml")])
