"""Rows of a table out of those of its folds, and with the models that were fitted to all rows.

Of the fit to all rows: its size, R^2, residuals, and what each column was taken for.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, fields, replace
from typing import Any

import numpy as np

from corsage.app.results.model_inputs import preparation_of
from corsage.app.results.row import Row
from corsage.core.arrays import Array, Floats
from corsage.core.distribution import Spread, spread, worst_share
from corsage.core.measures import MEASURES, measure_of
from corsage.core.pairs.noise import dealt, sums_of
from corsage.core.pairs.sums import MOST_SUMS, packed
from corsage.core.tables.column_facts import CATEGORY, EMPTY
from corsage.datasets.user_data import FederatedData
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


MOST_RESIDUALS = 1500
"""Residuals that are drawn, evenly out of all."""


def facts(row: Row) -> Json:
    """Numbers of a row whose models are fitted to all rows of its data."""
    data = row.users_data()
    found: Json = {"rows": len(data.y), "users": len(data.users)}
    found |= {"columns": columns(data), "label": label(data)} if len(data.shape) == 1 else {}
    if data.clusters:
        found["clusters"] = len(set(data.clusters.values()))
    head = row.file.header
    if head.model["model"] != "linear" or data.num_classes or not (head.kept and row.file.alike):
        return found
    if row.user(head.users[0]).network.criterion.name != "squared":
        return found
    x, y, who = inputs(row)
    theta = models(row)[who]
    fitted = np.einsum("ij,ij->i", x, theta)
    found |= determined(row, x, y, fitted)
    unit, start = label_unit(row)
    at = np.unique(np.linspace(0, len(y) - 1, min(len(y), MOST_RESIDUALS)).astype(np.int64))
    points = np.column_stack([fitted * unit + start, (y - fitted) * unit])[at]
    found["residuals"] = points.round(12).tolist()
    return found


def columns(data: FederatedData) -> list[Json]:
    """Each column that is an input, and what it was taken for."""
    if data.facts is None:
        return [{"kind": "number"} for _ in range(int(np.prod(data.shape)))]
    missing = np.isnan(data.x).sum(0).tolist()
    kinds = {CATEGORY: "words", EMPTY: "empty"}
    return [
        {"name": one.name, "kind": kinds.get(one.kind, "number"), "levels": len(one.levels)}
        | ({"missing": count} if count else {})
        for one, count in zip(data.facts.columns, missing, strict=True)
    ]


def label(data: FederatedData) -> Json:
    """The label: so many classes, or (0) a number."""
    name = data.facts.label.name if data.facts is not None else ""
    return {"name": name or "the label", "classes": data.num_classes}


def inputs(row: Row) -> tuple[Floats, Floats, Array]:
    """Inputs of the model, with the 1 of the intercept, labels, and each row's user."""
    from corsage.datasets.dealing.prepared_tables import each_row

    data = row.prepared
    x = (np.asarray(data.x, np.float64) - data.shift) * data.scale
    if row.file.header.model["intercept"]:
        x = np.column_stack([x, np.ones(len(x))])
    places = row.file.place
    who = np.array([places[user] for user in data.users])[each_row(data)]
    return x, np.asarray(data.y, np.float64), who


def blocks(row: Row) -> list[str]:
    """The names of a linear model's parameters, the intercept last."""
    return [b.name for b in row.user(row.file.header.users[0]).network.blocks]


def models(row: Row) -> Floats:
    """Every user's parameters, the intercept last, in the model's units."""
    own = [np.asarray(row.file.every(name), np.float64) for name in blocks(row)]
    return np.concatenate([part.reshape(len(part), -1) for part in own], 1)


def label_unit(row: Row) -> tuple[float, float]:
    """The label's unit in the model's, and its start."""
    agreed = preparation_of(row.file.header)
    return (agreed.label.scale, agreed.label.mean) if agreed is not None else (1.0, 0.0)


def determined(row: Row, x: Floats, y: Floats, fitted: Floats) -> Json:
    """R^2 of the common model and of all (Nakagawa, Schielzeth and Johnson), or of the fit alone.

    The variance of a row is that of the common model's predictions, the mean of x'D x of what
    users, and clusters, differ by, and sigma^2.
    """
    spread = (row.numbers.get("estimates") or {}).get("spread")
    if spread is None or spread["alone"]:
        return {"r2": float(1 - np.square(y - fitted).mean() / y.var())} if y.var() else {}
    shared = row.shared()
    middle = np.concatenate([np.asarray(shared[n], np.float64).ravel() for n in blocks(row)])
    own = np.mean([np.asarray(d) for d in spread["users"].values()], 0) + spread["above"]
    common, between = float((x @ middle).var()), float(np.einsum("ij,ij->", x @ own, x) / len(x))
    whole = common + between + float(spread["sigma2"])
    return {"r2_marginal": common / whole, "r2_conditional": (common + between) / whole}
