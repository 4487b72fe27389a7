"""The end of a run: the summary as JSON, the report, and the table on the terminal."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from rich.text import Text

from corsage.app.output import answer
from corsage.app.output.notes import measures_table
from corsage.app.output.summary import Result, findings_tables, summary_table
from corsage.app.output.terminal import terminal
from corsage.app.output.usage import complain
from corsage.app.results.metrics import read_rows
from corsage.app.run.endings import HELD_OUT, read_failure, read_result
from corsage.app.run.user_columns import thinned
from corsage.core.configuration.config import Config
from corsage.core.errors import NotInstalled
from corsage.core.files import guarded, write_atomically
from corsage.core.pairs.hurt import with_hurt
from corsage.core.registry import attached
from corsage.core.version import VERSION
from corsage.strategies.effort import said


def conclude(folder: Path, config: Config, times: Callable[[], str]) -> None:
    """Write the summary and the report, print the table, where the time went, and the folder."""
    from corsage.app.results.csv_files import write_tables

    if (folder / HELD_OUT).is_file():
        attached("answer").finished(folder)
    found, rows = results(folder, config), all_rows(folder, config)
    failed = failures(folder, config, found)
    head = {"corsage": VERSION, "config": config.flat()}
    content = {**head, "results": [thinned(result) for result in found], "failed": failed}
    guarded(write_atomically, folder / "summary.json", json.dumps(content, indent=2))
    if found:
        guarded(write_tables, folder, found)
        try:
            page = attached("report")
        except NotInstalled as why:
            complain(why, 0)
        else:
            guarded(page.write_report, folder, config.flat(), found, VERSION, rows, failed)
    show(found, folder, failed, [said(config), times()])


def results(folder: Path, config: Config) -> list[Result]:
    """All results so far, in the order of the config."""
    rounds = config.run.num_rounds
    parts = (read_result(folder / name, rounds) or [] for name in config.run.strategy)
    return with_hurt([result for part in parts for result in part])


def failures(folder: Path, config: Config, found: Sequence[Result] | None = None) -> dict[str, str]:
    """The strategies that have no result, and why; `found` are the results, if they are read."""
    rounds, names = config.run.num_rounds, config.run.strategy
    if found is None:
        there = {name for name in names if read_result(folder / name, rounds) is not None}
    else:
        there = {str(result["strategy"]).partition("+")[0] for result in found}
    return {
        name: read_failure(folder / name) or "it was not run" for name in names if name not in there
    }


def all_rows(folder: Path, config: Config) -> list[dict[str, Any]]:
    """The rounds of all strategies."""
    return [row for name in config.run.strategy for row in read_rows(folder / name)]


def show(
    found: list[Result], folder: Path, failed: dict[str, str], notes: Sequence[str] = ()
) -> None:
    """The table, what the methods found, notes on all of it, and where it lies."""
    console, lead = terminal(), answer.lines(found)
    for line in lead:
        console.print(line, highlight=False, markup=False, soft_wrap=not console.is_terminal)
    for table in [*answer.tables(found), ""] if lead else []:
        console.print(table)
    console.print(summary_table(found, failed, answer.UNTOLD if lead else ()), crop=False)
    if more := measures_table(found):
        console.print(Text("\nFurther measures", style="bold"), more)
    for table in [] if lead else findings_tables(found):
        console.print(table)
    for note in filter(None, notes):
        console.print(note, highlight=False, soft_wrap=not console.is_terminal)
    console.print(f"Run folder: {folder}", soft_wrap=True, highlight=False)
