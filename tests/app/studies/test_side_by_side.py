"""Strategies of one comparison at the same time: they leave what they leave one by one."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from corsage.app.command import run
from corsage.app.studies.side_by_side import STEPS_WORTH, at_once, steps
from corsage.app.studies.workers import IN_WORKER
from corsage.core.configuration.config import Config
from corsage.strategies import strategy_class

WORDS = [
    "strategy=fedavg,fedrep,ditto", "num-users=6", "num-rounds=2", "hidden=8", "fraction-train=0.5",
    "ditto-lambda=1e30", "new-users=0.3", "seed=1",
]  # fmt: skip


def without_times(one: Any) -> Any:
    if isinstance(one, dict):
        own = {"seconds", "run-dir", "study-workers"}
        return {name: without_times(value) for name, value in one.items() if name not in own}
    return [without_times(value) for value in one] if isinstance(one, list) else one


@pytest.mark.slow  # two processes that load torch: 5 s of CPU
def test_the_same_bytes_and_the_same_failure(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """Rows, models, rounds; a strategy that fails does not end the others."""
    folders, said = [], []
    for number in (1, 2):
        own = tmp_path / str(number)
        assert run([*WORDS, f"study-workers={number}", f"run-dir={own}"]) == 1
        folders += own.iterdir()
        said.append(capfd.readouterr().err)
    assert "3 strategies, 2 at a time" in said[1] and "at a time" not in said[0]
    for text in said:
        assert text.count("ditto failed: ") == 1 and "fedrep: 2 rounds, done" in text
        assert "1 of 3 strategies failed: ditto." in text
    both = [json.loads((one / "summary.json").read_text()) for one in folders]
    assert without_times(both[0]) == without_times(both[1])
    assert {*both[0]["failed"]} == {"ditto"} and len(both[0]["results"]) >= 4
    files = [
        {p.relative_to(one) for p in one.rglob("*") if p.parent.name != "users"}  # a run's own name
        for one in folders
    ]
    assert files[0] == files[1]
    for file in files[0]:
        if file.suffix == ".safetensors":
            assert folders[0].joinpath(file).read_bytes() == folders[1].joinpath(file).read_bytes()


def test_processes_are_started_where_it_pays(monkeypatch: pytest.MonkeyPatch) -> None:
    """By keys and data alone: the steps that users take, or as `study-workers` says."""
    monkeypatch.setattr("corsage.app.studies.workers.cores", lambda: 3)

    def found(**keys: Any) -> tuple[int, float]:
        words = {"strategy": "fedavg,local", "num-users": 10, "dataset": "moons"}
        config = Config.parse({**words, **{k.replace("_", "-"): v for k, v in keys.items()}})
        some = {name: strategy_class(name)(config) for name in config.run.strategy}
        return at_once(config, some), steps(config, some.values())

    few = found(num_rounds=1, fraction_train=1.0)
    rounds = int(STEPS_WORTH / few[1]) + 1
    assert few[0] == 1 and found(num_rounds=1, study_workers=3)[0] == 2
    assert found(num_rounds=rounds, fraction_train=1.0) == (2, pytest.approx(rounds * few[1]))
    assert found(num_rounds=rounds, fraction_train=1.0, torch_threads=2)[0] == 1
    assert found(num_rounds=rounds, fraction_train=1.0, study_workers=1)[0] == 1
    monkeypatch.setenv(IN_WORKER, "yes")
    assert found(num_rounds=rounds, study_workers=3)[0] == 1
