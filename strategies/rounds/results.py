"""What a strategy reports: one row a round, and one result at the end.

Both name the users' measure: accuracy, or RMSE where labels are numbers.
"""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

import numpy as np
from flwr.app import MetricRecord

from corsage.app.summary import spread, worst_share
from corsage.core.measures import Measure, Numbers
from corsage.core.replies import Outcome
from corsage.strategies.rounds.state import State


def evaluated(outcome: Outcome, measure: Measure) -> tuple[Numbers, Numbers]:
    """The measure and the loss of every evaluated user."""
    metrics = outcome.metrics
    return measure.user(metrics[measure.counted], metrics["num-examples"]), metrics["loss"]


def round_row(
    name: str, state: State, training: Outcome, evaluation: Outcome | None, measure: Measure
) -> dict[str, Any]:
    """One line of metrics.jsonl, of the round that the state is at."""
    row: dict[str, Any] = {
        "strategy": name,
        "round": state.round,
        "users": len(training.users),
        "dropped": len(training.dropped),
        "seconds": round(state.seconds, 4),
        "bytes_up": state.traffic.bytes_up,
        "bytes_down": state.traffic.bytes_down,
        "messages": state.traffic.messages,
    }
    if "loss" in training.metrics:
        row["train_loss"] = float(training.metrics["loss"].mean())
    if evaluation is not None:
        row |= _evaluation(state, evaluation, measure)
    return row


def _evaluation(state: State, outcome: Outcome, measure: Measure) -> dict[str, Any]:
    """Spread over users; those that were drawn for training and those never drawn apart."""
    values, loss = evaluated(outcome, measure)
    drawn = np.array([user in state.drawn for user in outcome.users])
    found: dict[str, Any] = {**measure.tag, measure.name: spread(values), "loss": spread(loss)}
    for name, group in (("participants", drawn), ("newcomers", ~drawn)):
        if group.any():
            found[name] = {"users": int(group.sum()), measure.name: float(values[group].mean())}
    return found


def final_result(
    name: str, state: State, evaluation: Outcome, measure: Measure, last: int
) -> dict[str, Any]:
    """One row of the final table. `last` = 0: this result stands for one evaluation only."""
    values, loss = evaluated(evaluation, measure)
    tail = [value for r, value in state.curve if r > state.round - last] if last else []
    traffic = asdict(state.traffic)
    return {
        "strategy": name,
        "rounds": state.round,
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
        "seconds": round(state.seconds, 3),
        "never_drawn": sum(user not in state.drawn for user in evaluation.users),
        "dropped": dict(state.dropped),
        "per_user": dict(zip(evaluation.users, values.tolist(), strict=True)),
        "curve": [list(point) for point in state.curve] if last else [],
    }


def weighted_metrics(outcome: Outcome) -> MetricRecord:
    """The mean of each metric over users, as a Flower record."""
    means = {k: float(v.mean()) for k, v in outcome.metrics.items() if v.size}
    return MetricRecord({**means, "num-users": len(outcome.users)})
