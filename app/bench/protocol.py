"""Protocol of the bench: eight trials a row on validation data, then five seeds on test data.

A trial is judged on samples of training that are kept out (`validation`), at the last round; test
samples are given to nobody then. What comes out best is trained on all that is no test, five times,
and tested once, at the last round.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from corsage.app.bench.sets import CONSTANT_ROW, OWN_KEYS, WITHOUT_RATE, rows_of
from corsage.core.configuration.config import Config
from corsage.core.keys import declared, names
from corsage.core.measures import measure_of
from corsage.core.registry import algorithm_keys, keys_class
from corsage.core.seeding import generator

Json = dict[str, Any]
Line = Mapping[str, Any]
RATES = (0.003, 0.3)
"""Between which learning rates trials are drawn, on a log scale."""
MOST_OWN = 2
"""Keys of its own that a method may tune."""
VALIDATION = 0.2
PLACE_KEYS = ("data-dir", "data-file", "cache-dir", "run-dir", "study-workers", "resume",
              "from-round")  # fmt: skip
"""Keys that say where something lies, and not what is run."""
ADAPTED = {"adapt-samples": "5,20,0", "adapt-epochs": "10", "keep-models": "all"}
"""What is tested: new users after so many samples, and all; models are judged on others' data."""
ONCE = {"adapt-samples": "0", "adapt-epochs": "1"}
"""New users while methods are tuned: nobody looks at them."""


@dataclass(frozen=True)
class Protocol:
    """The numbers of trials and of seeds."""

    trials: int = 8
    seeds: int = 5

    def trials_of(self, method: str) -> int:
        """The number of a method's trials: one if it has nothing to tune."""
        return 1 if method in WITHOUT_RATE else self.trials


@dataclass(frozen=True)
class Work:
    """One run of the bench.

    Parameters
    ----------
    place, method : of which set, and which method.
    trial : by which trial's keys.
    seed : of the test; None of a trial.
    keys : all that are not by themselves.
    """

    place: str
    method: str
    trial: int
    seed: int | None
    keys: Mapping[str, Any]

    @property
    def name(self) -> str:
        """Its cell: `fedrep@moons:t3`, `fedrep@moons:t3:s0`."""
        return cell(self.method, self.place, self.trial, self.seed)


def cell(method: str, place: str, trial: int, seed: int | None) -> str:
    """The name of a run."""
    end = "" if seed is None else f":s{seed}"
    return f"{method}@{place}:t{trial}{end}"


def name_of(line: Line) -> str:
    """The cell of a line."""
    return cell(line["method"], line["place"], line["trial"], line["seed"])


def drawn(method: str, trial: int) -> Json:
    """The keys of a trial; the defaults are trial 0."""
    if not trial or method in WITHOUT_RATE:
        return {}
    found: Json = {"lr": between(generator(0, "bench", method, trial, "lr"), *RATES)}
    for name, _, entry in tuned(method):
        low, high = entry.metadata["tuned"]
        value = between(generator(0, "bench", method, trial, name), low, high)
        found[name] = round(value) if isinstance(entry.default, int) else value
    return found


def tuned(method: str) -> list[tuple[str, Any, Any]]:
    """The keys of its own that a method tunes."""
    own = [one for one in declared(keys_class(method)) if one[2].metadata["tuned"]]
    return own[:MOST_OWN]


def between(rng: np.random.Generator, low: float, high: float) -> float:
    """A number between two, of three digits: uniform in its logarithm, or, from 0 on, in itself."""
    share = float(rng.uniform())
    value = math.exp(math.log(low) + share * math.log(high / low)) if low > 0 else share * high
    return float(f"{value:.3g}")


def trial(place: str, keys: Mapping[str, Any], method: str, number: int) -> Work:
    """A trial: of seed 0, judged on validation data."""
    own = {**keys, **OWN_KEYS.get(method, {}), **drawn(method, number), **ONCE}
    return Work(place, method, number, None, {**own, "seed": 0, "validation": VALIDATION})


def finals(
    place: str, keys: Mapping[str, Any], method: str, numbers: Sequence[int], seeds: int
) -> list[Work]:
    """The seeds of the trials that were best in a row of the method."""
    own = {**keys, **OWN_KEYS.get(method, {}), **ADAPTED}
    return [
        Work(place, method, number, seed, {**own, **drawn(method, number), "seed": seed})
        for seed in range(seeds)
        for number in dict.fromkeys(numbers)
    ]


def best(lines: Sequence[Line], row: str) -> int | None:
    """The trial of a row that did best at the last round; of equals the first. None: all failed."""
    found = []
    for line in lines:
        result = line["rows"].get(row)
        if result is None:
            continue
        merit = float(measure_of(result).merit([result["mean"]])[0])
        if math.isfinite(merit):
            found.append((-merit, int(line["trial"])))
    return min(found)[1] if found else None


def chosen(lines: Sequence[Line], method: str) -> dict[str, int]:
    """The best trial of each row of a method that has any."""
    found = {row: best(lines, row) for row in rows_of(method)}
    return {row: number for row, number in found.items() if number is not None}


def config_of(keys: Mapping[str, Any], method: str) -> Config:
    """All keys of a run."""
    return Config.parse({**keys, "strategy": "local" if method == CONSTANT_ROW else method})


def described(config: Config) -> Json:
    """The keys of a run as its line has them: not of where something lies, nor other methods'."""
    every = {name for keys in algorithm_keys().values() for name in names(keys)}
    own = {name for method in config.run.strategy for name in names(keys_class(method))}
    gone = {*PLACE_KEYS, *every} - own
    return {key: value for key, value in config.flat().items() if key not in gone}


def digest(content: Any) -> str:
    """A hash of what JSON can hold."""
    text = json.dumps(content, sort_keys=True)
    return hashlib.blake2b(text.encode(), digest_size=8).hexdigest()
