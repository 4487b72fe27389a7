"""Users as pictures and as a table: who is left behind, and who is worse off than elsewhere."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape
from typing import Any

import numpy as np

from corsage.app.output.summary import Result
from corsage.app.report import result_fields
from corsage.app.report.chart import (
    Axis,
    Chart,
    Series,
    Strip,
    kind_of,
    limits,
    ranked,
    short,
    thinned,
    written,
)
from corsage.core.distribution import worst_share
from corsage.core.measures import Measure, measure_of
from corsage.core.pairs.hurt import REFERENCES

MOST_NAMED_POINTS = 400
"""Users up to which each is a point that can be asked for its name."""
EXTREMES = 20
"""Users at each end who are drawn in any case."""
CELLS = 150_000
"""Cells of the users' table; beyond them it has the extremes of each row only."""
VIEW_WORDS = {"spread": "distribution", "ranks": "worst to best", "sizes": "test size"}
STANDING = 100
"""Users that are in the table without the script."""
LOW_CLASS = ' class="low"'
FOLD = 30
"""Users up to which the table is open from the start."""


def people_charts(results: Sequence[Result]) -> list[Chart]:
    """Users by their measure, by what they gain, and by how much they are tested on."""
    charts = []
    for measure in result_fields.measures(results):
        main = measure is result_fields.measures(results)[0]
        charts += [ranks(results, measure, extra=not main)]
        if main:
            charts += [c for kind in ("alone", "together") if (c := gains(results, kind))]
        if len(set(result_fields.test_sizes(results).values())) > 1:
            charts += [sizes(results, measure)]
    return [chart for chart in charts if chart.series]


def picked(count: int) -> list[int]:
    """Ranks that are drawn: all of few users; of many, evenly, and both ends in any case."""
    if count <= MOST_NAMED_POINTS:
        return list(range(count))
    ends = {*range(EXTREMES), *range(count - EXTREMES, count)}
    return sorted(ends | set(thinned(count)))


def ordered(result: Result, measure: Measure) -> tuple[list[str], np.ndarray[Any, Any]]:
    """Users and their numbers as shown, the worst first."""
    found = result_fields.per_user(result, measure)
    order = np.argsort(measure.merit(list(found.values())), kind="stable")
    names, values = list(found), measure.factor * np.array(list(found.values()), dtype=float)
    return [names[i] for i in order], values[order]


def ranks(results: Sequence[Result], measure: Measure, extra: bool = False) -> Chart:
    """Every user's number, from the worst-off to the best-off."""
    series = []
    for result in results:
        names, values = ordered(result, measure)
        at, x = picked(len(names)), ranked(values)
        if names:
            line = ([x[i] for i in at], [float(values[i]) for i in at])
            worst = f"worst 10%: {measure.digits(worst_share(values, measure=measure))}"
            named = [names[i] for i in at]
            series.append(Series(str(result["strategy"]), *line, names=named, note=worst))
    y = Axis(measure.axis("{} of the user"), kind_of(measure), *limits(series, measure.bounds))
    x_axis = Axis("users, from the worst-off to the best-off (%)", "share", 0.0, 100.0)
    caption = "The worst tenth is at the left."
    title = f"{measure.word} of every user, from worst to best"
    title = title[:1].upper() + title[1:]
    choice = (measure.word, VIEW_WORDS["ranks"])
    return Chart(
        title, caption, x_axis, y, series, choice, bounds=measure.bounds, extra=extra, ends=False
    )


def gains(results: Sequence[Result], kind: str) -> Chart | None:
    """The gain of each user against being alone, or against one model for all."""
    other = result_fields.reference(results, REFERENCES[kind])
    if other is None:
        return None
    series = []
    for result in results:
        found = result_fields.differences(result, other)
        names, values = list(found), np.array(list(found.values()))
        if result is other or not names:
            continue
        at, x = picked(len(names)), ranked(values)
        line = ([x[i] for i in at], [float(values[i]) for i in at])
        series.append(Series(str(result["strategy"]), *line, names=[names[i] for i in at]))
    measure, than = measure_of(other), str(other["strategy"])
    worse = "lower" if measure.higher_is_better else "higher"
    y = Axis(f"gain against {than} (difference in {measure.title})", "gain", *limits(series))
    x_axis = Axis("users, from the most hurt to the most helped (%)", "share", 0.0, 100.0)
    caption = (
        f"Each user against itself with {than}. Below zero: {measure.word} is {worse} than there."
    )
    title = f"What users gain against {than}"
    choice = (measure.word, f"against {than}")
    return Chart(title, caption, x_axis, y, series, choice, zero=0.0, ends=False)


