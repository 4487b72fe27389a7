"""Rows of the bench on each set: what their lines come to, beside the references."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import numpy as np

from corsage.app.bench.protocol import Json, chosen, name_of
from corsage.app.bench.ranks import LEVEL, Ranks, holm, over_seeds, ranks
from corsage.app.bench.sets import ALONE_ROW, CONSTANT_ROW, TOGETHER_ROW, rows_of
from corsage.app.studies.over_seeds import Difference, StudyRow
from corsage.core.arrays import Floats
from corsage.core.measures import Measure, measure_of
from corsage.core.pairs.hurt import Row, compared
from corsage.core.pairs.noise import sums_of

NEW_SAMPLES = (5, 20, 0)
"""Samples that new users have; 0: all of their own."""
NOT_DONE = "it is not done"
MOST_ROWS_NAMED = 5
"""Rows that a line names: of more it has their number."""
MOST_OF_LAST = 0.95
"""Of the last round's value, for `rounds to 95%`."""


@dataclass(frozen=True)
class Entry:
    """A row on one set.

    Parameters
    ----------
    row, place : which row on which set.
    results : of each seed, by its number as a word.
    trial : whose keys these are; `keys` are those of it that were tuned.
    trials : the validation score of each trial; None of one that failed.
    cpu : CPU seconds of a test's run, on average.
    failed : why there is no result.
    """

    row: str
    place: str
    results: Mapping[str, Json]
    trial: int = 0
    keys: Mapping[str, Any] = field(default_factory=dict)
    trials: Sequence[float | None] = ()
    cpu: float | None = None
    failed: str = ""

    @cached_property
    def study(self) -> StudyRow:
        """As studies compare rows."""
        return StudyRow(self.row, {}, {s: as_result(r) for s, r in self.results.items()}, "")

    @property
    def measure(self) -> Measure:
        """The measure that users are judged by."""
        return self.study.measure

    def average(self, name: str) -> float | None:
        """The mean over seeds of a number."""
        return self.study.average(name)

    @property
    def merit(self) -> float:
        """The mean over seeds, higher being better."""
        return float(self.measure.merit([self.study.mean])[0]) if self.results else math.nan

    @property
    def gain(self) -> float | None:
        """The gain of tuning on validation data, against the defaults."""
        first = self.trials[0] if self.trials else None
        best = self.trials[self.trial] if self.trial < len(self.trials) else None
        return None if first is None or best is None else best - first

    @property
    def inflation(self) -> float | None:
        """The difference of the best evaluated round, chosen on test data, to the last."""
        curves = [one["curve"] for one in self.results.values()]
        if not curves or not all(curves):
            return None
        most = max if self.measure.higher_is_better else min
        return float(np.mean([most(v for _, v in c) - c[-1][1] for c in curves]))

    @property
    def rounds_to_most(self) -> float | None:
        """The first evaluated round within 5% of the last one's value, on average."""
        found = []
        for one in self.results.values():
            if not one["curve"]:
                return None
            last = one["curve"][-1][1]
            better = self.measure.higher_is_better
            goal = last * MOST_OF_LAST if better else last / MOST_OF_LAST
            there = [r for r, v in one["curve"] if (v >= goal if better else v <= goal)]
            found.append(there[0])
        return float(np.mean(found)) if found else None

    def of_new(self, samples: int) -> StudyRow:
        """New users' scores after so many samples, of the seeds that have some, as of a row."""
        cases = {s: one.get("new_users", {}).get(str(samples)) for s, one in self.results.items()}
        return StudyRow(self.row, {}, {s: {"per_user": v} for s, v in cases.items() if v}, "")

    def new_users(self, samples: int) -> float | None:
        """The mean score of new users after so many samples."""
        found = self.of_new(samples).by_seed.values()
        return mean_of_means([one["per_user"] for one in found])

    @property
    def others(self) -> float | None:
        """The score of users' models on the other users' test data."""
        return mean_of_means([one.get("others", {}) for one in self.results.values()])


def mean_of_means(seeds: Sequence[Mapping[str, float]]) -> float | None:
    """The mean over seeds of the means over users; None if no seed has any."""
    found = [float(np.mean([*users.values()])) for users in seeds if users]
    return float(np.mean(found)) if found else None


