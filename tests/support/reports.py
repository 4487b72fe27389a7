"""Results and rows of runs that never were, with all that a report can show."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

import numpy as np

from corsage.core.arrays import Floats
from corsage.core.distribution import spread, worst_share
from corsage.core.measures import ACCURACY, RMSE, Measure

EVIL = "</script><script>alert(1)</script>"
QUOTED = "\"'><img src=x onerror=alert(2)>"

Json = dict[str, Any]


def accuracies(number: int, users: int) -> Floats:
    """Of ten samples a user, a little better with each strategy, for some users worse."""
    draws = np.random.default_rng(7 + number).integers(-3, 4, users)
    return np.clip(np.arange(users) % 6 + 3 + draws + number, 0, 10) / 10


def a_run(
    names: tuple[str, ...] = ("fedrep", "fedavg", "local"),
    users: int = 20,
    rounds: int = 20,
    measure: Measure = ACCURACY,
) -> tuple[list[Json], list[Json]]:
    """Results, one a name, and their rows; the first user's name is hostile."""
    results, rows = [], []
    ids = [EVIL, *(f"u{user}" for user in range(1, users))]
    for number, name in enumerate(names):
        final = accuracies(number, users) * (1.0 if measure is ACCURACY else 20.0)
        evaluated = list(range(5, rounds + 1, 5)) or [rounds]
        curve = []
        for done in evaluated:
            values = final * (0.5 + 0.5 * done / rounds)
            curve.append([done, float(values.mean())])
            rows.append(row_of(name, done, values, measure))
        results.append(result_of(name, ids, final, measure) | {"rounds": rounds, "curve": curve})
    return results, rows


def row_of(name: str, done: int, values: Floats, measure: Measure) -> Json:
    """One evaluated round."""
    spent = {"bytes_up": 1000 * done, "bytes_down": 2000 * done, "messages": done}
    if name == "local":
        spent = dict.fromkeys(spent, 0)
    return {
        "strategy": name,
        "round": done,
        "users": 2,
        "dropped": 0,
        "seconds": 0.1 * done,
        **spent,
        **measure.tag,
        measure.name: asdict(spread(values)),
        "loss": asdict(spread(1 - values)),
        "train_loss": 2.0 / done,
    }


def result_of(name: str, ids: list[str], values: Floats, measure: Measure) -> Json:
    """One row of the table, of an older version."""
    return {
        "strategy": name,
        "users": len(ids),
        **measure.tag,
        measure.name: asdict(spread(values)),
        f"{measure.name}_last10": float(values.mean()),
        "loss": asdict(spread(1 - values)),
        "worst10": worst_share(values, measure=measure),
        "bytes_up": 0 if name == "local" else 20_000,
        "bytes_down": 0 if name == "local" else 40_000,
        "messages": 20,
        "seconds": 2.0,
        "never_drawn": 3,
        "dropped": {EVIL: 2},
        "per_user": dict(zip(ids, map(float, values), strict=True)),
    }


def with_everything(users: int = 20) -> tuple[list[Json], list[Json]]:
    """Results with all fields of this version: measures, clusters, estimates, who is hurt."""
    results, rows = a_run(users=users)
    for number, result in enumerate(results):
        ids = list(result["per_user"])
        auc = np.linspace(0.2 + 0.1 * number, 0.9, users)
        result |= {
            "measures": {
                "accuracy": {**result["accuracy"], "pooled": 0.71, "users": users},
                "auc": {**asdict(spread(auc)), "pooled": None, "users": users - 1},
            },
            "per_user_measures": {"auc": dict(zip(ids[1:], map(float, auc[1:]), strict=True))},
            "test_sizes": {user: 3 + place for place, user in enumerate(ids)},
            "untested": [QUOTED],
            "baseline": {"answer": EVIL, "mean": 0.6},
            "gradient_steps": 120.0,
            "clusters": {user: str(place % (2 + number)) for place, user in enumerate(ids)},
        }
    share = {"than": "local", "share": 2 / users, "users": [EVIL, "u3"]}
    results[0]["hurt"] = {"alone": share, "together": {**share, "than": "fedavg", "users": []}}
    results[0]["findings"] = [{"title": "Certificate", "rows": [["gap", "<b>1e-9</b>"]]}]
    results[0]["estimates"] = estimates(list(results[0]["per_user"]))
    return results, rows


def estimates(users: list[str]) -> Json:
    """A linear model's summary."""
    own = {
        user: {"estimate": {"intercept": 0.3 * n, EVIL: -n}, "se": 0.2, "shrinkage": 0.5}
        for n, user in enumerate(users)
    }
    return {
        "coefficients": [
            {"name": "intercept", "estimate": 12.6, "se": 0.24, "low": 12.1, "high": 13.1},
            {"name": EVIL, "estimate": -0.5, "se": None, "low": None, "high": None},
        ],
        "variances": [
            {"level": "school", "variance": 4.7, "share": 0.11, "at_boundary": False},
            {"level": "district", "variance": 0.0, "share": 0.0, "at_boundary": True},
        ],
        "users": own,
    }


def rmse_run() -> tuple[list[Json], list[Json]]:
    """Numbers as labels, and one strategy that diverged."""
    results, rows = a_run(("ditto", "fedavg", "local"), measure=RMSE)
    for row in rows:
        if row["strategy"] == "fedavg":
            row["rmse"] = {key: 1e6 * value for key, value in row["rmse"].items()}
    return results, rows
