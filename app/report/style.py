"""Style of the page: light and dark, on phones, on wide screens and on paper; strategies' looks."""

from __future__ import annotations

import itertools
import zlib
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass

import numpy as np

LIGHT_LINES = ("#0072b2", "#d55e00", "#5f6b76", "#e69f00", "#009e73", "#cc79a7", "#56b4e9")
DARK_LINES = ("#4aa8e0", "#f0803c", "#a3adb8", "#f0b93a", "#35c79c", "#e59cc6", "#8fd0f5")
COLOURS = len(LIGHT_LINES)
DASHES = 4
NUM_SHAPES = 8
HOME = {"fedrep": 0, "fedavg": 1, "local": 2, "fedavg+ft": 3}
"""Colours of those that nearly every comparison has."""


def colours(lines: Sequence[str]) -> str:
    """The strategies' colours as the sheet's variables."""
    return " ".join(f"--c{n}: {colour};" for n, colour in enumerate(lines))


SHEET = (
    ":root { color-scheme: light dark; --paper: #fff; --ink: #24292f; --soft: #59636e;"
    f" --line: #d8dee4; --tint: #f6f8fa; --low: #b3400a; {colours(LIGHT_LINES)} }}\n"
    "@media screen and (prefers-color-scheme: dark) { :root { --paper: #161b22; --ink: #d7dde3;"
    f" --soft: #9aa5b1; --line: #333b44; --tint: #1f262e; --low: #f0803c; {colours(DARK_LINES)} }}"
    " }\n"
    + "\n".join(f".c{n} {{ color: var(--c{n}); }}" for n in range(COLOURS))
    + """
* { box-sizing: border-box; }
html { -webkit-text-size-adjust: 100%; }
body { margin: 0 auto; max-width: 66rem; padding: 2.2rem 1.25rem 4rem; background: var(--paper);
  color: var(--ink); font: 16px/1.5 system-ui, "Segoe UI", "DejaVu Sans", sans-serif; }
h1 { font-size: 1.6rem; line-height: 1.25; margin: 0 0 .3rem; overflow-wrap: anywhere; }
h2 { font-size: 1.2rem; margin: 2.8rem 0 .7rem; }
h3 { font-size: .98rem; margin: 0 0 .2rem; overflow-wrap: anywhere; }
.wide + h3 { margin-top: 1.4rem; }
.estimates, .division { margin-bottom: 1.6rem; }
p { margin: .3rem 0 .8rem; overflow-wrap: anywhere; }
.soft, figcaption { color: var(--soft); font-size: .9rem; }
.notes p { margin: .25rem 0; }
.notes .warn { border-left: 3px solid var(--low); padding-left: .7rem; }
.defs { position: absolute; }
.wide { overflow-x: auto; }
table { border-collapse: collapse; font-size: .92rem; font-variant-numeric: tabular-nums; }
.wide > table { width: 100%; }
th, td { padding: .36rem .7rem; text-align: right; border-bottom: 1px solid var(--line);
  white-space: nowrap; }
th { color: var(--soft); font-weight: 600; vertical-align: bottom; }
th:first-child, td:first-child { text-align: left; padding-left: .2rem; }
.wide th:first-child, .wide td:first-child { position: sticky; left: 0; background: var(--paper);
  z-index: 1; max-width: 46vw; white-space: normal; overflow-wrap: break-word; }
.words th, .words td { text-align: left; white-space: normal; overflow-wrap: break-word;
  min-width: 5rem;  vertical-align: top; }
.words { margin-bottom: 1.2rem; }
.best td:nth-child(-n+2) { font-weight: 700; }
.low { color: var(--low); font-weight: 600; }
button { font: inherit; color: inherit; background: none; border: 0; padding: 0; cursor: pointer; }
button:focus-visible, input:focus-visible, select:focus-visible, summary:focus-visible,
.plot:focus-visible { outline: 2px solid var(--low); outline-offset: 2px; }
summary { cursor: pointer; margin-bottom: .5rem; }

.legend { display: flex; flex-wrap: wrap; gap: .3rem .45rem; margin: 0 0 .8rem; }
.legend button { display: inline-flex; align-items: center; gap: .4rem; font-size: .88rem;
  border: 1px solid var(--line); border-radius: 99px; padding: .14rem .65rem .14rem .5rem;
  max-width: 100%; overflow-wrap: anywhere; text-align: left; }
.legend button[aria-pressed=false] { opacity: .45; text-decoration: line-through; }
.legend.folded .later[aria-pressed=false] { display: none; }
.sample { width: 34px; height: 12px; flex: none; vertical-align: middle; }
td .sample { margin-right: .45rem; }
.tabs { display: flex; flex-wrap: wrap; gap: .4rem 1.2rem; margin: 0 0 .9rem; font-size: .88rem; }
.tabs div { display: inline-flex; flex-wrap: wrap; gap: .15rem; background: var(--tint);
  border: 1px solid var(--line); border-radius: 8px; padding: .15rem; }
.tabs button { padding: .12rem .7rem; border-radius: 6px; }
.tabs button[aria-pressed=true] { background: var(--paper); font-weight: 600;
  box-shadow: 0 0 0 1px var(--line); }
html:not(.js) .extra, .js .view:not(.now), .off { display: none !important; }

figure { margin: 0 0 1.8rem; }
.axis { color: var(--soft); font-size: .82rem; margin: 0 0 .5rem; }
.axis.below { text-align: center; margin: 1.75rem 0 .35rem 3.4rem; }
.plot.ends + .axis.below { margin-right: 12.5rem; }
.plot { position: relative; margin: 0 .9rem 0 3.4rem; touch-action: pan-y; }
.plot.ends { margin-right: 12.5rem; }
.area { position: absolute; inset: 0; width: 100%; height: 100%; display: block;
  overflow: hidden; border-bottom: 1px solid var(--line); }
.area path, .strip path { vector-effect: non-scaling-stroke; fill: none; stroke: currentColor; }
.area .grid { color: var(--line); stroke-width: 1px; }
.area .base { color: var(--soft); stroke-width: 1px; stroke-dasharray: 2 3; }
.basis { position: absolute; right: 6px; transform: translateY(-100%); color: var(--soft);
  font-size: .78rem; max-width: 92%; overflow: hidden; text-overflow: ellipsis;
  white-space: nowrap; text-shadow: 0 0 2px var(--paper), 0 0 4px var(--paper); }
.area .zero { color: var(--ink); stroke-width: 1px; }
.line { fill: none; stroke: currentColor; stroke-width: 2.1px; stroke-linejoin: round; }
.line.level { stroke-width: 1.6px; stroke-opacity: .75; }
.carry { stroke-width: 1px; stroke-opacity: .4; stroke-dasharray: 1 4; }
.line.d1 { stroke-dasharray: 9 4; } .line.d2 { stroke-dasharray: 2.5 3; }
.line.d3 { stroke-dasharray: 10 3 2 3; } .line.level { stroke-dasharray: 3 4; }
.area .band { stroke: none; fill: currentColor; fill-opacity: .13; }
.area .dots, .strip .dots { stroke-width: 5px; stroke-linecap: round; }
.area .whisker { stroke-width: 1px; stroke-opacity: .55; }
.mark { position: absolute; width: 12px; height: 12px; margin: -6px 0 0 -6px;
  fill: currentColor; pointer-events: none; overflow: visible; }
.dot { fill: currentColor; }
.left span, .names span { position: absolute; transform: translateY(-50%); white-space: nowrap; }
.left span { right: 100%; padding-right: .5rem; color: var(--soft); font-size: .8rem;
  font-variant-numeric: tabular-nums; }
.plot > .below span { position: absolute; top: 100%; transform: translateX(-50%);
  padding-top: .35rem; color: var(--soft); font-size: .8rem; white-space: nowrap; }
.crowded .names, .crowded .leads { visibility: hidden; }
.leads { position: absolute; left: calc(100% + 4px); top: 0; overflow: visible; }
.leads path { stroke: currentColor; fill: none; stroke-width: 1.2px; }
.names { position: absolute; left: calc(100% + 26px); top: 0; width: 10.8rem; }
.names span { font-size: .83rem; font-weight: 600; max-width: 10.8rem; overflow: hidden;
  text-overflow: ellipsis; font-variant-numeric: tabular-nums; }
.flag { position: absolute; font-size: .78rem; font-weight: 600; white-space: nowrap;
  pointer-events: none; }
.flag.flip { transform: translateX(-100%); }
.range { font-size: .82rem; color: var(--soft); text-decoration: underline; }
.dim .area g[class^=s-]:not(.lit), .dim .mark:not(.lit), .dim .names span:not(.lit),
.dim .leads path:not(.lit) { opacity: .15; }

.tip { position: fixed; z-index: 9; pointer-events: none; max-width: min(22rem, 92vw);
  background: var(--paper); color: var(--ink); border: 1px solid var(--line); border-radius: 8px;
  box-shadow: 0 4px 16px rgb(0 0 0 / .18); padding: .45rem .65rem; font-size: .82rem;
  font-variant-numeric: tabular-nums; }
.tip div { display: flex; justify-content: space-between; gap: 1rem; }
.tip span { overflow: hidden; text-overflow: ellipsis; white-space: nowrap; }
.cursor { position: absolute; top: 0; bottom: 0; width: 1px; background: var(--soft);
  pointer-events: none; }

.strips .row { display: grid; gap: .1rem .9rem; align-items: center;
  grid-template: "who track mean" / 10rem 1fr 5.5rem; }
.strips .who { grid-area: who; } .strips .track, .strips .scale { grid-area: track; }
.strips .mean { grid-area: mean; }
.strips .who { font-size: .88rem; overflow-wrap: anywhere; }
.strips .mean { font-size: .88rem; font-variant-numeric: tabular-nums; text-align: right; }
.track { position: relative; height: 38px; border-bottom: 1px solid var(--line); }
.strip { position: absolute; inset: 0; width: 100%; height: 100%; overflow: hidden; }
.strip .dots { stroke-width: 5px; stroke-opacity: .45; }
.strip .half { fill: currentColor; fill-opacity: .16; stroke: none; }
.strip .middle { stroke-width: 2px; }
.strip .tenth { stroke-width: 2px; stroke-dasharray: 2 2; }
.track .mark { top: 19px; stroke: var(--paper); stroke-width: 1px; paint-order: stroke; }

.cut { position: absolute; top: 50%; transform: translateY(-50%); font-size: .78rem;
  font-weight: 600; text-shadow: 0 0 2px var(--paper), 0 0 4px var(--paper); }
.cut.left { left: 2px; } .cut.right { right: 2px; }

.far { margin: .9rem 0 1.4rem; } .far ul { margin: .5rem 0; padding-left: 1.2rem; }
.meter { height: .6rem; border-radius: 99px; background: var(--tint);
  border: 1px solid var(--line); overflow: hidden; }
.meter i { display: block; height: 100%; background: var(--c0); }
a { color: var(--c0); }
.filters td:first-child { min-width: 9.5rem; } .filters + .legend { margin-top: 1.2rem; }
.sorts th button { font-weight: inherit; text-align: inherit; vertical-align: bottom; }
td button { text-decoration: underline dotted; }
dialog { max-width: min(52rem, 94vw); background: var(--paper); color: var(--ink);
  border: 1px solid var(--line); border-radius: 8px; }
dialog button { text-decoration: underline; }

.tree { display: flex; margin: .4rem 0 .2rem; }
.leaves { flex: none; max-width: 45%; }
.leaves span { display: block; height: 24px; line-height: 24px; font-size: .85rem;
  padding-right: .6rem; overflow: hidden; text-overflow: ellipsis; white-space: nowrap; }
.branches { position: relative; flex: 1; min-width: 0; }
.branches svg { display: block; width: 100%; }
.branches path { fill: none; stroke: var(--soft); stroke-width: 1.5px;
  vector-effect: non-scaling-stroke; }
.scale { position: relative; height: 1.6rem; }
.scale span { position: absolute; transform: translateX(-50%); color: var(--soft);
  font-size: .8rem; }
.cluster { border-left: 3px solid currentColor; padding-left: .6rem; margin: .5rem 0; }
.cluster summary, .cluster p { color: var(--ink); }
.cluster p { font-size: .88rem; }
.squares { display: flex; flex-wrap: wrap; gap: 2px; margin: .25rem 0; }
.squares i { width: 11px; height: 11px; border-radius: 2px; background: currentColor; }
td:has(> .bar) { text-align: left; }
.bar { display: inline-block; height: .6rem; min-width: 1px; background: currentColor;
  vertical-align: middle; border-radius: 2px; }
.find { display: flex; flex-wrap: wrap; gap: .5rem .8rem; align-items: center;
  margin: .4rem 0 .6rem; font-size: .9rem; }
.find input, .find select { font: inherit; color: inherit; background: var(--paper);
  border: 1px solid var(--line); border-radius: 6px; padding: .2rem .5rem; max-width: 100%; }
.find button, .more button { border: 1px solid var(--line); border-radius: 6px;
  padding: .2rem .7rem; }
.people { max-height: 36rem; overflow: auto; }
.people thead th { position: sticky; top: 0; background: var(--paper); z-index: 2; }
th[aria-sort=ascending] button::after { content: " \\2191"; }
th[aria-sort=descending] button::after { content: " \\2193"; }
.sure { position: relative; display: inline-block; width: 9rem; height: 12px; }
.findings { margin-bottom: 1.4rem; }
.findings td:first-child { color: var(--soft); }
.findings table { width: auto; }
.findings td { text-align: left; white-space: normal; }
.keys { columns: 2 20rem; column-gap: 2.5rem; }
.keys section { break-inside: avoid; margin-bottom: 1.4rem; }
.keys table { width: 100%; }
.keys td { padding: .16rem .2rem; white-space: normal; overflow-wrap: anywhere; }
.keys td:first-child { color: var(--soft); padding-right: 1rem; white-space: nowrap; }
.keys td + td { text-align: left; }
.keys .set td { font-weight: 700; color: var(--ink); }
pre { background: var(--tint); border: 1px solid var(--line); border-radius: 6px;
  padding: .8rem 1rem; white-space: pre-wrap; overflow-wrap: anywhere; font-size: .88rem;
  margin: .4rem 0; }
@media (max-width: 640px) { body { padding: 1.2rem .8rem 3rem; }
  .plot { margin: 0 .7rem 0 2.9rem; } .plot.ends { margin-right: .7rem; }
  .plot .names, .plot .leads { display: none; }
  .axis.below { margin-left: 2.9rem; } .plot.ends + .axis.below { margin-right: .5rem; }
  th, td { padding: .32rem .5rem; }
  .strips .row { grid-template: "who mean" "track track" / 1fr max-content; }
  .strips .who { padding-top: .5rem; } }
@media print { body { max-width: none; padding: 0; font-size: 10pt; }
  * { print-color-adjust: exact; -webkit-print-color-adjust: exact; }
  .tabs, .find, .more, .range, .tip, .every { display: none; } .keys { columns: 2 14rem; }
  h2, h3 { break-after: avoid; } figure, .keys section, tr, .legend { break-inside: avoid; }
  thead { display: table-header-group; } .wide, .people { overflow: visible; max-height: none; }
  .wide th, .wide td { position: static !important; padding-inline: .2rem; }
  .wide table { font-size: 8pt; } }
"""
)


