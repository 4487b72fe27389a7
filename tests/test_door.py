"""The door: what a user imports from `corsage`, and what comes back."""

from __future__ import annotations

import ast
import inspect
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import corsage
from corsage import Config, Ditto, FedRep, LocalGrid, client_app, simulate
from corsage.core.errors import ConfigError
from corsage.core.registry import ALGORITHMS
from corsage.strategies.rounds.base import Strategy
from tests.support.federations import SMALL

QUICK = {key.replace("-", "_"): value for key, value in SMALL.items()}


def test_every_algorithm_is_there_by_its_class() -> None:
    for name, entry in ALGORITHMS.items():
        cls = getattr(corsage, entry.public)
        assert issubclass(cls, Strategy)
        assert cls.name == name
        assert cls is getattr(corsage, entry.public)
    assert set(corsage.__all__) <= set(dir(corsage))
    with pytest.raises(AttributeError, match="corsage has no 'FedFoo'"):
        corsage.FedFoo  # noqa: B018


def test_a_type_checker_sees_the_same_names() -> None:
    tree = ast.parse(Path(corsage.__file__).read_text(encoding="utf-8"))
    blocks = [n for n in tree.body if isinstance(n, ast.If) and "TYPE_CHECKING" in ast.dump(n.test)]
    seen = {
        alias.asname or alias.name
        for block in blocks
        for node in block.body
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
    }
    assert seen == set(corsage.__all__)
    algorithms = {entry.public for entry in ALGORITHMS.values()}
    assert seen == algorithms | set(corsage.PLACES)


@pytest.mark.parametrize("heavy", ["torch", "flwr", "numpy", "matplotlib", "sklearn"])
def test_import_corsage_is_light(heavy: str) -> None:
    code = f"import sys, corsage; print({heavy!r} in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"


def test_keywords_are_keys() -> None:
    by_keyword, flat = FedRep(**{**QUICK, "head_epochs": 3}), FedRep({**SMALL, "head-epochs": 3})
    assert by_keyword.config == flat.config
    assert FedRep(Config.parse(SMALL), head_epochs=3).config == flat.config
    assert by_keyword.keys.head_epochs == 3


def test_keywords_are_refused_like_keys() -> None:
    with pytest.raises(ConfigError, match=r"head-epoch: no such key. Did you mean head-epochs\?"):
        FedRep(head_epoch=3)
    with pytest.raises(ConfigError, match="ditto-lambda: a key of ditto, not of fedrep"):
        FedRep(ditto_lambda=3)
    with pytest.raises(ConfigError, match="head-epochs: a key of fedrep, not of ditto"):
        Ditto(head_epochs=3)
    with pytest.raises(ConfigError, match=r"FedRep\(3\): keys are keyword arguments"):
        FedRep(3)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("key", "value"),
    [("engine", "ray"), ("resume", "x"), ("run_dir", "x"), ("strategy", "ditto"),
     ("checkpoint_every", 2), ("node_cpus", 2.0), ("node_gpus", 1.0)],
)  # fmt: skip
def test_keywords_that_would_do_nothing_are_refused(key: str, value: Any) -> None:
    """A run config has them all; who writes one down wants something of it."""
    said = key.replace("_", "-")
    with pytest.raises(ConfigError, match=rf"{said}: FedRep\(\) has no use for it; "):
        FedRep(**{**QUICK, key: value})
    assert key not in inspect.signature(FedRep).parameters
    assert FedRep({**SMALL, said: value}).name == "fedrep"
    with pytest.raises(ConfigError, match=said):
        simulate("fedrep", progress=False, **{**QUICK, key: value})


def test_a_second_start_goes_on_or_is_refused() -> None:
    """Rounds count from the first: it used to do none, and to give the first result."""
    grid, strategy = LocalGrid(client_app, 1), FedRep(**QUICK)
    strategy.start(grid)
    done = strategy.progress.round
    said = rf"fedrep: .* its {done} rounds; start\(grid, num_rounds={2 * done}\) .*FedRep\(\.\.\.\)"
    with pytest.raises(ConfigError, match=said):
        strategy.start(grid)
    more = strategy.start(grid, num_rounds=2 * done)
    whole = FedRep(**{**QUICK, "num_rounds": 2 * done}).start(LocalGrid(client_app, 1))
    assert more["fedrep"].per_user == whole["fedrep"].per_user


def test_completion_sees_the_keys_of_an_algorithm() -> None:
    names = set(inspect.signature(Ditto).parameters)
    assert {"num_users", "lr", "ditto_lambda", "config"} <= names
    assert "head_epochs" not in names


