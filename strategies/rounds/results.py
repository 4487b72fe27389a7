"""What a strategy reports: one row a round, and one result at the end.

Both name the users' measure: accuracy, or RMSE where labels are numbers.
"""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import numpy as np
from flwr.app import MetricRecord
from flwr.serverapp.strategy import Result as FlowerResult

from corsage.core.arrays import Floats
from corsage.core.measures import Measure, spread, worst_share
from corsage.core.replies import Replies
from corsage.strategies.rounds.state import Progress

if TYPE_CHECKING:
    from corsage.strategies.rounds.base import Strategy

LAST = 10  # the paper reports the mean accuracy of the last ten rounds


class Result(FlowerResult):
    """Flower's result, and Corsage's summaries: one a row of the final table."""

    summaries: list[dict[str, Any]]


def evaluated(replies: Replies, measure: Measure) -> tuple[Floats, Floats]:
    """The measure and the loss of every evaluated user."""
    metrics = replies.metrics
    return measure.user(metrics[measure.counted], metrics["num-examples"]), metrics["loss"]


def round_row(
    strategy: Strategy[Any, Any], training: Replies, evaluation: Replies | None
) -> dict[str, Any]:
    """One line of metrics.jsonl, of the round that the strategy is at."""
    progress = strategy.progress
    row: dict[str, Any] = {
        "strategy": strategy.name,
        "round": progress.round,
        "users": len(training.users),
        "dropped": len(training.dropped),
        "seconds": round(progress.seconds, 4),
        "bytes_up": progress.traffic.bytes_up,
        "bytes_down": progress.traffic.bytes_down,
        "messages": progress.traffic.messages,
    }
    if "loss" in training.metrics:
        row["train_loss"] = float(training.metrics["loss"].mean())
    if evaluation is not None:
        row |= _evaluation(progress, evaluation, strategy.federation.measure)
    return row


def _evaluation(progress: Progress, replies: Replies, measure: Measure) -> dict[str, Any]:
    """Spread over users; those that were trained at least once and those never trained apart."""
    values, loss = evaluated(replies, measure)
    trained = np.array([user in progress.trained for user in replies.users])
    found: dict[str, Any] = {**measure.tag, measure.name: spread(values), "loss": spread(loss)}
    for name, group in (("participants", trained), ("newcomers", ~trained)):
        if group.any():
            found[name] = {"users": int(group.sum()), measure.name: float(values[group].mean())}
    return found


def final_result(
    name: str, strategy: Strategy[Any, Any], evaluation: Replies, last: int = 0
) -> dict[str, Any]:
    """One row of the final table. `last` = 0: this result stands for one evaluation only."""
    progress, measure = strategy.progress, strategy.federation.measure
    values, loss = evaluated(evaluation, measure)
    tail = [value for r, value in progress.curve if r > progress.round - last] if last else []
    traffic = asdict(progress.traffic)
    return {
        "strategy": name,
        "rounds": progress.round,
        "users": len(evaluation.users),
        **measure.tag,
        measure.name: spread(values),
        f"{measure.name}_last10": float(np.mean(tail)) if tail else float(values.mean()),
        "loss": spread(loss),
        "worst10": worst_share(values, 0.1, measure),
        "bytes_up": traffic.pop("bytes_up"),
        "bytes_down": traffic.pop("bytes_down"),
        "messages": traffic.pop("messages"),
        "traffic": traffic,
        "seconds": round(progress.seconds, 3),
        "never_drawn": sum(user not in progress.trained for user in evaluation.users),
        "dropped": dict(progress.dropped),
        "per_user": dict(zip(evaluation.users, values.tolist(), strict=True)),
        "curve": [list(point) for point in progress.curve] if last else [],
    }


def weighted_metrics(replies: Replies) -> MetricRecord:
    """The mean of each metric over users, as a Flower record."""
    means = {k: float(v.mean()) for k, v in replies.metrics.items() if v.size}
    return MetricRecord({**means, "num-users": len(replies.users)})
