"""Who works and who waits: each cluster's time in a line, and the global steps across them."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from html import escape

from corsage.app.output.page import fields
from corsage.app.output.page.chart import Axis
from corsage.app.output.page.drawing import WIDTH
from corsage.app.output.summary import Result, Row

WINDOW = 60
"""Rounds that are drawn, the last ones."""
MOST = 40
"""Clusters that are drawn, so that who is waited for is among them."""
ROW, BAR, WAIT = 24, 14, 4
"""Pixels of a cluster's line, and in it of its work and of its waits."""
Span = tuple[float, float]


@dataclass
class Times:
    """What the rows of a strategy say.

    Parameters
    ----------
    steps : when each round's global step was, in seconds of the run.
    work : from when to when each cluster was at work.
    missed : in how many rounds each cluster did not take part, and the oldest that its centre was.
    """

    steps: list[float] = field(default_factory=list)
    work: dict[str, list[Span]] = field(default_factory=dict)
    missed: dict[str, tuple[int, int]] = field(default_factory=dict)

    def add(self, at: float, work: Mapping[str, Span], stale: Mapping[str, int]) -> None:
        """A round."""
        self.steps.append(at)
        for name, span in work.items():
            self.work.setdefault(name, []).append(span)
        for name, age in stale.items():
            rounds, oldest = self.missed.get(name, (0, 0))
            self.missed[name] = rounds + 1, max(oldest, age)

    @property
    def end(self) -> float:
        """When the last work was done."""
        return max([*self.steps, *(spans[-1][1] for spans in self.work.values())])

    def share(self, name: str) -> float:
        """The share of the run's time in which a cluster was at work."""
        spent = sum(end - begin for begin, end in self.work[name])
        return spent / max(self.end - self.steps[0], 1e-9)


def times(rows: Sequence[Row], strategy: str) -> Times:
    """What the rows of one strategy say; what is damaged in them is left out."""
    found = Times()
    for row in rows:
        told = row.get("timeline")
        if row.get("strategy") != strategy or not isinstance(told, dict):
            continue
        try:
            at, stale = float(told["at"]), {str(n): int(a) for n, a in told["stale"].items()}
            work = {str(n): (float(b), float(e)) for n, (b, e) in told["work"].items()}
        except (KeyError, TypeError, ValueError, AttributeError):
            continue
        if all(map(math.isfinite, [at, *(moment for span in work.values() for moment in span)])):
            found.add(at, work, stale)
    return found


def section(results: Sequence[Result], rows: Sequence[Row]) -> str:
    """A timeline for each strategy whose rows have one; empty if none has."""
    parts = []
    for result in results:
        found = times(rows, str(result["strategy"]))
        if len(found.work) > 1:
            parts.append(drawn(str(result["strategy"]), found))
    return "\n".join(["<h2>Who works, who waits</h2>", *parts]) if parts else ""


def drawn(strategy: str, found: Times) -> str:
    """The last rounds of a strategy, a line a cluster."""
    steps = found.steps[-WINDOW:]
    names = chosen(found)
    axis = Axis("seconds of the run", "number", steps[0], max(found.end, steps[0] + 1e-6))
    height = ROW * len(names)
    lines = "".join(f"M{WIDTH * axis.place(at):.1f} 0V{height}" for at in steps)
    works, waits = "", ""
    for place, name in enumerate(names):
        middle = ROW * (place + 0.5)
        spans = [(max(b, steps[0]), e) for b, e in found.work[name] if e > steps[0]]
        works += "".join(bar(axis, span, middle, BAR) for span in spans)
        waits += "".join(bar(axis, span, middle, WAIT) for span in between(spans, found.end))
    labels = "".join(f"<span>{escape(label(name, found))}</span>" for name in names)
    ticks = axis.below()
    return (
        f"<h3>{escape(strategy)}</h3>"
        f'<div class="tree times"><div class="leaves">{labels}</div><div class="branches">'
        f'<svg viewBox="0 0 {WIDTH} {height}" preserveAspectRatio="none" style="height:{height}px" '
        f'role="img" aria-label="when each cluster was at work"><path class="step" d="{lines}"/>'
        f'<path class="wait" d="{waits}"/><path class="work" d="{works}"/></svg>'
        f'<div class="scale">{ticks}</div></div></div>'
        f'<p class="axis">{escape(caption(found, len(steps), len(names)))}</p>'
    )


def chosen(found: Times) -> list[str]:
    """The clusters that are drawn: of too many those that missed most rounds, then the first."""
    names = sorted(found.work, key=fields.reading_order)
    some = sorted(names, key=lambda name: -found.missed.get(name, (0, 0))[0])[:MOST]
    return [name for name in names if name in some]


def bar(axis: Axis, span: Span, middle: float, high: int) -> str:
    """A span of time as a closed path."""
    left, right = (WIDTH * axis.place(moment) for moment in span)
    return f"M{left:.1f} {middle - high / 2:.1f}H{right:.1f}v{high}H{left:.1f}z"


def between(spans: Sequence[Span], end: float) -> list[Span]:
    """The times between spans, and after the last: who is not at work waits for others."""
    begins = [*(begin for begin, _ in spans[1:]), end]
    return [(e, b) for (_, e), b in zip(spans, begins, strict=True) if b > e]


def label(name: str, found: Times) -> str:
    """A cluster, and how much of the time it was at work."""
    return f"cluster {name}: {100 * found.share(name):.0f}% at work"


def caption(found: Times, shown: int, clusters: int) -> str:
    """What is seen."""
    rounds, words = len(found.steps), "thick: at work; thin: it waits; lines: global steps"
    words = f"seconds of the run; {words}"
    if shown < rounds:
        words += f"; the last {shown} of {rounds:,} rounds"
    if clusters < len(found.work):
        words += f"; {clusters} clusters of more, first those that missed most rounds"
    for name, (missed, oldest) in sorted(found.missed.items(), key=lambda pair: -pair[1][0])[:3]:
        words += f"; cluster {name} took no part in {missed:,} rounds, its centre was at most "
        words += f"{oldest} old"
    return words + "."
