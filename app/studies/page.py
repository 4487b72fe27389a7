"""A study as one HTML file: the table, every run as a dot, and what a reader must know."""

from __future__ import annotations

from html import escape

from corsage.app.studies.comparison import Study
from corsage.app.studies.grid import Grid
from corsage.app.studies.means_table import cells, titles_of
from corsage.app.studies.over_seeds import Compared, Interval, StudyRow, around
from corsage.core.measures import Measure
from corsage.core.version import VERSION

STYLE = """
:root { color-scheme: light dark; --paper: #fff; --ink: #24292f; --soft: #59636e;
  --line: #d8dee4; --dot: #0b6bcb; --tint: #f6f8fa; }
@media screen and (prefers-color-scheme: dark) { :root { --paper: #161b22; --ink: #d7dde3;
  --soft: #9aa5b1; --line: #333b44; --dot: #58a6ff; --tint: #1f262e; } }
* { box-sizing: border-box; }
body { margin: 0 auto; max-width: 78rem; padding: 2.5rem 1.25rem 4rem; background: var(--paper);
  color: var(--ink); font: 16px/1.55 system-ui, "Segoe UI", "DejaVu Sans", sans-serif; }
h1 { font-size: 1.7rem; line-height: 1.2; margin: 0 0 .3rem; overflow-wrap: anywhere; }
h2 { font-size: 1.15rem; margin: 2.4rem 0 .7rem; }
.soft { color: var(--soft); font-size: .9rem; }
.wide { overflow-x: auto; }
table { border-collapse: collapse; font-size: .92rem; font-variant-numeric: tabular-nums;
  width: 100%; }
th, td { padding: .36rem .5rem; text-align: right; border-bottom: 1px solid var(--line);
  white-space: nowrap; }
th { color: var(--soft); font-weight: 600; vertical-align: bottom; }
th:first-child, td:first-child { text-align: left; padding-left: .2rem; }
.best td { font-weight: 700; }
figure { margin: 0; }
svg { width: 100%; max-width: 50rem; height: auto; display: block; }
svg text { fill: var(--ink); font-size: 13px; font-family: inherit; }
svg .soft { fill: var(--soft); font-size: 12px; }
svg .grid { stroke: var(--line); }
svg .span { stroke: var(--dot); stroke-width: 2; }
svg .seed { fill: var(--dot); fill-opacity: .45; }
svg .mean { fill: var(--dot); }
pre { background: var(--tint); border: 1px solid var(--line); border-radius: 6px;
  padding: .8rem 1rem; white-space: pre-wrap; overflow-wrap: anywhere; font-size: .88rem; }
li { margin: .2rem 0; }
@media (max-width: 640px) { body { padding: 1.2rem .8rem 3rem; }
  svg text, svg .soft { font-size: 20px; } }
"""
AXIS_LEFT, AXIS_RIGHT, ROW_HEIGHT, ROWS_TOP = 16, 624, 46, 16
"""Where the picture's axis begins and ends, the height of a row, and where the first one is."""

CAPTION = (
    "Small dots: the mean over users of one seed. Large dots: their mean, with its 95% interval "
    "over seeds. The intervals of two rows may overlap although the rows are told apart: what "
    "counts is their difference on the same seeds, in the table."
)


def page(name: str, study: Study, grid: Grid) -> str:
    """The whole page as text; everything that somebody may have named is escaped."""
    strategies = dict.fromkeys(row.strategy for row in study.rows)
    title = escape(f"Study of {', '.join(strategies)}")
    varied = "; ".join(f"{key}={', '.join(values)}" for key, values in grid.varied.items())
    said = f"{name}: {len(study.runs)} runs, {varied}. Corsage {VERSION}"
    notes = "".join(f"<li>{escape(note)}</li>" for note in study.notes())
    return f"""<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>{title}</title>
<style>{STYLE}</style>
</head>
<body>
<h1>{title}</h1>
<p class="soft">{escape(said)}</p>
{table(study)}
<ul class="soft">{notes}</ul>
<h2>Every run</h2>
<figure>{picture(study)}
<figcaption class="soft">{CAPTION}</figcaption></figure>
<h2>Do it again</h2>
<pre>{escape(command(grid))}</pre>
</body>
</html>
"""


