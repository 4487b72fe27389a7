"""What a run shows: statistics, table, progress, plots and report."""

from __future__ import annotations

import io
import re
import warnings
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import ArrayLike
from rich.console import Console
from rich.text import Text

from corsage.app.output.notes import notes
from corsage.app.output.progress import Progress
from corsage.app.output.summary import human_bytes, human_count, human_seconds, summary_table
from corsage.app.output.terminal import Airy, Name, heads, terminal
from corsage.app.report import plots
from corsage.app.report.chart import Axis, Chart, Series, Strip, Strips
from corsage.app.report.curves import measure_chart
from corsage.app.report.document import named_figures
from corsage.app.report.drawing import Frame, flags
from corsage.app.report.people import ranks
from corsage.app.report.strips import rows as strips_page
from corsage.app.report.style import looks, spaced
from corsage.core.distribution import spread, worst_share
from corsage.core.measures import ACCURACY, MEASURES
from tests.support.reports import with_everything

KEYS = ["mean", "std", "min", "q10", "q25", "median", "q75", "max"]
EVIL = "<script>alert(1)</script>"
THREE = ("accuracy-round", "accuracy-distribution", "intercept-fedrep")


def numbers(values: ArrayLike) -> dict[str, float]:
    """A spread as the JSON has it."""
    return asdict(spread(values))


def make_run(
    names: tuple[str, ...], users: int = 20, rounds: int = 20
) -> tuple[list[Any], list[Any]]:
    """Results and rows of a run that never was; each strategy a little better than the last."""
    results, rows = [], []
    base = np.linspace(0.4, 0.8, users)
    for place, name in enumerate(names):
        curve = []
        accuracies = base
        for number in range(1, rounds + 1):
            row: dict[str, Any] = {"strategy": name, "round": number, "users": 2, "dropped": 0}
            row |= {"bytes_up": 1000 * number, "bytes_down": 2000 * number, "messages": number}
            if number % 5 == 0:
                accuracies = base + 0.05 * place + 0.1 * number / rounds
                row["accuracy"] = row["loss"] = numbers(accuracies)
                curve.append([number, row["accuracy"]["mean"]])
            rows.append(row)
        ids = [EVIL, *(f"u{user}" for user in range(1, users))]
        results.append(
            {
                "strategy": name,
                "rounds": rounds,
                "users": users,
                "accuracy": numbers(accuracies),
                "accuracy_last10": 0.5,
                "loss": numbers(accuracies),
                "bytes_up": 123_400_000,
                "bytes_down": 567_800_000,
                "messages": 99_999,
                "seconds": 200.4,
                "worst10": worst_share(accuracies),
                "never_drawn": 3,
                "dropped": {EVIL: 2},
                "per_user": dict(zip(ids, map(float, accuracies), strict=True)),
                "curve": curve,
            }
        )
    return results, rows


def shown(results: list[Any], width: int = 80) -> str:
    console = Console(width=width, file=io.StringIO(), color_system=None)
    console.print(summary_table(results), crop=False)
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


# Statistics and units


def test_spread_is_numpys() -> None:
    values = np.random.default_rng(0).random(37)
    found = numbers(values)
    assert list(found) == KEYS
    expected = [values.mean(), values.std(), values.min()]
    expected += [np.quantile(values, q) for q in (0.1, 0.25, 0.5, 0.75)] + [values.max()]
    np.testing.assert_allclose(list(found.values()), expected, rtol=1e-15)


def test_spread_in_closed_form() -> None:
    found = numbers(np.arange(11.0))
    assert [found[k] for k in KEYS] == pytest.approx([5, 10**0.5, 0, 1, 2.5, 5, 7.5, 10])


def test_spread_of_one_user() -> None:
    assert numbers(np.array([0.7])) == {k: 0.0 if k == "std" else 0.7 for k in KEYS}


@pytest.mark.parametrize("values", [[], [0.5, np.nan], [np.inf]])
def test_spread_refuses_what_is_no_number(values: list[float]) -> None:
    with pytest.raises(ValueError, match="statistics over users"):
        numbers(np.array(values))
    with pytest.raises(ValueError, match="statistics over users"):
        worst_share(np.array(values), 0.1)


