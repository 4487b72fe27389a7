"""The report of a run: one HTML file with everything in it, to read, to print and to pass on."""

from __future__ import annotations

import base64
import re
import shlex
from collections.abc import Iterable, Mapping, Sequence
from html import escape
from pathlib import Path
from typing import Any

from corsage.app.output.findings import findings_section
from corsage.app.output.plots import (
    DARK,
    LIGHT,
    Theme,
    against_bytes,
    learning_curves,
    over_users,
    png,
)
from corsage.app.output.summary import (
    Result,
    Row,
    best,
    cells,
    columns,
    dropped_note,
    never_drawn,
    shared_measure,
)
from corsage.core.catalogue import catalogue
from corsage.core.files import write_atomically
from corsage.core.keys import Value
from corsage.core.measures import NONE, Measure

FOLD = 20
"""Users up to which their table is open from the start."""
NOT_AGAIN = ("resume", "run-dir")
"""Keys that say where a run was kept, not what it was."""

CAPTIONS = (
    "Mean {} over all users after each evaluated round. The shaded bands, where drawn, "
    "hold the middle half of the users.",
    "Every user's {} at the end, from the worst-off to the best-off; the worst tenth is shaded.",
    "Mean {} against all bytes sent to reach it, up and down together.",
)

STYLE = """
:root { color-scheme: light dark; --paper: #fff; --ink: #24292f; --soft: #59636e;
  --line: #d8dee4; --tint: #f6f8fa; --low: #b3400a; }
@media screen and (prefers-color-scheme: dark) { :root { --paper: #161b22; --ink: #d7dde3;
  --soft: #9aa5b1; --line: #333b44; --tint: #1f262e; --low: #f0803c; } }
* { box-sizing: border-box; }
body { margin: 0 auto; max-width: 62rem; padding: 2.5rem 1.25rem 4rem; background: var(--paper);
  color: var(--ink); font: 16px/1.55 system-ui, "Segoe UI", "DejaVu Sans", sans-serif; }
h1 { font-size: 1.7rem; line-height: 1.2; margin: 0 0 .3rem; overflow-wrap: anywhere; }
h2 { font-size: 1.15rem; margin: 2.6rem 0 .7rem; }
h3 { font-size: .95rem; margin: 0 0 .3rem; }
p { margin: .3rem 0 .8rem; }
.soft, figcaption { color: var(--soft); font-size: .9rem; }
.wide { overflow-x: auto; }
table { border-collapse: collapse; font-size: .92rem; font-variant-numeric: tabular-nums; }
.wide > table { width: 100%; }
th, td { padding: .36rem .7rem; text-align: right; border-bottom: 1px solid var(--line);
  white-space: nowrap; }
th { color: var(--soft); font-weight: 600; vertical-align: bottom; }
th:first-child, td:first-child { text-align: left; padding-left: .2rem; }
.best td:nth-child(-n+2) { font-weight: 700; }
.low { color: var(--low); font-weight: 600; }
figure { margin: 0 0 1.8rem; }
img { width: 100%; height: auto; display: block; border-radius: 6px; }
figcaption { margin-top: .4rem; }
summary { cursor: pointer; margin-bottom: .5rem; }
th button { all: unset; cursor: pointer; }
th button:focus-visible { outline: 2px solid var(--low); outline-offset: 2px; }
th[aria-sort=ascending] button::after { content: " \\2191"; }
th[aria-sort=descending] button::after { content: " \\2193"; }
.findings { margin-bottom: 1.4rem; }
.findings td:first-child { color: var(--soft); }
.findings table { width: auto; }
.findings td { text-align: left; }
.keys { columns: 2 24rem; column-gap: 2.5rem; }
.keys section { break-inside: avoid; margin-bottom: 1.4rem; }
.keys table { width: 100%; }
.keys td { padding: .16rem .2rem; white-space: normal; overflow-wrap: anywhere; }
.keys td:first-child { white-space: nowrap; color: var(--soft); padding-right: 1rem; }
.keys .set td { font-weight: 700; color: var(--ink); }
pre { background: var(--tint); border: 1px solid var(--line); border-radius: 6px;
  padding: .8rem 1rem; overflow-x: auto; white-space: pre-wrap; overflow-wrap: anywhere;
  font-size: .88rem; margin: .4rem 0; }
@media print { body { max-width: none; padding: 0; font-size: 10.5pt; }
  img { width: 82%; } .keys { columns: 2 14rem; } h2 { break-after: avoid; }
  figure, .keys section, tr { break-inside: avoid; }
  thead { display: table-header-group; } .wide { overflow: visible; } }
"""

