"""Robust averages under attack: what they save, what they cost without one, and in seconds.

A fifth of the users, drawn by seed, send what they were sent minus ten times their update, in every
round in which all users take part. Five classes a user, so that users differ; all are asked at the
end for the accuracy of the model that each would use, the mean of the last ten rounds counts. What
is lost is counted from the run with a plain mean and without an attack. Rules are told the share,
`robust-share=0.2`.

Then CPU seconds of a round of FedAvg with PFLlib's CNN of 582,026 parameters and 100 users of 600
images, twelve steps each, by turns with the same round under a plain mean.

    python -m corsage.benchmarks robust
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from statistics import mean, median
from typing import Any

from corsage.app.client_app import app
from corsage.app.local_grid import LocalGrid
from corsage.app.simulation import simulate
from corsage.benchmarks.attack import attacked, drawn
from corsage.benchmarks.measure import Measure
from corsage.benchmarks.pfllib import CNN, PROBLEM
from corsage.benchmarks.turns import Enough, Turns, one_thread, unevaluated
from corsage.core.errors import CorsageError
from corsage.experiments.runner import say
from corsage.strategies import strategy_class
from corsage.strategies.rounds.agreed import check_data
from corsage.strategies.rounds.loop import one_round
from corsage.strategies.rounds.turns import played

BAD, FACTOR, SEEDS, POINTS, RATIO, TURNS = 0.2, -10.0, (0, 1), 3.0, 1.5, 3
SHARE: dict[str, Any] = {"robust_share": BAD}
RULES: dict[str, dict[str, Any]] = {
    "none": {},
    "clip": {"robust": "clip"},
    "median": {"robust": "median"},
    "trimmed-mean": {"robust": "trimmed-mean", **SHARE},
    "krum": {"robust": "krum", **SHARE},
}
COMMON: dict[str, Any] = {
    "num_users": 50,
    "fraction_train": 1.0,
    "classes_per_user": 5,
    "evaluate_every": 1000,  # the last ten rounds are evaluated anyway
    "fine_tune_epochs": 0,
}
PROBLEMS: dict[str, dict[str, Any]] = {
    "digits": {**COMMON, "dataset": "digits", "num_rounds": 100},
    "fashion-mnist": {
        **COMMON,
        "dataset": "fashion-mnist",
        "num_rounds": 60,
        "test_fraction": 2 / 7,
        "max_train_samples": 50,
    },
}


def accuracy(strategy: str, keys: dict[str, Any], seed: int, attack: bool) -> float:
    """Accuracy in % of all users; 0 if the run did not come to its end."""
    users = [str(user) for user in range(keys["num_users"])]
    bad = drawn(users, BAD, seed) if attack else set[str]()
    with attacked(bad, FACTOR), suppress(CorsageError):
        found = simulate(strategy, progress=False, seed=seed, **keys)
        return 100 * found[strategy].last10
    return 0.0


def saved(problem: str, strategy: str, seeds: Sequence[int]) -> Iterator[Measure]:
    """Each rule's loss of accuracy under the attack, beside what it costs without one."""
    keys, clean = PROBLEMS[problem], 0.0
    for rule, own in RULES.items():
        quiet, loud = (
            [accuracy(strategy, {**keys, **own}, seed, attack) for seed in seeds]
            for attack in (False, True)
        )
        clean = clean or mean(quiet)
        words = f"without an attack {mean(quiet):.1f} %, under it {mean(loud):.1f} %"
        words += f" ({min(loud):.1f} to {max(loud):.1f})"
        title = f"{problem}, {strategy}, {rule}"
        yield Measure(title, clean - mean(loud), POINTS, "points lost", words)


def seconds(rule: dict[str, Any]) -> Measure:
    """A round under a rule by turns with a round under a plain mean."""
    flat = {name.replace("_", "-"): value for name, value in rule.items()}
    keys = {**PROBLEM, **CNN, "strategy": "fedavg", "fraction-train": 1.0}
    plain = strategy_class("fedavg")(unevaluated(keys))
    grid = LocalGrid(app, 1)
    plain.begin(grid)
    check_data(plain.job)

    def bare() -> None:
        played(one_round(plain), plain.members.exchange)

    turns = Turns(TURNS, bare)
    with one_thread(), suppress(Enough):
        bare()
        strategy_class("fedavg")(unevaluated({**keys, **flat}), [turns]).start(LocalGrid(app, 1))
    house, beside = turns.seconds
    words = f"CPU s a round: {house:.1f}, with a plain mean {beside:.1f}; the rule alone "
    words += f"{alone(rule):.2f}"
    return Measure(f"a round, {rule['robust']}", turns.ratio, RATIO, "times", words)


def alone(rule: dict[str, Any]) -> float:
    """CPU seconds of the rule itself, on as many rows."""
    import numpy as np

    from corsage.core.configuration.config import Config
    from corsage.strategies.rounds.job import Job
    from corsage.strategies.rounds.means.averaging import Averaging

    config = Config.parse({name.replace("_", "-"): value for name, value in rule.items()})
    averaging = Averaging(Job("fedavg", config, []))
    rows = np.random.default_rng(0).standard_normal((100, 582_026), dtype=np.float32)
    times = []
    for _ in range(3):
        begin = time.process_time()
        averaging.of_rows("model", rows, np.ones(100), np.zeros(582_026, np.float32))
        times.append(time.process_time() - begin)
    return median(times)


def run(
    problems: Sequence[str] = tuple(PROBLEMS),
    strategies: Sequence[str] = ("fedavg", "fedrep"),
    seeds: Sequence[int] = SEEDS,
) -> Iterator[Measure]:
    """All of it."""
    for problem in problems:
        for strategy in strategies:
            yield from saved(problem, strategy, seeds)
    for name, rule in RULES.items():
        if rule:
            say(f"a round of 100 users, robust={name}")
            yield seconds(rule)
