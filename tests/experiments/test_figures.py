"""What Figures 5 and 6 and Table 1 make of results, on results that are made up."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from corsage.app.report import plots
from corsage.core.registry import ALGORITHMS
from corsage.experiments import __main__ as command
from corsage.experiments import runner
from corsage.experiments.fedrep import figure1, figure3, figure4, figure5, figure6, table1
from corsage.experiments.outcome import Options
from corsage.experiments.pictures import figure
from corsage.experiments.runner import Results
from tests.support.published import write_cifar

Means = tuple[float, ...]
FLAT: Means = (10.0, 9.0, 8.0, 7.5, 8.0)
FALLING: Means = (50.0, 40.0, 30.0, 20.0, 10.0)
HURT: Means = (50.0, 40.0, 30.0, 32.0, 36.0)


def errors(fedrep: Means, fedavg: Means) -> dict[str, dict[int, tuple[float, ...]]]:
    """Three seeds around these means, those of both methods shifted alike."""
    means = {"fedrep": fedrep, "fedavg": fedavg}
    return {
        name: {e: (m - 4.0, m, m + 4.0) for e, m in zip(figure5.EPOCHS, own, strict=True)}
        for name, own in means.items()
    }


@pytest.mark.parametrize(
    ("fedrep", "fedavg", "measured", "inside"),
    [
        (FLAT, HURT, (0.5, 6.0), (True, True)),
        (FLAT, FALLING, (0.5, 0.0), (True, False)),
        ((10.0, 9.0, 11.0, 8.0, 7.0), HURT, (2.0, 6.0), (False, True)),
        ((7.0, 7.5, 8.0, 8.5, 9.0), FALLING, (2.0, 0.0), (False, False)),
        (FALLING, (50.0, 40.0, 30.0, 30.0, 30.5), (0.0, 0.5), (True, False)),
    ],
    ids=["both", "fedavg gains", "worse in the middle", "worse bit by bit", "hurt by noise"],
)
def test_the_claims_of_figure_5(
    fedrep: Means, fedavg: Means, measured: Means, inside: tuple[bool, ...]
) -> None:
    """FedRep may lose the noise and no more; FedAvg must lose more than that."""
    claims = figure5.claims(errors(fedrep, fedavg))
    assert [claim.name.split()[0] for claim in claims] == ["fedrep", "fedavg"]
    assert [claim.measured for claim in claims] == pytest.approx(measured)
    assert tuple(claim.inside for claim in claims) == inside


def test_figure_5_pairs_fedavg_by_seed() -> None:
    """Of each seed, the error at the largest E minus that at the E which is best on average."""
    found = errors(FLAT, FALLING)
    found["fedavg"] |= {10: (1.0, 2.0, 3.0), 20: (2.0, 4.0, 9.0)}
    assert figure5.claims(found)[1].values == pytest.approx((1.0, 2.0, 6.0))


def adapted(shift: float) -> dict[str, Any]:
    """A row of `NAME+new`, its cases in another order than that of the figure."""
    epochs = reversed(figure6.EPOCHS)
    return {"new_users": [{"epochs": e, "accuracy": {"mean": e / 100 + shift}} for e in epochs]}


def test_the_curve_of_figure_6() -> None:
    """Percents by epochs, one a seed, for the method that is asked for."""
    results: Results = {"fedrep+new": [adapted(0.5), adapted(0.25)], "local+new": [adapted(0.0)]}
    curve = figure6.curve(results, "fedrep+new")
    assert list(curve) == list(figure6.EPOCHS)
    for epochs, values in curve.items():
        assert values == pytest.approx((epochs + 50, epochs + 25))
    assert set(figure6.METHODS) <= set(ALGORITHMS)


def test_the_papers_table() -> None:
    """Fifteen rows of seven percents; each row is an algorithm, with fine-tuning or without."""
    assert len(table1.PAPER) == 15
    assert {len(row) for row in table1.PAPER.values()} == {7}
    assert all(0 < number < 100 for row in table1.PAPER.values() for number in row)
    assert {name.removesuffix("+ft") for name in table1.PAPER} <= set(ALGORITHMS)
    assert set(table1.BEYOND) <= set(ALGORITHMS) - set(table1.PAPER)
    places = [column.place for column in table1.COLUMNS if column.place is not None]
    assert places == list(range(7))


def test_rows_are_in_the_papers_order() -> None:
    """What the paper does not have comes last, as it came."""
    names = ["pfedme", "fedrep", "cfl", "fedavg+ft", "fedavg", "local"]
    expected = ["local", "fedavg", "fedavg+ft", "fedrep", "pfedme", "cfl"]
    assert table1.order(names) == expected
    assert table1.order([*reversed(table1.PAPER)]) == list(table1.PAPER)


def column(start: str) -> table1.Column:
    """The first column whose title begins like that."""
    return next(column for column in table1.COLUMNS if column.title.startswith(start))


@pytest.mark.parametrize(
    ("title", "own"),
    [
        ("mnist by writer", {"data_file": "w.npz"}),
        ("fashion-mnist", {}),
        ("cifar10 ", {"data_dir": str(Path("all/cifar10"))}),
        ("cifar100", {"data_dir": str(Path("all/cifar100"))}),
        ("sent140", {"data_dir": str(Path("all/sent140"))}),
        ("femnist", {"data_dir": str(Path("all/femnist"))}),
    ],
)
def test_each_column_gets_its_own_files(title: str, own: dict[str, str]) -> None:
    """All columns get the other keys; the options stay as they were."""
    keys = {"data_file": "w.npz", "data_dir": "all", "num_rounds": 3}
    options = Options(keys=keys)
    assert table1.own_keys(column(title), options) == {"num_rounds": 3, **own}
    assert keys == {"data_file": "w.npz", "data_dir": "all", "num_rounds": 3}


def why(found: table1.Column, **given: Any) -> str:
    keys = {**found.keys, **table1.own_keys(found, Options(keys=given))}
    return table1.why_absent(found, keys)


def test_what_is_absent_is_named(tmp_path: Path) -> None:
    """Without the option, what to give; with it, what is not there."""
    assert "data-file=FILE" in why(column("mnist by writer"))
    assert str(tmp_path / "w.npz") in why(
        column("mnist by writer"), data_file=str(tmp_path / "w.npz")
    )
    for place in (found for found in table1.COLUMNS if found.place is not None):
        name = place.keys["dataset"]
        assert f"FOLDER/{name}" in why(place)
        assert str(tmp_path / name) in why(place, data_dir=str(tmp_path))


def test_cifar_is_measured_by_its_files_and_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """By the paper's keys, with images that change; the time comes first, what was kept is read."""
    write_cifar(tmp_path / "cifar10", "cifar10", per_batch=20)
    own = column("cifar10 (100, 2)").keys
    assert (own["augment"], own["local_epochs"]) == ("crop,flip", 1)
    assert column("cifar10 (1000").keys["num_users"] == 1000
    monkeypatch.setattr(table1, "COLUMNS", [column("cifar10 (100, 2)"), column("cifar100")])
    paper = {name: table1.PAPER[name] for name in ("fedrep", "fedavg", "fedavg+ft")}
    monkeypatch.setattr(table1, "PAPER", paper)
    monkeypatch.setattr(table1, "BEYOND", ())
    keys = {"data_dir": str(tmp_path), "num_users": 10, "num_rounds": 1, "head_epochs": 1}
    options = Options(out=tmp_path / "out", keys={**keys, "fine_tune_epochs": 1})
    first = table1.measure(options)
    said = capsys.readouterr().err
    assert "cifar10 (100, 2), seeds 0: about" in said and "of CPU time" in said
    assert {"fedrep", "fedavg", "fedavg+ft"} <= {figure.name for figure in first.figures}
    assert [note.split(":")[0] for note in first.notes] == ["cifar100 (100, 5)"]
    monkeypatch.setattr(table1, "seconds", lambda *_: 0.0)
    monkeypatch.setattr(runner, "run_one", None)
    assert table1.measure(options).figures == first.figures


def test_what_is_present_is_not_absent(tmp_path: Path) -> None:
    """A file of writers as the option says it, and a data set that needs no file."""
    numbers = np.random.default_rng(0)
    x = numbers.normal(size=(60, 4)).astype(np.float32)
    np.savez(tmp_path / "w.npz", x=x, y=np.arange(60) % 3, writer=np.repeat(np.arange(6), 10))
    assert why(column("mnist by writer"), data_file=str(tmp_path / "w.npz")) == ""
    assert why(table1.Column("digits", {"dataset": "digits", "num_users": 10})) == ""


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
