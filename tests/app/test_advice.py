"""What a run that cannot be done says: what is wrong, once, and what to do."""

from __future__ import annotations

import io
from pathlib import Path

import numpy as np
import pytest
import torch
from rich.console import Console

import corsage
from corsage.app.command import run
from corsage.app.output.summary import summary_table
from corsage.core.errors import CorsageError

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
    assert run([*QUICK, "model=normal:net", "batch-size=1"], "") == 2
    assert "batch-size=1, too few for BatchNorm" in last_line(capsys)


def test_a_narrow_table_names_its_strategies_and_shows_whole_numbers() -> None:
    """RMSE of a convex problem: long numbers, and names that are shortened in their middles."""
    score = {"mean": 1.234e-06, "std": 6.789e-07, "min": 0.0, "max": 2.345e-06}
    row = {
        "measure": "rmse",
        "rmse": score,
        "rmse_last10": 1.111e-06,
        "worst10": 2.222e-06,
        "seconds": 1.0,
    }
    counts = {"bytes_up": 12_300.0, "bytes_down": 1_060.0, "messages": 33, "dropped": {}}
    names = ["mixed-model", "convex-clustering+refit"]
    console = Console(width=80, file=io.StringIO(), color_system=None)
    console.print(summary_table([{"strategy": n, **row, **counts} for n in names]), crop=False)
    assert isinstance(console.file, io.StringIO)
    lines = console.file.getvalue().splitlines()
    assert sum(line.startswith("mixed-model ") for line in lines) == 2  # columns by and by
    assert sum("1.234e-06 ± 6.789e-07" in line for line in lines) == 2
    assert sum(line.rstrip().endswith("1.0 s") for line in lines) == 2
    assert max(map(len, lines)) <= 80


def test_words_that_were_standardised_say_how_to_keep_them() -> None:
    """Where a model takes some of its inputs for words, all are columns of a table."""

    class Words(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.table, self.layer = torch.nn.Embedding(9, 4), torch.nn.Linear(8, 2)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.layer(torch.cat([self.table(x[:, :1].long()).mean(1), x[:, 1:]], 1))

    rng = np.random.default_rng(0)
    users = [(rng.integers(0, 9, (20, 5)), rng.integers(0, 2, 20)) for _ in range(2)]
    keys = {"model": Words, "num_rounds": 1, "progress": False, "training_path": "loop"}
    with pytest.raises(CorsageError, match="scale=none"):
        corsage.simulate("fedper", users, **keys)
    assert corsage.simulate("fedper", users, scale="none", **keys)
