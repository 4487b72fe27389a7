"""The report of a run: one HTML file with everything in it, to read, to print and to pass on.

It is there from the first round on, and loads itself again while the run goes on. The parts are
beside it: charts as numbers (`chart`, `curves`, `people`, `divisions`, `estimates`), how they are
drawn (`drawing`, `strips`, `style`), and what every page of Corsage's has (`shell`).
"""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from html import escape
from pathlib import Path
from typing import Any

from corsage.app.output import answer
from corsage.app.output.answer import of_all_rows
from corsage.app.output.summary import Result, Row, findings_section
from corsage.app.report import divisions, estimates, result_fields, words
from corsage.app.report.chart import Axis, Chart, Figure, Series, limits
from corsage.app.report.curves import learning_charts
from corsage.app.report.now import Now, so_far
from corsage.app.report.people import people_charts, table, user_table
from corsage.app.report.shell import Drawn, best_first, html, section, slug
from corsage.app.report.strips import user_strips
from corsage.app.report.trees import Tree, trees
from corsage.app.results.metrics import names_of
from corsage.core.configuration.known_keys import known_keys
from corsage.core.files import write_atomically
from corsage.core.keys import Value
from corsage.core.measures import DASH, measure_of

NOT_AGAIN = ("resume", "run-dir")
"""Keys that say where a run was kept, not what it was."""


def write_report(
    folder: Path | str,
    config: Mapping[str, Value],
    results: Sequence[Result],
    version: str,
    rows: Sequence[Row] = (),
    failed: Mapping[str, str] | None = None,
    now: Now | None = None,
) -> Path:
    """Write `report.html` into the run's folder: there whole, or not at all.

    `config` are the flat keys, as `Config.flat()` gives them. With rows, learning curves get
    their bands and losses, and bytes are exact in between. `failed` are the strategies without a
    result, and why; `now` is how far a run is that is not over.
    """
    path = Path(folder) / "report.html"
    name = path.resolve().parent.name
    found = trees(Path(folder), results)
    write_atomically(path, page(name, config, results, version, rows, failed, found, now))
    return path


def page(
    name: str,
    config: Mapping[str, Value],
    results: Sequence[Result],
    version: str,
    rows: Sequence[Row] = (),
    failed: Mapping[str, str] | None = None,
    found: Mapping[str, Tree] | None = None,
    now: Now | None = None,
) -> str:
    """The whole report as text; everything that a user may have named is escaped.

    `found` are the trees of the clusters, by the rows that have them.
    """
    shown = [*results, *(so_far(rows, results) if now else ())]
    drawn, parts = drawn_of(shown, table(results)), figures(results, rows, shown)
    names = names_of(config) if now else [*words.by_training(shown)]
    body = [
        f'<p class="soft">Run {escape(name)}, Corsage {escape(version)}</p>',
        now.section() if now else "",
        lead(results),
        words.headline(shown, drawn) if shown else "",
        words.notes(shown, failed or {}),
        section("Learning", drawn.legend(), drawn.views(parts["learning"])),
    ]
    if results:
        body += [
            people(drawn, results, parts["users"]),
            words.worse_off(results, drawn),
            words.all_measures(results, drawn),
            estimates.section(results),
            drawn.views(parts["estimates"]),
            drawn.views(parts["residuals"]),
            divisions.section(results, found or {}),
            findings_section(results),
        ]
    body += [
        f"<h2>Configuration</h2>\n{settings(config)}",
        f"<h2>Run it again</h2>\n<pre>{escape(command(config))}</pre>",
    ]
    return html(f"{words.listed(names, 5)} on {config.get('dataset')}", body, drawn, now)


def drawn_of(results: Sequence[Result], users: Mapping[str, Any] | None = None) -> Drawn:
    """The figures of a page on these rows, the best of which are seen at first."""
    merits = {
        str(r["strategy"]): float(measure_of(r).merit([r[measure_of(r).name]["mean"]])[0])
        for r in results
    }
    going = [str(r["strategy"]) for r in results if "per_user" not in r]
    return Drawn([*merits], [*best_first(merits), *going], users)


