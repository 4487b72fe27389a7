"""What a strategy reports: one row a round, and one result at the end."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

import numpy as np
from flwr.app import MetricRecord
from numpy.typing import NDArray

from corsage.app.outcome import Outcome
from corsage.app.summary import spread, worst_share
from corsage.strategies.state import State

Numbers = NDArray[np.float64]


def evaluated(outcome: Outcome) -> tuple[Numbers, Numbers]:
    """Accuracy and loss of every evaluated user."""
    examples = outcome.metrics["num-examples"]
    return outcome.metrics["correct"] / examples, outcome.metrics["loss"]


def round_row(
    name: str, state: State, training: Outcome, evaluation: Outcome | None, number: int
) -> dict[str, Any]:
    """One line of metrics.jsonl."""
    row: dict[str, Any] = {
        "strategy": name,
        "round": number,
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
        row |= _evaluation(state, evaluation)
    return row


def _evaluation(state: State, outcome: Outcome) -> dict[str, Any]:
    """Spread over users; those that were drawn for training and those never drawn apart."""
    accuracy, loss = evaluated(outcome)
    drawn = np.array([user in state.drawn for user in outcome.users])
    found: dict[str, Any] = {"accuracy": spread(accuracy), "loss": spread(loss)}
    for name, group in (("participants", drawn), ("newcomers", ~drawn)):
        if group.any():
            found[name] = {"users": int(group.sum()), "accuracy": float(accuracy[group].mean())}
    return found


def final_result(
    name: str, state: State, evaluation: Outcome, rounds: int, last: int
) -> dict[str, Any]:
    """One row of the final table. `last` = 0: this result stands for one evaluation only."""
    accuracy, loss = evaluated(evaluation)
    tail = [a for r, a in state.curve if r > rounds - last] if last else []
    traffic = asdict(state.traffic)
    return {
        "strategy": name,
        "rounds": rounds,
        "users": len(evaluation.users),
        "accuracy": spread(accuracy),
        "accuracy_last10": float(np.mean(tail)) if tail else float(accuracy.mean()),
        "loss": spread(loss),
        "worst10": worst_share(accuracy, 0.1),
        "bytes_up": traffic.pop("bytes_up"),
        "bytes_down": traffic.pop("bytes_down"),
        "messages": traffic.pop("messages"),
        "traffic": traffic,
        "seconds": round(state.seconds, 3),
        "never_drawn": sum(user not in state.drawn for user in evaluation.users),
        "dropped": dict(state.dropped),
        "per_user": dict(zip(evaluation.users, accuracy.tolist(), strict=True)),
        "curve": [list(point) for point in state.curve] if last else [],
    }


def weighted_metrics(outcome: Outcome) -> MetricRecord:
    """The mean of each metric over users, as a Flower record."""
    means = {k: float(v.mean()) for k, v in outcome.metrics.items() if v.size}
    return MetricRecord({**means, "num-users": len(outcome.users)})
