"""Strips of users: one a strategy, with a dot a user, the middle half, the mean."""

from __future__ import annotations

import zlib
from collections.abc import Mapping, Sequence
from dataclasses import replace
from html import escape
from typing import Any

from corsage.app.output.summary import Result
from corsage.app.report.chart import Axis, Series, kind_of, limits, written
from corsage.app.report.drawing import DRAWING_WIDTH, Looks, mark, sample
from corsage.app.report.people import VIEW_WORDS, spreads
from corsage.core.measures import Measure

TALL = 38
"""Pixels of a strip."""


def strips(
    results: Sequence[Result], measure: Measure, order: Sequence[str], looks: Looks, extra: bool
) -> str:
    """A strip a row of the table, all on one axis; empty if nobody has a number."""
    found = spreads(results, measure)
    if not found:
        return ""
    series = [Series(s["strategy"], s["values"], s["values"]) for s in found]
    kind = kind_of(measure)
    axis = wider(Axis(measure.axis("{} of the user"), kind, *limits(series, measure.bounds)))
    rows = "".join(strip(s, axis, order.index(s["strategy"]), looks) for s in found)
    scale = axis.below()
    css = "view strips" + " extra" * extra
    title = f"{measure.word} of all users"
    return (
        f'<figure class="{css}" data-of="{escape(measure.word, quote=True)}" '
        f'data-against="{VIEW_WORDS["spread"]}">\n'
        f"<h3>{escape(title[:1].upper() + title[1:])}</h3>\n"
        f'{rows}<div class="row"><div class="scale">{scale}</div></div>'
        f'<p class="axis">{escape(axis.label)}</p><figcaption>A dot a user, '
        f"{'of many users the ends and every so-manieth; ' if cut(found, results) else ''}"
        "the middle half shaded, a line at the median, a mark and the number at the mean, a "
        "dashed line at the mean of the worst tenth.</figcaption></figure>"
    )


def wider(axis: Axis) -> Axis:
    """The axis with room at its ends, where dots are of users who have all or nothing."""
    room = 0.02 * (axis.high - axis.low)
    return replace(axis, low=axis.low - room, high=axis.high + room)


def cut(found: Sequence[Mapping[str, Any]], results: Sequence[Result]) -> bool:
    """True if there are more users than dots."""
    most = max(len(s["names"]) for s in found)
    return most < max(len(r.get("per_user") or {}) for r in results)


def strip(found: Mapping[str, Any], axis: Axis, number: int, looks: Looks) -> str:
    """One strategy's strip; who is beyond the axis is drawn at its edge, as a triangle is there."""
    name, look = found["strategy"], looks[found["strategy"]]
    low, middle, high = (DRAWING_WIDTH * held(axis.place(q)) for q in found["quartiles"])
    tenth, mean = (held(axis.place(found[key])) for key in ("worst10", "mean"))
    points = "".join(
        f"M{DRAWING_WIDTH * held(axis.place(value)):.1f} {height(user):.1f}h0"
        for user, value in zip(found["names"], found["values"], strict=True)
    )
    drawing = (
        f'<path class="half" d="M{low:.1f} 5H{high:.1f}V33H{low:.1f}z"/>'
        f'<path class="dots" d="{points}"/><path class="middle" d="M{middle:.1f} 5V33"/>'
        f'<path class="tenth" d="M{DRAWING_WIDTH * tenth:.1f} 5V33"/>'
    )
    beyond = sum(not axis.low <= value <= axis.high for value in found["values"])
    said = f" ({beyond} beyond the axis)" if beyond else ""
    return (
        f'<div class="row s-{number}" data-strip="{number}"><span class="who">'
        f"{sample(look)} {escape(name)}{said}</span>"
        f'<div class="track"><svg class="strip c{look.colour}" viewBox="0 0 {DRAWING_WIDTH} {TALL}"'
        f' preserveAspectRatio="none" aria-hidden="true">{drawing}</svg>'
        + mark(look, "", f' style="left:{100 * mean:.2f}%"')
        + f'</div><span class="mean">{written(found["mean"], axis.kind)}</span></div>\n'
    )


def held(place: float) -> float:
    """A place on the axis, at its edge if it is beyond."""
    return min(max(place, 0.003), 0.997)


def height(user: str) -> float:
    """Height of a user's dot in its strip: anywhere, but always the same."""
    return 7 + zlib.crc32(user.encode("utf-8", "replace")) % 2400 / 100
