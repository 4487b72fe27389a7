"""The bench as one HTML file: tables that are sorted and filtered, ranks, who is better off alone,
and the audit."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from html import escape
from pathlib import Path
from typing import Any

from corsage.app.bench.audit import audit
from corsage.app.bench.journal import BenchFolder
from corsage.app.bench.protocol import Json, cell
from corsage.app.bench.rows import Beside, Results
from corsage.app.bench.running import Bench
from corsage.app.bench.sets import ALONE_ROW, method_of
from corsage.app.bench.table import cells, percent, sorting, titles
from corsage.app.report.chart import Axis, Figure, Strip, Strips
from corsage.app.report.now import Now
from corsage.app.report.shell import Drawn, best_first, html, section, slug, sorted_table
from corsage.app.studies.page import curve, learning
from corsage.core.files import guarded, write_atomically
from corsage.core.measures import DASH
from corsage.core.version import VERSION


def page(results: Results, folder: BenchFolder, now: Now | None = None) -> str:
    """The whole page as text."""
    protocol = folder.protocol
    said = (
        f"{len(results.lines)} runs; {protocol.trials} trials a row on validation data, then "
        f"{protocol.seeds} seeds, tested once at the last round. Corsage {VERSION}"
    )
    gone = "".join(
        f"<li>{escape(name)} is left out: {escape(why)}</li>"
        for name, why in folder.plan.get("absent", {}).items()
    )
    notes = "".join(f"<li>{escape(note)}</li>" for note in results.notes())
    drawn = drawn_of(results)
    body = [
        f'<p class="soft">{escape(said)}</p>',
        now.section() if now else "",
        *(of_set(name, group, drawn) for name, group in results.sets.items()),
        f'<ul class="soft">{notes}{gone}</ul>',
        "<h2>Mean ranks</h2>",
        drawn.views(mean_ranks(results)),
        rank_table(results, drawn),
        section("Learning", drawn.legend(), drawn.views(learning_curves(results))),
        "<h2>Who is better off alone</h2>",
        '<p class="soft">Users whose own test samples are predicted worse than by a model that '
        "they trained alone; in brackets those beyond noise.</p>",
        alone(results, drawn),
        "<h2>The audit</h2>",
        '<p class="soft">Rankings by other choices than the protocol\'s. No trial saw test data, '
        "so what tuning by them would have done cannot be said; instead: no tuning at all.</p>",
        audited(results),
    ]
    return html("Benchmark of personalised federated learning", body, drawn, now)


def drawn_of(results: Results) -> Drawn:
    """All rows, those of the best mean ranks first to be seen."""
    rows = dict.fromkeys(one.entry.row for group in results.sets.values() for one in group)
    worst = float(len(rows))
    merits = {row: -results.ranks.means.get(row, worst) for row in rows}
    opened = {name: told for group in results.sets.values() for name, told in map(detail, group)}
    return Drawn([*rows], best_first(merits), cells=plain(opened))


def of_set(name: str, group: Sequence[Beside], drawn: Drawn) -> str:
    """The table of a set; a row's mean opens what it comes from."""
    lines, css = [], []
    for one in group:
        first, second, *rest = map(escape, cells(one))
        button = f'<button type="button" data-cell="{escape(named(one))}">{second}</button>'
        lines.append([first, button, *rest])
        css.append(drawn.line(one.entry.row))
    values = [sorting(one) for one in group]
    return f"<h2>{escape(name)}</h2>{sorted_table(titles(group), lines, css, values, 'filters')}"


def named(one: Beside) -> str:
    """A row and its set."""
    return f"{one.entry.row}@{one.entry.place}"


def detail(one: Beside) -> tuple[str, Json]:
    """The origin of a row's numbers: trials, keys, seeds, and how to run it again."""
    entry = one.entry
    method, place = method_of(entry.row), entry.place
    seeds = {
        cell(method, place, entry.trial, int(seed)): {
            "mean": result["mean"], "users": len(result["per_user"]),
            "per_user": result["per_user"] if len(result["per_user"]) <= 30 else "results.jsonl",
        }
        for seed, result in sorted(entry.results.items(), key=lambda one: int(one[0]))
    }  # fmt: skip
    return named(one), {
        "again": f"corsage verify {method}@{place}",
        "keys of the best trial": dict(entry.keys),
        "validation score of each trial": list(entry.trials),
        "best trial": entry.trial,
        "p by Holm": one.p_value,
        "failed": entry.failed,
        "tests": seeds,
    }