@pytest.mark.parametrize(
    ("users", "share", "counted"),
    [(1, 0.1, 1), (9, 0.1, 1), (10, 0.1, 1), (11, 0.1, 2), (30, 0.1, 3), (70, 0.1, 7), (4, 1.0, 4)],
)
def test_worst_share_counts_whole_users(users: int, share: float, counted: int) -> None:
    values = np.random.default_rng(1).permutation(users).astype(float)
    assert worst_share(values, share) == pytest.approx((counted - 1) / 2)


@pytest.mark.parametrize(
    ("count", "text"),
    [
        (0, "0 B"),
        (999, "999 B"),
        (1000, "1.00 kB"),
        (12_345, "12.3 kB"),
        (9_996, "10.0 kB"),
        (999_600, "1.00 MB"),
        (123_456_789, "123 MB"),
        (5.5e12, "5.50 TB"),
        (float("nan"), "–"),  # noqa: RUF001
    ],
)
def test_human_bytes(count: float, text: str) -> None:
    assert human_bytes(count) == text


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0, "0 s"),
        (0.12, "120 ms"),
        (0.9996, "1.0 s"),
        (9.96, "10 s"),
        (59.6, "1m 00s"),
        (200.4, "3m 20s"),
        (3599.7, "1h 00m"),
        (86_399, "1d 00h"),
        (180_000, "2d 02h"),
    ],
)
def test_human_seconds(seconds: float, text: str) -> None:
    assert human_seconds(seconds) == text


def test_human_count() -> None:
    counts = (0, 99_999, 100_000, 999_600, 1_234_567, 5e9)
    assert [human_count(n) for n in counts] == ["0", "99,999", "100k", "1.00M", "1.23M", "5.00G"]


# The table


def test_table_fits_80_columns_with_long_names() -> None:
    results, _ = make_run(("a" * 20, "fedavg+ft"))
    results[0]["accuracy"] |= {"mean": 0.5532, "std": 0.1212, "min": 1.0}
    results[0] |= {"accuracy_last10": 1.0, "worst10": 1.0, "gradient_steps": 12_345.0}
    text = shown(results)
    assert all(len(line) <= 80 for line in text.splitlines())
    *_, line = [line for line in text.splitlines() if line.startswith("a") and "55.3" in line]
    assert re.split(r"\s+(?=\d)", line.strip()) == [
        "aaaaaaa…aaaaaaa",
        *("55.3 ±", "12.1", "100.0", "100.0", "100.0", "12,345"),
        *("123 MB", "568 MB", "99,999", "3m", "20s"),
    ]


def test_table_never_cuts_a_number() -> None:
    results, _ = make_run(("b" * 60,))
    text = shown(results)
    assert text.count("…") == 1
    assert all(number in text for number in ("123 MB", "568 MB", "99,999", "3m 20s"))


def test_notes_below_a_table_in_parts_are_as_wide_as_the_widest() -> None:
    """The last part may be of one column, in which the words of a note have no room."""
    table = Airy()
    heads(table, ["strategy", "first" * 6, "second" * 6, "x"])
    table.add_row(Name("fedavg"), *map(Text, "123"))
    table.caption, table.caption_justify = Text("a-word-of-some-length " * 3), "left"
    console = Console(file=io.StringIO(), width=60, force_terminal=False)
    console.print(table, crop=False)
    *_, note, _ = console.file.getvalue().rstrip().splitlines()  # type: ignore[attr-defined]
    assert note.split() == ["a-word-of-some-length"] * 2


def test_best_mean_is_bold_and_dropped_users_are_named() -> None:
    results, _ = make_run(("fedavg", "fedrep"))
    table = summary_table(results)
    bold = [
        str(cell)
        for column in table.columns
        for cell in column.cells
        if getattr(cell, "style", "") == "bold"
    ]
    assert bold[0] == "fedrep"
    assert len(bold) == 2
    assert f"fedrep: 2 dropped replies: {EVIL} (2)" in shown(results, 120)


def test_a_table_without_room_has_its_columns_by_and_by() -> None:
    results, _ = make_run(("c" * 30, "fedavg"))
    lines = shown(results, 44).splitlines()
    assert max(map(len, lines)) <= 44
    assert sum(line.startswith("fedavg ") for line in lines) > 1
    assert any(re.match("c+…c+ +70.0 ± 12.1", line) for line in lines)


