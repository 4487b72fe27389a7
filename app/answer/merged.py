"""Rows of a table out of those of its folds, and with the models that were fitted to all rows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, fields, replace
from typing import Any

import numpy as np

from corsage.core.distribution import Spread, spread, worst_share
from corsage.core.measures import MEASURES, measure_of
from corsage.core.pairs.noise import dealt, sums_of
from corsage.core.pairs.sums import MOST_SUMS, packed
from corsage.strategies.rounds.judged import Baseline, Scored
from corsage.strategies.rounds.results import Summary

Json = dict[str, Any]
ROOTS = ("rmse",)
"""Measures whose squares are means over samples."""
MEANS = (*ROOTS, "accuracy", "mse", "mae", "log-loss")
"""Measures of which all samples together are told by users' values and their samples."""
SCORES = (
    *("users", "measure", "loss", "worst10", "per_user", "curve", "measures", "test_sizes"),
    "over_samples",
    *("per_user_measures", "outcomes", "untested", "baseline", "hurt"),
)
"""What a row says of held-out rows; all else is of the fit to all rows."""


def merged(folds: Sequence[Json]) -> Json:
    """One row out of a strategy's rows in all folds, each user over all that it was tested on."""
    first, name = folds[0], measure_of(folds[0]).name
    if len(folds) == 1:
        return first
    sizes = [fold["test_sizes"] for fold in folds]
    tested = {user: sum(own.get(user, 0) for own in sizes) for own in sizes for user in own}
    values = {one: of_measure(folds, one) for one in first["measures"]}
    own = list(values[name].values())
    mean = float(np.mean(own))
    all_of = {one: together(one, found, tested) for one, found in values.items()}
    told = {
        one: {**plain(found), "pooled": all_of[one] if one in MEANS else None}
        for one, found in values.items()
    }
    return {
        **first,
        name: asdict(spread(own)),
        f"{name}_last10": mean,
        "over_samples": all_of[name],
        "worst10": worst_share(own, 0.1, MEASURES[name]),
        "loss": {k: float(np.mean([fold["loss"][k] for fold in folds])) for k in first["loss"]},
        "users": len(tested),
        "per_user": values[name],
        "curve": [[first["rounds"], mean]],
        "measures": told,
        "per_user_measures": values,
        "outcomes": outcomes_of(folds, {user: tested[user] for user in values[name]}),
        "test_sizes": tested,
        "untested": [user for user in first["untested"] if user not in tested],
    }


def plain(values: Mapping[str, float]) -> Json:
    """A measure's distribution over its users."""
    over = asdict(spread(list(values.values()))) if values else {"mean": None}
    return {**over, "users": len(values)}


def together(name: str, values: Mapping[str, float], sizes: Mapping[str, int]) -> float | None:
    """Users' values over all of their samples; None where nobody has one."""
    power, weights = 2 if name in ROOTS else 1, [sizes[user] for user in values]
    if not values:
        return None
    own = np.array([*values.values()]) ** power
    return float(np.average(own, weights=weights) ** (1 / power))


def of_measure(folds: Sequence[Json], name: str) -> dict[str, float]:
    """Each user's value over the folds, by its test rows in them."""
    power = 2 if name in ROOTS else 1
    sums: dict[str, tuple[float, float]] = {}
    for fold in folds:
        for user, value in fold["per_user_measures"][name].items():
            n, (rows, total) = fold["test_sizes"][user], sums.get(user, (0.0, 0.0))
            sums[user] = rows + n, total + n * value**power
    return {user: float((total / n) ** (1 / power)) for user, (n, total) in sums.items()}


def outcomes_of(folds: Sequence[Json], tested: Mapping[str, int]) -> Json:
    """The sums of users' test rows of all folds, by which rows are compared pair by pair."""
    found = [sums_of(fold) for fold in folds]
    own = [(one, fold["test_sizes"]) for one, fold in zip(found, folds, strict=True) if one]
    if len(own) < len(folds) or any(one.least != 1 for one, _ in own):
        return {}
    rows = np.full((len(tested), min(MOST_SUMS, max(tested.values()))), np.nan)
    for place, user in enumerate(tested):
        parts = [(one.rows[one.places[user]], sizes[user]) for one, sizes in own if user in sizes]
        if all(size <= len(part) for part, size in parts):  # a sum of each row
            each = np.concatenate([part[:size] for part, size in parts])
            width = rows.shape[1]
            rows[place] = np.bincount(dealt(len(each), width, 1), each, width)
    return packed(measure_of(folds[0]), list(tested), list(tested), rows, at_home=True)


def with_scores(summary: Summary, row: Json) -> Summary:
    """A strategy's own object with the scores of its row."""
    measures = {
        name: Scored(
            Spread(**{one.name: found[one.name] for one in fields(Spread)})
            if found["mean"] is not None
            else None,
            found["pooled"],
            row["per_user_measures"][name],
        )
        for name, found in row["measures"].items()
    }
    name, base = summary.measure, row["baseline"]
    return replace(
        summary,
        users=row["users"],
        score=Spread(**row[name]),
        last10=row[f"{name}_last10"],
        loss=Spread(**row["loss"]),
        worst10=row["worst10"],
        per_user=row["per_user"],
        curve=[(int(at), value) for at, value in row["curve"]],
        measures=measures,
        test_sizes=row["test_sizes"],
        outcomes=row.get("outcomes", {}),
        untested=row["untested"],
        baseline=Baseline(**base) if base else None,
    )


def judged_by(row: Json, held_out: Json, own: Json) -> Json:
    """A row of models that were fitted to all rows, with its scores on held-out ones."""
    name = measure_of(own).name
    scores = (*SCORES, name, f"{name}_last10")
    return {**row, **{key: own[key] for key in scores if key in own}, "held_out": held_out}
