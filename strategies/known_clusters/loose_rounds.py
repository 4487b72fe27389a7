"""Rounds in which a global step does not wait for everybody: `known-staleness` above 0.

A round begins with the global steps of the clusters that are there; then these walk. It is over
when those are back that may be waited for: all of them, but for clusters that take longer than the
others did, as long as no centre in the middle gets older than so many rounds. A cluster that comes
back later takes part in the next round, and has skipped those between. solvers/known_clusters/
stale.py says why that has the fixed point of (2.1).

Who took part depends on how fast clusters are, so each round's line in metrics.jsonl says it, and
`known-schedule` plays it again.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from corsage.core.arrays import Bools
from corsage.core.replies import Replies
from corsage.solvers.known_clusters.coins import Stretch
from corsage.strategies.known_clusters.at_work import AtWork, Busy, Walkers, followed
from corsage.strategies.known_clusters.cohorts import Cohort
from corsage.strategies.known_clusters.coin_server import StepCheck
from corsage.strategies.known_clusters.conversation import check_enough
from corsage.strategies.known_clusters.played import Played
from corsage.strategies.rounds.results import Finding
from corsage.strategies.rounds.turns import Script

if TYPE_CHECKING:
    from corsage.strategies.known_clusters.coin_method import CoinMethod

SAID = (
    "known-staleness={}: which clusters a global step waits for depends on how fast they are, and "
    "so do the numbers of this run; known-schedule=ITS_RUN_FOLDER plays it again to the same ones"
)
NOBODY_LATE = (
    "known-staleness={}: on this engine nodes work one after the other, so that nobody is late and "
    "the numbers are those of 0; it makes a difference with engine=threads, Ray and devices"
)


class LooseRounds:
    """The rounds of one method, whose walks may outlast them.

    Parameters
    ----------
    method : whose rounds.
    """

    def __init__(self, method: CoinMethod[Any, Any]) -> None:
        self.method, self.job = method, method.job
        keys, rounds = method.keys, method.config.run.num_rounds
        self.staleness, self.script = keys.known_staleness, None
        if path := keys.known_schedule:
            known = None if keys.iterations else rounds
            self.script = Played(path, method.name, self.staleness, known)
        self._walkers: Walkers | None = None
        self._of: object = None

    def introduce(self) -> None:
        """Say that the numbers depend on time, unless they are played again, or nobody is late."""
        if self.script is None:
            in_turn = getattr(self.job.members.grid, "in_turn", False)
            self.job.note((NOBODY_LATE if in_turn else SAID).format(self.staleness))

    @property
    def work(self) -> AtWork:
        """What the method remembers of it."""
        found: AtWork = self.method.state.work
        return found

    def play(self, number: int) -> Script[Replies]:
        """A round: global steps of those that are there, their walks, and who comes back."""
        schedule, state, server = self.method.schedule, self.method.state, self.method.server
        names, walkers = schedule.present.names, self.walkers()
        schedule.present.need_somebody(number)
        part, check = self.method.part(schedule, state.iteration), StepCheck(self.job, state)
        while not (there := self.there(number, names)):  # of those that are left all are at work
            walkers.wait_for(set(names))
            yield walkers
            self.settle()
        stale = {name: number - self.work.joined[name] for name in names if name not in there}
        self.note_away(stale)
        server.enter()
        server.meet(there)
        self.method.timeline.step(stale)
        server.global_steps(part.globals, places(names, there))
        self.send(number, there, part)
        walkers.wait_for(self.overdue(number), self.awaited(number, names, part))
        replies = yield walkers
        check.unless_far(replies, len(schedule.present.cohorts))
        self.check_enough(number, replies)
        state.iteration = part.last
        self.method.timeline.worked(self.settle())
        server.end_round(part, places(names, set(names) - self.work.busy.keys()))
        check.remember(server.reaches)
        return replies

    def check_enough(self, number: int, replies: Replies) -> None:
        """RoundFailed if users were dropped, and too few are left: those that work count."""
        running, groups = self.walkers().running(), self.method.schedule.present.groups
        working = sum(len(c.users) for name in running for c in groups.get(name, []))
        least = self.method.config.federation.min_users
        if replies.dropped and len(replies.users) + working < least:
            check_enough(self.job, number, replies)

    def walkers(self) -> Walkers:
        """The walks; begun again where they stand if the run, or a round, is taken up anew."""
        if self._walkers is None or self._of is not self.method.state:
            self._walkers, self._of = Walkers(self.job, self.staleness), self.method.state
            for name, busy in self.work.busy.items():
                self.resume(name, busy)
        return self._walkers

    def resume(self, name: str, busy: Busy) -> None:
        """A walk from where it stands."""
        method, schedule = self.method, self.method.schedule
        assert self._walkers is not None
        if name in schedule.present.names:
            part = method.part(schedule, busy.first)
            j = schedule.present.names.index(name)
            script = method.server.walk_of(j, part, busy.answers)
            self._walkers.begin(name, followed(script, busy))

    def send(self, number: int, there: Collection[str], part: Stretch) -> None:
        """Those that are there begin their walks."""
        method, names = self.method, self.method.schedule.present.names
        server, walkers = method.server, self.walkers()
        walkers.start()
        for name in there:
            busy = Busy(part.first)
            self.work.joined[name], self.work.busy[name] = number, busy
            script = server.walk_of(names.index(name), part)
            walkers.begin(name, followed(script, busy), fresh=True)

    def settle(self) -> dict[str, tuple[float, float]]:
        """Those that are back, and may be, are not at work any more; when they were."""
        walkers, busy = self.walkers(), self.work.busy
        back = [name for name in busy if walkers.is_back(name)]
        for name in back:
            del busy[name]
        return {name: walkers.times[name] for name in back if name in walkers.times}

    def at_rest(self, cohorts: list[Cohort]) -> list[Cohort]:
        """Those that can answer at once: neither they nor their nodes are at work."""
        nodes = self.walkers().nodes
        busy = self.work.busy
        free = [c for c in cohorts if c.cluster not in busy and c.node not in nodes]
        return free or cohorts

    def note_away(self, stale: Mapping[str, int]) -> None:
        """Some clusters are at work in a round, and their centres so old."""
        for name, age in stale.items():
            rounds, oldest = self.work.away.get(name, (0, 0))
            self.work.away[name] = rounds + 1, max(oldest, age)

    def finding(self) -> Finding:
        """In how many rounds which clusters took part."""
        played, rows = self.method.progress.round, []
        for name in self.method.schedule.present.names:
            rounds, oldest = self.work.away.get(name, (0, 0))
            text = f"{played - rounds:,} of {played:,}"
            rows.append((name, text + f", its centre at most {oldest} old" * bool(rounds)))
        return Finding(f"rounds that clusters took part in, staleness {self.staleness}", rows)

    # Who takes part.

    def there(self, number: int, names: Collection[str]) -> list[str]:
        """The clusters that take part in a round: as it was played, or those not at work."""
        if self.script is None:
            return [name for name in names if name not in self.work.busy]
        stale, joined = self.script.of_round(number), self.work.joined
        ages = {n: number - joined[n] if n in joined else None for n in names if n in stale}
        self.script.check(number, names, self.method.state.clusters.known, ages, self.staleness)
        return [name for name in names if name not in stale]

    def overdue(self, number: int) -> set[str]:
        """Those whose centres would be too old in the next round."""
        joined = self.work.joined
        return {n for n in self.work.busy if number + 1 - joined[n] > self.staleness}

    def awaited(self, number: int, names: Collection[str], part: Stretch) -> Collection[str] | None:
        """Whom a round waits for, whatever it takes: all at the end, or as it was played."""
        end, rounds = self.method.keys.iterations, self.method.config.run.num_rounds
        if part.last >= end if end is not None else number >= rounds:
            return set(names)
        if self.script is None:
            return None
        stale = self.script.of_round(number + 1)
        return {name for name in names if name not in stale}


def places(names: Collection[str], chosen: Collection[str]) -> Bools:
    """Which of the clusters are chosen (k,)."""
    return np.array([name in chosen for name in names])