@dataclass(frozen=True)
class Look:
    """Numbers of a colour, a dash and a mark."""

    colour: int
    dash: int
    mark: int


def looks(names: Iterable[str], first: Collection[str] = ()) -> dict[str, Look]:
    """A look for each strategy: the same in every plot, different within one.

    A name has its own colour unless another of the same plot has it; dashes once all are taken.
    Those that are seen `first` are least alike.
    """
    free = list(range(COLOURS * DASHES))
    found: dict[str, Look] = {}
    for name in sorted(set(names), key=lambda n: (HOME.get(n, COLOURS), n not in first, n)):
        wish = HOME.get(name, zlib.crc32(name.encode()) % COLOURS)
        # Nearest free place at or after the wish, full lines before dashed ones.
        place = min(free, key=lambda i: (i // COLOURS, (i - wish) % COLOURS), default=wish)
        free = [i for i in free if i != place]
        found[name] = Look(place % COLOURS, place // COLOURS, len(found) % NUM_SHAPES)
    return found


def spaced(heights: Sequence[float], gap: float, high: float) -> list[float]:
    """Heights moved apart to at least `gap`, in their order, the highest at most at `high`."""
    placed = np.array(heights, dtype=float)
    order = np.argsort(placed, kind="stable")
    for below, above in itertools.pairwise(order):
        placed[above] = max(placed[above], placed[below] + gap)
    for index in order[::-1]:
        placed[index] = min(placed[index], high)
        high = placed[index] - gap
    return [float(height) for height in placed]
