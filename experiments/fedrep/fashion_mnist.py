"""FedRep against FedAvg, FedAvg+FT, FedPer, Ditto and local training on Fashion-MNIST.

Collins et al. 2021, section 5, on a data set that is at hand: 100 users with S=2 or S=5 shards of
one class each, r=0.1, 100 rounds, batches of 10, 10 epochs of the head and one of the body. The
paper has no Fashion-MNIST: the reference was measured outside of this library, under the paper's
protocol. Its bands are for the mean of at least two seeds.

The reference deals the 60,000 training images and tests each user on test images of its classes.
Here the 70,000 images are one pool: 700 a user, of which `test-fraction` 2/7 are its 200 test
images; the other 500 are its training data, or `max-train-samples` 50 of them. So both regimes
have the same users and the same test images.

A local user trains in the rounds in which it would have been drawn, 10 of 100 on average: with one
epoch each that makes the reference's 10 epochs, with five its 50, and with r=0.08 LeNet's 8.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from corsage.core.registry import ALGORITHMS
from corsage.experiments.outcome import Experiment, Figure, Options, Outcome
from corsage.experiments.runner import Results, compact, differences, percents, run, say

PROTOCOL: dict[str, Any] = {
    "dataset": "fashion-mnist",
    "partition": "shards",
    "num_users": 100,
    "test_fraction": 2 / 7,
    "num_rounds": 100,
    "fraction_train": 0.1,
    "batch_size": 10,
    "head_epochs": 10,
    "local_epochs": 1,
    "fine_tune_epochs": 10,
    "evaluate_every": 100,  # the last ten rounds are evaluated anyway
}
WIDE = {"fedavg": 3.0}
BAND = 1.0  # of personal models


@dataclass(frozen=True)
class Case:
    """One column of the reference.

    `local` are the keys of local training, `ahead` the points by which FedRep is safely ahead of
    FedAvg, None if the reference names none.
    """

    model: str
    samples: int
    classes: int
    reference: dict[str, float]
    local: dict[str, Any]
    ahead: float | None = None

    @property
    def title(self) -> str:
        """The case in words."""
        return f"{self.model}, {self.samples} a user, S={self.classes}"


def scores(*column: float) -> dict[str, float]:
    """One column of the reference by the names of the results; Ditto is not in all of them."""
    return dict(
        zip(("fedrep", "fedavg", "fedavg+ft", "local", "fedper", "ditto"), column, strict=False)
    )


CASES = [
    Case("mlp", 500, 2, scores(96.8, 79.0, 97.2, 96.9, 97.0, 96.5), {}, ahead=14),
    Case("mlp", 500, 5, scores(92.2, 82.4, 93.4, 90.9, 92.7, 92.3), {}, ahead=7),
    Case("mlp", 50, 2, scores(95.5, 74.6, 95.8, 95.4, 94.6, 94.8), {"local_epochs": 5}),
    Case("mlp", 50, 5, scores(87.3, 77.8, 89.9, 85.7, 87.7, 86.1), {"local_epochs": 5}),
    Case("lenet", 500, 2, scores(97.0, 72.1, 96.4, 94.3, 95.2), {"fraction_train": 0.08}, ahead=14),
    Case("lenet", 500, 5, scores(93.0, 78.4, 92.8, 83.8, 91.1), {"fraction_train": 0.08}, ahead=7),
]


def measure(options: Options) -> Outcome:
    """Run all cases that were asked for."""
    model = options.choices["model"]
    cases = [case for case in CASES if case.model == model]
    if options.quick:
        cases = [case for case in cases if case.samples == min(c.samples for c in cases)]
    seeds = options.seeds or ((0,) if options.quick or model == "lenet" else (0, 1, 2))
    outcome = Outcome("Fashion-MNIST, 100 users, accuracy %", unit="points")
    for number, case in enumerate(cases, 1):
        say(f"[{number}/{len(cases)}] {case.title}, seeds {', '.join(map(str, seeds))}")
        results = run_case(case, seeds, {**options.keys})
        outcome.figures += figures(case, results)
        outcome.results += compact(results, case.title)
    if len(seeds) < 2:
        outcome.notes.append("One seed only: the bands are for the mean of at least two.")
    outcome.notes.append("Rounds 91-100 on average; fedavg+ft: once, after round 100.")
    return outcome


def run_case(case: Case, seeds: tuple[int, ...], changed: dict[str, Any]) -> Results:
    """All strategies of one case; local training has its own amount of work."""
    keys = {
        **PROTOCOL,
        "model": case.model,
        "classes_per_user": case.classes,
        "max_train_samples": case.samples,
    }
    shared = [name for name in case.reference if name in ALGORITHMS and name != "local"]
    found = run(shared, seeds, **{**keys, **changed})
    return {**found, **run(["local"], seeds, **{**keys, **case.local, **changed})}


def figures(case: Case, results: Results) -> list[Figure]:
    """Each strategy's accuracy, and FedRep's lead over FedAvg, paired by seed."""
    found = [
        Figure.around(case.title, name, percents(results, name), reference, WIDE.get(name, BAND))
        for name, reference in case.reference.items()
        if name in results
    ]
    lead = case.reference["fedrep"] - case.reference["fedavg"]
    pairs = differences(results, "fedrep", "fedavg")
    least = -math.inf if case.ahead is None else case.ahead
    return [*found, Figure(case.title, "fedrep - fedavg", pairs, lead, low=least)]


EXPERIMENT = Experiment(
    what="FedRep, FedAvg, +FT, FedPer, Ditto and local training, 100 users, S=2 and 5",
    takes="8 min; --quick 40 s; --model lenet 5 min",
    measure=measure,
    choices={"model": ("mlp", "lenet")},
)
