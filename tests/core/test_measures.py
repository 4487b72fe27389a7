"""Accuracy and RMSE: one description, and runs on numbers from their data to the report."""

from __future__ import annotations

import io
import json
import math
import re
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import ArrayLike, NDArray
from rich.console import Console

from corsage.app.command import run
from corsage.app.output.progress import Progress
from corsage.app.output.summary import best, cells, findings_section, findings_tables, summary_table
from corsage.app.report import document as report
from corsage.app.report import plots
from corsage.app.report.curves import measure_chart
from corsage.app.report.people import ranks
from corsage.core.configuration.config import Config
from corsage.core.distribution import spread, worst_share
from corsage.core.measures import ACCURACY, RMSE, Measure, four_digits, measure_of
from corsage.core.messages.schema import capped
from corsage.datasets.dealing.federated import simulated
from corsage.datasets.user_data import UserData
from corsage.strategies.rounds.base import Strategy
from tests.support.federations import federate

Matrix = NDArray[np.float64]


# The description


def numbers(values: ArrayLike) -> dict[str, float]:
    """A spread as the JSON has it."""
    return asdict(spread(values))


def test_a_users_number() -> None:
    counts = {"num-examples": np.array([4.0, 10.0]), "correct": np.array([1.0, 10.0])}
    assert ACCURACY.user(counts).tolist() == [0.25, 1.0]
    assert ACCURACY.pooled(counts) == pytest.approx(11 / 14)
    counts["squared-error"] = np.array([16.0, 0.0])
    assert RMSE.user(counts).tolist() == [2.0, 0.0]
    assert RMSE.pooled(counts) == pytest.approx(math.sqrt(16 / 14))


def test_which_end_is_the_good_one() -> None:
    values = [0.3, 0.1, 0.2]
    assert ACCURACY.worst_first(values).tolist() == [0.1, 0.2, 0.3]
    assert RMSE.worst_first(values).tolist() == [0.3, 0.2, 0.1]
    assert (ACCURACY.worst, RMSE.worst) == ("min", "max")
    users = np.arange(20.0)
    assert worst_share(users, 0.1, ACCURACY) == 0.5
    assert worst_share(users, 0.1, RMSE) == 18.5


@pytest.mark.parametrize(
    ("measure", "value", "text"),
    [
        (ACCURACY, 0.7349, "73.5"),
        (ACCURACY, None, "–"),  # noqa: RUF001
        (RMSE, math.nan, "–"),  # noqa: RUF001
        (RMSE, 1.23456, "1.235"),
        (RMSE, 0.0123456, "0.01235"),
        (RMSE, 12345.6, "12346"),
        (RMSE, 0.0, "0.000"),
        (RMSE, 3.21e9, "3.210e+09"),
    ],
)
def test_numbers_as_they_are_shown(measure: Measure, value: float | None, text: str) -> None:
    assert measure.text(value) == text


@settings(max_examples=50, deadline=None)
@given(st.floats(1e-12, 1e12))
def test_four_digits_say_what_the_number_is(value: float) -> None:
    assert float(four_digits(value)) == pytest.approx(value, rel=5.01e-4)
    assert len(four_digits(value)) <= 9


# What is shown: two results of which the second has the lower error


def rmse_run(names: tuple[str, ...] = ("worse", "better")) -> tuple[list[Any], list[Any]]:
    results, rows = [], []
    for place, name in enumerate(names):
        curve = []
        values = np.array([4.0])
        for number in (1, 2):
            values = np.linspace(1.0, 3.0, 20) / (place + number)
            row = {"strategy": name, "round": number, "bytes_up": 10 * number, "bytes_down": 0}
            rows.append({**row, "seconds": 1.0, "measure": "rmse", "rmse": numbers(values)})
            curve.append([number, values.mean()])
        results.append(
            {
                "strategy": name,
                "rounds": 2,
                "users": 20,
                "measure": "rmse",
                "rmse": numbers(values),
                "rmse_last10": 1.5,
                "worst10": worst_share(values, measure=RMSE),
                "bytes_up": 20,
                "bytes_down": 0,
                "messages": 2,
                "seconds": 1.0,
                "per_user": {f"u{i}": float(v) for i, v in enumerate(values)},
                "curve": curve,
            }
        )
    return results, rows


def bold(table: Any) -> list[str]:
    return [str(cell) for column in table.columns for cell in column.cells if cell.style == "bold"]


