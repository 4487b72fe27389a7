"""Which words make a study, and of which runs."""

from __future__ import annotations

from pathlib import Path

import pytest

from corsage.app.studies.grid import Grid, grid_of
from corsage.app.studies.performing import announce
from corsage.core.errors import ConfigError


def test_numbers_with_commas_are_several_values_and_lists_are_one() -> None:
    grid = grid_of(
        {"seed": "0,1,2", "lr": "0.01,0.1", "strategy": "fedrep,local", "hidden": "64,32"}
    )
    assert grid.varied == {"seed": ["0", "1", "2"], "lr": ["0.01", "0.1"]}
    assert grid.base == {"strategy": "fedrep,local", "hidden": "64,32"}
    names = [cell.name for cell in grid.cells]
    assert names[:3] == ["lr=0.01,seed=0", "lr=0.01,seed=1", "lr=0.01,seed=2"]
    assert len(names) == len(set(names)) == 6


def test_a_bar_is_between_values_of_any_key() -> None:
    grid = grid_of({"hidden": "200|64,32", "strategy": "fedrep|fedavg,local", "seed": "1|2"})
    assert grid.varied["hidden"] == ["200", "64,32"]
    assert grid.varied["strategy"] == ["fedrep", "fedavg,local"]
    grid.check()


def test_python_values_may_be_lists() -> None:
    grid = grid_of(
        {"seed": range(2), "lr": [0.1], "adapt-samples": [5, 10], "intercept": [True, False]}
    )
    assert grid.varied == {"seed": ["0", "1"], "intercept": ["true", "false"]}
    assert grid.base["lr"] == "0.1" and grid.base["adapt-samples"] == [5, 10]
    grid.check()
    nested = grid_of({"mixed-random": [["intercept"], ["intercept", "Days"]]})
    assert nested.varied == {"mixed-random": ["intercept", "intercept,Days"]}


def test_one_value_makes_no_study() -> None:
    assert not grid_of({"seed": "0", "lr": "0.1", "data-file": "a,b.csv"}).varied


def test_a_key_belongs_to_its_method() -> None:
    """What a method does not read does not run it again; its work stays that of the comparison."""
    grid = grid_of(
        {"strategy": "fedrep,ditto", "ditto-lambda": "0.1,1", "head-epochs": "3,5", "seed": "0,1"}
    )
    runs = [(cell.name, grid.keys(cell)) for cell in grid.cells]
    assert [(name, keys["strategy"]) for name, keys in runs if name.endswith("seed=0")] == [
        ("ditto-lambda=0.1,head-epochs=3,seed=0", "fedrep,ditto"),
        ("ditto-lambda=0.1,head-epochs=5,seed=0", "fedrep"),
        ("ditto-lambda=1,head-epochs=3,seed=0", "ditto"),
    ]
    assert {keys.get("work-epochs") for _, keys in runs} == {None, 4.0, 6.0}
    grid.check()
    both = grid_of({"strategy": "fedrep,ditto", "lr": "0.1,1"})
    assert [both.keys(cell)["strategy"] for cell in both.cells] == ["fedrep,ditto"] * 2


@pytest.mark.parametrize(
    ("values", "part"),
    [
        ({"seed": "0,x"}, "seed=x: not a whole number"),
        ({"seed": "0,0"}, "seed=0: is in the study twice; name"),
        ({"seed": "0,1,00"}, r"seed=00: is in the study twice \(as seed=0\)"),
        ({"lr": "0.1,1e-1", "seed": "1,2"}, "twice"),
        ({"seed": "0," * 999 + "1", "lr": "1," * 999, "min-users": "1," * 999}, "at most"),
        ({"sed": "0,1"}, "Did you mean seed"),
        ({"run-dir": "a|b"}, "one value"),
        ({"seed": ",".join(map(str, range(10_001)))}, "at most"),
        ({"lr": "0.1,-1"}, "at least 0"),
        ({"strategy": "fedavg,local", "ditto-lambda": "1,2"}, "ditto-lambda=1,2: none of fed"),
    ],
)  # fmt: skip
def test_what_cannot_run_is_refused_before_anything_does(values: dict[str, str], part: str) -> None:
    with pytest.raises(ConfigError, match=part):
        grid_of(values).check()


def test_values_that_have_commas_are_told_apart(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    announce(Grid({}, {"seed": ["0", "1"], "hidden": ["8", "8,4"]}), tmp_path, 4, 1)
    assert "(seed=0,1 hidden=8|8,4)" in capsys.readouterr().err
