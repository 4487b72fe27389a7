"""One run that is disturbed several times, until it comes to its end."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Any

from corsage.app.run.resuming import begun
from corsage.benchmarks.chaos.damage import damage
from corsage.benchmarks.chaos.disk import Disk
from corsage.benchmarks.chaos.process import Process, line_of, numbers, process, rounds_in

LONGEST = 0.3
"""Seconds that a run goes on after the round in which it is disturbed, at most."""
ANEW = "--from-round 0"
"""What a line says where a strategy must begin anew."""


@dataclass
class Event:
    """What was done to a run, and how it went on.

    Parameters
    ----------
    kind, detail : what was done.
    after : `resumed`; `older checkpoint`, if it had to go back; `begun anew, as its line says`.
    same : the run's final numbers were those of the run that nobody disturbed.
    why : what is wrong, if anything is.
    """

    kind: str
    detail: str = ""
    after: str = "resumed"
    same: bool = True
    why: str = ""


@dataclass
class Trial:
    """A run, and what happens to it.

    Parameters
    ----------
    place : a folder of its own on the disk.
    words : the run's keys.
    total : how many rounds it has, of all strategies.
    """

    place: Path
    disk: Disk
    words: list[str]
    total: int
    random: Random
    events: list[Event] = field(default_factory=list)
    more: list[str] = field(default_factory=list)

    @property
    def folder(self) -> Path | None:
        """The run folder, if a run was begun already."""
        found = sorted(self.place.glob("runs/*"))
        return next((one for one in found if any(one.glob("[!.]*.json*")) or begun(one)), None)

    @property
    def second(self) -> Path:
        """Where a second process runs."""
        place = self.place / "second"
        place.mkdir(exist_ok=True)
        return place

    def call(self) -> list[str]:
        """The words of the next process: a new run, or the same one again."""
        more, self.more = self.more, []
        return ["--resume", str(self.folder), *more] if self.folder else self.words

    def disturb(self, kind: str) -> None:
        """Start the run, or resume it, and do something to it at a random moment."""
        event = Event(kind)
        self.events.append(event)
        first = self.disk.limit() if kind == "full disk" else None
        with process(self.call(), self.place, first) as one:
            done = rounds_in(self.place)
            target = self.random.randint(0, self.total)
            one.until(lambda: rounds_in(self.place) >= min(max(target, done), self.total))
            time.sleep(self.random.uniform(0, LONGEST))
            DISTURBANCES[kind](self, one, event)
            one.kill()
            self.heed(one)

    def heed(self, one: Process) -> None:
        """Do what a process says that has ended by itself: how the run went on after an event."""
        said, event = one.said(), self.events[-1]
        if "is skipped: " in said or "goes back to round" in said:
            event.after = "older checkpoint"
        if ANEW in line_of(said):
            event.after, self.more = "begun anew, as its line says", ANEW.split()
        if "Traceback (most recent" in said:
            event.why = said[-1500:]
        if "nothing to go on with" in line_of(said):
            (self.folder or self.place).rename(self.place / f"lost-{len(self.events)}")

    def finish(self, wanted: list[dict[str, Any]]) -> None:
        """Let it come to its end, and compare its numbers."""
        for _ in range(6):
            with process(self.call(), self.place) as one:
                code = one.ended()
                self.heed(one)
                if code and not line_of(one.said()):
                    self.events[-1].why = one.said()[-1500:]
                    break
            if not code:
                break
        folder = self.folder
        same = bool(folder and (folder / "summary.json").exists() and numbers(folder) == wanted)
        for event in self.events:
            event.same = same
        if not same:
            self.events[-1].why = self.events[-1].why or one.said()[-1500:]


def kill(trial: Trial, one: Process, event: Event) -> None:
    """As the kernel does when memory is short."""
    one.kill()


def kill_and_damage(trial: Trial, one: Process, event: Event) -> None:
    """A machine that falls, and a file of the run does not come back as it was."""
    one.kill()
    if trial.folder:
        times = trial.random.randint(1, 3)
        event.detail = ", ".join(damage(trial.folder, trial.random) for _ in range(times))


def full_disk(trial: Trial, one: Process, event: Event) -> None:
    """The run ends by itself, with one line; then there is room again."""
    if trial.disk.real and one.alive():
        trial.disk.fill()
    code = one.ended()
    trial.disk.free()
    if code == 1 and not line_of(one.said()):
        event.why = f"no line: {one.said()[-1500:]}"
    event.detail = "ended with 1" if code else "was done already"


def second_process(trial: Trial, one: Process, event: Event) -> None:
    """Another process that resumes the same run ends at once, and the first one goes on."""
    folder = trial.folder
    if folder:
        one.until(lambda: one.holds(folder))
    with one.standing_still():
        if not folder or not one.alive() or not one.holds(folder):
            event.detail = "was done already"
            return
        with process(["--resume", str(folder)], trial.second) as other:
            code, line = other.ended(), line_of(other.said())
            if code != 1 or f"process {one.process.pid} on " not in line:
                event.why = f"exit {code}: {other.said()[-1500:]}"
    event.detail = "refused"


def go_back(trial: Trial, one: Process, event: Event) -> None:
    """The run is killed, and resumed from an earlier round."""
    one.kill()
    if trial.folder:
        kept = sorted(int(path.name[11:]) for path in trial.folder.glob("*/checkpoint-*"))
        number = trial.random.choice([*kept, 0])
        trial.more, event.detail = ["--from-round", str(number)], f"to round {number}"


DISTURBANCES: dict[str, Callable[[Trial, Process, Event], None]] = {
    "kill": kill,
    "kill, damaged file": kill_and_damage,
    "full disk": full_disk,
    "second process": second_process,
    "kill, back to a round": go_back,
}
