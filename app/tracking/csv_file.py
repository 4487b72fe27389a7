"""Numbers for a spreadsheet: `metrics.csv`, one line a round and number."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable, Mapping
from pathlib import Path

from corsage.app.tracking.tracker import Numbers, Part, Tracker
from corsage.core.errors import ConfigError

CSV_HEAD = ("strategy", "round", "measure", "value")


class Csv(Tracker):
    """Writes `metrics.csv`; that of a run which is resumed is made anew from its rounds."""

    name = "csv"

    def begin(self, part: Part) -> int:
        """The heading of a new file."""
        if part.folder is None:
            raise ConfigError("say into which folder: Csv(FOLDER).")
        self.path, self.strategy = part.folder / "metrics.csv", part.strategy
        self.path.parent.mkdir(parents=True, exist_ok=True)
        write(self.path, "w", [CSV_HEAD])
        return 0

    def log(self, number: int, values: Numbers) -> None:
        """A line a number."""
        write(self.path, "a", lines(self.strategy, number, values))

    def finish(self, number: int, rows: Mapping[str, Numbers]) -> None:
        """The rows beside the strategy's own, and what its own has only at the end."""
        for row, values in rows.items():
            name = row if row != self.strategy else f"{row} (final)"
            write(self.path, "a", lines(name, number, values))


def lines(name: str, number: int, values: Numbers) -> list[tuple[str, int, str, float]]:
    """The lines of a round, or of a row."""
    return [(name, number, measure, value) for measure, value in values.items()]


def write(path: Path, mode: str, content: Iterable[Iterable[object]]) -> None:
    """Put whole lines at the end of a file."""
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows(content)
    with path.open(mode, encoding="utf-8", newline="") as file:
        file.write(text.getvalue())
