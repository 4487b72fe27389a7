"""The tour: what Corsage is for, in three comparisons, with one page that links their reports."""

from __future__ import annotations

import contextlib
import io
import json
import logging
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from itertools import pairwise
from pathlib import Path

from rich.table import Table

from corsage.app.output.summary import Result, human_seconds, shared_measure, summary_table
from corsage.app.output.terminal import terminal
from corsage.app.output.usage import command
from corsage.core.clock import COMMAND_START
from corsage.core.configuration.command_line import exampled, read_words
from corsage.core.configuration.config import Config
from corsage.core.errors import ConfigError
from corsage.core.files import guarded, write_atomically

USAGE = """\
usage: corsage tour [run-dir=FOLDER]

  three comparisons, a table and a sentence each, some 20 seconds in all: a common body with
  personal heads, known clusters, clusters that appear; and a page that links their reports
"""


@dataclass(frozen=True)
class Stop:
    """One comparison of the tour.

    Parameters
    ----------
    name, title : of its folder, and of its table.
    keys : the keys of the run, as words.
    shows : the sentence below it, with the rows' means in the places of their names.
    """

    name: str
    title: str
    keys: str
    shows: str

    @property
    def config(self) -> Config:
        """All keys of the run."""
        return Config.parse(exampled(read_words(self.keys.split()))[0])

    def sentence(self, results: Sequence[Result]) -> str:
        """The table in a sentence, with the numbers that it has."""
        measure = shared_measure(results)
        means = {
            str(r["strategy"]): measure.text(r[measure.name]["mean"]) + measure.unit
            for r in results
        }
        found = [len(set(r["clusters"].values())) for r in results if r.get("clusters")]
        return self.shows.format_map({**means, "clusters": found[-1] if found else 0})


LATER = ("last\n10", "msgs")
"""Columns of a run's table that the tour leaves out."""
STOPS = (
    Stop(
        "1-heads",
        "A common body, a personal head: the digits, three classes a user",
        "strategy=fedrep,fedavg,local classes-per-user=3 end-heads=auto",
        "One model for all has {fedavg}, users alone {local}; a common body with heads of their "
        "own {fedrep}, one model whose head each user tunes {fedavg+ft}, and with heads in closed "
        "form {fedavg+auto}.",
    ),
    Stop(
        "2-known",
        "Known clusters: linear models of users in three groups, ten records each",
        "strategy=mixed-model,async-al2sgd,exact-global,exact-cluster,exact-local num-rounds=30",
        "Pulled towards their cluster as strongly as the data say, users have an RMSE of "
        "{mixed-model} in one exchange of sums ({async-al2sgd} by the paper's coins); one model "
        "for all has {exact-global}, one a cluster {exact-cluster}, users alone {exact-local}.",
    ),
    Stop(
        "3-found",
        "Clusters that nobody told: points in ellipses, nobody says who belongs together",
        "strategy=convex-clustering,mixed-model,fedavg,local mixed-grouping=found lr=0.1",
        "{clusters} groups are found from one exchange of sums, and models in them have "
        "{mixed-model}; convex clustering has {convex-clustering}, one model for all {fedavg}, "
        "users alone {local}.",
    ),
)


@command(USAGE)
def run(words: list[str]) -> None:
    """`corsage tour`, or `python run_simulation.py` without a word."""
    keys = read_words(words)
    if other := set(keys) - {"run-dir"}:
        raise ConfigError(f"tour: {other.pop()}: not a key of the tour; say strategy=... too.")
    take(Path(str(keys.get("run-dir", "runs"))).expanduser())


def take(runs: Path) -> Path:
    """Run every stop and print what it shows; returns the tour's folder."""
    from corsage.app.engines import simulate

    logging.getLogger("flwr").setLevel(logging.ERROR)
    folder = runs / f"{time.strftime('%Y-%m-%d_%H-%M-%S')}_tour"
    guarded(folder.mkdir, parents=True)
    console, shown, marks = terminal(), [], [COMMAND_START.get(time.monotonic()), time.monotonic()]
    for stop in STOPS:
        print(stop.title, file=sys.stderr, flush=True)
        with contextlib.redirect_stdout(io.StringIO()):  # its findings are in its report
            simulate(stop.config, folder / stop.name)
        results = json.loads((folder / stop.name / "summary.json").read_bytes())["results"]
        shown.append((stop, results))
        console.print(f"\n[bold]{stop.title}[/]", highlight=False)
        console.print(brief(results), crop=False)
        console.print(stop.sentence(results), highlight=False)
        console.print(f"  python run_simulation.py {stop.keys}\n", highlight=False, soft_wrap=True)
        marks.append(time.monotonic())
    guarded(write_atomically, folder / "tour.html", page(shown))
    took = [human_seconds(end - begin) for begin, end in pairwise(marks)]
    parts = zip(("start", *(stop.name for stop in STOPS)), took, strict=True)
    whole = human_seconds(marks[-1] - marks[0])
    console.print(f"Time: {whole}: {', '.join(map(' '.join, parts))}", highlight=False)
    place = f"All three, with their reports: {folder / 'tour.html'}"
    console.print(place, soft_wrap=True, highlight=False)
    return folder


def brief(results: Sequence[Result]) -> Table:
    """The table without what one looks for later, and without who is worse off."""
    return summary_table([{**result, "hurt": {}} for result in results], without=LATER)


def page(shown: Sequence[tuple[Stop, Sequence[Result]]]) -> str:
    """The tables with their sentences, each with a link to its report."""
    from corsage.app.report.document import drawn_of
    from corsage.app.report.shell import Drawn, html
    from corsage.app.report.words import headline

    parts = [
        f"<h2>{escape(stop.title)}</h2>\n<p>{escape(stop.sentence(results))}</p>\n"
        f"{headline(results, drawn_of(results))}"
        f'<p><a href="{stop.name}/report.html">The report</a>: who gains and who loses, learning '
        f"curves, what was found</p>\n<pre>python run_simulation.py {escape(stop.keys)}</pre>"
        for stop, results in shown
    ]
    lead = '<p class="soft">A model of its own for every participant, in three ways.</p>'
    return html("A tour of Corsage", [lead, *parts], Drawn([], []))
