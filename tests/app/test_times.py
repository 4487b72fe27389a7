"""Printed times are those that a user waits, by a clock that passes only where a test says."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from contextvars import copy_context
from pathlib import Path
from typing import Any

import pytest

from corsage import simulate
from corsage.app.command import run
from corsage.app.report import document as report
from corsage.app.run import endings
from corsage.core import clock as clocks
from corsage.strategies.fedavg import FedAvg
from tests.support.clock import Clock

ROUND, OPENING, CLOSING, FINDINGS, EVALUATION, REPORT = 1.0, 2.0, 4.0, 8.0, 16.0, 3.0
"""Seconds that each takes: a sum says of what it is."""
FEW = ["strategy=fedavg", "num-users=6", "hidden=4", "evaluate-every=100", "fraction-train=1"]


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    """FedAvg takes its time; nothing else takes any."""
    clock = Clock()
    for module in (clocks, endings):
        monkeypatch.setattr(module, "time", clock)

    def slow(name: str, seconds: float, owner: Any = FedAvg) -> None:
        usual = getattr(owner, name)

        def slowly(*args: Any, **kwargs: Any) -> Any:
            clock.sleep(seconds)
            return usual(*args, **kwargs)

        monkeypatch.setattr(owner, name, slowly)

    def slow_script(name: str, seconds: float) -> None:
        def slowly(strategy: FedAvg) -> Iterator[None]:
            clock.sleep(seconds)
            yield from ()

        monkeypatch.setattr(FedAvg, name, slowly)

    slow("note_trained", ROUND)
    slow("findings", FINDINGS)
    slow("evaluations", EVALUATION)
    slow("write_report", REPORT, report)
    slow_script("opening", OPENING)
    slow_script("closing", CLOSING)
    return clock


def test_a_row_has_all_that_it_costs(clock: Clock) -> None:
    """The opening, the last evaluation, the closing and what is found were in no row."""
    keys: dict[str, Any] = {"num_users": 6, "hidden": 4, "evaluate_every": 100, "new_users": 0.4}
    found = simulate("fedavg", num_rounds=2, progress=False, adapt_epochs=(1, 2), **keys)
    shared = OPENING + 2 * (ROUND + EVALUATION) + CLOSING + FINDINGS
    assert found["fedavg"].seconds == shared
    assert found["fedavg+ft"].seconds == shared + EVALUATION
    assert found["fedavg+new"].seconds == shared + 2 * EVALUATION  # two cases, but no fine-tuning


def printed(text: str) -> tuple[str, dict[str, str]]:
    """The whole of a command's line, and its parts by name."""
    (line,) = (line for line in text.splitlines() if line.startswith("Time"))
    what, whole, parts = line.split(": ", 2)
    return f"{what}: {whole}", dict(part.split(" ", 1) for part in parts.split(", "))


def test_a_line_says_where_the_rest_went(
    clock: Clock, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """What rows share counts once. A resumed run's rows count on, its line is the command's own."""

    def command(words: list[str]) -> tuple[str, dict[str, str]]:
        clocks.COMMAND_START.set(clock.now)
        clock.sleep(5)
        assert run(words) == 0
        return printed(capsys.readouterr().out)

    def rows() -> list[float]:
        content = json.loads((folder / "summary.json").read_text())
        return [result["seconds"] for result in content["results"]]

    begin = [*FEW, "num-rounds=1", f"run-dir={tmp_path}"]
    found = copy_context().run(command, begin)
    assert found == ("Time: 1m 11s", {"start": "5.0 s", "fedavg": "1m 03s", "report": "3.0 s"})
    (folder,) = tmp_path.iterdir()
    assert rows() == [31.0, 47.0, 47.0]
    found = copy_context().run(command, ["--resume", str(folder), "num-rounds=2"])
    line = "Time since it was resumed: 1m 11s"
    assert found == (line, {"start": "5.0 s", "fedavg": "1m 03s", "report": "3.0 s"})
    assert rows() == [
        OPENING + ROUND + 31.0,
        OPENING + ROUND + 47.0,
        OPENING + ROUND + 47.0,
    ]  # round 1 as its checkpoint has it
    found = copy_context().run(command, ["--resume", str(folder)])
    assert found == ("Time since it was resumed: 8.0 s", {"start": "5.0 s", "report": "3.0 s"})


def seconds_of(text: str) -> float:
    """What `human_seconds` wrote."""
    units = {"ms": 1e-3, "s": 1.0, "m": 60.0, "h": 3600.0}
    return sum(float(n) * units[unit] for n, unit in re.findall(r"([\d.]+) ?(ms|s|m|h)", text))


def test_the_parts_are_the_commands_time(tmp_path: Path) -> None:
    words = [*FEW, "num-rounds=3", f"run-dir={tmp_path}"]
    begin = time.monotonic()
    command = [sys.executable, "-m", "corsage.app.command", *words]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    wall = time.monotonic() - begin
    whole, parts = printed(done.stdout)
    total = seconds_of(whole)
    assert [*parts] == ["start", "fedavg", "report"]
    assert sum(seconds_of(text) for text in parts.values()) == pytest.approx(total, rel=0.1)
    assert wall / 2 < total < wall + 0.1
