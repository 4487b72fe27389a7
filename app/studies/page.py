"""A study as one HTML file: the table, curves, every run as a dot, and what a reader must know."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from html import escape
from pathlib import Path
from urllib.parse import quote

import numpy as np

from corsage.app.output.summary import curve_of
from corsage.app.report.chart import Axis as Scale
from corsage.app.report.chart import Chart, Figure, Series, Strip, Strips, kind_of
from corsage.app.report.curves import AGAINST, chart, made, total
from corsage.app.report.drawing import sample
from corsage.app.report.now import Now
from corsage.app.report.shell import Drawn, best_first, html, slug, sorted_table
from corsage.app.run.resuming import not_a_run
from corsage.app.studies.comparison import Study
from corsage.app.studies.folder import there
from corsage.app.studies.grid import Grid
from corsage.app.studies.means_table import filled, sorting
from corsage.app.studies.over_seeds import Interval, StudyRow, around
from corsage.core.version import VERSION

CAPTION = (
    "A dot a seed: the mean over users. The mark: their mean, shaded its 95% interval over seeds; "
    "an arrow where it goes on beyond the picture. The intervals of two rows may overlap although "
    "the rows are told apart: what counts is their difference on the same seeds, in the table."
)


def page(name: str, study: Study, grid: Grid, now: Now | None = None) -> str:
    """The whole page as text; everything that somebody may have named is escaped."""
    strategies = dict.fromkeys(row.strategy.partition("+")[0] for row in study.rows)
    varied = "; ".join(f"{key}={', '.join(values)}" for key, values in grid.varied.items())
    said = f"{name}: {len(study.runs)} runs, {varied}. Corsage {VERSION}"
    body = [f'<p class="soft">{escape(said)}</p>', now.section() if now else ""]
    drawn = Drawn([], [])
    if study.rows:
        drawn = Drawn([row.label for row in study.rows], seen_first(study))
        notes = "".join(f"<li>{escape(note)}</li>" for note in study.notes())
        pictures = figures(study)
        body += [
            table(study, drawn),
            f'<ul class="soft">{notes}</ul>',
            f"<h2>Learning</h2>\n{drawn.legend()}\n{drawn.views(pictures[1:])}"
            * bool(pictures[1:]),
            f"<h2>Every run</h2>\n{drawn.legend()}\n{drawn.views(pictures[:1])}",
        ]
    body += [runs(study), f"<h2>Do it again</h2>\n<pre>{escape(command(grid))}</pre>"]
    return html(f"Study of {', '.join(strategies) or name}", body, drawn, now)


def table(study: Study, drawn: Drawn) -> str:
    """As on the terminal."""
    places, titles, lines = filled(study)
    values = [[sorting(one, study)[k] for k in places] for one in study.compared]
    css = ["best " * one.only_best + drawn.line(one.row.label) for one in study.compared]
    marked = [
        [f"{sample(drawn.looks[one.row.label])}{escape(line[0])}", *map(escape, line[1:])]
        for one, line in zip(study.compared, lines, strict=True)
    ]
    return sorted_table(titles, marked, css, values, "filters")


def runs(study: Study) -> str:
    """Links to the reports of the runs, if they lie in the study's folder."""
    if study.folder is None or not study.runs:
        return ""
    lines = "".join(
        f'<li><a href="runs/{quote(run.folder.name)}/report.html">'
        f"{escape(run.name or 'run')}</a></li>"
        for run in study.runs
    )
    return f"<details><summary>Reports of the runs</summary><ul>{lines}</ul></details>"


def figures(study: Study) -> list[Figure]:
    """Every run as a dot, and curves over the rounds with bands over the seeds."""
    curved = [row for row in study.rows if curve(row, "round")]
    return [
        every_run(study.rows, seen_first(study)),
        *(learning(curved, x) for x in AGAINST if curved),
    ]


def seen_first(study: Study) -> list[str]:
    """The rows that are seen at first."""
    return best_first({r.label: float(r.measure.merit([r.mean])[0]) for r in study.rows})


def report_of(folder: Path) -> dict[str, Figure]:
    """Write the report of an earlier study; its figures."""
    study = (opened := there(folder)).study({})
    if not study.rows:
        raise not_a_run(folder, "no run has a result yet, so there is nothing to report")
    opened.page(study)
    return {slug(*figure.choice): figure for figure in figures(study)}


def look_at(folder: Path, pause: float) -> None:
    """Write the page of a study that is not over."""
    (study := there(folder)).write_page(study.far(), None, pause)


def every_run(rows: Sequence[StudyRow], first: Sequence[str]) -> Strips:
    """Each row's seeds as dots on one axis, that of the first ones, with their mean's interval."""
    measure = rows[0].measure
    by = measure.factor
    strips = []
    for row in rows:
        span = interval(row) or Interval(row.mean, row.mean)
        means, seeds = [by * v for v in row.means], [f"seed {seed}" for seed in row.seeds]
        strips.append(Strip(row.label, by * row.mean, by * span.low, by * span.high, means, seeds))
    seen = [strip for strip in strips if strip.name in first]
    values = [v for strip in seen for v in strip.values]
    room = max(values) - min(values) or 0.05 * abs(values[0]) or 1.0
    low = max(min(values) - room, min(s.low for s in seen)) - 0.06 * room
    high = min(max(values) + room, max(s.high for s in seen)) + 0.06 * room
    axis = Scale(measure.axis("mean {} over users"), kind_of(measure), low, high)
    return Strips(f"{measure.title} of every run", CAPTION, axis, strips, ("every run", "seeds"))


def interval(row: StudyRow) -> Interval | None:
    """That of a row's mean over its seeds."""
    if row.sd is None:
        return None
    return around(row.mean, row.sd / len(row.means) ** 0.5, len(row.means) - 1)


def learning(rows: Sequence[StudyRow], against: str) -> Chart:
    """The rows' means over the seeds, against rounds, bytes or seconds."""
    measure = rows[0].measure
    series = [found for row in rows if (found := curve(row, against))]
    words = f"Mean {measure.word} over users after each evaluated round, its mean over the seeds"
    several = any(found.low for found in series)
    words += "; the bands are one standard deviation over seeds to each side." if several else "."
    title = f"{measure.word} against {AGAINST[against]}"
    choice, label = (measure.word, against), measure.axis("mean {} over users")
    return chart(title, words, series, choice, label, measure, against != "round", free=True)


def curve(row: StudyRow, against: str) -> Series | None:
    """The mean over the seeds of a row's curves, at rounds that all of them evaluated; its band."""
    own = [curve_of(result) for result in row.by_seed.values() if result.get("curve")]
    if len(own) < len(row.by_seed) or not own:
        return None
    common = sorted(set.intersection(*({*rounds.tolist()} for rounds, _ in own)))
    if len(common) < 2:
        return None
    y = np.array([means[np.isin(rounds, common)] for rounds, means in own])
    ends = [total(result, against) / max(result["rounds"], 1) for result in row.by_seed.values()]
    x, mean = (np.array(common) * float(np.mean(ends))).tolist(), y.mean(0)
    if len(own) < 2:
        return made(row.label, x, mean.tolist())
    sd = y.std(0, ddof=1)
    return made(row.label, x, mean.tolist(), (mean - sd).tolist(), (mean + sd).tolist())


def command(grid: Grid) -> str:
    """The command of the same study."""
    words = [f"{k}={v}" for k, v in grid.json()["keys"].items() if k not in ("run-dir", "resume")]
    words += [f"{key}={'|'.join(values)}" for key, values in grid.varied.items()]
    return " ".join(["python run_simulation.py", *map(shlex.quote, words)])