def test_no_line_that_is_printed_ends_in_blanks(capsys: pytest.CaptureFixture[str]) -> None:
    results, _ = make_run(("fedavg", "fedrep"))
    terminal(100).print(summary_table(results))
    said = capsys.readouterr().out
    assert "fedrep" in said and not re.search(" $", said, re.MULTILINE)


def bolded(table: Any) -> list[str]:
    return [
        str(cell)
        for column in table.columns
        for cell in column.cells
        if any(span.style == "bold" for span in getattr(cell, "spans", ()))
        or getattr(cell, "style", "") == "bold"
    ]


@pytest.mark.parametrize("name", MEASURES)
def test_the_better_end_of_every_measure_is_bold_among_rows_of_the_same_users(name: str) -> None:
    """New users are others: their row is not the best of those beside it."""
    measure, found = MEASURES[name], []
    for row, value in (("bad", -0.2), ("good", 0.2), ("good+new", 0.4)):
        mean = 0.5 + value * (1 if measure.higher_is_better else -1)
        users = {f"{row[4:]}{i}": mean for i in range(3)}
        score = {**numbers([mean] * 3), "pooled": mean, "users": 3}
        found.append(
            {
                "strategy": row,
                **measure.tag,
                name: score,
                "users": 3,
                "per_user": users,
                "measures": {name: score, "log-loss": score},
                "over_samples": mean,
                "test_sizes": {user: 5 * place + 1 for place, user in enumerate(users)},
                "baseline": {"answer": "x", "mean": 0.5},
            }
        )
    assert bolded(summary_table(found))[0] == "good"
    lines = notes(found)
    assert [
        line.partition(" is no better")[0].split(":")[0] for line in lines if "no b" in line
    ] == ["bad"]
    shown_means = [measure.text(one[name]["mean"]) for one in found]
    wanted = ", ".join(f"{o['strategy']} {m}" for o, m in zip(found, shown_means, strict=True))
    assert lines[0] == f"Over all test samples instead of users, of whom some have many: {wanted}"
    for one in found:
        one["test_sizes"] = dict.fromkeys(one["test_sizes"], 5)
    assert not any("Over all test samples" in line for line in notes(found))


def test_table_takes_brackets_as_they_are_and_gaps_as_dashes() -> None:
    results, _ = make_run(("[bold]x",))
    results[0]["accuracy_last10"] = None
    text = shown(results)
    assert "[bold]x" in text
    assert "–" in text  # noqa: RUF001


# Progress


def run_progress(console: Console, rounds: int = 200) -> None:
    _, rows = make_run(("fedrep",), rounds=rounds)
    with Progress(console) as progress:
        progress.start("fedrep", rounds)
        for row in rows:
            progress.update(row)
            if row["round"] == rounds // 2:
                progress.note("user [b]7[/b]: late")


def test_progress_is_quiet_when_not_on_a_terminal() -> None:
    stream = io.StringIO()
    run_progress(Console(file=stream))
    lines = stream.getvalue().splitlines()
    assert lines[0] == "fedrep: 200 rounds"
    assert "user [b]7[/b]: late" in lines
    assert len(lines) == 12
    assert re.fullmatch(r"fedrep: 200 rounds, done, accuracy 70.0% at 200, in .*s", lines[-1])
    assert "\x1b" not in stream.getvalue()


def test_progress_of_few_rounds_has_few_lines() -> None:
    stream = io.StringIO()
    run_progress(Console(file=stream), rounds=1)
    first, last = stream.getvalue().splitlines()
    assert first == "fedrep: 1 round"
    assert last.startswith("fedrep: 1 round, done, not evaluated yet, in ")


def test_progress_goes_on_where_a_run_was_resumed_and_says_where_it_stopped() -> None:
    stream = io.StringIO()
    progress = Progress(Console(file=stream))
    progress.start("fedrep", 100, done=57)
    progress.update({"round": 58})
    progress.stop()
    progress.stop()
    first, last = stream.getvalue().splitlines()
    assert first == "fedrep: 100 rounds, going on after round 57"
    assert last.startswith("fedrep: 100 rounds, stopped at round 58, not evaluated yet")


