"""What a run that cannot be done says: what is wrong, once, and what to do."""

from __future__ import annotations

from pathlib import Path

import pytest

from corsage.app.command import run

QUICK = ["num-users=8", "num-rounds=2", "fraction-train=1.0", "strategy=fedavg"]
NORMAL = """
from torch import nn

def net(shape, classes):
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 8), nn.BatchNorm1d(8), nn.Linear(8, classes))
"""


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty folder to work in."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    return tmp_path


def last_line(capsys: pytest.CaptureFixture[str]) -> str:
    """What the run says at its end."""
    return capsys.readouterr().err.splitlines()[-1]


@pytest.mark.parametrize(
    "words", [["model=nowhere:net"], ["dataset=csv", "data-file=nowhere.csv"], ["new-cluster=a"]]
)
def test_what_cannot_be_used_is_a_user_s_mistake_and_nothing_to_resume(
    capsys: pytest.CaptureFixture[str], words: list[str]
) -> None:
    assert run([*QUICK, *words], "") == 2
    assert "--resume" not in capsys.readouterr().err


def test_what_diverges_is_said_once_with_what_to_do(capsys: pytest.CaptureFixture[str]) -> None:
    assert run([*QUICK, "lr=1e30"], "") == 1
    assert last_line(capsys).count("a smaller lr, or inputs scaled to about 1") == 1


def test_batchnorm_on_a_batch_of_one_sample_says_what_to_do(
    here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (here / "normal.py").write_text(NORMAL)
    assert run([*QUICK, "model=normal:net", "batch-size=1"], "") == 1
    assert "one sample, too few for BatchNorm: set another batch-size" in last_line(capsys)
