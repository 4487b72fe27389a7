"""`corsage report` and `corsage watch`: a report made anew, and one to look at now."""

from __future__ import annotations

import os
import sys
import webbrowser
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from corsage.app.output.summary import Result
from corsage.app.output.usage import command
from corsage.app.results.metrics import names_of, read_rows
from corsage.app.run.endings import RESULT, is_sound, read_failure, results_in
from corsage.app.run.resuming import not_a_run, read_config
from corsage.app.run.status import STUDY, RunLock
from corsage.core.errors import UNUSABLE, CheckpointError, ConfigError
from corsage.core.files import guarded, parsed, unsealed
from corsage.core.pairs.hurt import with_hurt
from corsage.core.registry import part
from corsage.core.version import VERSION

if TYPE_CHECKING:
    from corsage.app.report.chart import Figure

USAGE = """\
usage: corsage report FOLDER [--png] [--svg] [--pdf]

  FOLDER  of a run that has a result, also of an earlier version of Corsage, of a study, of a bench
  --png, --svg, --pdf  also write every figure into FOLDER/figures, for a paper

It writes FOLDER/report.html, from the files that lie there, and says where it is.
"""
WATCH_USAGE = """\
usage: corsage watch [FOLDER]

  FOLDER  of a run, a study or a bench; without one the newest in runs

Opens its report in the browser, where there is one, and says where it is. While the work goes on
the page has the progress, the time left and the curves so far, and loads itself again; nothing is
sent over a network. Afterwards it is the report.
"""
FIGURE_FORMATS = {"--png": "png", "--svg": "svg", "--pdf": "pdf"}
REPORT = "report.html"
PAGES = {STUDY: "app.studies.page", "bench.json": "app.bench.page"}
"""The modules of pages of folders that are no run's, by a file that these have."""
GOES_ON = '"live":{'
"""Stands in a page of work that is not over."""


@dataclass(frozen=True)
class Found:
    """What a run folder says of its run."""

    config: Mapping[str, Any]
    results: list[Result]
    failed: Mapping[str, str]
    rows: list[dict[str, Any]]

    @property
    def names(self) -> list[str]:
        """Its strategies."""
        return names_of(self.config)


@command(USAGE, (*UNUSABLE, CheckpointError))
def run(words: list[str]) -> None:
    """Do what the words say; 0, or 2 for a user's mistake, 1 if something cannot be written."""
    folder, formats = parse(words)
    for path in again(folder, formats):
        print(path)


def parse(words: list[str]) -> tuple[Path, list[str]]:
    """The folder, and the formats of its figures; or ConfigError."""
    folders = [word for word in words if word not in FIGURE_FORMATS]
    wrong = next((word for word in folders if word.startswith("-")), "")
    if wrong:
        raise ConfigError(f"report {wrong}: no such option. See corsage report --help.")
    if len(folders) != 1:
        raise ConfigError("report: needs one folder. See corsage report --help.")
    return Path(folders[0]).expanduser(), [
        FIGURE_FORMATS[word] for word in words if word in FIGURE_FORMATS
    ]


def again(folder: Path, formats: list[str] | None = None) -> list[Path]:
    """Write the report of a run, a study or a bench, and its figures in these formats."""
    page = page_of(folder)
    try:
        figures = page.report_of(folder) if page else report_of(folder)
        written = [folder / REPORT]
        if formats:
            from corsage.app.report.plots import write_figures  # matplotlib: only where needed

            written += guarded(write_figures, folder / "figures", figures, formats)
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise CheckpointError(
            f"{folder}: its results cannot be read ({type(error).__name__}: {error})."
        ) from error
    return written


def page_of(folder: Path) -> Any:
    """The module of a folder's page; None of a run's."""
    return next((part(m, file) for file, m in PAGES.items() if (folder / file).is_file()), None)


def report_of(folder: Path) -> dict[str, Figure]:
    """Write the report of a run; its figures."""
    from corsage.app.report.document import named_figures, write_report

    found = read(folder)
    failed = {name: why or "it has no result yet" for name, why in found.failed.items()}
    guarded(write_report, folder, found.config, found.results, VERSION, found.rows, failed)
    return named_figures(found.results, found.rows)


@command(WATCH_USAGE, (*UNUSABLE, CheckpointError))
def watch(words: list[str]) -> None:
    """Open the report of what goes on, or is over."""
    if len(words) > 1 or any(word.startswith("-") for word in words):
        raise ConfigError("watch: takes one folder. See corsage watch --help.")
    folder = Path(words[0]).expanduser() if words else newest(Path("runs"))
    path = there(folder)
    print(path)
    if os.environ.get("DISPLAY") or os.environ.get("WAYLAND_DISPLAY") or sys.platform in OWN_SCREEN:
        webbrowser.open(path.resolve().as_uri())


OWN_SCREEN = ("darwin", "win32")
"""Systems that show a browser without a variable that says where."""


def newest(runs: Path) -> Path:
    """The folder in which something was begun last."""
    folders = [path for path in runs.iterdir() if path.is_dir()] if runs.is_dir() else []
    if not folders:
        raise ConfigError("watch: nothing lies in runs; name a folder.")
    return max(folders, key=lambda path: path.name)


def there(folder: Path) -> Path:
    """The page of a folder: the one that is there, or one of what lies there.

    One that goes on for want of a process, as of a run that was killed, is made to say so.
    """
    path, at_work = folder / REPORT, RunLock(folder).held
    due = not path.is_file() or (not at_work and GOES_ON in path.read_text(encoding="utf-8"))
    pause, page = 3.0 if at_work else 0.0, page_of(folder)
    if page and due:
        page.look_at(folder, pause)
    elif not page and (folder / "config.json").is_file() and (due or at_work):
        from corsage.app.run.page_writer import write_page

        guarded(write_page, folder, pause)
    elif not path.is_file():
        raise not_a_run(folder, "it has no run, no study and no bench")
    return path


def read(folder: Path, whole: bool = True) -> Found:
    """Contents of a run folder; CheckpointError if that is no run.

    Also if it has no result, unless the run need not be `whole`. Who has none has a line on why,
    which is empty where nothing failed.
    """
    summary = summary_of(folder)
    config = summary.get("config") or read_config(folder)["config"]
    names = [str(name) for name in names_of(config)]
    results, failed = [], {}
    for name in names:
        own = results_of(folder / name) or of_summary(summary, name, names)
        results += own
        if not own:
            failed[name] = read_failure(folder / name) or ""
    if whole and not results:
        raise not_a_run(folder, "no strategy has a result yet, so there is nothing to report")
    rows = [row for name in names for row in read_rows(folder / name)]
    return Found(config, with_hurt(results), failed, rows)


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
