"""Linear models as statisticians know them: coefficients, variances and a caterpillar plot."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape
from typing import Any

from corsage.app.output.summary import Result
from corsage.app.report.chart import Axis, Chart, Series, limits, thinned
from corsage.app.report.words import wide
from corsage.core.measures import DASH, four_digits

INTERVAL_WIDTH = 1.959964
"""Standard errors to each side of a 95% interval."""
MOST_CATERPILLAR_USERS = 300
"""Users of a caterpillar plot; of more of them every so-manieth, and both ends."""
TABS = 8
"""Coefficients that have a caterpillar plot."""


def section(results: Sequence[Result]) -> str:
    """The tables of all rows that have estimates; empty if none has."""
    found = {str(r["strategy"]): r["estimates"] for r in results if r.get("estimates")}
    parts = [
        f"<details{' open' * (not n)}><summary>{escape(name)}</summary>\n{tables(name, own)}"
        "</details>"
        for n, (name, own) in enumerate(found.items())
    ]
    return "\n".join(["<h2>Estimates</h2>", *parts]) if parts else ""


def tables(name: str, found: Mapping[str, Any]) -> str:
    """Coefficients with their intervals, and where the variance is."""
    parts = []
    if lines := found.get("coefficients"):
        parts.append(f"<h3>{escape(name)}: coefficients</h3>\n{coefficients(lines)}")
    if lines := found.get("variances"):
        parts.append(f"<h3>{escape(name)}: where the variance is</h3>\n{variances(lines)}")
        if how := found.get("intervals"):
            parts.append(f"<p>Intervals of variances: {escape(str(how))}.</p>")
    if lines := found.get("correlations"):
        parts.append(f"<h3>{escape(name)}: correlations</h3>\n{correlations(lines)}")
    return '<section class="estimates">' + "\n".join(parts) + "</section>"


def coefficients(lines: Sequence[Mapping[str, Any]]) -> str:
    """A line a coefficient: its estimate, standard error and 95% interval, as numbers and drawn."""
    ends = [
        v for c in lines for v in (c.get("low"), c.get("high"), c["estimate"], 0.0) if v is not None
    ]
    low, high = min(ends), max(ends)
    extra = [key for key in ("z", "p") if any(c.get(key) is not None for c in lines)]
    heads = ["", "estimate", "std. error", "95% interval", "", *extra]
    body = "".join(
        f"<tr><td>{escape(str(c['name']))}</td><td>{number(c['estimate'])}</td>"
        f"<td>{number(c.get('se'))}</td><td>{interval(c)}</td>"
        f"<td>{drawn(c, low, high)}</td>"
        + "".join(f"<td>{tested(c.get(key), key)}</td>" for key in extra)
        + "</tr>"
        for c in lines
    )
    return wide(heads, body)


def variances(lines: Sequence[Mapping[str, Any]]) -> str:
    """A line a level: its variance with its standard error and interval, its share of all."""
    sure = any(v.get("se") is not None or v.get("high") is not None for v in lines)
    parts = any(v.get("share") is not None for v in lines)
    heads = ["std. error", "95% interval"] * sure + ["share"] * parts
    body = "".join(
        f"<tr><td>{escape(str(v['level']))}</td><td>{number(v.get('variance'))}</td>"
        + (f"<td>{number(v.get('se'))}</td><td>{interval(v)}</td>" if sure else "")
        + (f"<td>{share(v.get('share'))}</td>" if parts else "")
        + f"<td>{bar(v.get('share')) if parts else ''}{escape(boundary(v))}</td></tr>"
        for v in lines
    )
    return wide(["", "variance", *heads, ""], body)


def boundary(found: Mapping[str, Any]) -> str:
    """Of a variance that is 0 why it is."""
    if why := found.get("held"):
        return f" held at 0: {why}"
    return " at the boundary: none was found" if found.get("at_boundary") else ""


def correlations(lines: Sequence[Mapping[str, Any]]) -> str:
    """A line a pair of coefficients."""
    body = "".join(
        f"<tr><td>{escape(str(c['level']))}: {escape(str(c['name']))} with "
        f"{escape(str(c['other']))}</td><td>{number(c.get('estimate'))}</td>"
        f"<td>{interval(c)}</td></tr>"
        for c in lines
    )
    return wide(["", "correlation", "95% interval"], body)


def number(value: float | None) -> str:
    """A number with four digits."""
    return DASH if value is None else four_digits(float(value))


def tested(value: float | None, key: str) -> str:
    """A z or p value as statisticians write it."""
    if value is None:
        return DASH
    if key == "p":
        return "&lt; .001" if value < 0.001 else f"{value:.3f}"
    return f"{value:.2f}"


def share(value: float | None) -> str:
    """A share in percent."""
    return DASH if value is None else f"{100 * float(value):.2f}%"


def bar(value: float | None) -> str:
    """A share as a bar."""
    return f'<span class="bar c0" style="width:{9 * float(value or 0):.2f}rem"></span>'


def interval(found: Mapping[str, Any]) -> str:
    """From .. to."""
    if found.get("low") is None or found.get("high") is None:
        return DASH
    return f"{number(found['low'])} to {number(found['high'])}"


def drawn(found: Mapping[str, Any], low: float, high: float) -> str:
    """An estimate and its interval on the axis that all of them share, 0 marked."""
    span = (high - low) or 1.0
    at = {
        key: 4 + 136 * (float(value) - low) / span
        for key in ("low", "estimate", "high")
        if (value := found.get(key)) is not None
    }
    zero = 4 + 136 * (0.0 - low) / span
    line = f"M{at['low']:.1f} 6H{at['high']:.1f}" if {"low", "high"} <= set(at) else ""
    return (
        '<svg class="sure" viewBox="0 0 144 12" aria-hidden="true">'
        f'<path d="M{zero:.1f} 0V12" stroke="currentColor" stroke-opacity=".35"/>'
        f'<g class="c0"><path d="{line}" stroke="currentColor" stroke-width="2"/>'
        f'<circle cx="{at["estimate"]:.1f}" cy="6" r="3.4" fill="currentColor"/></g></svg>'
    )


def caterpillars(results: Sequence[Result]) -> list[Chart]:
    """Users' estimates from the lowest to the highest, with their 95% intervals."""
    charts = []
    for result in results:
        users = (result.get("estimates") or {}).get("users") or {}
        names = {name: None for user in users.values() for name in user.get("estimate") or {}}
        name = str(result["strategy"])
        first = sorted(names, key=lambda name: name != "intercept")
        charts += [caterpillar(name, users, own) for own in first[:TABS]]
    return charts


