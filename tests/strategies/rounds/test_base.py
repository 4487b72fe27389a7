"""The common loop: an algorithm that ends by itself, what it says at its end, and its labels."""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from rich.console import Console

from corsage.app.client_app import app
from corsage.app.local_grid import LocalGrid
from corsage.app.output.progress import Progress, Watcher
from corsage.app.run.checkpoint import read_checkpoint, write_checkpoint
from corsage.app.run.recorder import Recorder
from corsage.core.configuration.config import Config
from corsage.core.errors import NodeError
from corsage.strategies.fedavg import FedAvg
from corsage.strategies.rounds.agreed import check_data
from corsage.strategies.rounds.results import Finding
from corsage.strategies.rounds.state import Progress as Where
from tests.support.federations import SMALL, Notes
from tests.support.resuming import IDENTITY, Resume

FOUND = Finding("Certificate", [("gap", "0.5")])


class Early(FedAvg):
    """FedAvg that has seen enough after round 7, and says so."""

    def finished(self) -> bool:
        return self.progress.round >= 7

    def findings(self) -> list[Finding]:
        return [FOUND] if self.finished() else []


def started(cls: type[FedAvg], callbacks: list[Any], **keys: Any) -> tuple[FedAvg, list[Any]]:
    strategy = cls(Config.parse({**SMALL, **keys}), callbacks, experiment="e")
    return strategy, strategy.start(LocalGrid(app, 1)).json()


@pytest.mark.parametrize("every", [2, 5, 100])
def test_an_algorithm_may_end_before_its_last_round(every: int) -> None:
    """It is as if the run had been asked for that many rounds, evaluation of the last included."""
    notes, keys = Notes(), {"num-rounds": 50, "evaluate-every": every}
    strategy, (early,) = started(Early, [notes], **keys)
    _, (whole,) = started(FedAvg, [], **{**keys, "num-rounds": 7})
    assert [row["round"] for row in notes.rows] == list(range(1, 8))
    assert "accuracy" in notes.rows[-1]
    assert strategy.progress.curve[-1][0] == 7
    assert early["rounds"] == 7
    for key in ("per_user", "loss", "accuracy", "bytes_up", "messages"):
        assert early[key] == whole[key]
    evaluated = [value for _, value in strategy.progress.curve]
    assert len(evaluated) == {2: 4, 5: 2, 100: 1}[every]
    assert early["accuracy_last10"] == pytest.approx(np.mean(evaluated))
    assert early["findings"] == [{"title": "Certificate", "rows": [["gap", "0.5"]]}]
    assert "findings" not in whole


def test_the_last_ten_rounds_are_the_last_that_were_done() -> None:
    class Later(Early):
        """Ends after round 14."""

        def finished(self) -> bool:
            return self.progress.round >= 14

    strategy, (result,) = started(Later, [], **{"num-rounds": 50, "evaluate-every": 1})
    wanted = [value for number, value in strategy.progress.curve if number > 4]
    assert len(wanted) == 10
    assert result["accuracy_last10"] == pytest.approx(np.mean(wanted))


@pytest.mark.parametrize("rounds", [7, 14])
def test_the_last_ten_rounds_are_evaluated_however_rare_evaluations_are(rounds: int) -> None:
    strategy, _ = started(FedAvg, [], **{"num-rounds": rounds, "evaluate-every": 100})
    wanted = [number for number in range(1, rounds + 1) if number > rounds - 10]
    assert [number for number, _ in strategy.progress.curve] == wanted


def test_a_run_that_had_ended_is_not_trained_again(tmp_path: Path) -> None:
    strategy, (wanted,) = started(Early, [], **{"num-rounds": 50})
    path, notes = tmp_path / "checkpoint", Notes()
    write_checkpoint(path, strategy.parts, IDENTITY)
    again = Early(strategy.config, [notes, Resume(path, 7)], experiment="e")
    (found,) = again.start(LocalGrid(app, 1)).json()
    assert notes.rows == []
    for key in ("per_user", "rounds", "curve", "bytes_up", "accuracy_last10", "findings"):
        assert found[key] == wanted[key]


def test_the_run_folder_has_the_last_round_of_an_early_end(tmp_path: Path) -> None:
    config = Config.parse({**SMALL, "num-rounds": 50, "checkpoint-every": 20})
    folder, stream, watcher = tmp_path / "early", io.StringIO(), Watcher(50)
    watcher.progress = Progress(Console(file=stream))
    strategy = Early(config, [Recorder(folder, {}, config), watcher])
    strategy.start(LocalGrid(app, 1))
    (where,) = read_checkpoint(folder / "checkpoint-000007", {}, {"progress": Where}).values()
    assert where.round == 7
    (result,) = json.loads((folder / "result.json").read_text())["results"]
    assert result["findings"] == [{"title": "Certificate", "rows": [["gap", "0.5"]]}]
    assert stream.getvalue().splitlines()[-1].startswith("fedavg: 7 rounds, done, accuracy ")


@pytest.mark.parametrize(
    ("shape", "classes", "began"),
    [
        ((1, 8, 8), 0, r"with \(1, 8, 8\) and numbers as labels"),
        ((1, 8, 8), 9, r"with \(1, 8, 8\) and 9 classes"),
        ((3, 8, 8), 10, r"with \(3, 8, 8\) and 10 classes"),
        ((1, 8, 8), 11, ""),
        ((), 0, ""),
    ],
)
def test_a_resumed_run_needs_data_like_those_it_began_with(
    shape: tuple[int, ...], classes: int, began: str
) -> None:
    """The digits have 10 classes; a run that began with more of them goes on for all."""
    strategy = FedAvg(Config.parse({**SMALL, "num-rounds": 1}))
    strategy.begin(LocalGrid(app, 1))
    job, where = strategy.job, strategy.job.built
    where.shape, where.num_classes = shape, classes
    if began:
        with pytest.raises(NodeError, match=rf"with 10 classes, the run began {began}\."):
            check_data(job)
    else:
        check_data(job)
        assert where.num_classes == job.agreed.num_classes == max(classes, 10)
        assert where.shape == (1, 8, 8)
