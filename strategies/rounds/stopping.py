"""Early stopping: a run ends when its users do no better on validation data for some evaluations.

With `validation` nobody gets test samples, so the curve, a part of every checkpoint, is of no test.
What counts are the evaluations of every `evaluate-every` rounds: the last rounds, and Flower's own
loop, have more.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from corsage.core.configuration.config import Config
from corsage.core.errors import ConfigError
from corsage.strategies.rounds.results import Finding

if TYPE_CHECKING:
    from corsage.strategies.rounds.base import Strategy


def check(config: Config) -> None:
    """ConfigError where there is nothing to look at, or the run ends before it could stop."""
    keys = config.run
    if not config.data.validation:
        raise ConfigError(
            f"stop-after={keys.stop_after}: it looks at validation data, and there are none; set "
            "validation=0.2, or leave it out."
        )
    if (first := (keys.stop_after + 1) * keys.evaluate_every) >= keys.num_rounds:
        raise ConfigError(
            f"stop-after={keys.stop_after}: with evaluate-every={keys.evaluate_every} it stops "
            f"after round {first} at the earliest, and num-rounds={keys.num_rounds}; evaluate more "
            "often, or leave it out."
        )


def best(strategy: Strategy[Any, Any]) -> tuple[int, int]:
    """The round of the best evaluation, of equals the first, and how many came after it."""
    every, measure = strategy.config.run.evaluate_every, strategy.job.measure
    points = [(n, value) for n, value in strategy.progress.curve if n % every == 0]
    if not points:
        return 0, 0
    merits = np.nan_to_num(measure.merit([value for _, value in points]), nan=-np.inf)
    at = int(merits.argmax())
    return points[at][0], len(points) - 1 - at


def is_due(strategy: Strategy[Any, Any]) -> bool:
    """True if so many evaluations are no better than the best before them."""
    return best(strategy)[1] >= strategy.config.run.stop_after


def findings(strategy: Strategy[Any, Any]) -> list[Finding]:
    """The round after which it stopped, if it did, and the best one."""
    done, (since, _) = strategy.progress.round, best(strategy)
    if done >= strategy.config.run.num_rounds or not is_due(strategy):
        return []
    why = f"no better on validation data since round {since}; models are of round {done}"
    return [Finding("Early stopping", [(f"stopped after round {done}", why)])]