def figures(
    results: Sequence[Result], rows: Sequence[Row], shown: Sequence[Result] = ()
) -> dict[str, list[Figure]]:
    """All figures of a run, by the sections of its page; of rows not yet done learning alone."""
    measures = result_fields.measures(results)
    strips = [s for m in measures for s in user_strips(results, m, extra=m is not measures[0])]
    return {
        "learning": [] if of_all_rows(results) else [*learning_charts(shown or results, rows)],
        "users": [*strips, *people_charts(results)],
        "estimates": [*estimates.caterpillars(results)],
        "residuals": [*residuals(results)],
    }


def named_figures(results: Sequence[Result], rows: Sequence[Row]) -> dict[str, Figure]:
    """All figures of a run, by the names of their files."""
    found = figures(results, rows).values()
    return {slug(*figure.choice): figure for part in found for figure in part}


def people(drawn: Drawn, results: Sequence[Result], charts: Sequence[Figure]) -> str:
    """The section on users."""
    return "\n".join(
        [
            "<h2>Users</h2>",
            words.tested(results),
            words.trained_or_not(results, drawn),
            drawn.legend(),
            drawn.views(charts),
            user_table(drawn.users),
        ]
    )


def grouped(config: Mapping[str, Value]) -> dict[str, dict[str, tuple[Value, bool]]]:
    """Group titles, their keys, and each key's value and whether it was changed."""
    groups: dict[str, dict[str, tuple[Value, bool]]] = {}
    rest = dict(config)
    for name, key in known_keys().items():
        if name in rest:
            value = rest.pop(name)
            groups.setdefault(key.title, {})[name] = (value, value != key.default)
    if rest:
        groups["Other"] = {name: (value, True) for name, value in rest.items()}
    return groups


def word(value: Any) -> str:
    """A value as it is written on the command line."""
    return str(value).lower() if isinstance(value, bool) else str(value)


def settings(config: Mapping[str, Value]) -> str:
    """The keys that were changed from their defaults, and behind a fold all of them."""
    groups = grouped(config)
    changed = [
        f"<tr><td>{escape(name)}</td><td>{escape(word(value)) or DASH}</td></tr>"
        for group in groups.values()
        for name, (value, set_) in group.items()
        if set_
    ]
    return (
        '<p class="soft">Keys that were changed from their defaults:</p>\n'
        f'<div class="keys"><section><table>{"".join(changed)}</table></section></div>\n'
        f"<details><summary>All {len(config)} keys</summary>\n"
        f'<div class="keys">{keys(config)}</div></details>'
    )


def keys(config: Mapping[str, Value]) -> str:
    """The resolved configuration, a small table a group; what was changed is bold."""
    sections = []
    for title, group in grouped(config).items():
        lines = []
        for name, (value, changed) in group.items():
            mark = ' class="set"' if changed else ""
            shown = escape(word(value)) or DASH
            lines.append(f"<tr{mark}><td>{escape(name)}</td><td>{shown}</td></tr>")
        sections.append(
            f"<section><h3>{escape(title)}</h3><table>{''.join(lines)}</table></section>"
        )
    return "\n".join(sections)


def command(config: Mapping[str, Value]) -> str:
    """The command that does the same run again: what is not its default, and the seed always."""
    changed = {n: v for g in grouped(config).values() for n, (v, set_) in g.items() if set_}
    if "seed" in config:
        changed["seed"] = config["seed"]
    words = [shlex.quote(f"{n}={word(v)}") for n, v in changed.items() if n not in NOT_AGAIN]
    return " ".join(["python run_simulation.py", *words])


def lead(results: Sequence[Result]) -> str:
    """The sentence, and the numbers of the fit; empty for a plain comparison."""
    first, *rest = answer.lines(results) or [""]
    lines = "".join(f'<p class="soft">{escape(line)}</p>\n' for line in rest)
    return f"<p><strong>{escape(first)}</strong></p>\n{lines}" if first else ""


def residuals(results: Sequence[Result]) -> list[Chart]:
    """Residuals of the rows that were fitted, by the fitted values."""
    return [
        residual_chart(result) for result in results if (result.get("fit") or {}).get("residuals")
    ]


def residual_chart(result: Result) -> Chart:
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
