"""A server process that is killed for real loses nothing."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from corsage.app.command import run
from tests.support.killing import Point, kill_after, kill_at, run_folder

ROUNDS = 30
WORDS = [
    *("strategy=fedrep,local", "num-users=20", f"num-rounds={ROUNDS}", "fraction-train=0.5"),
    *("head-epochs=2", "fine-tune-epochs=1"),
]


def finish(folder: Path, *words: str) -> list[Any]:
    """Run to the end in this process; the numbers of the strategies."""
    out = folder / "out.json"
    assert run([*words, "--json", str(out)], "") == 0
    keys = ("strategy", "per_user", "loss", "curve", "bytes_up", "bytes_down", "accuracy_last10")
    return [{key: result[key] for key in keys} for result in json.loads(out.read_text())["results"]]


@pytest.fixture(scope="module")
def wanted(tmp_path_factory: pytest.TempPathFactory) -> list[Any]:
    """The numbers of a run that nobody disturbed."""
    folder = tmp_path_factory.mktemp("whole")
    return finish(folder, *WORDS, f"run-dir={folder}")


def test_killed_again_and_again_it_ends_the_same(tmp_path: Path, wanted: list[Any]) -> None:
    """Before a checkpoint is there, within rounds, in the second strategy, during a resume."""
    kill_at(tmp_path, WORDS, Point("fedrep/checkpoint-", rounds=5))
    folder = run_folder(tmp_path)
    assert not (folder / "fedrep" / "result.json").exists()
    resume = ["--resume", str(folder)]
    kill_at(tmp_path, resume, Point("fedrep/users/.*/UPDATE .*version = 16,", rounds=15, after=4))
    kill_after(tmp_path, resume, ROUNDS + 5, Point("local/metrics.jsonl$", rounds=ROUNDS + 9))
    # The first thing that a resumed run writes: the metrics, without what the checkpoint lacks.
    kill_at(tmp_path, resume, Point("local/metrics.jsonl$"))
    assert not (folder / "summary.json").exists()
    assert finish(tmp_path, *resume) == wanted
    rows = [json.loads(x) for x in (folder / "fedrep" / "metrics.jsonl").read_text().splitlines()]
    assert [row["round"] for row in rows] == list(range(1, ROUNDS + 1))
    assert len(list((tmp_path / "runs").iterdir())) == 1


@pytest.mark.parametrize("every", [7])
def test_with_rare_checkpoints_too(tmp_path: Path, wanted: list[Any], every: int) -> None:
    """Users keep the version that the checkpoint holds, however many rounds came after it."""
    words = [*WORDS, f"checkpoint-every={every}"]
    kill_after(tmp_path, words, 19, Point("fedrep/checkpoint-", rounds=21))
    assert finish(tmp_path, "--resume", str(run_folder(tmp_path))) == wanted