# Numbers sort as numbers, and names with numbers in them (u2, u10) as a reader would.
SCRIPT = """
document.querySelectorAll("th button").forEach(button => button.addEventListener("click", () => {
  const head = button.parentNode, table = head.closest("table"), body = table.tBodies[0];
  const sign = head.getAttribute("aria-sort") === "ascending" ? -1 : 1;
  const words = new Intl.Collator(undefined, { numeric: true });
  const value = row => row.cells[head.cellIndex].dataset.value;
  const compare = (a, b) => head.cellIndex
    ? value(a) - value(b) : words.compare(value(a), value(b));
  table.querySelectorAll("th").forEach(other => other.removeAttribute("aria-sort"));
  head.setAttribute("aria-sort", sign > 0 ? "ascending" : "descending");
  body.append(...[...body.rows].sort((a, b) => sign * compare(a, b)));
}));
"""


def write_report(
    folder: Path | str,
    config: Mapping[str, Value],
    results: Sequence[Result],
    version: str,
    rows: Sequence[Row] = (),
    plots: Sequence[Path] = (),
    failed: Mapping[str, str] | None = None,
) -> Path:
    """Write `report.html` into the run's folder: there whole, or not at all.

    `config` are the flat keys, as `Config.flat()` gives them. With rows, learning curves get
    their bands and bytes are exact in between. `plots` are the files of the three plots, if they
    are drawn already, and `failed` the strategies without a result, and why.
    """
    path = Path(folder) / "report.html"
    name = path.resolve().parent.name
    write_atomically(path, page(name, config, results, version, rows, plots, failed))
    return path


def page(
    name: str,
    config: Mapping[str, Value],
    results: Sequence[Result],
    version: str,
    rows: Sequence[Row] = (),
    plots: Sequence[Path] = (),
    failed: Mapping[str, str] | None = None,
) -> str:
    """The whole report as text; everything that a user may have named is escaped."""
    title = escape(f"{', '.join(str(r['strategy']) for r in results)} on {config.get('dataset')}")
    again = escape(command(config))
    return f"""<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>{title}</title>
<style>{STYLE}</style>
</head>
<body>
<h1>{title}</h1>
<p class="soft">Run {escape(name)}, Corsage {escape(version)}</p>
{headline(results)}
{without_result(failed or {})}
{findings_section(results)}
<h2>Plots</h2>
{figures(results, rows, plots)}
<h2>Users</h2>
{users(results)}
<h2>Configuration</h2>
<p class="soft">Keys that were changed from their defaults are bold.</p>
<div class="keys">{keys(config)}</div>
<h2>Run it again</h2>
<pre>{again}</pre>
<script>{SCRIPT}</script>
</body>
</html>
"""


def headline(results: Sequence[Result]) -> str:
    """The result table, as on the terminal, and who is not in the numbers as others are."""
    measure = shared_measure(results)
    heads = (escape(c).replace(chr(10), "<br>") for c in columns(measure))
    head = "".join(f"<th>{c}</th>" for c in heads)
    body = []
    for result, top in zip(results, best(results), strict=True):
        mark = ' class="best"' if top else ""
        line = "".join(f"<td>{escape(cell)}</td>" for cell in cells(result))
        body.append(f"<tr{mark}>{line}</tr>")
    return (
        f'<div class="wide"><table><thead><tr>{head}</tr></thead>\n'
        f"<tbody>{''.join(body)}</tbody></table></div>\n"
        f'<p class="soft">{escape(measure.meaning)}, of all users, each on its own test data, '
        "whether or not it was drawn for training. "
        f"{escape(never_drawn(results))}</p>\n"
        + "".join(
            f'<p class="soft">{escape(note)}.</p>\n'
            for result in results
            if (note := dropped_note(result, names=50))
        )
    )


def without_result(failed: Mapping[str, str]) -> str:
    """The strategies that failed, and why; empty if there are none."""
    lines = (
        f"<p><strong>{escape(name)} failed:</strong> {escape(why)}</p>"
        for name, why in failed.items()
    )
    return "\n".join(lines)