def table(study: Study) -> str:
    """As on the terminal."""
    head = "".join(
        f"<th>{escape(h).strip().replace(chr(10), '<br>')}</th>" for h in titles_of(study)
    )
    lines = "".join(line(one, study) for one in study.compared)
    return (
        f'<div class="wide"><table><thead><tr>{head}</tr></thead>'
        f"<tbody>{lines}</tbody></table></div>"
    )


def line(one: Compared, study: Study) -> str:
    """A row's line."""
    mark = ' class="best"' if one.only_best else ""
    return f"<tr{mark}>{''.join(f'<td>{escape(c)}</td>' for c in cells(one, study))}</tr>"


def picture(study: Study) -> str:
    """Each row's seeds as dots on one axis, with the interval of their mean."""
    rows, measure = study.rows, study.rows[0].measure
    low, high = ends(rows)
    height = ROWS_TOP + ROW_HEIGHT * len(rows) + 44
    ticks = [low + (high - low) * i / 4 for i in range(5)]
    parts = [
        f'<line class="grid" x1="{x:.1f}" x2="{x:.1f}" y1="{ROWS_TOP}" y2="{height - 44}"/>'
        f'<text class="soft" x="{x:.1f}" y="{height - 26}" text-anchor="{anchor}">'
        f"{measure.text(tick)}</text>"
        for tick, anchor in zip(ticks, ("start", *["middle"] * 3, "end"), strict=True)
        for x in [at(tick, low, high)]
    ]
    parts += [dots(row, ROWS_TOP + ROW_HEIGHT * i, low, high) for i, row in enumerate(rows)]
    axis = f'<text class="soft" x="{AXIS_LEFT}" y="{height - 4}">{escape(measure.title)}</text>'
    words = escape(f"{measure.title} of every run")
    return (
        f'<svg viewBox="0 0 640 {height}" role="img" aria-label="{words}">{"".join(parts)}{axis}'
        "</svg>"
    )


def dots(row: StudyRow, top: float, low: float, high: float) -> str:
    """One row: its name, its seeds, their mean and interval."""
    y = top + 30
    shown = row.measure.text(row.mean)
    parts = [f'<text x="{AXIS_LEFT}" y="{top + 16}">{escape(row.label)}: {shown}</text>']
    if span := interval(row):
        ends_at = (at(max(span.low, low), low, high), at(min(span.high, high), low, high))
        parts.append(
            f'<line class="span" x1="{ends_at[0]:.1f}" x2="{ends_at[1]:.1f}" y1="{y}" y2="{y}"/>'
        )
    parts += [
        f'<circle class="seed" cx="{at(value, low, high):.1f}" cy="{y}" r="4">'
        f"<title>seed {escape(seed)}: {row.measure.text(value)}</title></circle>"
        for seed, value in zip(row.seeds, row.means, strict=True)
    ]
    parts.append(f'<circle class="mean" cx="{at(row.mean, low, high):.1f}" cy="{y}" r="6"/>')
    return "".join(parts)


def interval(row: StudyRow) -> Interval | None:
    """That of a row's mean over its seeds."""
    if row.sd is None:
        return None
    return around(row.mean, row.sd / len(row.means) ** 0.5, len(row.means) - 1)


def ends(rows: list[StudyRow]) -> tuple[float, float]:
    """Of the axis: all runs are on it, and a little more."""
    values = [value for row in rows for value in row.means]
    room = 0.06 * (max(values) - min(values)) or 0.05 * abs(values[0]) or 1.0
    bounds: Measure = rows[0].measure
    limits = [bound / bounds.factor for bound in bounds.bounds]
    return max(min(values) - room, limits[0]), min(max(values) + room, limits[1])


def at(value: float, low: float, high: float) -> float:
    """Place of a value on the axis."""
    return AXIS_LEFT + (AXIS_RIGHT - AXIS_LEFT) * (value - low) / (high - low or 1.0)


def command(grid: Grid) -> str:
    """The command of the same study."""
    import shlex

    words = [f"{k}={v}" for k, v in grid.json()["keys"].items() if k not in ("run-dir", "resume")]
    words += [f"{key}={'|'.join(values)}" for key, values in grid.varied.items()]
    return " ".join(["python run_simulation.py", *map(shlex.quote, words)])
