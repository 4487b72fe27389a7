"""The rows of a study: one strategy under one setting, over the seeds."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from corsage.app.output.summary import Result
from corsage.core.arrays import Floats
from corsage.core.configuration.config import Config
from corsage.core.configuration.known_keys import idle_keys
from corsage.core.keys import Value, flatten
from corsage.core.measures import Measure, measure_of
from corsage.core.registry import ALGORITHMS

Settings = Mapping[str, str]
Json = dict[str, Any]
NEW_USERS = "+new"
"""Ends the names of rows that are of other users than all others."""
INTERVAL_LEVEL = 0.95
INPUTS = ("feature-columns", "drop-columns", "category-columns", "scale", "missing")
"""Keys that say what models see of the same records of the same users."""


@dataclass(frozen=True)
class Done:
    """A run that is finished, as far as it could be.

    Parameters
    ----------
    name, folder : its own.
    settings : the keys in which it differs from others, without the seed.
    seed : as a word.
    config : all its keys.
    results, failed : its rows, and why strategies have none.
    """

    name: str
    folder: Path
    settings: Settings
    seed: str
    config: Config
    results: Sequence[Result] = ()
    failed: Mapping[str, str] = field(default_factory=dict)

    def settings_of(self, row: str) -> Settings:
        """Those that the strategy of a row reads."""
        name = row.partition("+")[0]
        others = idle_keys([name]) if name in ALGORITHMS else ()
        return {key: value for key, value in self.settings.items() if key not in others}

    @cached_property
    def data(self) -> dict[str, Value]:
        """The keys that say who its users are and which records they have."""
        config = self.config
        keys = flatten(config.data) | {"partition": config.data.dealing} | flatten(config.new)
        for name in ("cache-dir", *INPUTS):
            keys.pop(name, None)
        return {**keys, "num-users": config.federation.num_users}


@dataclass(frozen=True)
class StudyRow:
    """One strategy under one setting.

    Parameters
    ----------
    strategy : as a run's table names it (`fedavg+ft`).
    settings : the varied keys but the seed.
    by_seed : its result under each seed.
    users : what says who its users are: rows are compared on the same ones.
    """

    strategy: str
    settings: Settings
    by_seed: Mapping[str, Result]
    users: str

    @property
    def label(self) -> str:
        """`fedrep lr=0.1`."""
        return " ".join([self.strategy, *(f"{key}={v}" for key, v in self.settings.items())])

    @property
    def seeds(self) -> list[str]:
        """Those that it has a result of."""
        return list(self.by_seed)

    @property
    def measure(self) -> Measure:
        """The measure that its users are judged by."""
        return measure_of(next(iter(self.by_seed.values())))

    @property
    def means(self) -> list[float]:
        """The mean over users, one a seed."""
        return [float(found[self.measure.name]["mean"]) for found in self.by_seed.values()]

    @property
    def mean(self) -> float:
        """Over the seeds."""
        return float(np.mean(self.means))

    @property
    def sd(self) -> float | None:
        """The standard deviation over seeds, n - 1; None of one."""
        return float(np.std(self.means, ddof=1)) if len(self.means) > 1 else None

    @property
    def over_users(self) -> float:
        """The standard deviation over users, its mean over the seeds."""
        return float(np.mean([f[self.measure.name]["std"] for f in self.by_seed.values()]))

    def average(self, name: str) -> float | None:
        """The mean over the seeds of a number that a result has; None if one has it not."""
        values = [found.get(name) for found in self.by_seed.values()]
        numbers = [float(value) for value in values if value is not None]
        return float(np.mean(numbers)) if len(numbers) == len(values) else None

    def minus(self, other: StudyRow) -> Difference | None:
        """The difference to another row, on the seeds and users that both have."""
        pairs = []
        for seed, found in self.by_seed.items():
            if seed in other.by_seed:
                mine, theirs = found["per_user"], other.by_seed[seed]["per_user"]
                users = [user for user in mine if user in theirs]
                if users:
                    pairs.append(np.array([mine[u] - theirs[u] for u in users], np.float64))
        return difference(pairs)


@dataclass(frozen=True)
class Compared:
    """A row beside the best one of its group; the best one has no difference."""

    row: StudyRow
    best: StudyRow
    difference: Difference | None
    only_best: bool  # and every other row of its group is told apart from it

    def json(self) -> Json:
        """As the study's file has it."""
        row, measure = self.row, self.row.measure
        found: Json = {
            "strategy": row.strategy,
            "settings": dict(row.settings),
            "measure": measure.name,
            "seeds": row.seeds,
            "means": row.means,
            "mean": row.mean,
            "sd_over_seeds": row.sd,
            "std_over_users": row.over_users,
            "best": self.only_best,
        }
        if self.difference:
            found["to_best"] = {"best": self.best.label, **self.difference.json()}
        return found


