"""Keys: parsed, checked, documented once, and the same wherever they are written."""

from __future__ import annotations

import dataclasses
import tomllib
from collections.abc import Callable
from fractions import Fraction
from importlib import metadata
from pathlib import Path
from typing import Any

import pytest

import corsage
from corsage.app.command import run
from corsage.clients import client_class
from corsage.core.configuration.catalogue import catalogue, titled
from corsage.core.configuration.command_line import read_words
from corsage.core.configuration.config import Config
from corsage.core.configuration.known_keys import defaults
from corsage.core.errors import ConfigError
from corsage.core.keys import flatten
from corsage.core.registry import ALGORITHMS, DATASETS, Algorithm, data_keys
from corsage.core.seeding import drawn_count, generator, torch_seed
from corsage.core.version import TESTED, VERSION, untested, warn_if_untested
from corsage.strategies import strategy_class
from tests.support.federations import federate


def test_no_key_is_declared_twice() -> None:
    """Methods may share keys, and data sets; those of one name are one declaration, inherited."""
    names = [key.name for keys in catalogue().values() for key in keys]
    assert len(names) == len(set(names))
    assert names == list(defaults()) == list(Config.parse().flat())
    found: dict[str, Any] = {}
    for _, group in titled():
        for field in dataclasses.fields(group):  # type: ignore[arg-type]
            known = found.setdefault(field.name, field)
            assert (field.metadata, field.default) == (known.metadata, known.default), field.name


def test_flat_and_parse_are_inverse() -> None:
    config = Config.parse({"strategy": "local,fedavg", "lr": "0.5", "num-users": 7, "head": "fc"})
    assert Config.parse(config.flat()) == config
    assert config.run.strategy == ("local", "fedavg")
    assert config.train.lr == 0.5
    assert config.federation.num_users == 7


@pytest.mark.parametrize("name", DATASETS)
def test_every_data_set_has_its_own_keys_typed(name: str) -> None:
    config = Config.parse({"dataset": name, "test-fraction": 0.3})
    assert type(config.data) is data_keys(name)
    assert (config.data.dataset, config.data.test_fraction) == (name, 0.3)
    assert Config.parse(config.flat()) == config


def test_keys_of_other_data_sets_are_refused() -> None:
    """Those by which devices read files of their own only in a simulation."""
    for values, users in (
        ({"noise": "2"}, "hierarchical"),
        ({"noise": 2.0, "dataset": "ellipses"}, "hierarchical"),
        ({"femnist-classes": "all", "dataset": "csv"}, "femnist"),
    ):
        with pytest.raises(ConfigError, match=f"has no use for it; .* set dataset={users}"):
            Config.parse(values)
    assert Config.parse({"noise": "1.0", "femnist-classes": "letters"}) == Config.parse()
    config = Config.parse({"cluster-column": "site"})
    assert config.flat()["cluster-column"] == "site"
    with pytest.raises(ConfigError, match=r"cluster-column=site: .* set dataset=csv, npz\."):
        config.check_simulated()
    Config.parse({"cluster-column": "site", "dataset": "npz"}).check_simulated()


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
        ({"dataset": "digits", "data-seed": "x"}, "data-seed=x: not a whole number."),
        ({"num-rounds": True}, "num-rounds=True: not a whole number."),
        ({"lr": "fast"}, "lr=fast: not a number."),
        ({"lr": float("nan")}, "lr=nan: not a number."),
        ({"lr": "inf"}, "lr=inf: must be finite."),
        ({"fraction-train": 1.5}, "fraction-train=1.5: must be at most 1."),
        ({"device": "gpu9"}, "device=gpu9: "),
    ],
)
def test_bad_values_are_one_clear_line(values: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        Config.parse(values)
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


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


@pytest.mark.parametrize("load", [strategy_class, client_class])
def test_a_class_that_is_not_in_its_file_is_named(
    load: Callable[[str], Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """What somebody who adds an algorithm sees who misspells its class."""
    monkeypatch.setitem(ALGORITHMS, "ditto", Algorithm("Dito"))
    with pytest.raises(ConfigError, match=r"strategy=ditto: no class Dito(Client)? in .*ditto\.py"):
        load.__wrapped__("ditto")  # type: ignore[attr-defined]


PROJECT = tomllib.loads((Path(corsage.__file__).parent / "pyproject.toml").read_text())["project"]


@pytest.fixture
def newer(monkeypatch: pytest.MonkeyPatch) -> str:
    """A Flower that nobody has seen yet."""
    monkeypatch.setattr(metadata, "version", {"flwr": "1.999.0"}.__getitem__)
    return f"Flower 1.999.0 was not tested with Corsage {VERSION}"


def test_the_project_says_the_same() -> None:
    assert PROJECT["version"] == VERSION
    assert f"flwr[simulation]>={TESTED[0]}" in PROJECT["dependencies"]  # and no upper bound


@pytest.mark.parametrize(
    ("found", "known"), [("1.41.0", True), ("1.42.3", True), ("1.4.1", False), ("1.43.0", False)]
)
def test_the_third_number_does_not_matter(
    found: str, known: bool, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(metadata, "version", {"flwr": found}.__getitem__)
    warn_if_untested()
    assert (untested() == "") == (capsys.readouterr().err == "") == known


def test_a_run_says_it_once(newer: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["strategy=fedavg,local", "num-rounds=2", "num-users=4", f"run-dir={tmp_path}"]
    assert run(words, "") == 0
    assert [newer in line for line in capsys.readouterr().err.splitlines()].count(True) == 1


@pytest.mark.parametrize("n", [1, 7, 50, 100, 150, 1000, 3550])
def test_a_share_of_users_is_rounded_down_as_it_is_written(n: int) -> None:
    """.29 of 100 were 28."""
    for hundredths in range(101):
        exact = int(Fraction(hundredths, 100) * n)
        assert drawn_count(hundredths / 100, n) == max(exact, 1)


def test_a_round_has_that_many_users() -> None:
    strategy, _, _ = federate("local", num_rounds=1, num_users=100, fraction_train=0.29)
    assert len(strategy.progress.trained) == 29


def test_each_word_counts_in_its_place() -> None:
    """Two users' batches of a round are others, and so are those of the round 11 and 1, 1."""
    words: list[tuple[str | int, ...]] = [("a",), ("a", 1), ("a", 1, "u"), ("a", 1, "v")]
    words += [("a", 2, "u"), ("b", 1, "u"), ("a", "1u"), ("a", 11), ("a", 1, 1), ("u", 1, "a")]
    drawn = [generator(seed, *own).random() for seed in (0, 1) for own in words]
    assert len({*drawn, *(torch_seed(0, *own) for own in words)}) == 3 * len(words)
    assert generator(0, "a", 1).random() == generator(0, "a", "1").random()
