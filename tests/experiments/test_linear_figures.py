"""Figures 1, 3 and 4 of FedRep: acceptance numbers at small cost, and the command's output."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import numpy as np
import pytest

from corsage.app.report import plots
from corsage.experiments import __main__ as command
from corsage.experiments.fedrep import figure1, figure3, figure4
from corsage.experiments.outcome import Options
from corsage.experiments.pictures import figure

FEW = tuple(range(20))


@pytest.mark.parametrize("n", [20, 100])
def test_figure3_with_fixed_data_is_that_of_the_reference(n: int) -> None:
    found = figure3.panel(dataclasses.replace(figure3.FIXED, n=n), FEW)
    rows = {row.name: row for row in figure3.figures(found)}
    assert len(rows) == 6
    for row in rows.values():
        assert row.inside and row.counts == "median", row
        assert row.measured == np.median(row.values)
    ends = [rows[f"{name}, t=200"].measured for name in ("FedRep", "10GD-GD", "GD-GD")]
    assert ends == sorted(ends) and ends[0] < ends[1] / 1.5 and ends[1] < ends[2] / 3


def test_figure3_with_fresh_batches_shows_no_advantage() -> None:
    found = figure3.panel(dataclasses.replace(figure3.FRESH, n=100), FEW)
    rows = {row.name: row for row in figure3.figures(found)}
    assert rows["FedRep, t=200"].measured == pytest.approx(0.0026, rel=0.35)
    assert rows["GD-GD, t=200"].measured == pytest.approx(0.0023, rel=0.35)
    assert rows["FedRep / best"].inside and 1 < rows["FedRep / best"].measured < 2
    assert all(row.inside is not False for row in rows.values())
    assert "variance" in found.words and "FedRep 0.0" in found.step_words


def test_steps_are_tuned_on_other_seeds_than_those_that_are_shown() -> None:
    assert not set(figure3.TUNING_SEEDS) & set(range(figure3.SEEDS))
    setting = dataclasses.replace(figure3.FRESH, n=20, rounds=50)
    body, head = figure3.tuned(setting, 1)
    federation = setting.federation(figure3.TUNING_SEEDS)

    def last(body_step: float, head_step: float) -> float:
        learned = federation.run(figure3.Alternation(body_step, 1, head_step))
        return float(np.median(figure3.distance(learned, federation.problems.body)))

    others = [(0.02, 0.05), (0.1, 0.1), (0.3, 0.3), (0.5, 0.5)]
    assert all(last(body, head) <= last(*other) for other in others)


@pytest.mark.parametrize("m", [5, 10, 20])
def test_figure1_is_that_of_the_reference_and_of_theory(m: int) -> None:
    found = figure1.errors(m, FEW[:5])
    for name, values in found.items():
        row = figure("", name, values, figure1.REFERENCE[m][name], figure1.FACTOR[name])
        assert row.inside, row
    k, d, noise = figure1.SETTING.k, figure1.SETTING.d, figure1.SETTING.noise
    if m < d:
        assert found["Local"].mean() == pytest.approx(k * (1 - m / d), rel=0.05)
    # No model for all beats the mean of the users' models.
    truth = figure1.SETTING.federation(FEW[:5]).problems.models
    floor = k - np.square(truth.mean(-2)).sum(-1)
    assert (found["FedAvg"] >= floor).all()
    # Known B*: least squares with k features.
    assert found["FedRep"].mean() > 0.7 * noise**2 * k / (m - k - 1)


def test_figure4_needs_k_samples_only() -> None:
    found = figure4.errors(figure4.SETTING, FEW[:5])
    for m, own in found.items():
        for name, reference in figure4.REFERENCE[m].items():
            row = figure("", name, own[name], reference, figure4.FACTOR[name])
            assert row.inside, (m, row)
    assert (found[1]["FedRep"] > 0.5).all() and (found[2]["FedRep"] < 0.01).all()
    for m in (2, 3, 5, 10, 20):
        assert (found[m]["FedAvg, 1 step"] > 50 * found[m]["FedRep"]).all()
        assert (found[m]["FedAvg, 5 steps"] > found[m]["FedRep"]).all()


@pytest.mark.parametrize("name", ["fedrep-figure1", "fedrep-figure3", "fedrep-figure4"])
def test_the_command_writes_json_and_picture(
    name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = [name, "--quick", "--seeds", "1,2,3", "--out", str(tmp_path)]
    assert command.main(words) == 0
    shown = capsys.readouterr().out
    assert "reference" in shown and "these are 3" in shown
    written = json.loads((tmp_path / f"{name}.json").read_text())
    assert written["quick"] and written["results"] and written["notes"]
    assert all(len(row["per_seed"]) == 3 for row in written["figures"])
    assert all(np.isfinite(row["measured"]) for row in written["figures"])
    assert (tmp_path / f"{name}.png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.filterwarnings("error")
def test_pictures_show_every_method_and_the_reference() -> None:
    outcome = figure3.measure(Options(quick=True))
    assert outcome.draw is not None
    drawing = outcome.draw(plots.DARK)
    plots.png(drawing)
    assert [axes.get_title(loc="left").strip() for axes in drawing.axes] == [
        "n=20, fixed data, noise std 1e-3",
        "n=100, fixed data, noise std 1e-3",
    ]
    for axes, n in zip(drawing.axes, (20, 100), strict=True):
        lines = axes.get_lines()
        assert [line.get_label() for line in lines[::2]] == list(figure3.METHODS)
        diamonds = [dict(zip(*line.get_data(), strict=True)) for line in lines[1::2]]
        assert diamonds == list(figure3.FIXED_REFERENCE[n].values())


@pytest.mark.parametrize("name", ["fedrep-figure1", "fedrep-figure3", "fedrep-figure4"])
def test_there_are_no_keys_to_change(
    name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert command.main([name, "num-users=3", "--out", str(tmp_path)]) == 2
    complaint = capsys.readouterr().err
    assert "num-users=3" in complaint and f"{name} has no keys" in complaint