def as_result(row: Json) -> Json:
    """A row of a line as a run's result has it."""
    return {**row, row["measure"]: {"mean": row["mean"], "std": row["std"]}}


@dataclass(frozen=True)
class Beside:
    """An entry beside others on its set.

    Parameters
    ----------
    entry : the entry.
    difference : to FedAvg with fine-tuning.
    p_value : of that difference over seeds, by Holm's rule over the rows of the set.
    new : of new users after so many samples, to those there.
    hurt : shares of users worse off than alone, and than there, and beyond noise.
    beats : users to whom it is better than a constant answer, and of how many.
    """

    entry: Entry
    difference: Difference | None = None
    p_value: float = 1.0
    new: Mapping[int, Difference | None] = field(default_factory=dict)
    hurt: Mapping[str, tuple[float, float | None]] = field(default_factory=dict)
    beats: tuple[int, int] | None = None

    @property
    def star(self) -> str:
        """A star if the difference is none of chance."""
        return "*" if self.p_value < LEVEL and self.difference else ""


def entries(lines: Sequence[Json], costs: Mapping[str, float]) -> dict[str, dict[str, Entry]]:
    """By set and row."""
    found: dict[str, dict[str, Entry]] = {}
    pairs = dict.fromkeys((line["place"], line["method"]) for line in lines)
    for place, method in pairs:
        own = [one for one in lines if (one["place"], one["method"]) == (place, method)]
        trials = sorted((one for one in own if one["seed"] is None), key=lambda o: o["trial"])
        best = chosen(trials, method)
        there = {row for one in trials for row in one["rows"]}
        for row in (row for row in rows_of(method) if row in there or not there):
            tested = [one for one in own if one["seed"] is not None]
            some = [one for one in tested if one["trial"] == best.get(row)]
            results = {str(one["seed"]): one["rows"][row] for one in some if row in one["rows"]}
            why = next((one["failed"] for one in [*some, *trials] if one["failed"]), "")
            spent = [costs[c] for one in some if (c := name_of(one)) in costs]
            found.setdefault(place, {})[row] = Entry(
                row, place, results, best.get(row, 0),
                keys=changed(trials, best.get(row, 0)),
                trials=[t["rows"][row]["mean"] if row in t["rows"] else None for t in trials],
                cpu=float(np.mean(spent)) if spent else None,
                failed="" if results and len(results) == len(some) else why or NOT_DONE,
            )  # fmt: skip
    return found


def changed(trials: Sequence[Json], number: int) -> Json:
    """The keys of a trial that are not those of the defaults."""
    of = {line["trial"]: line["config"] for line in trials}
    first, own = of.get(0, {}), of.get(number, {})
    return {key: value for key, value in own.items() if first.get(key) != value}


def beside(group: Mapping[str, Entry]) -> list[Beside]:
    """The rows of a set beside the references, the best first, those without result last."""
    there = {name: one for name, one in group.items() if one.results}
    reference, found = there.get(TOGETHER_ROW), {}
    for name, one in there.items():
        difference, new = None, {}
        if reference and name != TOGETHER_ROW:
            difference = one.study.minus(reference.study)
            new = {n: one.of_new(n).minus(reference.of_new(n)) for n in NEW_SAMPLES}
        hurt = {
            kind: worse
            for kind, other in (("alone", ALONE_ROW), ("together", TOGETHER_ROW))
            if other in there and other != name and (worse := shares(one, there[other]))
        }
        constant = there.get(CONSTANT_ROW)
        beats = better(one, constant) if constant and name != CONSTANT_ROW else None
        found[name] = Beside(one, difference, 1.0, new, hurt, beats)
    tested = [name for name, one in found.items() if one.difference]
    values = holm([over_seeds(apart(there[name], reference)) for name in tested if reference])
    stars = dict(zip(tested, values, strict=True))
    rows = [replace(one, p_value=stars.get(name, 1.0)) for name, one in found.items()]
    rows.sort(key=lambda one: (math.isnan(one.entry.merit), -one.entry.merit))
    return rows + [Beside(one) for one in group.values() if not one.results]


