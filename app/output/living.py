"""All that is said while work goes on: a page that is written anew, a bar for many runs."""

from __future__ import annotations

import shutil
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Self

from corsage.app.output.progress import is_tty
from corsage.app.output.summary import human_seconds
from corsage.app.output.usage import in_a_line

PAGE_SHARE = 0.02
"""The share of the process's CPU time that pages may take."""
PAUSE, WAITING_PAUSE = 2.0, 10.0
"""Seconds between two pages: at least, and where the process mostly waits, as for devices."""
FIRST_COST = 0.02
"""CPU seconds that the first page is expected to take."""
BAR_TICK = 1.0
"""Seconds after which a bar is drawn again on a terminal; elsewhere it is a line a minute."""
QUIET = 60.0


class LivingPage:
    """A page that is written anew while work goes on, for a small share of the CPU's time.

    What cannot be written is said once, and tried again: the work goes on.

    Parameters
    ----------
    write : writes it, and is given the seconds after which the next one may be there; 0: none will.
    """

    def __init__(self, write: Callable[[float], object]) -> None:
        self.write = write
        self.begun = time.monotonic()
        self.last = self.begun - PAUSE
        self.cpu = time.process_time()
        self.cost, self.spent = FIRST_COST, 0.0
        self.complained = False

    def turn(self) -> None:
        """Write it if it is due."""
        wanted, now = (self.spent + self.cost) / PAGE_SHARE, time.monotonic()
        busy = now - self.last >= PAUSE and time.process_time() - self.cpu >= wanted
        if busy or (now - self.last >= WAITING_PAUSE and now - self.begun >= wanted):
            self.put()

    def put(self, over: bool = False) -> None:
        """Write it; `over`: there will be no other."""
        begun = time.thread_time()
        try:
            self.write(0.0 if over else max(PAUSE + 1.0, round(self.cost / PAGE_SHARE)))
        except Exception as error:  # whatever it is: no page is worth a run
            if not self.complained:
                print(f"The page cannot be written: {in_a_line(error)}", file=sys.stderr)
            self.complained = True
        self.cost = time.thread_time() - begun
        self.spent += self.cost
        self.last = time.monotonic()


@dataclass(frozen=True)
class Far:
    """How far many runs are: so many of them, parts of those at work included."""

    done: float
    whole: int
    more: str = ""


class Bar:
    """How far many runs are, on the terminal and on their page; a context manager.

    Parameters
    ----------
    far : says so.
    write : writes the page, from that, the seconds left, and the seconds until the next page.
    """

    def __init__(
        self,
        far: Callable[[], Far],
        write: Callable[[Far, float | None, float], object] | None = None,
    ) -> None:
        self.far = far
        self.page = LivingPage(lambda seconds: write and write(self.now, self.left, seconds))
        self.begun = self.said = time.monotonic()
        self.now = far()
        self.before = self.now.done
        self.tty = is_tty(sys.stderr)
        self._turn, self._over = threading.RLock(), threading.Event()
        self._thread = threading.Thread(target=self._beside, daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, kind: object, *_: object) -> None:
        self._over.set()
        self._thread.join()
        self.now = self.far()
        if self.tty or kind is None:
            self.say(end="\n")
        if kind is not None:
            self.page.put(over=True)

    @property
    def left(self) -> float | None:
        """Seconds to the end at the pace so far; None before there is one."""
        come, rest = self.now.done - self.before, self.now.whole - self.now.done
        if come <= 0 or rest <= 0:
            return None
        return max((time.monotonic() - self.begun) * rest / come, 1.0)

    def line(self, text: str) -> None:
        """A line of its own, above the bar; where there is none with the time that is left."""
        with self._turn:
            self.now = self.far()
            if not self.tty and self.left is not None:
                text += f"; some {human_seconds(self.left)} left"
            self._print(text, "\n")
            if self.tty:
                self.say()

    def say(self, end: str = "\r") -> None:
        """The bar: written over on a terminal."""
        whole, done = self.now.whole, self.now.done
        bar = "#" * int(10 * done / max(whole, 1))
        took = human_seconds(time.monotonic() - self.begun)
        text = f"[{bar:.<10}] {int(done)}/{whole} runs, {took}"
        if self.left is not None:
            text += f", some {human_seconds(self.left)} left"
        self._print(text + self.now.more, end if self.tty else "\n")

    def _print(self, text: str, end: str) -> None:
        with self._turn:
            self.said = time.monotonic()
            if self.tty:  # what was written over would show
                width = shutil.get_terminal_size().columns - 1
                text = f"{text:<{width}}" if end == "\n" else f"{text[:width]:<{width}}"
            print(text, end=end, file=sys.stderr, flush=True)

    def _beside(self) -> None:
        """Bring the bar and the page up to date, beside the work."""
        while not self._over.wait(BAR_TICK):
            self.now = self.far()
            if time.monotonic() - self.said >= (BAR_TICK if self.tty else QUIET):
                self.say()
            self.page.turn()