def rows_of(runs: Iterable[Done]) -> list[StudyRow]:
    """The rows, in the order in which the first run of each has them."""
    found: dict[tuple[str, str], tuple[Settings, str, dict[str, Result]]] = {}
    for run in runs:
        for result in run.results:
            name = str(result["strategy"])
            users = json.dumps([run.data, name.endswith(NEW_USERS)], sort_keys=True)
            settings = run.settings_of(name)
            seeds = found.setdefault((json.dumps(settings), name), (settings, users, {}))[2]
            seeds.setdefault(run.seed, result)
    return [StudyRow(name, s, seeds, users) for (_, name), (s, users, seeds) in found.items()]


def compared(rows: Sequence[StudyRow]) -> list[Compared]:
    """Each row beside the best of those on the same users, group by group."""
    groups: dict[str, list[StudyRow]] = {}
    for row in rows:
        groups.setdefault(row.users, []).append(row)
    return [one for group in groups.values() for one in beside_the_best(group)]


def beside_the_best(group: Sequence[StudyRow]) -> list[Compared]:
    """A group's rows; the best is only so called if no other can be as good."""
    merits = group[0].measure.merit([row.mean for row in group])
    best = group[int(np.argmax(merits))]
    others = {id(row): row.minus(best) for row in group if row is not best}
    alone = bool(others) and all(d is not None and d.sure for d in others.values())
    return [Compared(r, best, others.get(id(r)), alone and r is best) for r in group]


@dataclass(frozen=True)
class Interval:
    """From where to where."""

    low: float
    high: float

    @property
    def excludes_zero(self) -> bool:
        """True if no difference at all is outside of it."""
        return self.low > 0 or self.high < 0


@dataclass(frozen=True)
class Difference:
    """How far one row is above another one.

    Parameters
    ----------
    mean : over the seeds, of the means over users.
    over_seeds : Student's t interval of the seeds' differences; None of fewer than two seeds.
    over_users : t interval over the users, paired, within each seed; None of fewer than two users.
    """

    mean: float
    over_seeds: Interval | None
    over_users: Interval | None

    @property
    def deciding(self) -> Interval | None:
        """The interval that decides: over the seeds, or with one seed over the users."""
        return self.over_seeds or self.over_users

    @property
    def sure(self) -> bool:
        """True if the rows are told apart."""
        return self.deciding is not None and self.deciding.excludes_zero

    def json(self) -> dict[str, Any]:
        """As the study's file has it."""
        return asdict(self)


def difference(pairs: Sequence[Floats]) -> Difference | None:
    """That of two rows, of the users' differences in each seed; None if they share no seed."""
    means = np.array([each.mean() for each in pairs])
    if not len(means):
        return None
    return Difference(float(means.mean()), over_seeds(means), over_users(pairs))


def over_seeds(means: Floats) -> Interval | None:
    """The t interval of the mean of the seeds' differences, n - 1 degrees of freedom."""
    if len(means) < 2:
        return None
    error = float(means.std(ddof=1)) / math.sqrt(len(means))
    return around(float(means.mean()), error, len(means) - 1)


def over_users(pairs: Sequence[Floats]) -> Interval | None:
    """The interval of the mean over seeds, seeds as they are and users as a sample.

    The variance of the mean is that of the seeds' means over users, added up; the degrees of
    freedom are the users less one, summed over the seeds.
    """
    if any(len(each) < 2 for each in pairs):
        return None
    variance = sum(float(each.var(ddof=1)) / len(each) for each in pairs) / len(pairs) ** 2
    mean = float(np.mean([each.mean() for each in pairs]))
    return around(mean, math.sqrt(variance), sum(len(each) - 1 for each in pairs))


def around(mean: float, error: float, freedom: int) -> Interval:
    """Student's interval."""
    from scipy.stats import t  # slow to import

    width = float(t.ppf(0.5 + INTERVAL_LEVEL / 2, freedom)) * error
    return Interval(mean - width, mean + width)