def printed(thing: Any, width: int = 100) -> str:
    console = Console(width=width, file=io.StringIO(), color_system=None)
    console.print(thing)
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


def test_the_table_has_rmse_and_the_lowest_is_bold() -> None:
    results, _ = rmse_run()
    text = printed(summary_table(results))
    heads = " ".join(text.splitlines()[0:2])
    assert "RMSE" in heads and "max" in heads
    assert "%" not in text.replace("10%", "") and "min" not in heads.split()
    assert bold(summary_table(results)) == ["better", cells(results[1])[1]]
    assert best(results) == [False, True]
    assert cells(results[0])[1:5] == ["1.000 ± 0.3035", "1.500", "1.474", "1.500"]


def test_the_plots_have_rmse() -> None:
    results, rows = rmse_run()
    learning = plots.picture(measure_chart(results, rows, RMSE, "round")).axes[0]
    assert learning.get_ylabel() == "mean RMSE over users"
    lines = [line for line in learning.get_lines() if line.get_gid() == "curve"]
    np.testing.assert_allclose(lines[0].get_ydata(), [2.0, 1.0])
    assert any("better  0.6667" in text.get_text() for text in learning.texts)
    assert learning.get_ylim()[0] < 0.4 and learning.get_ylim()[1] < 3.0
    users = plots.picture(ranks(results, RMSE)).axes[0]
    assert users.get_ylabel() == "RMSE of the user"
    first = next(line for line in users.get_lines() if line.get_gid() == "curve")
    np.testing.assert_allclose(first.get_ydata(), np.linspace(1.5, 0.5, 20))
    assert first.get_label() == "worse\nworst 10%: 1.474"


def test_an_axis_of_errors_is_not_cut_and_holds_one_value() -> None:
    results, _ = rmse_run(("only",))
    results[0]["curve"] = [[1, 250.0], [2, 250.0]]
    axis = measure_chart(results, (), RMSE, "round").y
    assert axis.low < 250 < axis.high
    results[0]["curve"], results[0]["rmse"]["mean"] = [[1, 0.0]], 0.0
    axis = measure_chart(results, (), RMSE, "round").y
    assert axis.low == 0 and axis.high > 0


def test_the_report_has_rmse_and_marks_the_worst() -> None:
    results, rows = rmse_run()
    page = report.page("r", Config.parse().flat(), results, "0", rows)
    assert "Root mean squared error (RMSE, lower is better), of all users" in page
    assert "Mean RMSE over all users" in page and "All 20 users: RMSE" in page
    assert "ccuracy" not in page.split("<h2>Configuration")[0]
    (top,) = re.findall(r'<tr class="best[^"]*"><td>(?:<svg.*?</svg>)?(\w+)</td>', page)
    assert top == "better"
    low = re.findall(r'<td class="low">([\d.]+)', page)
    assert sorted(map(float, low)) == pytest.approx(sorted([1.5, 1.0, 0.9649, 1.447]), 1e-5)


def test_the_progress_line_has_rmse() -> None:
    _, rows = rmse_run(("only",))
    stream = io.StringIO()
    progress = Progress(Console(file=stream))
    progress.start("only", 10)
    for row in rows:
        progress.update(row)
    progress.done(1.5)
    first, *_, last = stream.getvalue().splitlines()
    assert first == "only: 10 rounds"
    assert last == "only: 2 rounds, done, RMSE 1.000 at 2, in 1.5 s"


def test_findings_are_shown_as_they_are() -> None:
    results, _ = rmse_run()
    assert findings_tables(results) == [] and findings_section(results) == ""
    rows = [["gap", "1e-9 [b]"], ["clusters", "<3>"]]
    results[1]["findings"] = [{"title": "Certificate", "rows": rows}]
    (table,) = findings_tables(results)
    lines = printed(table).split("\n")
    assert "better: Certificate" in lines[1]
    assert lines[2].split() == ["gap", "1e-9", "[b]"]
    assert lines[3].split() == ["clusters", "<3>"]
    page = report.page("r", Config.parse().flat(), results, "0")
    assert "<h3>better: Certificate</h3>" in page
    assert "<tr><td>clusters</td><td>&lt;3&gt;</td></tr>" in page


# Runs on numbers


