"""The answer on the page: its sentence, and residuals against fitted values."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

from corsage.app.output import answer
from corsage.app.output.summary import Result
from corsage.app.report.chart import Axis, Chart, Series, limits


def lead(results: Sequence[Result]) -> str:
    """The sentence, and the numbers of the fit; empty for a plain comparison."""
    first, *rest = answer.lines(results) or [""]
    lines = "".join(f'<p class="soft">{escape(line)}</p>\n' for line in rest)
    return f"<p><strong>{escape(first)}</strong></p>\n{lines}" if first else ""


def residuals(results: Sequence[Result]) -> list[Chart]:
    """Residuals of the rows that were fitted, by the fitted values."""
    return [chart(result) for result in results if (result.get("fit") or {}).get("residuals")]


def chart(result: Result) -> Chart:
    """One row's residuals."""
    points = sorted(result["fit"]["residuals"])
    x, y = [point[0] for point in points], [point[1] for point in points]
    name, (low, high) = str(result["strategy"]), limits([Series("", y, x)])
    series = [Series(name, x, y)]
    count, rows = len(points), result["fit"]["rows"]
    some = f" Of {rows:,} rows {count:,} are drawn." if count < rows else ""
    caption = (
        "Around 0 and equally wide everywhere, if the model is right: a bend is an effect that is "
        f"not linear, a funnel a variance that grows.{some}"
    )
    return Chart(
        f"{name}: residuals against fitted values",
        caption,
        Axis("fitted value", "number", low, high),
        Axis("residual", "number", *limits(series)),
        series,
        ("residuals", name),
        points=True,
        zero=0.0,
        ends=False,
    )
