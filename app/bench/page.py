"""The bench as one HTML file: tables that are sorted and filtered, ranks, who is better off alone,
and the audit."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from html import escape

from corsage.app.bench.audit import audit
from corsage.app.bench.journal import BenchFolder
from corsage.app.bench.protocol import Json, cell
from corsage.app.bench.rows import Beside, Results
from corsage.app.bench.sets import ALONE_ROW, method_of
from corsage.app.bench.table import cells, percent, sorting, titles
from corsage.app.studies.page import STYLE
from corsage.core.measures import DASH
from corsage.core.version import VERSION

OWN_STYLE = """
th button { all: unset; cursor: pointer; white-space: pre; }
.sorts { font-size: .88em; }
.sorts tr > :first-child { position: sticky; left: 0; background: var(--paper); }
.words td:first-child { white-space: normal; min-width: 9rem; }
th button:focus-visible, td button:focus-visible { outline: 2px solid var(--dot); }
td button { all: unset; cursor: pointer; text-decoration: underline dotted; }
th[aria-sort=ascending] button::after { content: " \\2191"; }
th[aria-sort=descending] button::after { content: " \\2193"; }
input { font: inherit; padding: .3rem .5rem; width: 100%; max-width: 22rem; }
dialog { max-width: min(52rem, 94vw); background: var(--paper); color: var(--ink);
  border: 1px solid var(--line); border-radius: 8px; }
svg .same { stroke: var(--dot); stroke-width: 4; }
"""
TABLE_SCRIPT = """
const cellsOf = JSON.parse(document.getElementById("cells").textContent);
const valueOf = cell =>
  parseFloat(cell.dataset.value || cell.textContent.replace("\\u2212", "-"));
for (const table of document.querySelectorAll("table.sorts")) {
  const heads = [...table.tHead.rows[0].cells], body = table.tBodies[0];
  heads.forEach((head, place) => head.querySelector("button").onclick = () => {
    const was = head.getAttribute("aria-sort");
    const words = [...body.rows].every(row => isNaN(valueOf(row.cells[place])));
    const up = was ? was === "descending" : words;
    heads.forEach(one => one.removeAttribute("aria-sort"));
    head.setAttribute("aria-sort", up ? "ascending" : "descending");
    const sign = up ? 1 : -1, key = row => row.cells[place];
    const order = (a, b) => { const x = valueOf(key(a)), y = valueOf(key(b));
      if (isNaN(x) && isNaN(y)) return sign * key(a).textContent.localeCompare(key(b).textContent);
      if (isNaN(x) || isNaN(y)) return isNaN(x) ? 1 : -1;
      return sign * (x - y); };
    body.append(...[...body.rows].sort(order));
  });
}
document.getElementById("filter").oninput = event => {
  const words = event.target.value.toLowerCase().split(/[\\s,]+/).filter(Boolean);
  for (const row of document.querySelectorAll("table.filters tbody tr")) {
    const name = row.cells[0].textContent.toLowerCase();
    row.hidden = words.length > 0 && !words.some(word => name.includes(word));
  }
};
const box = document.querySelector("dialog");
document.addEventListener("click", event => {
  const name = event.target.dataset && event.target.dataset.cell;
  if (!name) return;
  box.querySelector("h2").textContent = name;
  box.querySelector("pre").textContent = JSON.stringify(cellsOf[name], null, 1);
  box.showModal();
  box.scrollTop = 0;
});
"""


def page(results: Results, folder: BenchFolder) -> str:
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
    sections = "".join(section(name, group) for name, group in results.sets.items())
    data = {name: told for group in results.sets.values() for name, told in map(detail, group)}
    content = json.dumps(plain(data)).replace("<", "\\u003c")
    return f"""<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>Benchmark of personalised federated learning</title>
