"""Progress of work that goes on: the head of a page that loads itself again."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from html import escape
from typing import Any

from corsage.app.output.summary import Result, Row, evaluated, human_seconds
from corsage.core.measures import measure_of

ENDED = "It was ended before its end; --resume goes on with it."
LISTED = 8
"""Runs at work that are named."""


@dataclass(frozen=True)
class Now:
    """A moment of work that is not over.

    Parameters
    ----------
    done, whole : in `unit`s.
    unit : rounds, or runs.
    left : seconds to the end, if there is a pace.
    at_work : what goes on, and the page of it, if it has one.
    seconds : after which the page is loaded again; 0 if the work was ended before its end.
    """

    done: float
    whole: float
    unit: str
    left: float | None = None
    at_work: Sequence[tuple[str, str]] = ()
    seconds: float = 3.0

    @property
    def share(self) -> float:
        """The part that is done."""
        return min(self.done / self.whole, 1.0) if self.whole else 0.0

    @property
    def percent(self) -> str:
        """It as people say it."""
        return f"{100 * self.share:.0f}%"

    @property
    def again(self) -> str:
        """For browsers without scripts: the page is loaded again."""
        if not self.seconds:
            return ""
        return f'\n<noscript><meta http-equiv="refresh" content="{self.seconds:.0f}"></noscript>'

    def section(self) -> str:
        """The bar, the time that is left, and what is at work."""
        words = f"{int(self.done):,} of {int(self.whole):,} {self.unit}"
        if self.left is not None and self.seconds:
            words += f", some {human_seconds(self.left)} left"
        names = "".join(f"<li>{linked(*one)}</li>" for one in self.at_work[:LISTED])
        more = len(self.at_work) - LISTED
        names += f"<li>and {more} more</li>" if more > 0 else ""
        stamp = time.strftime("%Y-%m-%d %H:%M:%S")
        return (
            f'<section class="far"><p><strong>{self.percent}</strong> {escape(words)}</p>\n'
            f'<div class="meter"><i style="width:{100 * self.share:.1f}%"></i></div>\n'
            + (f"<ul>{names}</ul>\n" if names else "")
            + ("" if self.seconds else f'<p class="low">{ENDED}</p>\n')
            + f'<p class="soft">As of {stamp}<span id="ago"></span></p></section>'
        )

    def json(self) -> dict[str, Any]:
        """As the page's script has it."""
        return {"seconds": self.seconds, "written": round(time.time(), 1)}


def linked(words: str, place: str) -> str:
    """Words, and where they lead."""
    return f'<a href="{escape(place, quote=True)}">{escape(words)}</a>' if place else escape(words)


def so_far(rows: Sequence[Row], results: Sequence[Result]) -> list[Result]:
    """All that is known of strategies that have no result yet, as results have it."""
    done = {str(result["strategy"]) for result in results}
    names = dict.fromkeys(str(row["strategy"]) for row in rows)
    found: list[Result] = []
    for name in names:
        own = evaluated(rows, name)
        if own and name not in done:
            field = measure_of(own[-1]).name
            curve = [[row["round"], row[field]["mean"]] for row in own]
            found.append({**own[-1], "rounds": own[-1]["round"], "curve": curve, "dropped": {}})
    return found


def rounds(
    results: Sequence[Result],
    rows: Sequence[Row],
    names: Sequence[str],
    each: int,
    seconds: float,
) -> Now:
    """A run's moment: rounds of all strategies, and the time that the rest will take."""
    done = {str(result["strategy"]) for result in results}
    last = {str(row["strategy"]): row for row in rows}
    whole = dict.fromkeys(names, each)
    for result in results:  # one that has come to its end earlier needs no more rounds
        if (name := str(result["strategy"])) in whole:
            whole[name] = int(result["rounds"])
    come = {n: whole[n] if n in done else int(last[n]["round"]) if n in last else 0 for n in names}
    paces = {n: float(row["seconds"]) / max(int(row["round"]), 1) for n, row in last.items()}
    usual = sum(paces.values()) / len(paces) if paces else None
    left = None
    if usual is not None:
        left = sum((whole[n] - come[n]) * paces.get(n, usual) for n in names)
    at_work = [
        (f"{n}: {come[n]:,} of {whole[n]:,} rounds{scored(last[n])}", "")
        for n in names
        if n in last and n not in done
    ]
    return Now(sum(come.values()), sum(whole.values()), "rounds", left, at_work, seconds)


def scored(row: Row) -> str:
    """The measure of a round, if it was evaluated."""
    measure = measure_of(row)
    found: Mapping[str, Any] = row.get(measure.name) or {}
    return f", {measure.word} {measure.text(found['mean'])}{measure.unit}" if found else ""