def sizes(results: Sequence[Result], measure: Measure) -> Chart:
    """Each user's number by its test samples: with few of them a number is mostly chance."""
    counts, series = result_fields.test_sizes(results), []
    for result in results:
        names, values = ordered(result, measure)
        at = [i for i in picked(len(names)) if counts.get(names[i])]
        if at:
            line = ([float(counts[names[i]]) for i in at], [float(values[i]) for i in at])
            series.append(Series(str(result["strategy"]), *line, names=[names[i] for i in at]))
    values_x = [v for s in series for v in s.x] or [1.0]
    low, high = min(values_x), max(values_x)
    log = high > 20 * low
    x = Axis(
        "test samples of the user" + " (log scale)" * log,
        "count",
        low / 1.2 if log else 0.0,
        high * 1.05,
        log,
    )
    y = Axis(measure.axis("{} of the user"), kind_of(measure), *limits(series, measure.bounds))
    title, choice = f"{measure.word} and test samples", (measure.word, VIEW_WORDS["sizes"])
    title = title[:1].upper() + title[1:]
    caption = (
        "One point a user and strategy: the numbers of users with few test samples scatter most."
    )
    return Chart(
        title, caption, x, y, series, choice, points=True, bounds=measure.bounds, extra=True
    )


def table(results: Sequence[Result]) -> dict[str, Any]:
    """The users' table as the page's script has it: columns of users, or of the extremes of many.

    `columns` have their title, how their numbers are written, which end is the good one, and the
    limit below which a value is in the worst tenth; `-` for one that has none.
    """
    everyone = result_fields.everybody(results)
    known = result_fields.known_clusters(results)
    groups = [r for r in results if (own := result_fields.clusters(r)) and own != known]
    width = len(results) * len(result_fields.measures(results)) + len(groups) + 3
    if len(everyone) * width > CELLS:
        users = extremes(results, max(3, CELLS // (10 * width)))
    else:
        users = sorted(everyone, key=result_fields.reading_order)
    counts, missing = result_fields.test_sizes(results), set(result_fields.untested(results))
    columns = [plain("user", users)]
    if counts or missing:
        numbers = [counts.get(u, 0 if u in missing else None) for u in users]
        columns.append(plain("test samples", numbers, "count"))
    if known:
        columns.append(plain("cluster", [known.get(u) for u in users]))
    for result in groups:
        own = result_fields.clusters(result)
        columns.append(plain(f"{result['strategy']}: cluster", [own.get(u) for u in users]))
    for measure in result_fields.measures(results):
        columns += [numbers_of(result, measure, users) for result in results]
    return {"users": len(everyone), "shown": len(users), "columns": columns}


def plain(title: str, values: Sequence[Any], kind: str = "text") -> dict[str, Any]:
    """A column that is no measure."""
    return {"title": title, "kind": kind, "values": list(values), "measure": ""}


def numbers_of(result: Result, measure: Measure, users: Sequence[str]) -> dict[str, Any]:
    """A row's column of the users' table, in the units that are shown."""
    own = result_fields.per_user(result, measure)
    worst = result_fields.tenth(own.values(), measure) if own else 0.0
    sign = 1.0 if measure.higher_is_better else -1.0
    return {
        "title": str(result["strategy"]),
        "kind": kind_of(measure),
        "measure": measure.title,
        "up": measure.higher_is_better,
        "limit": short(sign * measure.factor * worst) if own else None,
        "values": [short(measure.factor * own[user]) if user in own else None for user in users],
        "low": [i for i, u in enumerate(users) if u in own and measure.merit(own[u]) < worst],
    }


def extremes(results: Sequence[Result], most: int) -> list[str]:
    """The worst and the best users of every row, and those that are hurt most."""
    main, found = result_fields.measures(results)[0], set()
    each = max(3, most // max(len(results), 1))
    for result in results:
        names, _ = ordered(result, main)
        found |= {*names[: 2 * each // 3], *names[len(names) - each // 3 :]}
    for entry in result_fields.hurt(results):
        found |= set(entry.users[: each // 3])
    return sorted(found, key=result_fields.reading_order)


def spreads(results: Sequence[Result], measure: Measure) -> list[Strip]:
    """Spread of each row's users: values, the middle half, the mean and the worst tenth."""
    found = []
    for result in results:
        names, values = ordered(result, measure)
        if not names:
            continue
        at, count = picked(len(names)), -(-len(names) // 10)
        low, middle, high = np.quantile(values, [0.25, 0.5, 0.75]).tolist()
        dots = [float(values[i]) for i in at], [names[i] for i in at]
        ends = float(values.mean()), low, high
        tenth = float(values[:count].mean())
        found.append(Strip(str(result["strategy"]), *ends, *dots, median=middle, tenth=tenth))
    return found


def user_table(found: Mapping[str, Any]) -> str:
    """The table, with what searches it, and words on who is in it."""
    columns = found["columns"]
    measures = list({c["measure"]: None for c in columns if c["measure"]})
    own = [c for c in columns if not c["measure"] or c["measure"] == measures[0]]
    head = "".join(f'<th scope="col">{escape(str(c["title"]))}</th>' for c in own)
    body = "\n".join(line(own, i) for i in range(min(STANDING, found["shown"])))
    state = " open" if found["users"] <= FOLD else ""
    names = ", ".join(measures) or "no measure"
    return (
        f"<details{state}><summary>All {found['users']:,} users: {escape(names)}</summary>\n"
        f'{words(found)}{tools(measures)}<div class="wide people"><table id="people"><thead><tr>'
        f"{head}</tr></thead>\n<tbody>{body}</tbody></table></div>\n"
        '<p class="more extra"><button type="button" id="more">more</button></p>'
        '<p class="soft"><span class="low">Coloured</span>: the worst tenth of each strategy.</p>'
        "</details>"
    )


def words(found: Mapping[str, Any]) -> str:
    """A sentence on what is not in the table."""
    if found["shown"] < found["users"]:
        return (
            f'<p class="soft">Of {found["users"]:,} users this page has the {found["shown"]:,} '
            "who are the worst or the best off, or hurt most, under some strategy; "
            "summary.json has all of them.</p>\n"
        )
    if found["users"] > STANDING:
        return f'<noscript><p class="soft">The first {STANDING} of them.</p></noscript>\n'
    return ""


def tools(measures: Sequence[str]) -> str:
    """Fields to search and filter the table; they appear with the script alone."""
    choice = ""
    if len(measures) > 1:
        options = "".join(f"<option>{escape(name)}</option>" for name in measures)
        choice = f'<label>measure <select id="measure">{options}</select></label>'
    return (
        '<div class="find extra"><label>find <input id="find" type="search" '
        'placeholder="user, or fedrep &lt; 80"></label>'
        f'<label><input id="worst" type="checkbox"> worst tenth only</label>{choice}'
        '<span class="soft" id="said"></span></div>\n'
    )


def line(columns: Sequence[Mapping[str, Any]], i: int) -> str:
    """One user's line."""
    cells = "".join(
        f"<td{LOW_CLASS if i in (c.get('low') or ()) else ''}>{escape(cell(c, i))}</td>"
        for c in columns
    )
    return f"<tr>{cells}</tr>"


def cell(column: Mapping[str, Any], i: int) -> str:
    """One value."""
    value, kind = column["values"][i], column["kind"]
    if value is None or kind in ("text", "count"):
        return "–" if value is None else str(value)  # noqa: RUF001 (a dash, as in print)
    return written(value, kind)
