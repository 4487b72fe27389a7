"""All that every page of Corsage's has: of runs, of studies, of the bench."""

from __future__ import annotations

import base64
import hashlib
import json
import re
from collections.abc import Mapping, Sequence
from html import escape
from itertools import count
from typing import Any

from corsage.app.report.chart import Chart, Figure, Strips
from corsage.app.report.drawing import definitions, figure, legend
from corsage.app.report.now import Now
from corsage.app.report.scripts import SCRIPT
from corsage.app.report.strips import rows
from corsage.app.report.style import SHEET, Look, looks
from corsage.core.pairs.hurt import NEW_SUFFIX

MANY_ROWS = 10
"""Rows up to which all of them are seen at first."""
SHOWN_ROWS = 6
"""Of more rows so many of the best, and the references."""
REFERENCE_ROWS = ("local", "fedavg")


def policy(script: str) -> str:
    """Restrict what a page may load and run to its own script and style."""
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    return f"default-src 'none'; style-src 'unsafe-inline'; script-src 'sha256-{digest}'"


POLICY = policy(SCRIPT)


def html(title: str, body: Sequence[str], drawn: Drawn, now: Now | None = None) -> str:
    """A page; its title is text, its parts are markup."""
    title = escape(title)
    text = "\n".join(filter(None, body))
    begun = f"{now.percent} \u00b7 " if now else ""
    return f"""<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta http-equiv="Content-Security-Policy" content="{POLICY}">
<meta name="viewport" content="width=device-width, initial-scale=1">{now.again if now else ""}
<title>{begun}{title}</title>
<style>{SHEET}</style>
</head>
<body>
{definitions()}
<h1>{title}</h1>
{text}
<script type="application/json" id="data">{embedded(drawn.json(now))}</script>
<script>{SCRIPT}</script>
</body>
</html>
"""


def embedded(content: Any) -> str:
    """JSON that no word of a user can break out of, whatever it holds."""
    text = json.dumps(content, separators=(",", ":"), ensure_ascii=False, allow_nan=False)
    escapes = {"<": "\\u003c", ">": "\\u003e", "&": "\\u0026", "\u2028": "\\u2028"}
    for plain, safe in {**escapes, "\u2029": "\\u2029"}.items():
        text = text.replace(plain, safe)
    return text


def best_first(merits: Mapping[str, float]) -> list[str]:
    """The rows that are seen at first: all, or of many the best ones and the references.

    Beside `fedavg+ft` stands `fedavg`, whose curve is that of its training; new users are others.
    Names may have settings behind them: `fedavg lr=0.1`.
    """
    if len(merits) <= MANY_ROWS:
        return [*merits]
    order = sorted(merits, key=lambda name: -merits[name])
    found = [name for name in order if not name.partition(" ")[0].endswith(NEW_SUFFIX)][:SHOWN_ROWS]
    for one in REFERENCE_ROWS:
        found += [name for name in order if name.partition(" ")[0] == one][:1]
    found += [re.sub(r"\+\S+", "", name) for name in found]
    return [name for name in dict.fromkeys(found) if name in merits]


def slug(*words: str) -> str:
    """Words as the name of a file."""
    return re.sub(r"[^a-z0-9]+", "-", " ".join(words).lower()).strip("-")


class Drawn:
    """The figures of a page, as they are drawn one after the other.

    Parameters
    ----------
    order : all rows, as the table has them.
    first : those that are seen at first.
    users : the table of users.
    cells : what a click on a cell of a table opens, by its name.
    """

    def __init__(
        self,
        order: Sequence[str],
        first: Sequence[str],
        users: Mapping[str, Any] | None = None,
        cells: Mapping[str, Any] | None = None,
    ) -> None:
        self.order, self.first, self.users, self.cells = order, first, users or {}, cells or {}
        self.looks: dict[str, Look] = looks(order, first)
        self.charts: list[Chart] = []
        self.numbers = count()

    def views(self, figures: Sequence[Figure]) -> str:
        """Figures of which one is seen at a time, where there are tabs."""
        drawn = "".join(map(self.one, figures))
        return f'<div class="views">{drawn}</div>' if drawn else ""

    def one(self, drawn: Figure) -> str:
        """A figure."""
        if isinstance(drawn, Strips):
            return rows(drawn, self.order, self.looks)
        self.charts.append(drawn)
        return figure(drawn, self.order, self.looks, next(self.numbers), self.first)

    def legend(self) -> str:
        """All rows, to hide and to show."""
        return legend(self.order, self.looks)

    def line(self, name: str) -> str:
        """The class of a row's line in tables."""
        return f"s-{self.order.index(name)}"

    def json(self, now: Now | None = None) -> dict[str, Any]:
        """The numbers that the page's script needs."""
        names = [{"name": n, "colour": self.looks[n].colour} for n in self.order]
        charts = [chart.json(self.order) for chart in self.charts]
        hidden = [place for place, name in enumerate(self.order) if name not in self.first]
        found = {"strategies": names, "charts": charts, "hidden": hidden, "users": self.users}
        return {**found, "cells": self.cells, "live": now.json() if now else None}


def section(title: str, legend: str, views: str) -> str:
    """A title, all strategies to hide and to show, and pictures; empty without pictures."""
    return f"<h2>{title}</h2>\n{legend}\n{views}" if views else ""


def sorted_table(
    heads: Sequence[str],
    lines: Sequence[Sequence[str]],
    css: Sequence[str] = (),
    values: Sequence[Sequence[float | None]] = (),
    kind: str = "",
) -> str:
    """A table that can be sorted; cells are markup already.

    Parameters
    ----------
    css : the class of each line.
    values : what cells are sorted by; None: their words.
    """
    top = "".join(f'<th scope="col">{escape(h).replace(chr(10), "<br>")}</th>' for h in heads)
    marks = [["" if v is None else f' data-value="{v!r}"' for v in own] for own in values]
    marks = marks or [[""] * len(heads)] * len(lines)
    body = "\n".join(
        f'<tr class="{own}">{"".join(f"<td{m}>{c}</td>" for c, m in zip(line, mark, strict=True))}'
        "</tr>"
        for line, mark, own in zip(lines, marks, css or [""] * len(lines), strict=True)
    ).replace(' class=""', "")
    return (
        f'<div class="wide {kind}"><table class="sorts"><thead><tr>{top}</tr></thead>\n'
        f"<tbody>{body}</tbody></table></div>\n"
    ).replace('wide "', 'wide"')
