"""Learning curves: strategies' measure and losses against rounds, bytes and seconds."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from corsage.app.output.summary import Result, Row, curve_of, evaluated, shared_measure
from corsage.app.report import result_fields
from corsage.app.report.chart import Axis, Chart, Series, kind_of, limits, thinned
from corsage.core.measures import MEASURES, Measure, measure_of

BANDS = 4
"""Strategies of which each still gets its band; more of them would only be mud."""
AGAINST = {"round": "rounds", "bytes": "bytes sent", "seconds": "seconds"}
"""What a curve may be drawn against, and the word on the tab."""
AXIS_LABELS = {
    "round": "round",
    "bytes": "bytes sent up and down, all users together (log scale)",
    "seconds": "seconds since the strategy began",
}
LOSSES = {"train_loss": "training loss", "loss": "test loss"}


def learning_charts(results: Sequence[Result], rows: Sequence[Row] = ()) -> list[Chart]:
    """One chart for each number that rows have, against each of rounds, bytes and seconds."""
    main = shared_measure(results)
    charts = [measure_chart(results, rows, main, x) for x in AGAINST]
    for name in other_measures(rows, main):
        charts += [measure_chart(results, rows, MEASURES[name], x, extra=True) for x in AGAINST]
    for field in LOSSES:
        charts += [loss_chart(results, rows, field, x) for x in AGAINST]
    return [chart for chart in charts if chart.series]


def other_measures(rows: Sequence[Row], main: Measure) -> list[str]:
    """Measures besides the table's that rows have, in their order."""
    found = {name: None for row in rows for name in (row.get("measures") or {})}
    return [name for name in found if name != main.name]


def measure_chart(
    results: Sequence[Result],
    rows: Sequence[Row],
    measure: Measure,
    against: str,
    extra: bool = False,
) -> Chart:
    """The mean over users of a measure."""
    bands = bool(rows) and len(results) <= BANDS
    series = [s for r in results if (s := measured(r, rows, measure, against, bands))]
    label = measure.axis("mean {} over users")
    words = f"Mean {measure.word} over all users after each evaluated round."
    if any(s.low for s in series):
        words += " The bands hold the middle half of the users."
    if any(s.across for s in series):
        words += " A level line: a row with one evaluation only, at the end."
    title = f"{measure.word} against {AGAINST[against]}"
    found = chart(title, words, series, (measure.word, against), label, measure, extra)
    return replace(found, basis=result_fields.baseline(results, measure))


def loss_chart(results: Sequence[Result], rows: Sequence[Row], field: str, against: str) -> Chart:
    """The mean training or test loss."""
    series = [s for r in results if (s := lost(r, rows, field, against))]
    word = LOSSES[field]
    words = {
        "train_loss": "Mean loss on the training data of the users that a round drew, as each "
        "method reports it: methods with other objectives are not comparable.",
        "loss": "Mean over all users of the loss on their test data.",
    }[field]
    extra = (field, against) != ("train_loss", "round")
    title = f"{word} against {AGAINST[against]}"
    return chart(title, words, series, (word, against), word, None, extra)


def chart(
    title: str,
    caption: str,
    series: Sequence[Series],
    choice: tuple[str, str],
    label: str,
    measure: Measure | None,
    extra: bool,
    free: bool = False,
) -> Chart:
    """A chart with axes that fit what is in it; `free` of bounds, as bands of deviations are."""
    bounds = measure.bounds if measure and not free else (float("-inf"), float("inf"))
    kind = kind_of(measure) if measure else "number"
    y = Axis(label, kind, *limits(series, bounds))
    title = title[:1].upper() + title[1:]
    x = across_axis(series, choice[1])
    return Chart(title, caption, x, y, series, choice, bounds=bounds, extra=extra)


def across_axis(series: Sequence[Series], against: str) -> Axis:
    """The axis of rounds, bytes or seconds."""
    values = [v for s in series for v in s.x]
    log = against == "bytes" and any(v > 0 for v in values)
    if log:
        positive = [v for v in values if v > 0]
        low, high = min(positive), max(positive)
        return Axis(AXIS_LABELS[against], against, low / 1.1, max(high, 1.5 * low), log=True)
    high = max(values, default=1.0)
    return Axis(AXIS_LABELS[against], against, 0.0, high or 1.0)


def measured(
    result: Result, rows: Sequence[Row], measure: Measure, against: str, bands: bool
) -> Series | None:
    """A strategy's means, or its only one, of which a level line is drawn."""
    name = str(result["strategy"])
    own = [row for row in evaluated(rows, name) if spread_of(row, measure)]
    if len(own) > 1:
        spreads = [spread_of(row, measure) for row in own]
        x = [position(row, against) for row in own]
        y, low, high = ([measure.factor * s[q] for s in spreads] for q in ("mean", "q25", "q75"))
        return made(name, x, y, *((low, high) if bands else ((), ())))
    final = final_mean(result, measure)
    if final is None:
        return None
    x, y = [total(result, against)], [measure.factor * final]
    if measure is measure_of(result) and len(result["curve"]) > 1:
        rounds, means = curve_of(result)
        x = (total(result, against) * rounds / max(float(result["rounds"]), 1.0)).tolist()
        y = means.tolist()
    return made(name, x, y)


def made(
    name: str,
    x: Sequence[float],
    y: Sequence[float],
    low: Sequence[float] = (),
    high: Sequence[float] = (),
) -> Series:
    """A line of not too many points; a level one if there is one point, or nothing is sent."""
    still = len(x) > 0 and x[-1] == 0
    if still:  # where nothing is spent only the end is worth a line
        x, y, low, high = [0.0], y[-1:], low[-1:], high[-1:]
    at = thinned(len(x))
    x, y, low, high = ([part[i] for i in at] if len(part) else [] for part in (x, y, low, high))
    note = "spends nothing" if still else ""
    return Series(name, x, y, low, high, across=len(at) == 1, note=note)


def lost(result: Result, rows: Sequence[Row], field: str, against: str) -> Series | None:
    """A strategy's losses, round by round."""
    name = str(result["strategy"])
    points = {
        int(row["round"]): (position(row, against), value)
        for row in rows
        if row["strategy"] == name and (value := loss_of(row, field)) is not None
    }
    if not points:
        return None
    x, y = zip(*(points[number] for number in sorted(points)), strict=True)
    return made(name, list(x), list(y))


def loss_of(row: Row, field: str) -> float | None:
    """A row's loss; a spread's mean."""
    value = row.get(field)
    return value["mean"] if isinstance(value, dict) else value


def spread_of(row: Row, measure: Measure) -> dict[str, Any]:
    """The spread of a measure over users in a row; empty if it does not say."""
    found = row.get(measure.name) or (row.get("measures") or {}).get(measure.name) or {}
    return found if {"mean", "q25", "q75"} <= set(found) else {}


def final_mean(result: Result, measure: Measure) -> float | None:
    """A measure's mean at the end."""
    found = result.get(measure.name) or (result.get("measures") or {}).get(measure.name) or {}
    value: float | None = found.get("mean")
    return value


def position(row: Row, against: str) -> float:
    """Place of a row on the axis."""
    if against == "bytes":
        return float(row["bytes_up"]) + float(row["bytes_down"])
    return float(row[against])


def total(result: Result, against: str) -> float:
    """Place of a strategy's end on the axis."""
    if against == "bytes":
        return float(result.get("bytes_up", 0)) + float(result.get("bytes_down", 0))
    return float(result["rounds" if against == "round" else "seconds"])