def test_progress_on_a_terminal_ends_with_the_final_accuracy() -> None:
    stream = io.StringIO()
    run_progress(Console(file=stream, force_terminal=True, width=80, color_system=None))
    # Each drawing begins with a carriage return; the last one stays.
    last = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", stream.getvalue().split("\r")[-1])
    assert re.match(r"fedrep ━+ 200/200 accuracy 70.0% at 200 in ", last)
    assert len(last.splitlines()[0]) <= 80
    assert "user [b]7[/b]: late" in stream.getvalue()


class Closed(io.StringIO):
    """A terminal that went away."""

    def write(self, text: str) -> int:
        raise OSError("gone")


@pytest.mark.parametrize("terminal", [True, False])
def test_progress_never_raises(terminal: bool) -> None:
    run_progress(Console(file=Closed(), force_terminal=terminal))
    run_progress(Console(file=io.StringIO(), force_terminal=terminal, width=1))


# Plots


def three_charts(results: list[Any], rows: Any) -> list[Chart]:
    learning, sent = (measure_chart(results, rows, ACCURACY, of) for of in ("round", "bytes"))
    return [learning, ranks(results, ACCURACY), sent]


def curves(figure: Any) -> list[Any]:
    return [line for line in figure.axes[0].get_lines() if line.get_gid() == "curve"]


def size(png: bytes) -> tuple[int, int]:
    assert png.startswith(b"\x89PNG\r\n\x1a\n")
    return int.from_bytes(png[16:20]), int.from_bytes(png[20:24])


def test_every_figure_is_written_in_each_format_and_the_same_each_time(tmp_path: Path) -> None:
    """Words are words in SVG and PDF files."""
    results, rows = with_everything()
    figures = named_figures(results, rows)
    kinds = ["png", "svg", "pdf"]
    paths = plots.write_figures(tmp_path, figures, kinds)
    first = {path.name: path.read_bytes() for path in paths}
    assert {*first} == {f"{name}.{kind}" for name in figures for kind in kinds}
    assert {*THREE} <= {*figures}
    assert size(first["accuracy-round.png"]) == (1200, 720)
    for name, data in first.items():
        if name.endswith(".svg"):
            assert b">fedrep" in data and b"<script" not in data
        if name.endswith(".pdf"):
            assert data.startswith(b"%PDF") and b"/Type3" not in data
    some = {name: figures[name] for name in THREE}  # lines, dots with intervals, and strips
    again = plots.write_figures(tmp_path, some, kinds)
    assert len(again) == 9 and all(path.read_bytes() == first[path.name] for path in again)


def test_an_interval_that_is_cut_has_a_sign_on_the_page_and_on_paper() -> None:
    """A row of two seeds, whose interval is 12.7 standard errors wide, beside others."""
    axis = Axis("accuracy", "percent", 80.0, 100.0)
    strips = [Strip("fedrep", 90.0, 20.0, 160.0), Strip("local", 91.0, 88.0, 94.0)]
    chart = Strips("", "", axis, strips, ("", ""))
    figure = plots.picture(chart)
    assert [text.get_text() for text in figure.axes[0].texts] == ["\u25c2 20.0", "\u25b8 160.0"]
    page = strips_page(chart, ["fedrep", "local"], looks(["fedrep", "local"]))
    assert page.count('<span class="cut') == 2 and "\u25c2 20.0" in page and "\u25b8 160.0" in page
    whole = replace(chart, x=replace(axis, low=0.0, high=200.0))
    assert not plots.picture(whole).axes[0].texts


def test_a_band_that_is_cut_has_a_sign() -> None:
    series = Series("fedrep", [1, 2], [90.0, 91.0], [70.0, 90.0], [95.0, 99.0])
    y = Axis("accuracy", "percent", 80.0, 100.0)
    chart = Chart("", "", Axis("round", "round", 0, 2), y, [series], ("", ""))
    (sign,) = (t.get_text() for t in plots.picture(chart).axes[0].texts if "\u25bc" in t.get_text())
    assert sign == "\u25bc fedrep 70.0"
    page = flags(Frame(chart, ["fedrep"], ["fedrep"]), looks(["fedrep"]))
    assert page.count("<span") == 1 and sign in page