def plain(value: Any) -> Any:
    """Numbers that JSON does not have are none."""
    if isinstance(value, dict):
        return {key: plain(one) for key, one in value.items()}
    if isinstance(value, list):
        return [plain(one) for one in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def rank_table(results: Results, drawn: Drawn) -> str:
    """The ranks of each row, and its mean without each set."""
    own = results.ranks
    if not own.rows:
        return '<p class="soft">No row is on every set.</p>'
    means = own.means
    without = {name: own.without(name) for name in own.sets} if len(own.sets) > 1 else {}
    heads = ["row", "mean", *own.sets, *(f"without\n{name}" for name in without)]
    order = sorted(own.rows, key=lambda row: means[row])
    lines = [
        [escape(row), f"{means[row]:.2f}",
         *(f"{rank:g}" for rank in own.table[:, own.rows.index(row)]),
         *(f"{ranks[row]:.2f}" for ranks in without.values())]
        for row in order
    ]  # fmt: skip
    return sorted_table(heads, lines, [*map(drawn.line, order)], kind="filters")


def figures(results: Results) -> list[Figure]:
    """Mean ranks, and of each set learning curves with bands over the seeds."""
    return [*mean_ranks(results), *learning_curves(results)]


def learning_curves(results: Results) -> list[Figure]:
    """Of each set the curves of its rows over the rounds."""
    found: list[Figure] = []
    for name, group in results.sets.items():
        rows = [one.entry.study for one in group if one.entry.results]
        if curved := [row for row in rows if curve(row, "round")]:
            found.append(replace(learning(curved, "round"), choice=(name, "round"), extra=False))
    return found


def mean_ranks(results: Results) -> list[Figure]:
    """Nemenyi's: mean ranks on an axis, shaded as far as rows are not told apart."""
    own = results.ranks
    if own.critical is None:
        return []
    far = own.critical
    order = sorted(own.means.items(), key=lambda item: item[1])
    ends = [(row, rank, rank, min(rank + far, len(order))) for row, rank in order]
    axis = Axis("mean rank, 1 the best", "rank", 0.9, len(order) + 0.1)
    words = f"Shaded as far as ranks that do not differ from the row's (Nemenyi, {far:.2f})."
    choice = ("mean", "ranks")
    return [Strips("Mean ranks over all sets", words, axis, [Strip(*e) for e in ends], choice)]


def report_of(folder: Path) -> dict[str, Figure]:
    """Write the report of an earlier bench; its figures."""
    opened = BenchFolder.there(folder)
    results = Results.of([*opened.lines.values()], opened.costs)
    guarded(write_atomically, folder / "report.html", page(results, opened))
    return {slug(*figure.choice): figure for figure in figures(results)}


def look_at(folder: Path, pause: float) -> None:
    """Write the page of a bench that is not over."""
    bench = Bench(BenchFolder.there(folder))
    bench.folder.write_page(bench.far(), None, pause)


def alone(results: Results, drawn: Drawn) -> str:
    """A line a row, a column a set: the share of users who are better off alone."""
    at = {named(one): one for group in results.sets.values() for one in group}
    lines, css, values = [], [], []
    for row in (row for row in drawn.order if row != ALONE_ROW):
        found = [at.get(f"{row}@{name}") for name in results.sets]
        shares = [one.hurt.get("alone") if one else None for one in found]
        said = [f"{percent(s[0])} ({percent(s[1])})" if s else DASH for s in shares]
        lines.append([escape(row), *said])
        css.append(drawn.line(row))
        values.append([None, *(s and s[0] for s in shares)])
    return sorted_table(["row", *results.sets], lines, css, values, "filters")


def audited(results: Results) -> str:
    """A line a choice and set."""
    rows = [
        [escape(one.what), escape(one.place), f"{one.tau:.2f}", escape(one.first),
         escape(one.instead), f"{one.moved[0]} ({escape(one.moved[1])})"]
        for one in audit(results)
    ]  # fmt: skip
    heads = ["choice", "set", "Kendall's\ntau", "first by\nthe protocol", "first\nby it"]
    return sorted_table([*heads, "most places\nmoved"], rows, kind="words")
