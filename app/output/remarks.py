"""What a run's numbers do not say of themselves: inputs of a wild scale, models no better than a
guess.

Nothing is asked for it: what a simulation deals is at hand, and of devices only the results are.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from corsage.core.measures import ACCURACY, MEASURES
from corsage.core.registry import ALGORITHMS, source
from corsage.datasets.columns.prepared import prepared
from corsage.datasets.dealing.federated import FederatedData, simulated
from corsage.strategies.rounds.base import Strategy
from corsage.strategies.rounds.callbacks import Callback
from corsage.strategies.rounds.results import Summary

WILD = 100.0
"""Inputs whose root mean square is beyond this; SGD at the usual step sizes wants about 1."""
LOOKED_AT = 10_000
"""Samples that are looked at, evenly out of all."""
SIMULATED = {"LocalGrid", "InMemoryGrid"}
"""Grids of simulations, ours and Flower's, by name: its module is no part of its public API."""
SOLVED = ("known_clusters", "convex_clustering")
"""Families that do not train a convex loss by SGD: they take any scale."""
WORSE = 1.1
"""A last error so many times the first is one that has risen."""


class Remarks(Callback):
    """Says at the start what the inputs want, and at the end whether the models learnt anything."""

    def on_start(self, strategy: Strategy[Any, Any]) -> None:
        """A line on inputs that SGD will not like."""
        data = dealt(strategy) if by_sgd(strategy) else None
        if data is not None and (said := wild(data)):
            strategy.federation.note(said)

    def on_end(self, strategy: Strategy[Any, Any], results: Sequence[Summary]) -> None:
        """A line on models that are of no use."""
        data, classes = dealt(strategy), strategy.federation.roster.num_classes
        if results and (said := risen(results[0]) or useless(results[0], data, classes)):
            advice = "; more rounds, a smaller lr, or inputs scaled to about 1 may help"
            strategy.federation.note(said + advice * by_sgd(strategy))


def dealt(strategy: Strategy[Any, Any]) -> FederatedData | None:
    """What a simulation deals to its users; None where devices have data of their own."""
    if not SIMULATED & {cls.__name__ for cls in type(strategy.federation.grid).__mro__}:
        return None
    config, agreed = strategy.config, strategy.federation.roster.preparation
    found = simulated(config.data, config.federation.num_users, config.run.seed)
    return found if agreed is None or found.facts is None else prepared(found, agreed)


def by_sgd(strategy: Strategy[Any, Any]) -> bool:
    """Whether models are trained by steps of `lr`."""
    return not (ALGORITHMS[source(strategy.name)].family in SOLVED and strategy.federation.convex)


def wild(data: FederatedData) -> str:
    """What is to be said of inputs that are far from 1; nothing if they are not."""
    rows = data.x[:: max(1, len(data.x) // LOOKED_AT)]
    if not rows.size or data.vectors is not None:
        return ""
    inputs = (rows.reshape(len(rows), -1).astype(np.float64) - data.shift) * data.scale
    sizes = np.sqrt(np.square(inputs).mean(axis=0))
    worst = int(sizes.argmax())
    if sizes[worst] <= WILD:
        return ""
    return (
        f"input {worst + 1} of {len(sizes)} is about {sizes[worst]:.2g} in size, and SGD wants "
        "about 1: scale it, or set a far smaller lr"
    )


def risen(result: Summary) -> str:
    """What is to be said of an error that rose over the run."""
    measure = MEASURES[result.measure]
    if measure is ACCURACY or len(result.curve) < 2:
        return ""
    (early, first), (late, last) = result.curve[0], result.curve[-1]
    if last <= WORSE * first:
        return ""
    return (
        f"{measure.word} rose from {measure.text(first)} at round {early} to {measure.text(last)} "
        f"at {late}"
    )


def useless(result: Summary, data: FederatedData | None, classes: int) -> str:
    """What is to be said of models that are worse than always giving the same answer.

    Where only devices have data, that is to guess blindly among the classes.
    """
    measure = MEASURES[result.measure]
    if data is None and measure is not ACCURACY:
        return ""
    answer, score = guess(data, result) if data else ("by chance", 1 / max(classes, 1))
    if measure.merit(result.score.mean) >= measure.merit(score):
        return ""
    mean, other = (f"{measure.text(value)}{measure.unit}" for value in (result.score.mean, score))
    return f"{measure.word} {mean} is worse than the {other} of answering {answer}"


def guess(data: FederatedData, result: Summary) -> tuple[str, float]:
    """The answer that is best for all training samples, and the mean over users of its measure."""
    bounds = [data.bounds[data.index[user]].tolist() for user in result.per_user]
    known = np.concatenate([data.y[begin:middle] for begin, middle, _ in bounds])
    tests = [data.y[middle:end] for _, middle, end in bounds]
    if data.num_classes:
        usual = int(np.bincount(known).argmax())
        return f"always {usual}", float(np.mean([(y == usual).mean() for y in tests]))
    mean = float(known.mean())
    errors = [np.sqrt(np.square(y - mean).mean()) for y in tests]
    return f"always {mean:.4g}, the mean", float(np.mean(errors))