def figures(results: Sequence[Result], rows: Sequence[Row], plots: Sequence[Path] = ()) -> str:
    """The three plots, each for light and for dark screens, with their captions."""
    day = [path.read_bytes() for path in plots] or drawn(results, rows, LIGHT)
    night = drawn(results, rows, DARK)
    parts = []
    captions = [words.format(shared_measure(results).word) for words in CAPTIONS]
    for light, dark, caption in zip(map(url, day), map(url, night), captions, strict=True):
        source = f'<source media="screen and (prefers-color-scheme: dark)" srcset="{dark}">'
        picture = f'<picture>{source}<img alt="{escape(caption)}" src="{light}"></picture>'
        parts.append(f"<figure>{picture}<figcaption>{escape(caption)}</figcaption></figure>")
    return "\n".join(parts)


def drawn(results: Sequence[Result], rows: Sequence[Row], theme: Theme) -> list[bytes]:
    """The three plots as PNGs."""
    plots = (
        learning_curves(results, rows=rows, theme=theme),
        over_users(results, theme=theme),
        against_bytes(results, rows=rows, theme=theme),
    )
    return [png(plot) for plot in plots]


def url(picture: bytes) -> str:
    """A PNG as an address that needs no file."""
    return f"data:image/png;base64,{base64.b64encode(picture).decode()}"


def reading_order(user: str) -> list[tuple[int, int, str]]:
    """Sorts u2 before u10."""
    parts = re.findall(r"\d+|\D+", user)
    return [(0, int(p), "") if p.isdecimal() else (1, 0, p) for p in parts]


def users(results: Sequence[Result]) -> str:
    """Each user's measure with each strategy; the worst tenth of each is marked."""
    measure = shared_measure(results)
    columns = {str(r["strategy"]): {str(u): v for u, v in r["per_user"].items()} for r in results}
    names = sorted({user for found in columns.values() for user in found}, key=reading_order)
    limit = {s: tenth(found.values(), measure) for s, found in columns.items() if found}
    heads = "".join(
        f'<th scope="col"><button type="button">{escape(h)}</button></th>'
        for h in ("user", *columns)
    )
    lines = []
    for user in names:
        line = [f'<td data-value="{escape(user)}">{escape(user)}</td>']
        for strategy, found in columns.items():
            own = found.get(user)
            low = own is not None and measure.merit(own) < limit[strategy]
            mark = ' class="low"' if low else ""
            value = -1 if own is None else own
            line.append(f'<td{mark} data-value="{value:.6g}">{measure.text(own)}</td>')
        lines.append(f"<tr>{''.join(line)}</tr>")
    state = " open" if len(names) <= FOLD else ""
    return (
        f"<details{state}><summary>{len(names)} users, {escape(measure.title)}; click a heading "
        'to sort</summary>\n<div class="wide"><table>'
        f"<thead><tr>{heads}</tr></thead>\n<tbody>{chr(10).join(lines)}</tbody></table></div>\n"
        '<p class="soft"><span class="low">Coloured</span>: the worst tenth of each '
        "strategy.</p></details>"
    )


def tenth(values: Iterable[float], measure: Measure) -> float:
    """A merit below this is in the worst tenth of the users; of equal ones all are, or none."""
    ordered: list[float] = sorted(measure.merit(list(values)).tolist())
    return next((v for v in ordered if v > ordered[(len(ordered) - 1) // 10]), ordered[0])


def grouped(config: Mapping[str, Value]) -> dict[str, dict[str, tuple[Value, bool]]]:
    """Group titles, their keys, and each key's value and whether it was changed."""
    groups: dict[str, dict[str, tuple[Value, bool]]] = {}
    rest = dict(config)
    for title, declared in catalogue().items():
        for key in declared:
            if key.name in rest:
                value = rest.pop(key.name)
                groups.setdefault(title, {})[key.name] = (value, value != key.default)
    if rest:
        groups["Other"] = {name: (value, True) for name, value in rest.items()}
    return groups


def word(value: Any) -> str:
    """A value as it is written on the command line."""
    return str(value).lower() if isinstance(value, bool) else str(value)


def keys(config: Mapping[str, Value]) -> str:
    """The resolved configuration, a small table a group."""
    sections = []
    for title, group in grouped(config).items():
        lines = []
        for name, (value, changed) in group.items():
            mark = ' class="set"' if changed else ""
            shown = escape(word(value)) or NONE
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
