"""Lines in Flower's log of a strategy that a script starts, as Flower's own strategies have them.

A command of Corsage's shows its rounds itself, and needs none.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from logging import INFO
from typing import Any

from flwr.supercore import log

from corsage.app.output.remarks import verdicts
from corsage.core.measures import MEASURES, Measure, measure_of
from corsage.strategies.rounds.base import Strategy
from corsage.strategies.rounds.callbacks import Callback
from corsage.strategies.rounds.results import Summary


def watch(strategy: Strategy[Any, Any], num_rounds: int) -> None:
    """Log a strategy's rounds and rows, in the place of what an earlier start was told."""
    strategy.callbacks[:] = [c for c in strategy.callbacks if not isinstance(c, RoundLines)]
    strategy.callbacks.append(RoundLines(num_rounds))


class RoundLines(Callback):
    """A line a round and a row at INFO; warnings on what the user should change."""

    def __init__(self, num_rounds: int) -> None:
        self.num_rounds = num_rounds

    def on_round_end(self, strategy: Strategy[Any, Any], row: dict[str, Any]) -> None:
        """The round's losses and measures, as far as they are known."""
        total = strategy.length(self.num_rounds)
        words = [f"training loss {row['train_loss']:.3f}"] if "train_loss" in row else []
        if measure_of(row).name in row:
            first = measure_of(row)
            words += [spread(first, row[first.name]), f"test loss {row['loss']['mean']:.3f}"]
            words += further(first, row.get("measures", {}))
        words.append(f"{row['users']:,} users")
        words += [f"{row['dropped']:,} dropped"] * bool(row["dropped"])
        log(INFO, "%s: round %s/%s: %s", strategy.name, row["round"], total, ", ".join(words))

    def on_end(self, strategy: Strategy[Any, Any], results: Sequence[Summary]) -> None:
        """The rows of the table, and which of them are of no use."""
        for result in results:
            one = result.json()
            first = MEASURES[result.measure]
            words = [spread(first, one[first.name]), *further(first, one["measures"])]
            log(INFO, "%s: %s, over %s users", result.strategy, ", ".join(words), result.users)
        for said in verdicts(strategy, results):
            strategy.job.note.warn(said)


def spread(measure: Measure, found: Mapping[str, Any]) -> str:
    """Mean and standard deviation over users."""
    unit = f" {measure.unit}" * bool(measure.unit)
    return f"{measure.word} {measure.text(found['mean'])} ± {measure.text(found.get('std'))}{unit}"


def further(first: Measure, found: Mapping[str, Any]) -> list[str]:
    """All measures but the first."""
    names = [name for name in found if name in MEASURES and name != first.name]
    return [spread(MEASURES[name], found[name]) for name in names]
