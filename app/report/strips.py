"""Strips: a row a strategy, with its dots, a shaded part, and a mark at the mean."""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from dataclasses import replace
from html import escape

from corsage.app.output.summary import Result
from corsage.app.report.chart import Axis, Series, Strip, Strips, kind_of, limits, written
from corsage.app.report.drawing import DRAWING_WIDTH, Looks, mark, sample
from corsage.app.report.people import VIEW_WORDS, spreads
from corsage.core.measures import Measure

TALL = 38
"""Pixels of a strip."""
TOLD_DOTS = 30
"""Dots of a row up to which each says whose it is."""
ARROWS = {True: "\u25c2", False: "\u25b8"}
"""Signs of an interval that goes on to the left, or to the right."""


def user_strips(results: Sequence[Result], measure: Measure, extra: bool) -> list[Strips]:
    """A strip a row of the table, with a dot a user; none if nobody has a number."""
    found = spreads(results, measure)
    if not found:
        return []
    series = [Series(s.name, s.values, s.values) for s in found]
    axis = Axis(measure.axis("{} of the user"), kind_of(measure), *limits(series, measure.bounds))
    some = "of many users the ends and every so-manieth; " if cut(found, results) else ""
    caption = (
        f"A dot a user, {some}the middle half shaded, a line at the median, a mark and the number "
        "at the mean, a dashed line at the mean of the worst tenth."
    )
    title, choice = f"{measure.word} of all users", (measure.word, VIEW_WORDS["spread"])
    title = title[:1].upper() + title[1:]
    return [Strips(title, caption, wider(axis), found, choice, extra)]


def wider(axis: Axis) -> Axis:
    """The axis with room at its ends, where dots are of users who have all or nothing."""
    room = 0.02 * (axis.high - axis.low)
    return replace(axis, low=axis.low - room, high=axis.high + room)


def cut(found: Sequence[Strip], results: Sequence[Result]) -> bool:
    """True if there are more users than dots."""
    most = max(len(strip.names) for strip in found)
    return most < max(len(r.get("per_user") or {}) for r in results)


def rows(chart: Strips, order: Sequence[str], looks: Looks) -> str:
    """The chart as the page has it."""
    body = "".join(row(s, chart.x, order.index(s.name), looks) for s in chart.strips)
    of, against = (escape(word, quote=True) for word in chart.choice)
    return (
        f'<figure class="view strips{" extra" * chart.extra}" data-of="{of}" '
        f'data-against="{against}">\n<h3>{escape(chart.title)}</h3>\n'
        f'{body}<div class="row"><div class="scale">{chart.x.below()}</div></div>'
        f'<p class="axis">{escape(chart.x.label)}</p>'
        f"<figcaption>{escape(chart.caption)}</figcaption></figure>"
    )


def row(strip: Strip, axis: Axis, number: int, looks: Looks) -> str:
    """One strip; what is beyond the axis is at its edge, an end of the shaded part with a sign."""
    look = looks[strip.name]
    beyond = sum(not axis.low <= value <= axis.high for value in strip.values)
    said = f" ({beyond} beyond the axis)" if beyond else ""
    signs = "".join(
        f'<span class="cut {"left" if left else "right"} c{look.colour}">{ARROWS[left]} '
        f"{written(value, axis.kind)}</span>"
        for left, value in strip.cut(axis)
    )
    return (
        f'<div class="row s-{number}"><span class="who">'
        f"{sample(look)} {escape(strip.name)}{said}</span>"
        f'<div class="track"><svg class="strip c{look.colour}" viewBox="0 0 {DRAWING_WIDTH} {TALL}"'
        f' preserveAspectRatio="none" aria-hidden="true">{inside(strip, axis)}</svg>'
        + mark(look, "", f' style="left:{100 * held(axis.place(strip.mean)):.2f}%"')
        + f'{signs}</div><span class="mean">{written(strip.mean, axis.kind)}</span></div>\n'
    )


def inside(strip: Strip, axis: Axis) -> str:
    """The shaded part, the dots and the rules of a strip."""
    low, high = (DRAWING_WIDTH * held(axis.place(v)) for v in (strip.low, strip.high))
    found = [f'<path class="half" d="M{low:.1f} 5H{high:.1f}V33H{low:.1f}z"/>']
    points = [
        f"M{DRAWING_WIDTH * held(axis.place(value)):.1f} {height(name):.1f}h0"
        for name, value in zip(strip.names, strip.values, strict=True)
    ]
    if len(points) > TOLD_DOTS:
        found.append(f'<path class="dots" d="{"".join(points)}"/>')
    else:
        found += [
            f"<g><title>{escape(name)}: {written(value, axis.kind)}</title>"
            f'<path class="dots" d="{point}"/></g>'
            for point, name, value in zip(points, strip.names, strip.values, strict=True)
        ]
    for css, value in (("middle", strip.median), ("tenth", strip.tenth)):
        if value is not None:
            place = DRAWING_WIDTH * held(axis.place(value))
            found.append(f'<path class="{css}" d="M{place:.1f} 5V33"/>')
    return "".join(found)


def held(place: float) -> float:
    """A place on the axis, at its edge if it is beyond."""
    return min(max(place, 0.003), 0.997)


def height(name: str) -> float:
    """Height of a dot in its strip: anywhere, but always the same."""
    return 7 + zlib.crc32(name.encode("utf-8", "replace")) % 2400 / 100
