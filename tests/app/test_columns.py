"""Results of very many users: taken apart into columns, and what the summary has."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from corsage import load
from corsage.app.command import run
from corsage.app.run import endings
from corsage.app.run import user_columns as columns
from corsage.strategies.rounds import algorithm

WORDS = ["strategy=fedrep,local", "num-users=12", "num-rounds=2", "hidden=8", "head-epochs=1"]


@pytest.fixture
def few(monkeypatch: pytest.MonkeyPatch) -> None:
    """As if five users were very many."""
    monkeypatch.setattr(columns, "COLUMN_FROM", 5)
    monkeypatch.setattr(columns, "SUMMARY_USERS", 2)


def result(users: int) -> dict[str, Any]:
    values = np.random.default_rng(0).normal(size=users).tolist()
    names = [f"u{i}" for i in range(users)]
    return {
        "measure": "accuracy",
        "per_user": dict(zip(names, values, strict=True)),
        "per_user_measures": {"accuracy": dict(zip(names, values, strict=True))},
        "test_sizes": dict.fromkeys(names, 3),
        "clusters": dict.fromkeys(names, "north\nof"),
        "mixed": {name: [1] for name in names},
        "untested": names[::-1],
        "curve": [[1, 0.5]],
    }


@pytest.mark.usefixtures("few")
@pytest.mark.parametrize("users", [3, 8])
def test_all_of_it_comes_back(users: int) -> None:
    """In its order, and of its types; what has few entries stays where it is."""
    own = [result(users), result(users + 1)]
    plain, raw = columns.taken_apart(own)
    assert bool(raw) == (users > 5)
    found = columns.put_together(json.loads(json.dumps(plain)), raw) if raw else plain
    assert json.dumps(found) == json.dumps(own)
    if users > 5:
        assert len(plain[0]["per_user"]) == 1 and plain[0]["mixed"] == own[0]["mixed"]
        with pytest.raises(ValueError, match="not the columns"):
            columns.put_together(plain, raw[:-9])


@pytest.mark.usefixtures("few")
def test_the_summary_names_both_ends_and_has_quantiles() -> None:
    own = result(50)
    found = columns.thinned(own)
    order = sorted(own["per_user"], key=own["per_user"].__getitem__)
    assert set(found["per_user"]) == {*order[:2], *order[-2:]}
    assert found["per_user"].items() <= own["per_user"].items()
    assert set(found["clusters"]) == set(found["per_user"])
    levels = found["quantiles"]["per_user"]
    values = np.array([*own["per_user"].values()])
    assert levels["users"] == 50
    assert levels["0.0"] == values.min() and levels["1.0"] == values.max()
    assert levels["0.5"] == pytest.approx(np.median(values))
    assert columns.thinned(result(5)) == result(5)


def finished(folder: Path, words: list[str]) -> Path:
    assert run([*words, f"run-dir={folder}"], "") == 0
    (found,) = folder.iterdir()
    return found


def test_a_run_with_columns_is_the_same_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, few: None
) -> None:
    """Loaded, resumed and reported; its users are evaluated a few at a time."""
    monkeypatch.setattr(columns, "COLUMN_FROM", 10**6)
    whole = finished(tmp_path / "whole", WORDS)
    monkeypatch.setattr(columns, "COLUMN_FROM", 5)
    monkeypatch.setattr(algorithm, "EVALUATED_AT_ONCE", 5)
    apart = finished(tmp_path / "apart", WORDS)
    assert (apart / "users.csv").read_text() == (whole / "users.csv").read_text()
    summary = json.loads((apart / "summary.json").read_text())
    assert len(summary["results"][0]["per_user"]) == 4
    for name in ("fedrep", "local"):
        one, other = load(str(whole))[name], load(str(apart))[name]
        for key in ("per_user", "test_sizes", "curve", "accuracy", "loss"):
            assert one.json()[key] == other.json()[key], key
        assert (apart / name / endings.USER_COLUMNS).is_file()
        assert not (whole / name / endings.USER_COLUMNS).exists()
    file = apart / "local" / endings.USER_COLUMNS
    file.write_bytes(file.read_bytes()[:-1] + b"?")
    assert endings.read_result(apart / "local", 2) is None
    assert run(["--resume", str(apart)], "") == 0
    assert load(str(apart))["local"].per_user == load(str(whole))["local"].per_user


def test_a_sample_is_evaluated_and_all_at_the_end(tmp_path: Path) -> None:
    """The same users each time; training is as it was without."""
    plain = finished(tmp_path / "plain", [*WORDS, "num-rounds=4"])
    few = finished(tmp_path / "few", [*WORDS, "num-rounds=4", "evaluate-users=3"])
    rows = [json.loads(line) for line in (few / "fedrep/metrics.jsonl").read_text().splitlines()]
    assert [row["measures"]["accuracy"]["users"] for row in rows] == [3, 3, 3, 12]
    assert load(str(few))["fedrep"].per_user == load(str(plain))["fedrep"].per_user
