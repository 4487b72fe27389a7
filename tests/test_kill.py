"""A server process that is killed for real loses nothing."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

import corsage

SCRIPT = Path(corsage.__file__).parent / "run_simulation.py"
WORDS = ["strategy=fedrep,local", "num-users=20", "num-rounds=60", "fraction-train=0.5"]


def finish(folder: Path, *words: str) -> list[dict[str, Any]]:
    out = folder / "out.json"
    subprocess.run(
        [sys.executable, str(SCRIPT), *words, "--json", str(out)],
        cwd=folder,
        check=True,
        capture_output=True,
    )
    results: list[dict[str, Any]] = json.loads(out.read_text())["results"]
    return results


def numbers(results: list[dict[str, Any]]) -> list[Any]:
    keys = ("strategy", "per_user", "loss", "curve", "bytes_up", "bytes_down", "accuracy_last10")
    return [{key: result[key] for key in keys} for result in results]


def kill_in_round(
    folder: Path, words: list[str], line: int, wait: float, look: float = 0.001
) -> None:
    """Start the run, look every so often, and kill it `wait` seconds after so many rounds."""
    process = subprocess.Popen(
        [sys.executable, str(SCRIPT), *words],
        cwd=folder,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    deadline = time.monotonic() + 120
    while rounds(folder) < line:
        assert process.poll() is None, "the run ended before it could be killed"
        assert time.monotonic() < deadline
        time.sleep(look)
    time.sleep(wait)
    os.kill(process.pid, signal.SIGKILL)
    assert process.wait() == -signal.SIGKILL


def rounds(folder: Path) -> int:
    return sum(len(p.read_text().splitlines()) for p in folder.rglob("metrics.jsonl"))


def test_killed_again_and_again_it_ends_the_same(tmp_path: Path) -> None:
    """Between rounds, within rounds, in the second strategy, and during a resume."""
    (tmp_path / "whole").mkdir()
    (tmp_path / "killed").mkdir()
    wanted = finish(tmp_path / "whole", *WORDS)
    kill_in_round(tmp_path / "killed", WORDS, 5, 0.0)
    folder = next((tmp_path / "killed" / "runs").iterdir())
    assert not (folder / "fedrep" / "result.json").exists()
    resume = ["--resume", str(folder)]
    for line, wait in ((15, 0.004), (30, 0.009), (75, 0.002)):
        kill_in_round(tmp_path / "killed", resume, line, wait)
    assert not (folder / "summary.json").exists()
    found = finish(tmp_path / "killed", *resume)
    assert numbers(found) == numbers(wanted)
    rows = [json.loads(x) for x in (folder / "fedrep" / "metrics.jsonl").read_text().splitlines()]
    assert [row["round"] for row in rows] == list(range(1, 61))
    assert len(list((tmp_path / "killed" / "runs").iterdir())) == 1


@pytest.mark.parametrize("every", [7])
def test_with_rare_checkpoints_too(tmp_path: Path, every: int) -> None:
    """Users keep the version that the checkpoint holds, however many rounds came after it."""
    (tmp_path / "whole").mkdir()
    (tmp_path / "killed").mkdir()
    wanted = finish(tmp_path / "whole", *WORDS)
    words = [*WORDS, f"checkpoint-every={every}"]
    kill_in_round(tmp_path / "killed", words, 20, 0.003)
    folder = next((tmp_path / "killed" / "runs").iterdir())
    found = finish(tmp_path / "killed", "--resume", str(folder))
    assert numbers(found) == numbers(wanted)
