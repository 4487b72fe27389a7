"""The experiments command: listing, mistakes, and a small experiment from end to end."""

from __future__ import annotations

import json
import math
import os
import struct
from importlib import import_module
from io import BytesIO, StringIO
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from matplotlib.image import imread
from rich.console import Console
from torch import nn

from corsage.app.report.plots import LIGHT
from corsage.benchmarks import __main__ as benchmarks
from corsage.benchmarks import bare_loop, engines, methods
from corsage.benchmarks.measure import Measure, number, table
from corsage.benchmarks.memory import family, proportional
from corsage.clients import client_class
from corsage.core.errors import ConfigError, DataError
from corsage.datasets.idx import IDX_FILES
from corsage.experiments import EXPERIMENTS, experiment
from corsage.experiments import __main__ as command
from corsage.experiments.convex_clustering import heads
from corsage.experiments.fedrep import table1
from corsage.experiments.outcome import Figure, Options, Outcome, picture
from corsage.experiments.runner import differences, percents, run
from tests.support.grouped import two_kinds

NAME = "fedrep-fashion-mnist"
TINY = [
    "dataset=digits",
    "num-users=10",
    "num-rounds=2",
    "hidden=8",
    "head-epochs=1",
    "local-epochs=1",
]


def test_listing_has_a_line_for_each(capsys: pytest.CaptureFixture[str]) -> None:
    assert command.main([]) == 0
    shown = capsys.readouterr().out
    for name in EXPERIMENTS:
        assert name in shown
        assert experiment(name).what.split()[0] in shown


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["fedrep-fashion-mnst"], f"Did you mean {NAME}?"),
        ([NAME, "--model", "resnet"], "invalid choice: 'resnet'"),
        ([NAME, "--seeds", "one"], "--seeds"),
        ([NAME, "num-rouns=3"], "Did you mean num-rounds?"),
        ([NAME, "--quik"], "--quik"),
    ],
)
def test_mistakes_are_one_line(
    words: list[str],
    expected: str,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    assert command.main(words) == 2
    complaint = [line for line in capsys.readouterr().err.splitlines() if "corsage:" in line]
    assert len(complaint) == 1 and expected in complaint[0]


def test_an_experiment_from_end_to_end(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    out = tmp_path / "out"
    assert command.main([NAME, "--quick", "--seeds", "3,4", "--out", str(out), *TINY]) == 0
    shown = capsys.readouterr().out
    assert "reference" in shown and "OUT" in shown  # two rounds are not a hundred

    written = json.loads((out / f"{NAME}.json").read_text())
    assert written["experiment"] == NAME and written["quick"]
    assert written["inside"] is False
    assert written["changed"]["num_rounds"] == "2"
    names = [figure["name"] for figure in written["figures"]]
    methods = ["fedrep", "fedavg", "fedavg+ft", "local", "fedper", "ditto"]
    assert names[:7] == [*methods, "fedrep - fedavg"]
    for figure in written["figures"]:
        assert len(figure["per_seed"]) == 2
        assert math.isclose(figure["measured"], sum(figure["per_seed"]) / 2)
        if figure["low"] is not None:
            high = math.inf if figure["high"] is None else figure["high"]
            assert figure["inside"] == (figure["low"] <= figure["measured"] <= high)
    assert {row["seed"] for row in written["results"]} == {3, 4}
    assert all("per_user" not in row for row in written["results"])
    assert (out / f"{NAME}.png").read_bytes().startswith(b"\x89PNG")


def test_table_1_trains_local_as_its_reference_did(monkeypatch: pytest.MonkeyPatch) -> None:
    """Five epochs where Fashion-MNIST's users have 50 samples; what the user changed wins."""
    asked: dict[str, Any] = {}

    def noted(names: list[str], seeds: Any, kept: Any, **keys: Any) -> dict[str, Any]:
        asked.update(dict.fromkeys(names, keys["local_epochs"]))
        return {}

    monkeypatch.setattr(table1, "run", noted)
    methods, small, large = ["fedavg", "local"], table1.fashion(2, 50), table1.fashion(2, 500)
    fewer: dict[str, Any] = {"local_epochs": 3}
    for column, changed, wanted in ((small, {}, 5), (large, {}, 1), (small, fewer, 3)):
        keys = {**column.keys, **changed}
        table1.run_column(column, methods, (0,), keys, changed)
        assert asked == {"fedavg": keys["local_epochs"], "local": wanted}


def test_runner_pairs_by_seed() -> None:
    keys = {"num_users": 10, "num_rounds": 1, "hidden": "8", "head_epochs": 1}
    both = run(["fedrep", "fedavg"], [1, 2], **keys)
    alone = run(["fedrep"], [2], **keys)
    assert [row["seed"] for row in both["fedavg"]] == [1, 2]
    assert percents(both, "fedrep")[1] == percents(alone, "fedrep")[0]
    gaps = differences(both, "fedrep", "fedavg")
    assert gaps[0] == percents(both, "fedrep")[0] - percents(both, "fedavg")[0]
    with pytest.raises(ConfigError):
        run(["fedrep"], [0], num_rouns=1)


def test_bands() -> None:
    figure = Figure.around("case", "name", [1.0, 3.0], 2.5, 1.0)
    assert figure.measured == 2.0 and figure.inside and figure.band == "1.5 .. 3.5"
    assert Figure("case", "name", (1.0,), 2.0).inside is None
    lead = Figure("case", "lead", (13.9,), 17.8, low=14)
    assert lead.inside is False and lead.band == ">= 14.0" and lead.as_json()["high"] is None
    outcome = Outcome("title", figures=[figure, lead, Figure("case", "new", (1.0,))])
    assert not outcome.inside
    assert picture(outcome).startswith(b"\x89PNG")


def test_figures_without_references_are_drawn_all_the_same() -> None:
    """Not an empty frame with a line at 0."""
    figures = [Figure("case", name, (97.7, 98.4)) for name in ("one", "other")]
    drawn = imread(BytesIO(picture(Outcome("title", figures=figures))))
    colour = np.array([int(LIGHT.lines[0][i : i + 2], 16) / 255 for i in (1, 3, 5)])
    assert (np.abs(drawn[:, :, :3] - colour).max(2) < 0.02).sum() > 50


def test_measures() -> None:
    assert Measure("name", 0.3, 0.3, "s").met
    assert Measure("name", 3.0, 2.0, "MB").as_json()["ratio"] == 1.5
    assert [number(value) for value in (2000.0, 0.31234, 12.0)] == ["2,000", "0.312", "12"]


def test_benchmarks_by_name(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert benchmarks.main(["engine"]) == 2
    assert "Did you mean engines?" in capsys.readouterr().err
    measures = [Measure("cost", 1.0, 2.0, "s", "bare 0.5 s"), Measure("lost", 3.0, 2.0, "s")]
    monkeypatch.setattr(engines, "run", lambda: iter(measures))
    assert benchmarks.main(["engines", "--json", str(tmp_path / "b.json")]) == 0
    shown = capsys.readouterr()
    assert "pass" in shown.out
    assert "MISS" in shown.out
    assert shown.err.splitlines()[1:] == ["cost: 1 s", "lost: 3 s  MISS (2)"]
    written = json.loads((tmp_path / "b.json").read_text())
    assert written["benchmarks"]["engines"][0]["met"] is True


def test_benchmarks_without_a_name_are_listed(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(benchmarks, "run", lambda *_: pytest.fail("one was run"))
    assert benchmarks.main([]) == 0
    shown = capsys.readouterr().out
    for name in (*benchmarks.MINUTES, *benchmarks.COMMANDS):
        assert f"\n{name} " in shown
    assert "Cost of an engine beyond the users' own work" in shown


def test_a_table_of_benchmarks_fits_a_terminal() -> None:
    measures = [
        Measure("a name that is long " * 4, 0.0001234, 0.01, "of the bare loop", "so"),
        Measure("only said", 7.0, None, "s"),
    ]
    shown = StringIO()
    Console(file=shown, width=80).print(table("title", measures))
    assert "0.000123" in shown.getvalue()
    assert "pass" in shown.getvalue()


@pytest.mark.parametrize(
    "name", sorted(path.stem for path in Path(benchmarks.__file__).parent.glob("[a-z]*.py"))
)
def test_every_benchmark_can_be_imported(name: str) -> None:
    import_module(f"corsage.benchmarks.{name}")


def test_what_a_message_costs_beyond_the_clients_work(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engines, "USERS", 2)
    monkeypatch.setattr(engines, "ROUNDS", 12)
    counted: list[int] = []
    end = engines.Laps.on_round_end

    def on_round_end(laps: engines.Laps, strategy: Any, row: dict[str, Any]) -> None:
        counted.append(len(laps.own))
        end(laps, strategy, row)

    monkeypatch.setattr(engines.Laps, "on_round_end", on_round_end)
    found = list(engines.local("small", "8", 1.0))
    assert not set(engines.DOORS) & set(vars(client_class(engines.ALGORITHM)))
    assert [measure.unit for measure in found] == ["of Flower's"] * 2
    assert counted == 2 * [2, 2, *10 * [4]]  # trained, and evaluated in the last ten rounds


def test_what_a_method_costs_beside_as_many_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    small = {"dataset": "digits", "partition": "iid", "num-users": 2, "fraction-train": 1.0}
    for place, value in (("PROBLEM", small), ("USERS", 2), ("TURNS", 1)):
        monkeypatch.setattr(methods, place, value)
    model = nn.Sequential(nn.Flatten(), nn.Linear(64, 10))
    monkeypatch.setattr(bare_loop, "plain_model", lambda keys: model)
    (found,) = methods.run(["fedproto"], ["MLP"])
    assert found.measured > 0
    assert found.name == "fedproto, MLP"


def test_memory_of_a_process_tree() -> None:
    assert os.getpid() in family(os.getpid(), set())
    assert proportional(os.getpid()) > 1


def results(ours: float, agreement: float) -> heads.Results:
    """Two seeds of FedRep at 60%, and of the clustered heads."""

    def row(accuracy: float, **more: Any) -> dict[str, Any]:
        return {"accuracy_last10": accuracy, **more}

    found = {"clusters-found": 3, "agreement": agreement}
    return {
        "fedrep": [row(0.6), row(0.6)],
        heads.OURS: [row(ours - 0.1, **found), row(ours + 0.1, **found)],
        heads.EXACT: [row(ours, **found), row(ours, **found)],
    }


@pytest.mark.parametrize(
    ("ours", "agreement", "inside"),
    [(0.7, 1.0, (True, True)), (0.5, 1.0, (False, True)), (0.7, 0.5, (True, False))],
    ids=["both", "worse than FedRep", "other groups"],
)
def test_the_claims(ours: float, agreement: float, inside: tuple[bool, ...]) -> None:
    rows = heads.figures(results(ours, agreement), claims=True)
    lead = next(row for row in rows if row.case == "points")
    agree = next(row for row in rows if row.case == "agreement with the groups")
    assert (lead.inside, agree.inside) == inside
    assert lead.measured == pytest.approx(100 * ours - 60)
    bare = heads.figures(results(ours, agreement), claims=False)
    assert all(row.inside is None for row in bare)


def test_groups_call_the_same_classes_by_other_names(tmp_path: Path) -> None:
    """Images are all of one brightness a class: the label is a function of it in each group."""
    rng = np.random.default_rng(0)
    for name, count in zip(IDX_FILES[::2], (5000, 2000), strict=True):
        y = rng.integers(0, 10, count).astype(np.uint8)
        x = np.repeat(y, 4)
        (tmp_path / name).write_bytes(struct.pack(">4B3I", 0, 0, 8, 3, count, 2, 2) + x.tobytes())
        labels = name.replace("images-idx3", "labels-idx1")
        (tmp_path / labels).write_bytes(struct.pack(">4BI", 0, 0, 8, 1, count) + y.tobytes())
    options = Options(keys={"data_dir": str(tmp_path)})
    with np.load(heads.hidden(tmp_path, 0, options)) as data:
        brightness, arrays = data["x"][:, 0, 0], dict(data)
    names = {}
    for group in "012":
        mine = arrays["group"] == group
        pairs = set(zip(brightness[mine].tolist(), arrays["label"][mine].tolist(), strict=True))
        assert len(pairs) == 10 and len({label for _, label in pairs}) == 10
        names[group] = frozenset(pairs)
    assert len(set(names.values())) == 3
    for user in np.unique(arrays["user"]):
        mine = arrays["user"] == user
        assert len(set(arrays["group"][mine])) == 1
        assert (arrays["test"][mine].sum(), mine.sum()) == (heads.TEST, heads.TRAIN + heads.TEST)


def test_without_fashion_mnist_it_says_what_to_install(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"apt-get install dataset-fashion-mnist"):
        heads.hidden(tmp_path, 0, Options(keys={"data_dir": str(tmp_path)}))


def test_every_method_runs_and_says_which_clusters_it_finds(tmp_path: Path) -> None:
    """Users of two kinds stand for the groups."""
    keys = {**two_kinds(tmp_path), "num_rounds": 2, "fine_tune_epochs": 0, "seed": 0}
    for method in heads.METHODS:
        row = heads.once(method, {**keys, "fraction_train": 1.0, **method.keys})
        finds = method.strategy in ("fedrep-convex", "fedrep-exact", "ifca", "cfl")
        assert row["strategy"] == method.label and row["users"] == 10
        assert ("clusters-found" in row, "agreement" in row) == (finds, finds)
        if finds:
            assert 1 <= row["clusters-found"] <= 10 and -0.5 <= row["agreement"] <= 1
