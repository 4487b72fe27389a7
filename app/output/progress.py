"""The progress line of a run: live on a terminal, a few plain lines anywhere else."""

from __future__ import annotations

import atexit
import math
import sys
import time
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, TaskID, TextColumn
from rich.progress import Progress as Bar
from rich.table import Column
from rich.text import Text

from corsage.app.output.notebook import Write, line
from corsage.app.output.summary import Row, human_seconds
from corsage.core.configuration.config import Config
from corsage.core.measures import measure_of
from corsage.strategies.rounds.base import Strategy
from corsage.strategies.rounds.callbacks import Callback
from corsage.strategies.rounds.results import Summary

REFRESH = 0.1
"""Seconds between drawings at least: a round may take less than drawing the line."""
PACE_ROUNDS = 30
"""Rounds over which the pace is taken for the seconds that are left."""
PROGRESS_PARTS = 10
"""Parts of a run of which each ends with one plain line, when not on a terminal."""


class Progress:
    """Shows how far each strategy is, on stderr, and lets nothing go wrong by showing it.

    One `start` a strategy, one `update` a round, `stop` at the very end (or use it in a
    `with`). What the terminal does not take is not shown: the run goes on.
    """

    def __init__(self, console: Console | None = None) -> None:
        self.console = console or Console(stderr=True)
        # Rich takes FORCE_COLOR for a terminal; a log file is none, whatever is in there.
        tty = self.console.is_terminal if console else is_tty(sys.stderr)
        self.chosen = console is not None
        self.live = tty and not self.console.is_dumb_terminal
        self.broken = False
        self.cell: Write | None = None  # in a notebook, the strategy's own line
        self.bar: Bar | None = None
        self.task: TaskID | None = None
        self.strategy, self.total, self.round, self.begin = "", 0, 0, 0
        self.most = False
        self.evaluated = ""
        self.stamps: deque[tuple[float, int]] = deque(maxlen=PACE_ROUNDS + 1)
        self.started = self.drawn = 0.0
        self.took: float | None = None

    def start(self, strategy: str, num_rounds: int, done: int = 0, most: bool = False) -> None:
        """Begin a strategy's line; a resumed run begins after the `done` rounds it has.

        `most`: it needs what it needs, and so many rounds at most.
        """
        self.finish()
        self.strategy, self.total, self.round, self.begin = strategy, num_rounds, done, done
        self.most = most
        self.evaluated, self.took = "", None
        self.started = time.monotonic()
        self.stamps.clear()
        self.stamps.append((self.started, done))
        resumed = f", going on after round {done}" if done else ""
        if self.live:
            self.safely(self.open)
        else:
            self.cell = None if self.chosen else line()
            self.write(f"{self.whole()}{resumed}", own=True)

    def update(self, row: Row) -> None:
        """Take in a finished round."""
        before, self.round = self.round, int(row["round"])
        self.stamps.append((time.monotonic(), self.round))
        measure = measure_of(row)
        if measure.name in row:
            mean = measure.text(float(row[measure.name]["mean"]))
            self.evaluated = f"{measure.word} {mean}{measure.unit} at {self.round}"
        if self.live:
            if time.monotonic() - self.drawn >= REFRESH:
                self.safely(self.draw)
        elif self.round < self.total and self.mark(self.round) > self.mark(before):
            self.write(
                f"{self.strategy}: round {self.round}/{self.total}, {self.state()}", own=True
            )

    def note(self, text: str) -> None:
        """A log line of its own, above the live line."""
        if self.live and self.bar is not None:
            self.safely(lambda: self.console.print(Text(text), soft_wrap=True))
        else:
            self.write(text)

    def stop(self) -> None:
        """End the line; the terminal is as it was."""
        self.finish()
        if self.bar is not None:
            self.safely(self.bar.stop)
            self.bar = None
            atexit.unregister(self.stop)

    def done(self, seconds: float) -> None:
        """The strategy has ended, perhaps before its last round: what it did is the whole."""
        self.total, self.took, self.most = self.round, seconds, False
        self.stop()

    def __enter__(self) -> Progress:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def finish(self) -> None:
        """The last word on the strategy under way, if there is one."""
        if not self.strategy:
            return
        if self.live:
            self.safely(self.draw)
        else:
            end = "done" if self.round >= self.total else f"stopped at round {self.round}"
            self.write(f"{self.whole()}, {end}, {self.state(end=True)}", own=True)
        self.strategy, self.task = "", None

    def whole(self) -> str:
        """The strategy and how much there is to do."""
        most = "up to " * self.most
        return f"{self.strategy}: {most}{self.total} round{'' if self.total == 1 else 's'}"

    def mark(self, number: int) -> int:
        """The number of the run's parts that are behind after this round."""
        return number * PROGRESS_PARTS // max(self.total, 1)

    def left(self) -> float:
        """Seconds to the end at the pace of the last rounds; nan before the first."""
        (then, first), (now, last) = self.stamps[0], self.stamps[-1]
        if last <= first:
            return math.nan
        return (now - then) / (last - first) * max(self.total - last, 0)

    def tail(self, end: bool) -> str:
        """The seconds left, or at the end the seconds it took."""
        if end:
            took = time.monotonic() - self.started if self.took is None else self.took
            return f"in {human_seconds(took)}"
        seconds = self.left()
        if math.isnan(seconds):
            return ""
        # Tenths of a second would only flicker.
        return f"{math.ceil(seconds)} s left" if seconds < 59 else f"{human_seconds(seconds)} left"

    def state(self, end: bool = False) -> str:
        """The last evaluation and time as words of a plain line."""
        words = (self.evaluated or "not evaluated yet", self.tail(end))
        return ", ".join(word for word in words if word)

    def open(self) -> None:
        """Add a live line, below those of the strategies before."""
        if self.bar is None:
            # No thread of Rich's own: it would die noisily on an odd terminal, and be lost in
            # forks. Each finished round draws.
            parts = columns(self.console.width, self.strategy, self.total)
            self.bar = Bar(
                *parts,
                console=self.console,
                auto_refresh=False,
                # What is printed meanwhile goes above the line; but not what goes to a file.
                redirect_stdout=is_tty(sys.stdout),
            )
            # An error on the way out must not leave a terminal without a cursor.
            atexit.register(self.stop)
            self.bar.start()
        self.task = self.bar.add_task(
            self.strategy, total=self.total, completed=self.begin, evaluated="", tail=""
        )
        self.draw()

    def draw(self) -> None:
        """Bring the live line up to date."""
        if self.bar is None or self.task is None:
            return
        over = self.round >= self.total
        fields: dict[str, Any] = {"evaluated": self.evaluated, "tail": self.tail(over)}
        self.bar.update(self.task, total=self.total, completed=self.round, **fields)
        self.bar.refresh()
        self.drawn = time.monotonic()

    def write(self, text: str, *, own: bool = False) -> None:
        """One plain line, there at once: a log is often read while it grows.

        In a notebook the strategy's `own` line is written anew instead.
        """

        def put() -> None:
            if own and self.cell is not None:
                self.cell(text)
            else:
                print(text, file=self.console.file, flush=True)

        self.safely(put)

    def safely(self, show: Callable[[], object]) -> None:
        """Show something; the first time that fails is the last time it is tried."""
        if self.broken:
            return
        try:
            show()
        except Exception:  # a closed pipe, an encoding, a width of 0: none is worth a run
            self.broken = True


