"""Prediction intervals of a linear model's rows, from sigma^2, D and the errors of the estimates.

A row's label is x'theta_i + e. Of a user whose rows (A = X'X) were fitted, given the variances,

    Var(theta_i - its estimate) = S + (I - S A/sigma^2) C (I - S A/sigma^2)',
    S = (A/sigma^2 + D^-1)^-1,

C being how sure its centre is; of somebody new it is D + C. The interval is the estimate and
t sqrt(sigma^2 + x' Var x), t with the degrees of freedom of what the variances were estimated from.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
from scipy.stats import t as student

from corsage.core.arrays import Floats
from corsage.core.errors import ModelError

if TYPE_CHECKING:
    from corsage.app.results.user_model import UserModel

OPEN = 1e-6
"""The share of an input in directions that data leave open beyond which nothing is known of it."""


@dataclass(frozen=True)
class Intervals:
    """Errors of a user's predictions.

    Parameters
    ----------
    spread : of the result: sigma^2 and covariances in the model's units.
    cluster : the user's.
    rows : its training inputs (n, d); None of somebody new.
    counts : rows and users of the fit.
    """

    spread: Mapping[str, Any]
    cluster: str
    rows: Callable[[], Floats] | None
    counts: tuple[int, int]

    def reach(self, x: Floats, level: float) -> Floats:
        """Half the length of each row's interval, in the model's unit; inf where it is unknown."""
        if not 0 < level < 1:
            raise ModelError(f"interval={level}: a share between 0 and 1, such as 0.95.")
        noise = float(self.spread["sigma2"])
        x = np.asarray(x, np.float64)
        own, open_ = self.covariance(noise)
        with np.errstate(over="ignore", invalid="ignore"):  # of huge inputs nothing is known
            further = np.maximum(((x @ own) * x).sum(1), 0.0)
        far = np.abs(x @ open_).max(1, initial=0.0) > OPEN * np.abs(x).max(1, initial=0.0)
        wide = student.ppf((1 + level) / 2, self.freedom(noise, further))
        return np.where(far, np.inf, wide * np.sqrt(noise + further))

    def covariance(self, noise: float) -> tuple[Floats, Floats]:
        """Var(theta_i - its estimate), and directions that data leave open (d, r)."""
        a = None if self.rows is None else self.rows().T @ self.rows()
        open_ = np.asarray(self.spread["open"], np.float64)
        if self.spread["alone"]:
            if a is None:
                raise ModelError("no prediction interval of somebody new: users share nothing.")
            values, vectors = np.linalg.eigh(a)
            flat = values <= OPEN**2 * values.max(initial=0.0)
            own = noise * np.linalg.pinv(a, hermitian=True)
            return np.asarray(own, np.float64), np.asarray(vectors[:, flat], np.float64)
        d, centre = self.levels()
        if a is None:
            return d + centre, open_
        values, vectors = np.linalg.eigh(d)
        root = vectors * np.sqrt(np.maximum(values, 0.0))
        inner = np.linalg.solve(root.T @ a @ root + noise * np.eye(len(a)), root.T)
        own = noise * root @ inner
        over = np.eye(len(a)) - own @ a / noise
        return own + over @ centre @ over.T, over @ open_

    def levels(self) -> tuple[Floats, Floats]:
        """D of the user's cluster, and the errors of its centre; of a new one around the rest."""
        users, centres = self.spread["users"], self.spread["centres"]
        d = users.get(self.cluster, users.get(""))
        d = np.mean([*users.values()], 0) if d is None else np.asarray(d)
        only = next(iter(centres.values())) if len(centres) == 1 else None
        if (centre := centres.get(self.cluster, only)) is not None:
            return d, np.asarray(centre)
        return d, np.asarray(self.spread["above"]) + np.asarray(self.spread["middle"])

    def freedom(self, noise: float, further: Floats) -> Floats:
        """Degrees of freedom: of rows; of somebody new also of users (Satterthwaite)."""
        rows, users = self.counts
        width = len(self.spread["above"])
        within, between = max(rows - users - width + 1, 1), max(users - width, 1)
        if self.rows is not None:
            return np.full(len(further), float(within))
        return (noise + further) ** 2 / (noise**2 / within + further**2 / between)


def with_ends(model: UserModel, x: Any, level: float) -> Floats:
    """Predictions and the ends of their intervals (n, 3); ModelError where there is no sigma^2."""
    if not model.network.criterion.numbers:
        raise ModelError(
            f"{model.head.row}: no prediction intervals: classes have no sigma^2; predict_proba "
            "says how likely each is."
        )
    found, inputs = model.predict(x), with_one(model, model.inputs(x).double().numpy())
    agreed = model.preparation
    unit = agreed.label.scale if agreed is not None else 1.0
    reach = intervals_of(model).reach(inputs, level) * unit
    known = np.isfinite(reach)
    half = np.where(known, reach, 0.0)
    low, high = (np.where(known, found + sign * half, sign * np.inf) for sign in (-1, 1))
    return np.column_stack([found, low, high])


def intervals_of(model: UserModel) -> Intervals:
    """The errors of a model's predictions, from what its run found."""
    row = model.row
    estimates = (row.numbers.get("estimates") or {}) if row is not None else {}
    spread = estimates.get("spread")
    if row is None or spread is None:
        raise ModelError(
            f"{model.head.row}: no prediction intervals: it has no sigma^2; mixed-model and "
            "exact-* do in a simulation, of labels that are numbers (not with mixed-summary=none, "
            "nor where groups were found)."
        )
    sizes = row.numbers["train_sizes"]
    rows = partial(trained_on, model) if model.user in sizes else None
    cluster = row.clusters.get(model.user, "")
    return Intervals(spread, cluster, rows, (sum(sizes.values()), len(sizes)))


def trained_on(model: UserModel) -> Floats:
    """The inputs that a user's model was fitted to."""
    assert model.row is not None
    own = model.row.prepared[model.user]
    return with_one(model, model.tensor(own.x_train).double().numpy())


def with_one(model: UserModel, inputs: Floats) -> Floats:
    """Inputs and the 1 of the intercept."""
    one = np.ones((len(inputs), int(model.head.model["intercept"])))
    return np.concatenate([inputs, one], 1)
