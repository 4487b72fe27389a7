"""Which Flower Corsage works with: said where it is, and when a run has another one."""

from __future__ import annotations

import tomllib
from importlib import metadata
from pathlib import Path

import pytest

import corsage
from corsage.app.command import run
from corsage.core.version import TESTED, VERSION, untested, warn_if_untested

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