def write_csv(path: Path, label: Callable[[Matrix, int, Any], Matrix]) -> Path:
    """Six users of 30 samples with three features each."""
    rng = np.random.default_rng(0)
    lines = ["user,label,a,b,c"]
    for user in range(6):
        x = rng.normal(size=(30, 3))
        for features, y in zip(x, label(x, user, rng), strict=True):
            lines.append(f"u{user},{y:.6g}," + ",".join(f"{v:.6f}" for v in features))
    path.write_text("\n".join(lines) + "\n")
    return path


def regression(x: Matrix, user: int, rng: Any) -> Matrix:
    found: Matrix = x @ [1.0, -2.0, 0.5 * user] + user + 0.1 * rng.normal(size=len(x))
    return found


def binary(x: Matrix, user: int, rng: Any) -> Matrix:
    return (x @ [1.0, -2.0, 0.5 * user] + rng.normal(size=len(x)) > 0).astype(float)


OWN = {
    "dataset": "csv", "partition": "natural", "num_users": 0, "model": "linear", "scale": "none",
}  # fmt: skip
FULL = {"fraction_train": 1.0, "momentum": 0.0, "weight_decay": 0.0, "batch_size": 1000}
LOSSES: dict[str, Any] = {
    "squared": (regression, lambda u, y: u - y),
    "huber": (regression, lambda u, y: np.clip(u - y, -0.7, 0.7)),
    "logistic": (binary, lambda u, y: 1 / (1 + np.exp(-u)) - y),
    "squared-hinge": (
        binary,
        lambda u, y: -2 * (2 * y - 1) * np.maximum(1 - (2 * y - 1) * u, 0),
    ),
}


@pytest.fixture(name="keys")
def of_a_csv(tmp_path: Path) -> Callable[..., dict[str, Any]]:
    def keys(loss: str, **more: Any) -> dict[str, Any]:
        kind = LOSSES[loss][0]
        path = write_csv(tmp_path / f"{loss}.csv", kind)
        labels = "numbers" if kind is regression else "classes"
        own = {"data_file": str(path), "labels": labels, "loss": loss, "huber_delta": 0.7}
        return {**OWN, **own, **more}

    return keys


def users_of(strategy: Strategy) -> list[UserData]:
    data = simulated(strategy.config.data, 0, strategy.config.run.seed)
    return [data[user] for user in data.users]


def with_one(x: NDArray[Any]) -> Matrix:
    return np.column_stack([x, np.ones(len(x))]).astype(np.float64)


@pytest.mark.parametrize("loss", list(LOSSES))
def test_a_round_of_fedavg_is_a_step_along_the_mean_gradient(
    loss: str, keys: Callable[..., dict[str, Any]]
) -> None:
    strategy, result, _ = federate("fedavg", nodes=2, **keys(loss, num_rounds=1, lr=0.1, **FULL))
    slope = LOSSES[loss][1]
    w = strategy.job.network.initial.astype(np.float64)
    gradients, users = [], users_of(strategy)
    for user in users:
        a = with_one(user.x_train)
        gradients.append(a.T @ slope(a @ w, user.y_train) / len(a))
    w -= 0.1 * np.mean(gradients, axis=0)
    np.testing.assert_allclose(strategy.state.model, w, atol=1e-5)
    (summary,) = result.json()
    for user in users:
        u = with_one(user.x_test) @ w
        if LOSSES[loss][0] is binary:
            wanted = np.mean((u > 0) == (user.y_test == 1))
        else:
            wanted = np.sqrt(np.mean((u - user.y_test) ** 2))
        assert summary["per_user"][user.user] == pytest.approx(wanted, rel=1e-5)


def test_least_squares_alone_converge_to_their_solution(
    keys: Callable[..., dict[str, Any]],
) -> None:
    rounds = {"num_rounds": 3, "local_epochs": 100, "lr": 0.4}
    strategy, result, _ = federate("local", **keys("squared", **rounds, **FULL))
    (summary,) = result.json()
    losses = []
    for user in users_of(strategy):
        w = np.linalg.lstsq(with_one(user.x_train), user.y_train, rcond=None)[0]
        residual = with_one(user.x_test) @ w - user.y_test
        losses.append(np.mean(residual**2) / 2)
        rmse = np.sqrt(np.mean(residual**2))
        assert summary["per_user"][user.user] == pytest.approx(rmse, rel=1e-4)
    assert summary["loss"]["mean"] == pytest.approx(np.mean(losses), rel=1e-4)
    assert summary["rmse"] == numbers(list(summary["per_user"].values()))
    assert summary["worst10"] == summary["rmse"]["max"]  # of six users one is the worst tenth