def test_a_picture_shows_what_the_chart_says() -> None:
    results, rows = make_run(("fedrep", "fedavg"))
    for some in (rows, ()):
        chart = measure_chart(results, some, ACCURACY, "round")
        axes = plots.picture(chart).axes[0]
        lines = curves(axes.figure)
        assert [line.get_label() for line in lines] == ["fedrep", "fedavg"]
        for line, result in zip(lines, results, strict=True):
            points = np.array(result["curve"])
            np.testing.assert_allclose(line.get_xdata(), points[:, 0])
            np.testing.assert_allclose(line.get_ydata(), 100 * points[:, 1])
        assert [text.get_text() for text in axes.get_yticklabels()] == [
            text for _, text in chart.y.ticks()
        ]
        assert len(axes.collections) == 2 * bool(some)
        assert f"fedrep  {100 * results[0]['curve'][-1][1]:.1f}" in {
            text.get_text() for text in axes.texts
        }


def test_users_are_sorted_from_the_worst() -> None:
    results, _ = make_run(("fedrep",), users=7)
    (line,) = curves(plots.picture(ranks(results, ACCURACY)))
    expected = 100 * np.sort(list(results[0]["per_user"].values()))
    np.testing.assert_allclose(line.get_ydata(), expected)
    assert line.get_label() == f"fedrep\nworst 10%: {expected[0]:.1f}"


def test_bytes_come_from_rows_or_evenly_from_the_result() -> None:
    results, rows = make_run(("fedrep", "local"))
    exact = curves(plots.picture(measure_chart(results, rows, ACCURACY, "bytes")))[0]
    assert list(exact.get_xdata()) == [15_000, 30_000, 45_000, 60_000]
    results[1] |= {"bytes_up": 0, "bytes_down": 0}
    even, silent = curves(plots.picture(measure_chart(results, (), ACCURACY, "bytes")))
    np.testing.assert_allclose(even.get_xdata(), 691_200_000 * np.array([1, 2, 3, 4]) / 4)
    assert silent.get_label() == "local\nspends nothing"


def test_a_strategy_far_below_the_others_is_named_at_the_border() -> None:
    results, _ = make_run(("fedrep", "fedavg", "local"))
    chart = measure_chart(results, (), ACCURACY, "round")
    low = replace(chart.series[0], y=[-1e6] * len(chart.series[0].y))
    axes = plots.picture(replace(chart, series=(low, *chart.series[1:]))).axes[0]
    (named,) = (text for text in axes.texts if text.get_text().startswith("fedrep"))
    assert axes.get_ylim()[0] <= named.get_position()[1] < axes.get_ylim()[1]


def test_styles_are_stable_by_name_and_differ_within_a_plot() -> None:
    names = ["fedrep", "fedavg", "local", *(f"algorithm{n}" for n in range(17))]
    many = plots.styles(names, plots.LIGHT)
    assert len({str(style) for style in many.values()}) == len(names)
    assert plots.styles(["fedrep"], plots.LIGHT)["fedrep"] == many["fedrep"]
    assert plots.styles(reversed(names), plots.LIGHT) == many


def test_labels_do_not_overlap() -> None:
    placed = np.sort(spaced([50.0, 50.1, 99.0, 99.1, 99.2], 2.0, 100.0))
    assert np.diff(placed).min() >= 2.0 - 1e-9
    assert placed.max() <= 100.0


@pytest.mark.parametrize("users", [1, 300])
def test_plots_of_one_point_and_odd_names(users: int) -> None:
    results, rows = make_run(("fedavg+ft", "$x_"), users=users)
    results[0]["curve"] = results[0]["curve"][-1:]
    for chart in three_charts(results, rows):
        figure = plots.picture(chart)
        assert len(curves(figure)) == 2
        assert size(plots.png(figure)) == (1200, 720)


def test_plots_of_many_strategies_stay_readable() -> None:
    """Matplotlib warns when a legend leaves no room for the axes."""
    results, rows = make_run(tuple(f"method{n}" for n in range(20)))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for chart in three_charts(results, rows):
            figure = plots.picture(chart)
            plots.png(figure)
            (axes,) = figure.axes
            assert axes.get_position().width > 0.4  # of the figure
