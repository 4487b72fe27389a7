"""Remarks on what numbers do not say of themselves: inputs of a wild scale, models no better than a
guess.

Inputs are looked at where they are at hand, in a simulation. What a guess scores is in the results:
each user says what its own training labels would give.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from corsage.app.output.notes import useless
from corsage.core.arrays import along_channels
from corsage.core.configuration.config import Config
from corsage.core.configuration.data_keys import UNSCALED, DataKeys
from corsage.core.configuration.known_keys import defaults, keys_of_algorithms
from corsage.core.measures import MEASURES
from corsage.core.registry import ALGORITHMS, attached, source
from corsage.datasets.dealing.dealt import two_meanings
from corsage.datasets.dealing.federated import simulated
from corsage.datasets.user_data import FederatedData
from corsage.strategies.rounds.base import Strategy
from corsage.strategies.rounds.callbacks import Callback
from corsage.strategies.rounds.results import Summary

WILD = 100.0
"""Inputs whose root mean square is beyond this; SGD at the usual step sizes wants about 1."""
REMARK_SAMPLES = 10_000
"""Samples that are looked at, evenly out of all."""
SOLVED = ("known_clusters", "convex_clustering")
"""Families that do not train a convex loss by SGD: they take any scale."""
UNTRAINED = "; more rounds, a smaller lr, or inputs scaled to about 1 may help"
SCALED_UNTRAINED = "; more rounds or another lr may help"
OVERTRAINED = "; fewer rounds, a smaller lr or a larger weight-decay may help"
"""Advice to who trains by SGD."""
WORSE = 1.1
"""A last error so many times the first is one that has risen, and scores fall as far."""


class Remarks(Callback):
    """Says at the start which keys nobody reads, what was noticed in the data and what the inputs
    want, and at the end whether the models learnt anything.

    Parameters
    ----------
    strategies : of the run, by name, for its first one, which alone says what is so of all.
    """

    reports = True

    def __init__(self, strategies: Sequence[str] = ()) -> None:
        self.strategies = strategies

    def on_start(self, strategy: Strategy[Any, Any]) -> None:
        """A line on each thing that was noticed, and on inputs that SGD will not like."""
        for note in idle(strategy.config, self.strategies) if self.strategies else ():
            strategy.job.note.warn(note)
        data = dealt(strategy)
        if data is None:
            return
        keys = strategy.config.data
        for note in (*two_meanings(keys), *judged_by(keys), *data.notes) if self.strategies else ():
            strategy.job.note(note)
        inputs = None if named(strategy) else as_inputs(data, strategy)
        if by_sgd(strategy) and (said := stands_still(strategy) or (inputs and wild(inputs))):
            strategy.job.note.warn(said)

    def on_end(self, strategy: Strategy[Any, Any], results: Sequence[Summary]) -> None:
        """A line on each row whose models are of no use."""
        for said in verdicts(strategy, results):
            strategy.job.note.warn(said)


def judged_by(keys: DataKeys) -> list[str]:
    """A line on a table that is of no test samples."""
    if not keys.validation:
        return []
    return [f"judged by validation samples (validation={keys.validation:g}): nobody gets the test"]


def verdicts(strategy: Strategy[Any, Any], results: Sequence[Summary]) -> Iterator[str]:
    """Lines on rows that got worse, or whose models are no better than a guess; of a fit to all
    samples, which judges by the same, there is none."""
    if not strategy.config.data.test_fraction:
        return
    worse = worsened(results[0]) if results else ""
    if worse:
        yield worse + OVERTRAINED * by_sgd(strategy)
    for result in results[bool(worse) :]:
        if said := useless(result.json()):
            row = f"{result.strategy}: " if result is not results[0] else ""
            yield f"{row}{said[0]} is no better than the {said[1]}{untrained(strategy)}"


def untrained(strategy: Strategy[Any, Any]) -> str:
    """Advice on models that are no better than a guess; a standardised table is scaled already."""
    if not by_sgd(strategy) or stands_still(strategy):
        return ""
    agreed = strategy.job.agreed.preparation
    return SCALED_UNTRAINED if agreed and agreed.scaling != UNSCALED else UNTRAINED


def idle(config: Config, strategies: Sequence[str]) -> list[str]:
    """A line on each key that is set and belongs to none of the strategies that run.

    It is no mistake: another strategy is another word, and what is set for it may stay.
    """
    running = {source(name) for name in strategies if name in ALGORITHMS}
    values, usual = config.flat(), defaults()
    return [
        f"{key}={values[key]}: nobody reads it in this run; it is for {', '.join(owners)}"
        for key, owners in keys_of_algorithms().items()
        if not running & {*owners} and values[key] != usual[key]
    ]


def dealt(strategy: Strategy[Any, Any]) -> FederatedData | None:
    """The data that a simulation deals to its users; None where devices have their own."""
    if not strategy.members.at_home:
        return None
    config = strategy.config
    return simulated(config.data, config.federation.num_users, config.run.seed)


def as_inputs(data: FederatedData, strategy: Strategy[Any, Any]) -> FederatedData:
    """The data as the models get them, once the federation has agreed on its columns."""
    agreed = strategy.job.agreed.preparation
    if agreed is None or data.facts is None:
        return data
    ready: FederatedData = attached("prepared tables").prepared(data, agreed)
    return ready


def named(strategy: Strategy[Any, Any]) -> bool:
    """True if inputs are the numbers of things, whose size means nothing."""
    return strategy.config.model.model == "embedding"


def by_sgd(strategy: Strategy[Any, Any]) -> bool:
    """True if models are trained by steps of `lr`."""
    return not (ALGORITHMS[source(strategy.name)].family in SOLVED and strategy.job.convex)


def stands_still(strategy: Strategy[Any, Any]) -> str:
    """A remark on steps of no length."""
    return "lr=0: no step changes anything; set it above 0" * (strategy.config.train.lr == 0)


def wild(data: FederatedData) -> str:
    """A remark on inputs that are far from 1; nothing if they are not."""
    rows = data.x[:: max(1, len(data.x) // REMARK_SAMPLES)]
    if not rows.size or data.vectors is not None:
        return ""
    inputs = (rows.astype(np.float64) - along_channels(data.shift)) * along_channels(data.scale)
    inputs = inputs.reshape(len(rows), -1)
    sizes = np.sqrt(np.square(inputs).mean(axis=0))
    worst = int(sizes.argmax())
    if sizes[worst] <= WILD:
        return ""
    return (
        f"input {worst + 1} of {len(sizes)} is about {sizes[worst]:.2g} in size, and SGD wants "
        "about 1: scale it, or set a far smaller lr"
    )


def worsened(result: Summary) -> str:
    """A remark on a measure that got worse over the run: an error that rose, a score that fell."""
    measure = MEASURES[result.measure]
    if len(result.curve) < 2:
        return ""
    (early, first), (late, last) = result.curve[0], result.curve[-1]
    if float(measure.merit(first - last)) <= (WORSE - 1) * abs(first):
        return ""
    return (
        f"{measure.word} {'fell' if measure.higher_is_better else 'rose'} from "
        f"{measure.text(first)}{measure.unit} at round {early} to {measure.text(last)}"
        f"{measure.unit} at {late}"
    )