@pytest.mark.parametrize("name", ["fedrep", "fedavg", "ifca", "apfl"])
@pytest.mark.parametrize("loss", ["huber", "logistic"])
def test_methods_learn_and_are_judged_by_what_suits_the_labels(
    name: str, loss: str, keys: Callable[..., dict[str, Any]]
) -> None:
    """After 12 rounds a user's model is better than after the first."""
    more = {"model": "mlp", "hidden": "8", "num_rounds": 12, "evaluate_every": 1, "lr": 0.15}
    chosen = keys(loss, fraction_train=0.7, **more)
    strategy, result, notes = federate(name, **chosen)
    summary = result.json()[0]
    measure = measure_of(summary)
    assert measure is (RMSE if loss == "huber" else ACCURACY)
    assert ("measure" in summary) == (measure is RMSE)
    curve = [value for _, value in strategy.progress.curve]
    assert measure.merit(np.mean(curve[-5:])) > measure.merit(curve[0]) + 0.1
    assert summary[f"{measure.name}_last10"] == pytest.approx(np.mean(curve[-10:]))
    assert not notes.notes
    row = notes.rows[-1]
    assert row[measure.name]["mean"] == pytest.approx(curve[-1])
    assert row["participants"][measure.name] == pytest.approx(curve[-1])


def test_a_comparison_on_numbers_from_the_command_line(
    keys: Callable[..., dict[str, Any]],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    chosen = keys("squared", num_rounds=2, strategy="fedavg,local", new_users=0.4)
    words = [f"{name.replace('_', '-')}={value}" for name, value in chosen.items()]
    assert run([*words, "adapt-epochs=1,30", "--json", "out.json"], "") == 0
    out = capsys.readouterr()
    assert "RMSE" in out.out and re.search(r"fedavg: 2 rounds, done, RMSE [\d.]+ at 2", out.err)
    results = json.loads(Path("out.json").read_text())["results"]
    names = ["fedavg", "fedavg+ft", "fedavg+new", "local", "local+new"]
    assert [result["strategy"] for result in results] == names
    for result in results:
        assert result["measure"] == "rmse"
        assert not any(key.startswith("accuracy") for key in result)
        assert result["rmse"]["mean"] == pytest.approx(np.mean(list(result["per_user"].values())))
    few, many = results[2]["new_users"]
    assert few["rmse"]["mean"] > many["rmse"]["mean"] == results[2]["rmse"]["mean"]
    assert run([*words, "loss=cross-entropy"], "") == 2
    assert "loss=cross-entropy: is for classes, the labels are numbers" in capsys.readouterr().err


COUNTS = st.lists(st.integers(1, 10**9), min_size=1, max_size=30)


@pytest.mark.parametrize(
    ("weights", "most", "wanted"),
    [
        ([90, 10], 0.5, [10, 10]),
        ([90, 10, 10], 0.4, [40 / 3, 10, 10]),
        ([90, 80, 10, 10], 0.3, [15, 15, 10, 10]),
        ([10**9, 1, 1, 1], 0.25, [1, 1, 1, 1]),
        ([10**9, 1, 1, 1], 0.01, [1, 1, 1, 1]),
        ([5], 0.5, [5]),
        ([10, 0, 90], 0.1, [10, 0, 10]),
    ],
)
def test_the_largest_are_cut(weights: list[float], most: float, wanted: list[float]) -> None:
    assert capped(np.array(weights, float), most).tolist() == pytest.approx(wanted)


@given(COUNTS, st.floats(0.01, 1.0))
def test_shares(counts: list[int], most: float) -> None:
    """Nobody has more than the share, nobody gets more than it had, and the order stays."""
    weights = np.array(counts, float)
    found = capped(weights, most)
    share = max(most, 1 / len(counts))
    assert found.max() <= share * found.sum() * (1 + 1e-9)
    assert (found <= weights).all() and (found > 0).all()
    assert (np.diff(found[np.argsort(weights, kind="stable")]) >= 0).all()


@given(COUNTS)
def test_what_is_within_its_share_stays_as_it_is(counts: list[int]) -> None:
    """And equal users always are."""
    weights = np.array(counts, float)
    assert capped(weights, 1.0) is weights
    same = np.ones(len(counts))
    assert capped(same, 0.01) is same