def test_simulate_is_start_on_the_local_engine() -> None:
    found = simulate([FedRep(**QUICK), "local"], progress=False, **QUICK)
    alone = FedRep(**QUICK).start(LocalGrid(client_app, 1))
    assert found["fedrep"].per_user == alone["fedrep"].per_user
    assert [row.strategy for row in found.summaries] == ["fedrep", "local"]
    assert "fedrep" in str(found)
    with pytest.raises(KeyError, match="There are: fedrep, local"):
        found["ditto"]


def test_a_summary_has_named_fields_and_the_files_json() -> None:
    found = simulate("fedavg", progress=False, new_users=0.3, **QUICK)
    plain, new = found["fedavg"], found["fedavg+new"]
    values = list(plain.per_user.values())
    assert plain.measure == "accuracy"
    assert plain.score.mean == pytest.approx(np.mean(values))
    assert plain.score.max == max(values)
    assert plain.traffic.bytes_up > 0
    assert new.new_users[0].score == new.score
    json = found.json()[0]
    assert json["accuracy"]["mean"] == plain.score.mean
    assert json["accuracy_last10"] == plain.last10
    assert json["bytes_up"] == plain.traffic.bytes_up
    assert "bytes_up" not in json["traffic"]


def test_another_engine_is_refused_in_one_line() -> None:
    with pytest.raises(ConfigError, match=r"engine=ray: .*command line"):
        simulate("fedavg", engine="ray")


def test_a_grid_without_nodes_is_refused_at_once() -> None:
    with pytest.raises(ConfigError, match="num_nodes=0: must be at least 1"):
        LocalGrid(client_app, num_nodes=0)


def test_two_strategies_of_one_name_are_two_results() -> None:
    short, long = (FedRep(**{**QUICK, "head_epochs": epochs}) for epochs in (1, 5))
    found = simulate(
        [short, long, "fedavg", "fedavg"], progress=False, **{**QUICK, "fine_tune_epochs": 1}
    )
    names = ["fedrep", "fedrep#2"]
    names += [f"fedavg{n}{end}" for n in ("", "#2") for end in ("", "+ft", "+ft-all")]
    assert list(found) == names
    assert list(found.results) == ["fedrep", "fedrep#2", "fedavg", "fedavg#2"]
    assert len(found) == len(names)
    assert "fedrep#2" in found
    assert found["fedrep"].loss != found["fedrep#2"].loss


def test_what_cannot_be_simulated_is_refused_before_anything_runs() -> None:
    used = FedRep(**QUICK)
    with pytest.raises(
        ConfigError, match=r"fedrep: this object has run already, or is given twice"
    ):
        simulate([used, used], progress=False)
    simulate(used, progress=False)
    with pytest.raises(ConfigError, match=r"make another for another run: FedRep\(\.\.\.\)"):
        simulate(used, progress=False)
    with pytest.raises(ConfigError, match="name at least one"):
        simulate([])
    with pytest.raises(ConfigError, match=r"FedRep is no strategy; .*FedRep\(\)"):
        simulate([FedRep])  # type: ignore[list-item]
    for key, value in {"strategy": "ditto", "resume": "runs/x", "run_dir": "elsewhere"}.items():
        with pytest.raises(ConfigError, match="has no use for it"):
            simulate("local", **{key: value})  # type: ignore[arg-type]


def test_a_comparison_of_different_users_is_said_to_be_one(
    caplog: pytest.LogCaptureFixture,
) -> None:
    with caplog.at_level("WARNING", "flwr"):
        simulate([FedRep(**QUICK), "local"], progress=False, **{**QUICK, "seed": 7})
    assert "local is not on the users of fedrep: seed=7 (0)" in caplog.text


def test_one_strategy_that_fails_does_not_end_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is named in the table, and its error is there; a single one's is raised."""

    def choose(self: Ditto, number: int, users: list[str]) -> list[str]:
        raise LookupError("no users")

    monkeypatch.setattr(Ditto, "choose", choose)
    found = simulate("ditto,local", progress=False, **QUICK)
    assert list(found) == ["local"]
    assert isinstance(found.failed["ditto"], LookupError)
    assert "ditto failed: LookupError: no users (test_door.py:" in str(found)
    with pytest.raises(KeyError, match="ditto failed: LookupError: no users"):
        found["ditto"]
    with pytest.raises(LookupError, match="no users"):
        simulate("ditto", progress=False, **QUICK)
