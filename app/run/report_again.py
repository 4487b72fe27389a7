"""`corsage report`: make the report of a run anew from its files."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from corsage.app.output.summary import Result
from corsage.app.output.usage import command
from corsage.app.results.metrics import read_rows
from corsage.app.run.endings import RESULT, is_sound, read_failure, results_in
from corsage.app.run.resuming import not_a_run, read_config
from corsage.core.errors import UNUSABLE, CheckpointError, ConfigError
from corsage.core.files import guarded, parsed, unsealed
from corsage.core.pairs.hurt import with_hurt
from corsage.core.version import VERSION

USAGE = """\
usage: corsage report RUN_FOLDER [--png]

  RUN_FOLDER  of a run that has a result, also of an earlier version of Corsage
  --png       also write learning.png, users.png and bytes.png there, for a paper

It writes RUN_FOLDER/report.html, from the files that lie there, and says where it is.
"""


@dataclass(frozen=True)
class Found:
    """What a run folder says of its run."""

    config: Mapping[str, Any]
    results: list[Result]
    failed: Mapping[str, str]
    rows: list[dict[str, Any]]


@command(USAGE, (*UNUSABLE, CheckpointError))
def run(words: list[str]) -> None:
    """Do what the words say; 0, or 2 for a user's mistake, 1 if something cannot be written."""
    folder, png = parse(words)
    for path in again(folder, png):
        print(path)


def parse(words: list[str]) -> tuple[Path, bool]:
    """The folder, and whether there are to be PNGs; or ConfigError."""
    folders = [word for word in words if word != "--png"]
    wrong = next((word for word in folders if word.startswith("-")), "")
    if wrong:
        raise ConfigError(f"report {wrong}: no such option. See corsage report --help.")
    if len(folders) != 1:
        raise ConfigError("report: needs one run folder. See corsage report --help.")
    return Path(folders[0]).expanduser(), "--png" in words


def again(folder: Path, png: bool = False) -> list[Path]:
    """Write the report of a run, and pictures for a paper if they are wanted."""
    from corsage.app.report.document import write_report

    found = read(folder)
    try:
        written: list[Path] = [
            guarded(
                write_report, folder, found.config, found.results, VERSION, found.rows, found.failed
            )
        ]
        if png:
            from corsage.app.report.plots import write_plots  # matplotlib: only where it is needed

            written += guarded(write_plots, folder, found.results, found.rows)
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise CheckpointError(
            f"{folder}: its results cannot be read ({type(error).__name__}: {error})."
        ) from error
    return written


def read(folder: Path) -> Found:
    """Contents of a run folder; CheckpointError if that is no run, or one without a result."""
    summary = summary_of(folder)
    config = summary.get("config") or read_config(folder)["config"]
    names = [str(name) for name in names_of(config)]
    results, failed = [], {}
    for name in names:
        own = results_of(folder / name) or of_summary(summary, name, names)
        results += own
        if not own:
            failed[name] = read_failure(folder / name) or "it has no result yet"
    if not results:
        raise not_a_run(folder, "no strategy has a result yet, so there is nothing to report")
    rows = [row for name in names for row in read_rows(folder / name)]
    return Found(config, with_hurt(results), failed, rows)


def names_of(config: Mapping[str, Any]) -> list[str]:
    """The strategies of a run."""
    given = config.get("strategy", "")
    return given.split(",") if isinstance(given, str) else list(given)


def summary_of(folder: Path) -> dict[str, Any]:
    """The content of `summary.json`; empty if there is none, or it is damaged."""
    try:
        found = parsed((folder / "summary.json").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    sound = isinstance(found, dict) and isinstance(found.get("results"), list)
    return found if sound and isinstance(found.get("config"), dict) else {}


def results_of(folder: Path) -> list[Result]:
    """A strategy's results, of however many rounds; empty if there are none."""
    try:
        return results_in(unsealed(folder / RESULT), folder) or []
    except (OSError, ValueError):
        return []


def of_summary(summary: Mapping[str, Any], name: str, names: list[str]) -> list[Result]:
    """A strategy's rows in the summary: its own, and those with something added to its name."""
    return [
        result
        for result in summary.get("results", [])
        if is_sound(result, name)
        if result["strategy"] == name or result["strategy"] not in names
    ]
