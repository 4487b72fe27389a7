"""Estimate of a bench: what its runs would cost, from a few rounds of each method on each set."""

from __future__ import annotations

import logging
import os
import sys
import time
from collections.abc import Mapping
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from corsage.app.bench.mine import registered
from corsage.app.bench.protocol import Json, Protocol, Work, config_of, finals, trial
from corsage.app.bench.sets import COMMON_KEYS, CONSTANT_ROW, rows_of
from corsage.app.output.summary import human_seconds
from corsage.app.output.usage import in_a_line
from corsage.app.studies.workers import Ended, Job, cores, play
from corsage.core.configuration.config import Config
from corsage.strategies.rounds.results import LAST_ROUNDS

MEASURED_ROUNDS = 4
"""Rounds of the longer of the two runs by which a round's cost is told from a run's."""


def estimate(plan: Json, asked: int) -> None:
    """Measure some rounds of all, and say what the whole would take."""
    protocol, at_once = Protocol(**plan["protocol"]), asked or cores()
    sums = dict.fromkeys(plan["sets"], 0.0)
    runs, begun = dict.fromkeys(plan["sets"], 0), time.monotonic()

    def told(ended: Ended) -> None:
        place, method = ended.job.order[1:]
        first, second, why = ended.answer or (0.0, 0.0, f"{ended.line}; it is not counted")
        if why:
            print(f"{ended.job.name}: {why}", file=sys.stderr)
        number = protocol.trials_of(method)
        most = protocol.seeds * len(rows_of(method))  # if each row has a best trial of its own
        tests = 0 if why else most
        sums[place] += number * first + tests * second
        runs[place] += number + tests

    places = [*plan["sets"]]
    jobs = [
        Job(
            f"{method}@{place}", [arguments(place, method, plan), plan["mine"]], Path(os.devnull),
            "app.bench.estimate", "measured", (places.index(place), place, method),
        )
        for method, place in plan["pairs"]
    ]  # fmt: skip
    print(
        f"Measuring some rounds of {len(jobs)} cell{'s' * (len(jobs) > 1)} ...",
        file=sys.stderr,
        flush=True,
    )
    play(jobs, at_once, told)
    for place in places:
        print(f"{place:<16} {runs[place]:>5} runs  {human_seconds(sums[place]):>8} of CPU")
    cpu = sum(sums.values())
    print(
        f"{sum(runs.values())} runs, {human_seconds(cpu)} of CPU ({cpu / 3600:.2f} core hours); "
        f"{human_seconds(cpu / at_once)} with {at_once} at a time on cores of their own. "
        f"Measured in {human_seconds(time.monotonic() - begun)}."
    )


def arguments(place: str, method: str, plan: Json) -> list[Json]:
    """A trial and a seed, as jobs are told of them."""
    keys = {**COMMON_KEYS, **plan["sets"][place]}
    first, second = trial(place, keys, method, 0), finals(place, keys, method, [0], 1)[0]
    return [asdict(first), asdict(second)]


def measured(works: list[Json], mine: str) -> tuple[float, float, str]:
    """The CPU seconds of a trial and of a seed: a first round, others, and evaluations.

    A method that fails on a set costs what it takes to fail, and has the reason.
    """
    registered(mine)
    logging.getLogger("flwr").setLevel(logging.ERROR)
    first, second = (Work(**one) for one in works)
    begun = time.process_time()
    try:
        if first.method == CONSTANT_ROW:
            return once(first.keys, first.method), once(second.keys, second.method), ""
        single(first, 1)  # what is loaded, prepared and traced once
        start, more, judged = single(first, 1)[0], *single(first, MEASURED_ROUNDS)
        test = single(second, 1)[0]
    except Exception as error:
        return time.process_time() - begun, 0.0, in_a_line(error)
    training = max((more - start) / (MEASURED_ROUNDS - 1) - judged, 0.0)
    rounds = config_of(first.keys, first.method).run.num_rounds
    grown = (1 - 0.2) / (1 - 0.2 - float(first.keys["validation"]))  # rows to train on
    rest = (rounds - 1) * training, (evaluations(rounds, first.keys) - 1) * judged
    return start + sum(rest), test + rest[0] * grown + rest[1], ""


def evaluations(rounds: int, keys: Mapping[str, Any]) -> int:
    """The evaluations of a run: every so many rounds, and after each of the last ones."""
    every = int(keys["evaluate-every"])
    return min(rounds, LAST_ROUNDS) + max(rounds - LAST_ROUNDS, 0) // every


def once(keys: Mapping[str, Any], method: str) -> float:
    """CPU seconds of the constant answer, when the data are prepared."""
    from corsage.app.bench.jobs import constant

    config = config_of(keys, method)
    constant(config)
    begun = time.process_time()
    constant(config)
    return time.process_time() - begun


def single(work: Work, rounds: int) -> tuple[float, float]:
    """CPU seconds of a run of so many rounds, and of one more evaluation."""
    from corsage.app.bench.jobs import configured, on_others, trained
    from corsage.app.client_app import make_client_app
    from corsage.app.simulation import data_again, made, run
    from corsage.app.simulation import rows_of as with_models
    from corsage.strategies.effort import with_budget
    from corsage.strategies.rounds.evaluations import evaluated

    config: Config = configured(work.keys, work.method)
    config = replace(config, run=replace(config.run, num_rounds=rounds))
    (strategy,) = made(with_budget(config))
    begun = time.process_time()
    rows = with_models(strategy, *run(strategy, False, make_client_app(), []))
    for name in {*rows_of(work.method)} & rows.keys() if work.seed is not None else ():
        on_others(rows[name], trained(config, data_again(config)), config.run.seed)
    middle = time.process_time()
    evaluated(strategy, False, None)
    return middle - begun, time.process_time() - middle
