"""The queue of the bench: trials, and when a method has had all of them its seeds."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import asdict
from typing import Any

from corsage.app.bench.journal import BenchFolder
from corsage.app.bench.protocol import Json, Work, chosen, config_of, finals, trial
from corsage.app.bench.sets import COMMON_KEYS, CONSTANT_ROW
from corsage.app.output.living import Bar, Far
from corsage.app.output.summary import human_seconds
from corsage.app.studies.workers import Ended, Job, cores, play
from corsage.core.errors import ConfigError, CorsageError, DataError
from corsage.core.files import guarded

LOGS = "logs"
"""The folder of what runs that are at work say, or that were ended."""


class Bench:
    """A bench at work.

    Parameters
    ----------
    folder : where its lines go.
    """

    def __init__(self, folder: BenchFolder) -> None:
        self.folder = folder
        self.pairs = [(method, place) for method, place in folder.plan["pairs"]]
        self.sets: Mapping[str, Mapping[str, Any]] = folder.plan["sets"]
        self.cpu = 0.0
        self.killed: list[str] = []
        self.bar = Bar(self.far, folder.write_page)

    def keys(self, place: str) -> dict[str, Any]:
        """The keys of a set's runs."""
        return {**COMMON_KEYS, **self.sets[place]}

    def trials(self, method: str, place: str) -> list[Work]:
        """All trials of a method on a set."""
        number = self.folder.protocol.trials_of(method)
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
        log = self.folder.folder / LOGS / f"{work.name.replace(':', '_')}.log"
        return Job(work.name, arguments, log, "app.bench.jobs", "perform", order)

    def run(self, at_once: int) -> None:
        """Do all that is left; what is done is on disk."""
        jobs = [self.job(work) for pair in self.pairs for work in self.due(*pair)]
        with self.bar:
            if jobs:
                guarded(play, jobs, at_once or cores(), self.told)
        with suppress(OSError):  # it holds what a run that failed has said
            (self.folder.folder / LOGS).rmdir()

    @property
    def lost(self) -> list[str]:
        """The runs whose processes were ended twice."""
        return [name for name, times in Counter(self.killed).items() if times > 1]

    def told(self, ended: Ended) -> list[Job]:
        """Keep the line of a run; what follows from it."""
        if ended.code < 0:
            return self.once_more(ended)
        if ended.code or ended.answer is None:
            raise CorsageError(f"{ended.job.name}: {ended.line} ({ended.job.log})")
        line = ended.answer
        self.folder.add(line, ended.cpu)
        ended.job.log.unlink(missing_ok=True)
        self.cpu += ended.cpu
        if line["seed"] is not None:
            return []
        follow = self.tests(line["method"], line["place"])
        return [self.job(work) for work in self.folder.left(follow)]

    def once_more(self, ended: Ended) -> list[Job]:
        """Try a run again whose process was ended, as by a machine short of memory: but once."""
        name = ended.job.name
        self.killed.append(name)
        left_out = name in self.lost
        how = "left out for now" if left_out else "tried once more"
        self.bar.line(f"{name}: its process ended with {ended.code}: {how}.")
        return [] if left_out else [ended.job]

    @property
    def whole(self) -> int:
        """The number of runs, if each method's rows agree on a trial."""
        own = self.folder.protocol
        return sum(own.trials_of(method) + own.seeds for method, _ in self.pairs)

    def far(self) -> Far:
        """Runs that are done."""
        done = len(self.folder.lines)
        return Far(done, max(self.whole, done), f", {human_seconds(self.cpu)} of CPU")


Sets = dict[str, dict[str, Any]]


def available(sets: Mapping[str, Mapping[str, Any]], where: Mapping[str, Any]) -> tuple[Sets, Json]:
    """The sets that can be run here, with the keys of where their files are, and why others cannot.

    What is not in `data-dir` may be in a package.
    """
    from corsage.app.bench.jobs import check

    found, gone = Sets(), Json()
    elsewhere = {key: value for key, value in where.items() if key != "data-dir"}
    for name, keys in sets.items():
        for place in (where, elsewhere) if where != elsewhere else (where,):
            own = {**keys, **place}
            try:
                check(config_of({**COMMON_KEYS, **own, "seed": 0, "validation": 0.2}, CONSTANT_ROW))
            except (ConfigError, DataError, OSError) as error:
                gone.setdefault(name, " ".join(str(error).split()))
            else:
                found[name] = own
                gone.pop(name, None)
                break
    return found, gone