def is_tty(stream: Any) -> bool:
    """True if somebody watches a stream; it may be closed, or replaced by anything."""
    try:
        return bool(stream.isatty())
    except (AttributeError, ValueError, OSError):
        return False


def columns(room: int, strategy: str, total: int) -> tuple[TextColumn | BarColumn, ...]:
    """Strategy, bar, round, last evaluation and time left; the bar has what they leave."""
    digits = len(str(total))
    words = max(len(strategy), 12) + (2 * digits + 1) + (digits + 18) + 11 + 4

    def text(template: str, least: int = 0, style: str = "none") -> TextColumn:
        column = Column(min_width=least or None, no_wrap=True)
        return TextColumn(template, markup=False, style=style, table_column=column)

    return (
        text("{task.description}"),
        BarColumn(max(8, min(40, room - words))),
        text("{task.completed}/{task.total}"),
        text("{task.fields[evaluated]}", digits + 15, "bold"),
        text("{task.fields[tail]}", 11),
    )


class Watcher(Callback):
    """Shows a progress line; without scores where users are judged by what they train on."""

    shows_notes = reports = True

    def __init__(self, num_rounds: int, judges: bool = True) -> None:
        self.num_rounds, self.judges, self.progress = num_rounds, judges, Progress()

    def on_start(self, strategy: Strategy[Any, Any]) -> None:
        """Begin the line; a resumed run begins where it stands."""
        most = strategy.solves
        self.progress.start(strategy.name, self.num_rounds, strategy.progress.round, most)
        if not self.judges:
            self.progress.evaluated = "all rows are fitted"

    def on_round_end(self, strategy: Strategy[Any, Any], row: dict[str, Any]) -> None:
        """Show the round that is done."""
        self.progress.update(row if self.judges else without_scores(row))

    def on_note(self, text: str) -> None:
        """A line above the progress."""
        self.progress.note(text)

    def on_end(self, strategy: Strategy[Any, Any], results: Sequence[Summary]) -> None:
        """End the line, with the seconds that the table has."""
        self.progress.done(strategy.clock.attempt)


def watcher(config: Config) -> Watcher:
    """The progress line of a run."""
    return Watcher(config.run.num_rounds, config.data.test_fraction > 0)


def without_scores(row: Row) -> Row:
    """A finished round's row without its measure."""
    return {key: value for key, value in row.items() if key != measure_of(row).name}
