"""The fit to all rows in numbers: its size, R^2, residuals, and what each column was taken for."""

from __future__ import annotations

import numpy as np

from corsage.app.answer.merged import Json
from corsage.app.results.model_inputs import preparation_of
from corsage.app.results.row import Row
from corsage.core.arrays import Array, Floats
from corsage.core.tables.column_facts import CATEGORY, EMPTY
from corsage.datasets.user_data import FederatedData

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
