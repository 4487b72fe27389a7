"""The report of a run: one HTML file with everything in it, to read, to print and to pass on.

The parts are beside it: charts as numbers (`chart`, `curves`, `people`, `divisions`, `estimates`),
how they are drawn (`drawing`, `strips`, `style`), and what answers to the pointer (`script`).
"""

from __future__ import annotations

import base64
import hashlib
import json
import shlex
from collections.abc import Mapping, Sequence
from html import escape
from itertools import count
from pathlib import Path
from typing import Any

from corsage.app.output.answer import of_all_rows
from corsage.app.output.summary import Result, Row, findings_section
from corsage.app.report import answers, divisions, estimates, result_fields, words
from corsage.app.report.chart import Chart
from corsage.app.report.curves import learning_charts
from corsage.app.report.drawing import definitions, figure, legend
from corsage.app.report.people import people_charts, table, user_table
from corsage.app.report.scripts import SCRIPT
from corsage.app.report.strips import strips
from corsage.app.report.style import SHEET, Look, looks
from corsage.app.report.trees import Tree, trees
from corsage.core.configuration.known_keys import known_keys
from corsage.core.files import write_atomically
from corsage.core.keys import Value
from corsage.core.measures import DASH

NOT_AGAIN = ("resume", "run-dir")
"""Keys that say where a run was kept, not what it was."""


def write_report(
    folder: Path | str,
    config: Mapping[str, Value],
    results: Sequence[Result],
    version: str,
    rows: Sequence[Row] = (),
    failed: Mapping[str, str] | None = None,
) -> Path:
    """Write `report.html` into the run's folder: there whole, or not at all.

    `config` are the flat keys, as `Config.flat()` gives them. With rows, learning curves get
    their bands and losses, and bytes are exact in between. `failed` are the strategies without a
    result, and why.
    """
    path = Path(folder) / "report.html"
    name = path.resolve().parent.name
    found = trees(Path(folder), results)
    write_atomically(path, page(name, config, results, version, rows, failed, found))
    return path


def page(
    name: str,
    config: Mapping[str, Value],
    results: Sequence[Result],
    version: str,
    rows: Sequence[Row] = (),
    failed: Mapping[str, str] | None = None,
    found: Mapping[str, Tree] | None = None,
) -> str:
    """The whole report as text; everything that a user may have named is escaped.

    `found` are the trees of the clusters, by the rows that have them.
    """
    drawn = Drawn(results)
    title = escape(f"{words.listed([*words.by_training(results)], 5)} on {config.get('dataset')}")
    body = "\n".join(
        [
            answers.lead(results),
            words.headline(results, drawn.looks),
            words.notes(results, failed or {}),
            "" if of_all_rows(results) else learning(drawn, rows),
            people(drawn),
            words.worse_off(results),
            words.all_measures(results),
            estimates.section(results),
            drawn.views(estimates.caterpillars(results)),
            drawn.views(answers.residuals(results)),
            divisions.section(results, found or {}),
            findings_section(results),
        ]
    )
    return f"""<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta http-equiv="Content-Security-Policy" content="{POLICY}">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>{title}</title>
<style>{SHEET}</style>
</head>
<body>
{definitions()}
<h1>{title}</h1>
<p class="soft">Run {escape(name)}, Corsage {escape(version)}</p>
{body}
<h2>Configuration</h2>
{settings(config)}
<h2>Run it again</h2>
<pre>{escape(command(config))}</pre>
<script type="application/json" id="data">{embedded(drawn.json())}</script>
<script>{SCRIPT}</script>
</body>
</html>
"""


def policy(script: str) -> str:
    """Restrict what the page may load and run to its own script and style."""
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    return f"default-src 'none'; style-src 'unsafe-inline'; script-src 'sha256-{digest}'"


POLICY = policy(SCRIPT)


def embedded(content: Any) -> str:
    """JSON that no word of a user can break out of, whatever it holds."""
    text = json.dumps(content, separators=(",", ":"), ensure_ascii=False, allow_nan=False)
    escapes = {"<": "\\u003c", ">": "\\u003e", "&": "\\u0026", "\u2028": "\\u2028"}
    for plain, safe in {**escapes, "\u2029": "\\u2029"}.items():
        text = text.replace(plain, safe)
    return text


class Drawn:
    """The charts of a page, as they are drawn one after the other.

    Parameters
    ----------
    results : one a row of the table.
    """

    def __init__(self, results: Sequence[Result]) -> None:
        self.results = results
        self.order = [str(result["strategy"]) for result in results]
        self.looks: dict[str, Look] = looks(self.order)
        self.charts: list[Chart] = []
        self.numbers = count()
        self.table = table(results)

    def views(self, charts: Sequence[Chart], before: str = "") -> str:
        """Charts of which one is seen at a time, where there are tabs."""
        if not charts and not before:
            return ""
        self.charts += charts
        figures = (figure(c, self.order, self.looks, next(self.numbers)) for c in charts)
        return f'<div class="views">{before}{"".join(figures)}</div>'

    def legend(self) -> str:
        """All strategies, to hide and to show."""
        return legend(self.order, self.looks)

    def json(self) -> dict[str, Any]:
        """The numbers that the page's script needs."""
        names = [{"name": n, "colour": self.looks[n].colour} for n in self.order]
        charts = [chart.json(self.order) for chart in self.charts]
        return {"strategies": names, "charts": charts, "users": self.table}


def learning(drawn: Drawn, rows: Sequence[Row]) -> str:
    """The section on learning."""
    charts = learning_charts(drawn.results, rows)
    return f"<h2>Learning</h2>\n{drawn.legend()}\n{drawn.views(charts)}" if charts else ""


def people(drawn: Drawn) -> str:
    """The section on users."""
    measures = result_fields.measures(drawn.results)
    pictures = "".join(
        strips(drawn.results, measure, drawn.order, drawn.looks, extra=measure is not measures[0])
        for measure in measures
    )
    charts = people_charts(drawn.results)
    return "\n".join(
        [
            "<h2>Users</h2>",
            words.tested(drawn.results),
            drawn.legend(),
            drawn.views(charts, pictures),
            user_table(drawn.table),
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