def apart(one: Entry, other: Entry) -> list[float]:
    """The differences of the seeds that both have, each over the users that both have."""
    return [float(np.mean(mine - theirs)) for mine, theirs in paired(one, other)]


def paired(one: Entry, other: Entry) -> Iterator[tuple[Floats, Floats]]:
    """The values of both, of each seed and user that both have."""
    for seed in one.results.keys() & other.results.keys():
        mine, theirs = (e.results[seed]["per_user"] for e in (one, other))
        users = [user for user in mine if user in theirs]
        yield np.array([mine[u] for u in users]), np.array([theirs[u] for u in users])


def shares(one: Entry, other: Entry) -> tuple[float, float | None] | None:
    """The shares of users worse off than in another row: all, and beyond noise; over seeds."""
    seeds = sorted(one.results.keys() & other.results.keys())
    pairs = [[hurt_row(entry.results[seed], entry.row) for entry in (one, other)] for seed in seeds]
    found = [worse for pair in pairs if (worse := compared(*pair))]
    if not found:
        return None
    beyond = [each.share_beyond_noise for each in found]
    sure = None if None in beyond else float(np.mean([b for b in beyond if b is not None]))
    return float(np.mean([each.share for each in found])), sure


def hurt_row(result: Json, name: str) -> Row:
    """A row of a line as users are compared in it."""
    new = frozenset(result.get("untrained") or ())
    return Row(name, measure_of(result), result["per_user"], 0.0, sums_of(result), new)


def better(one: Entry, other: Entry) -> tuple[int, int]:
    """Users who have more of a row than of a constant answer, over all seeds, and their number."""
    merit = one.measure.merit
    won = [merit(mine) > merit(theirs) for mine, theirs in paired(one, other)]
    return sum(int(seed.sum()) for seed in won), sum(map(len, won))


@dataclass(frozen=True)
class Results:
    """All of the bench: the rows of each set, and their ranks over the sets."""

    sets: Mapping[str, Sequence[Beside]]
    lines: Sequence[Json]

    @classmethod
    def of(cls, lines: Sequence[Json], costs: Mapping[str, float]) -> Results:
        """Those of the lines of a bench."""
        return cls({name: beside(own) for name, own in entries(lines, costs).items()}, lines)

    @cached_property
    def ranks(self) -> Ranks:
        """Of the rows that have a result on every set."""
        merits = {
            name: {one.entry.row: one.entry.merit for one in group if one.entry.results}
            for name, group in self.sets.items()
        }
        return ranks({name: own for name, own in merits.items() if own})

    def notes(self) -> list[str]:
        """Lines under the tables."""
        found = [
            "Keys are chosen by validation data at the last round, in trials of seed 0; tests are "
            "of the last round. * differs from FedAvg+FT over seeds (Holm over the set's rows, "
            f"{LEVEL:g}). Hurt: users worse off than in that row, and by more than noise. "
            "Others' data: users' models on test samples of the other users. New users learn their "
            "part for 10 epochs, or compute a closed head. Default→tuned: on validation data."
        ]
        gone: dict[tuple[str, str], list[str]] = {}
        for one in (one.entry for group in self.sets.values() for one in group):
            if one.failed not in ("", NOT_DONE):
                some = f" ({len(one.results)} seeds have one)" if one.results else ""
                gone.setdefault((one.row, one.failed), []).append(one.place + some)
        found += [f"{row}@{', '.join(at)} has no result: {why}" for (row, why), at in gone.items()]
        for name, group in self.sets.items():
            left = [one.entry.row for one in group if one.entry.failed == NOT_DONE]
            some = ", ".join(left) if len(left) <= MOST_ROWS_NAMED else f"{len(left)} rows"
            found += [f"Not done yet on {name}: {some}."] * bool(left)
        own = self.ranks
        if own.p_value is not None and own.critical is not None:
            found.append(
                f"{len(own.rows)} rows on {len(own.sets)} sets: Friedman p = {own.p_value:.2g}; "
                f"mean ranks that are less than {own.critical:.2f} apart do not differ (Nemenyi)."
            )
        return found