<style>{STYLE}{OWN_STYLE}</style>
</head>
<body>
<h1>Benchmark of personalised federated learning</h1>
<p class="soft">{escape(said)}</p>
<p><label>Rows <input id="filter" placeholder="fedrep, fedavg" type="search"></label></p>
{sections}
<ul class="soft">{notes}{gone}</ul>
<h2>Mean ranks</h2>
{picture(results)}
{rank_table(results)}
<h2>Who is better off alone</h2>
<p class="soft">Users whose own test samples are predicted worse than by a model that they trained
alone; in brackets those beyond noise.</p>
{alone(results)}
<h2>The audit</h2>
<p class="soft">Rankings by other choices than the protocol's. No trial saw test data, so what
tuning by them would have done cannot be said; instead: no tuning at all.</p>
{audited(results)}
<dialog><h2></h2><pre></pre><form method="dialog"><button>close</button></form></dialog>
<script type="application/json" id="cells">{content}</script>
<script>{TABLE_SCRIPT}</script>
</body>
</html>
"""


def html_table(
    heads: Sequence[str],
    rows: Sequence[Sequence[str]],
    kind: str = "",
    values: Sequence[Sequence[float | None]] = (),
) -> str:
    """A table that can be sorted; cells are HTML already, `values` what they are sorted by."""
    top = "".join(f"<th><button>{escape(head)}</button></th>" for head in heads)
    marks = [["" if v is None else f' data-value="{v!r}"' for v in own] for own in values]
    body = "".join(
        f"<tr>{''.join(f'<td{m}>{one}</td>' for one, m in zip(row, own, strict=True))}</tr>"
        for row, own in zip(rows, marks or [[""] * len(heads)] * len(rows), strict=True)
    )
    return (
        f'<div class="wide"><table class="sorts {kind}"><thead><tr>{top}</tr></thead>'
        f"<tbody>{body}</tbody></table></div>"
    )


def section(name: str, group: Sequence[Beside]) -> str:
    """The table of a set; a row's mean opens what it comes from."""
    rows = []
    for one in group:
        first, second, *rest = map(escape, cells(one))
        button = f'<button data-cell="{escape(named(one))}">{second}</button>'
        rows.append([first, button, *rest])
    values = [sorting(one) for one in group]
    return f"<h2>{escape(name)}</h2>{html_table(titles(group), rows, 'filters', values)}"


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
        for seed, result in entry.results.items()
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


def plain(value: object) -> object:
    """Numbers that JSON does not have are none."""
    if isinstance(value, dict):
        return {key: plain(one) for key, one in value.items()}
    if isinstance(value, list):
        return [plain(one) for one in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def rank_table(results: Results) -> str:
    """The ranks of each row, and its mean without each set."""
    own = results.ranks
    if not own.rows:
        return '<p class="soft">No row is on every set.</p>'
    means = own.means
    without = {name: own.without(name) for name in own.sets} if len(own.sets) > 1 else {}
    heads = ["row", "mean", *own.sets, *(f"without\n{name}" for name in without)]
    rows = [
        [escape(row), f"{means[row]:.2f}", *(f"{rank:g}" for rank in own.table[:, place]),
         *(f"{ranks[row]:.2f}" for ranks in without.values())]
        for place, row in enumerate(own.rows)
    ]  # fmt: skip
    rows.sort(key=lambda row: float(row[1]))
    return html_table(heads, rows, "filters")


def picture(results: Results) -> str:
    """Nemenyi's: mean ranks on an axis, and bars over rows that are not told apart."""
    own = results.ranks
    if own.critical is None:
        return ""
    order = sorted(own.means.items(), key=lambda item: item[1])
    most, height = len(order), 26 * len(order) + 60

    def x(rank: float) -> float:
        return 170 + 440 * (rank - 1) / max(most - 1, 1)

    parts = [
        f'<text class="soft" x="{x(rank):.1f}" y="16" text-anchor="middle">{rank}</text>'
        for rank in sorted({1, (most + 1) // 2, most})
    ]
    for place, (row, rank) in enumerate(order):
        y, end = 40 + 26 * place, x(min(rank + own.critical, most))
        parts.append(
            f'<text x="160" y="{y + 4}" text-anchor="end">{escape(row)}</text>'
            f'<line class="same" x1="{x(rank):.1f}" x2="{end:.1f}" y1="{y}" y2="{y}" '
            f'stroke-opacity=".25"/><circle class="mean" cx="{x(rank):.1f}" cy="{y}" r="5">'
            f"<title>{escape(row)}: {rank:.2f}</title></circle>"
        )
    words = f"A row's bar reaches as far as ranks that do not differ from it ({own.critical:.2f})."
    return (
        f'<figure><svg viewBox="0 0 640 {height}" role="img" aria-label="mean ranks">'
        f'{"".join(parts)}</svg><figcaption class="soft">{words}</figcaption></figure>'
    )


def alone(results: Results) -> str:
    """A line a row, a column a set: the share of users who are better off alone."""
    rows = dict.fromkeys(one.entry.row for group in results.sets.values() for one in group)
    at = {named(one): one for group in results.sets.values() for one in group}
    lines = []
    for row in (row for row in rows if row != ALONE_ROW):
        words = []
        for name in results.sets:
            one = at.get(f"{row}@{name}")
            share = one.hurt.get("alone") if one else None
            words.append(DASH if share is None else f"{percent(share[0])} ({percent(share[1])})")
        lines.append([escape(row), *words])
    return html_table(["row", *results.sets], lines, "filters")


def audited(results: Results) -> str:
    """A line a choice and set."""
    rows = [
        [escape(one.what), escape(one.place), f"{one.tau:.2f}", escape(one.first),
         escape(one.instead), f"{one.moved[0]} ({escape(one.moved[1])})"]
        for one in audit(results)
    ]  # fmt: skip
    heads = ["choice", "set", "Kendall's\ntau", "first by\nthe protocol", "first\nby it"]
    return html_table([*heads, "most places\nmoved"], rows, "words")