def caterpillar(strategy: str, users: Mapping[str, Any], name: str) -> Chart:
    """One coefficient's plot."""
    found = sorted(
        (float(u["estimate"][name]), str(user), error(u.get("se"), name))
        for user, u in users.items()
        if u.get("estimate", {}).get(name) is not None
    )
    at = thinned(len(found), MOST_CATERPILLAR_USERS)
    x = [float(i + 1) for i in at]
    y = [found[i][0] for i in at]
    sure = all(found[i][2] is not None for i in at)
    low, high = (
        [found[i][0] + sign * INTERVAL_WIDTH * (found[i][2] or 0.0) for i in at] if sure else []
        for sign in (-1.0, 1.0)
    )
    series = Series(strategy, x, y, low, high, [found[i][1] for i in at])
    words = f"{strategy}: {name} of every user, the lowest first"
    caption = "Users' own coefficients, after shrinkage" + (
        ", with 95% intervals." if sure else "."
    )
    y_axis = Axis(name, "number", *limits([series]))
    x_axis = Axis("users, from the lowest to the highest", "count", 0.0, len(found) + 1.0)
    return Chart(
        words, caption, x_axis, y_axis, [series], (name, strategy), points=True, ends=False
    )


def error(found: Any, name: str) -> float | None:
    """A user's standard error: of this coefficient, or the one there is."""
    value = found.get(name) if isinstance(found, Mapping) else found
    return None if value is None else float(value)
