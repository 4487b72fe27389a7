"""The queue of the bench: trials, and when a method has had all of them its seeds."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Iterable, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from corsage.app.bench.journal import BenchFolder
from corsage.app.bench.protocol import Work, chosen, config_of, finals, trial
from corsage.app.bench.sets import COMMON, CONSTANT_ROW
from corsage.app.output.progress import is_tty
from corsage.app.output.summary import human_seconds
from corsage.app.studies.workers import Ended, Job, cores, play
from corsage.core.errors import CorsageError

USUAL = 1
"""Trials of the constant answer, which has no keys."""


class Bench:
    """A bench at work.

    Parameters
    ----------
    folder : where its lines go.
    pairs : (method, set), all that is run.
    """

    def __init__(self, folder: BenchFolder, pairs: Iterable[tuple[str, str]]) -> None:
        self.folder, self.pairs = folder, [*pairs]
        self.sets: Mapping[str, Mapping[str, Any]] = folder.plan["sets"]
        self.begun, self.said = time.monotonic(), 0.0
        self.cpu = 0.0

    def keys(self, place: str) -> dict[str, Any]:
        """The keys of a set's runs."""
        return {**COMMON, **self.sets[place]}

    def trials(self, method: str, place: str) -> list[Work]:
        """All trials of a method on a set."""
        number = USUAL if method == CONSTANT_ROW else self.folder.protocol.trials
        return [trial(place, self.keys(place), method, k) for k in range(number)]

    def tests(self, method: str, place: str) -> list[Work]:
        """Its seeds, if all trials are done and one of them came to an end."""
        if self.folder.left(self.trials(method, place)):
            return []
        best = chosen(self.folder.trials(method, place), method)
        seeds = self.folder.protocol.seeds
        return finals(place, self.keys(place), method, sorted({*best.values()}), seeds)

    def due(self, method: str, place: str) -> list[Work]:
        """Runs that are left of a method on a set, as far as they are known."""
        found = self.folder.left(self.trials(method, place))
        return found or self.folder.left(self.tests(method, place))

    def job(self, work: Work) -> Job:
        """A run as its worker is told of it: runs on the same data come one after the other."""
        at = [*self.sets].index(work.place)
        after = -1 if work.seed is None else work.seed
        order = (at, after, self.pairs.index((work.method, work.place)), work.trial)
        arguments = [asdict(work), self.folder.mine]
        return Job(work.name, arguments, Path(os.devnull), "app.bench.jobs", "perform", order)

    def run(self, at_once: int) -> None:
        """Do all that is left; what is done is on disk."""
        jobs = [self.job(work) for pair in self.pairs for work in self.due(*pair)]
        if jobs:
            play(jobs, at_once or cores(), self.told)
        self.say(last=True)

    def told(self, ended: Ended) -> list[Job]:
        """Keep the line of a run; what follows from it."""
        if ended.code or ended.answer is None:
            raise CorsageError(f"{ended.job.name}: its process ended with {ended.code}.")
        line = ended.answer
        self.folder.add(line, ended.cpu)
        self.cpu += ended.cpu
        self.say()
        if line["seed"] is not None:
            return []
        follow = self.tests(line["method"], line["place"])
        return [self.job(work) for work in self.folder.left(follow)]

    @property
    def whole(self) -> int:
        """The number of runs, if each method's rows agree on a trial."""
        own = self.folder.protocol
        return sum(
            (USUAL if method == CONSTANT_ROW else own.trials) + own.seeds
            for method, _ in self.pairs
        )

    def say(self, last: bool = False) -> None:
        """Say how far it is: a line that is written over, or one a minute."""
        done, now = len(self.folder.lines), time.monotonic()
        tty = is_tty(sys.stderr)
        if not last and now - self.said < (0.5 if tty else 60):
            return
        self.said = now
        whole = max(self.whole, done)
        bar = "#" * (20 * done // max(whole, 1))
        text = f"[{bar:.<20}] {done} of {whole} runs, {human_seconds(now - self.begun)}"
        text += f", {human_seconds(self.cpu)} of CPU"
        print(text, end="\r" if tty and not last else "\n", file=sys.stderr, flush=True)


def absent(sets: Mapping[str, Mapping[str, Any]]) -> dict[str, str]:
    """The sets that cannot be run here, and why."""
    from corsage.app.bench.jobs import check
    from corsage.core.errors import ConfigError, DataError

    found = {}
    for name, keys in sets.items():
        try:
            check(config_of({**COMMON, **keys, "seed": 0, "validation": 0.2}, CONSTANT_ROW))
        except (ConfigError, DataError, OSError) as error:
            found[name] = " ".join(str(error).split())
    return found
