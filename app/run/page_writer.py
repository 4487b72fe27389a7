"""The report of a run while it goes on."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

from corsage.app.output.living import LivingPage
from corsage.core.registry import attachment
from corsage.strategies.rounds.base import Strategy
from corsage.strategies.rounds.callbacks import Callback


class Living(Callback):
    """Writes the report after rounds, in a small share of the time; one for all strategies.

    Parameters
    ----------
    folder : the run's.
    """

    def __init__(self, folder: Path) -> None:
        self.page = LivingPage(partial(write_page, folder)) if attachment("report") else None

    def on_round_end(self, strategy: Strategy[Any, Any], row: dict[str, Any]) -> None:
        """Write it if it is due."""
        if self.page:
            self.page.turn()

    def stop(self) -> None:
        """The run ends before its end: the last page says so."""
        if self.page:
            self.page.put(over=True)


def write_page(folder: Path, seconds: float) -> None:
    """Write the report of a run as far as it is; the next one is there after so many seconds."""
    from corsage.app.report.document import write_report
    from corsage.app.report.now import rounds
    from corsage.app.run.report_again import read
    from corsage.core.version import VERSION

    found = read(folder, whole=False)
    config, rows = found.config, found.rows
    come = {row["strategy"]: row["round"] for row in rows}
    results = [r for r in found.results if come.get(r["strategy"], 0) <= r["rounds"]]  # not older
    now = rounds(results, rows, found.names, int(config.get("num-rounds", 0)), seconds)
    failed = {name: why for name, why in found.failed.items() if why}
    write_report(folder, config, results, VERSION, rows, failed, now)
