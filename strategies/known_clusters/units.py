"""The names and units of a linear model's coefficients, as the table has them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import pi

import numpy as np

from corsage.core.arrays import Floats
from corsage.core.configuration.data_keys import BY_USER
from corsage.core.errors import ConfigError
from corsage.core.keys import nearest
from corsage.core.registry import LIKELIHOODS
from corsage.core.tables.preparation import Preparation
from corsage.strategies.rounds.job import Job

FAMILY_LOSSES = ("logistic", *LIKELIHOODS)
"""Losses that are likelihoods, besides the squared one."""
LIKELIHOOD, NO_TOP = "likelihood", "the likelihood has no top"
"""The way of `Estimates` by which variances are found under these; and where they have no best."""
LATENT = pi**2 / 3
"""The variance of the logistic distribution: what records add to a score."""
SUM_ROUNDING = 1e-6
"""The share of a sum that may be rounding."""

FAR_FROM_ZERO = 50.0
"""Standard deviations from a column's mean to 0 beyond which an intercept says little."""
GROWS = 0.1
"""A coefficient that changes by a smaller share than the one that changes most does not grow."""
ENDLESS = (
    "there is no top: {} can tell the classes apart without error, and would grow without end; "
    "leave such a column out, or join its level with another"
)


@dataclass(frozen=True)
class Units:
    """The names of coefficients, and their values in the data's units: matrix theta + start.

    Parameters
    ----------
    label : the label's unit in the model's.
    told : what else is to be said of the units.
    """

    names: list[str]
    matrix: Floats
    start: Floats
    label: float = 1.0
    told: str = ""

    @classmethod
    def of(cls, job: Job, d: int) -> Units:
        """Out of what the federation agreed on of its tables, for d coefficients."""
        intercept = job.config.model.intercept
        prepared, count = job.agreed.preparation, d - intercept
        names = [f"x{number}" for number in range(1, count + 1)]
        matrix, start, label = np.eye(d), np.zeros(d), 1.0
        told = [outcome(job.loss, prepared)] if job.agreed.num_classes == 2 else []
        if prepared is not None and len(prepared.features) == count:
            names = list(prepared.features)
            if prepared.scaling == BY_USER:
                told.append("each user's own standard deviations (scale=user)")
            elif intercept:
                (matrix, start), label = prepared.linear(), prepared.label.scale
                told.append(far(prepared))
            else:
                own, _ = prepared.linear()
                matrix, label = own[:-1, :-1], prepared.label.scale
        return cls(
            names + ["intercept"] * intercept, matrix, start, label, ", ".join(filter(None, told))
        )

    def by_name(self, values: Floats) -> dict[str, float]:
        """Numbers of coefficients, by their names."""
        return dict(zip(self.names, values.tolist(), strict=True))

    def estimate(self, theta: Floats) -> Floats:
        """Coefficients in the data's units."""
        return np.asarray(self.matrix @ theta + self.start)

    def errors(self, covariance: Floats) -> Floats:
        """Their standard errors."""
        return np.sqrt(np.maximum(np.diag(self.matrix @ covariance @ self.matrix.T), 0.0))

    def open(self, directions: Floats) -> list[bool]:
        """The coefficients that change along directions (d, r) that data leave open."""
        moved, size = np.abs(self.matrix @ directions), np.abs(self.matrix) @ np.abs(directions)
        return [bool(row.any()) for row in moved > SUM_ROUNDING * size]

    def endless(self, directions: Floats, curvature: Floats) -> str:
        """The coefficients that grow in directions (d, r), by the curvature, and what to do."""
        if not directions.size:
            return ""
        back = np.linalg.inv(self.matrix)
        sizes = np.sqrt(np.diag(back.T @ curvature @ back))[:, None]
        shares = np.abs(self.matrix @ directions) * sizes
        which = (shares > GROWS * shares.max(0)).any(1)
        names = [name for name, grows in zip(self.names, which, strict=True) if grows]
        slopes = [name for name in names if name != "intercept"]  # it grows with any of them
        return ENDLESS.format(", ".join(slopes or names))

    def density(self, records: int) -> float:
        """The term that makes a restricted log likelihood that of the table as it is.

        Of the labels in their own unit, all but d of which are free, and of features in theirs.
        """
        volume = float(np.linalg.slogdet(self.matrix / self.label)[1])
        return volume - (records - len(self.names)) * float(np.log(self.label))


def varying(job: Job, d: int, named: tuple[str, ...]) -> Floats | None:
    """1 for each of d coefficients that `mixed-random` names, else 0 (d,); None: all differ.

    A column of words has a coefficient a level.
    """
    if named == ("all",):
        return None
    places, intercept = places_by_column(job, d), job.config.model.intercept
    if intercept:
        places["intercept"] = [d - 1]
    found = np.zeros(d)
    for name in named:
        if name not in places:
            several = "" if "," not in name else " Of several sets a study takes a list of lists."
            raise ConfigError(
                f"mixed-random={name}: no column of that name.{several or nearest(name, places)}"
            )
        found[places[name]] = 1.0
    return None if found.all() else found


def held_columns(job: Job, columns: Mapping[str, str], d: int) -> dict[str, int]:
    """The places of the offset's and the weights' `columns` among the coefficients, by name."""
    found = dict[str, int]()
    for key, name in columns.items():
        if not name:
            continue
        if name not in (names := Units.of(job, d).names[:-1]):
            known = places_by_column(job, d)
            why = "the input has no column of that name." + nearest(name, known)
            words = "it is a column of words; numbers are wanted."
            raise ConfigError(f"{key}={name}: {words if name in known else why}")
        if job.loss not in FAMILY_LOSSES:
            losses = ", ".join(FAMILY_LOSSES)
            raise ConfigError(f"{key}={name}: for loss={losses}, not loss={job.loss}.")
        found[name] = names.index(name)
    return found


def places_by_column(job: Job, d: int) -> dict[str, list[int]]:
    """The coefficients of each column, by its name; of inputs without columns x1, x2, ..."""
    prepared, count = job.agreed.preparation, d - job.config.model.intercept
    if prepared is None or len(prepared.features) != count:
        return {f"x{number + 1}": [number] for number in range(count)}
    places, first = dict[str, list[int]](), 0
    for column in prepared.columns:
        places[column.name] = list(range(first, first + len(column.features)))
        first += len(column.features)
    return places


def far(prepared: Preparation) -> str:
    """A word on columns whose values are far from 0, where the intercept is; empty: none is."""
    sizes = zip(prepared.features, prepared.shift, prepared.scale, strict=False)
    names = [
        name for name, mean, scale in sizes if scale != 1.0 and abs(mean * scale) > FAR_FROM_ZERO
    ]
    return f"intercepts are where {', '.join(names[:3])} is 0, far from the data" if names else ""


def outcome(loss: str, prepared: Preparation | None) -> str:
    """Of two classes the one that a positive coefficient speaks for."""
    if prepared is None:
        return ""
    one = prepared.classes[1] if len(prepared.classes) == 2 else "1"
    return f"{'log odds' if loss == 'logistic' else 'scores'} of {prepared.label.name}={one}"
