"""Answers of a cohort that cannot be: sums that no data come to, however they were changed.

Sums go into the solution of (2.3) undivided. One P that is not positive semi-definite would leave
it without a minimum, and one that is larger than gamma would own the centre of its cluster.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from corsage.core.arrays import Arrays, Floats
from corsage.solvers.known_clusters.mixed_model import unpack

STEEPEST = 2.0
MATRIX_ROUNDING = 1e-6
"""The share of a matrix that may be rounding."""
FIRST_WEIGHT, FIRST_SCORE = 3 / 16, float(np.log(3))
"""Of a row, where iterated least squares begins from the mean (y + 1/2) / 2 of two classes."""
LOOKED_AT_ONCE = 8192
"""Users whose matrices are looked at at once."""


def step_fault(rows: Arrays, gamma: Floats, users: int) -> str:
    """P of so many users is at least 0 and at most users * gamma; squares and spreads are not < 0.

    `gamma` is one number a coordinate, perhaps infinite.
    """
    d = len(gamma)
    p = unpack(rows["sums"][:-d], d)
    if not semidefinite(p):
        return "its sums cannot be: P is not positive semi-definite"
    if np.isfinite(gamma).all() and not semidefinite(
        np.diag(users * gamma * (1 + MATRIX_ROUNDING)) - p
    ):
        return "its sums cannot be: P is larger than gamma"
    em = rows.get("em", np.zeros(1))
    if (em < -MATRIX_ROUNDING * np.abs(em).max()).any():
        return "its sums cannot be: squares or spreads are negative"
    return ""


def likelihood_fault(rows: Arrays, records: int, users: int) -> str:
    """The sums of `RemlSums` of so many users, and of no more than so many records."""
    if not 0 <= rows["records"] <= records or rows["users"] != users:
        return f"its sums cannot be: they are not of {records} records of {users} users"
    yy, least = rows["yy"], -MATRIX_ROUNDING * abs(float(rows["yy"][0]))
    if (yy < least).any() or (rows["ld"] < 0).any() or rows["trace"] < 0:
        return "its sums cannot be: some that are of squares are negative"
    if not semidefinite(unpack(rows["p"], rows["q"].shape[-1])):
        return "its sums cannot be: P is not positive semi-definite"
    return ""


def quadratic_fault(rows: Arrays, d: int, exact: bool, counts: Sequence[int]) -> str:
    """A_i, b_i and y'y of users: what squares of so many records add up to, or curvatures.

    `counts` (n,) are the records, where the last coefficient is an intercept; else none are known.
    No loss curves more than `STEEPEST` times as much as the squared one.
    """
    known = np.asarray(counts, np.float64)
    for first in range(0, len(rows["sums"]), LOOKED_AT_ONCE):
        some = slice(first, first + LOOKED_AT_ONCE)
        if why := _quadratic_fault(rows["sums"][some], d, exact, known[some]):
            return why
    return ""


def _quadratic_fault(sums: Floats, d: int, exact: bool, counts: Floats) -> str:
    """The same of some users (n, d(d+1)/2 + d + 1), all at once."""
    size = d * (d + 1) // 2
    whole = np.empty((len(sums), d + exact, d + exact))
    whole[:, :d, :d] = a = unpack(sums[:, :size], d)
    if exact:
        whole[:, d, :] = whole[:, :, d] = sums[:, size:]
    if not semidefinite(alike(whole)):
        return "its sums cannot be: they are of no squares"
    records = a[:, -1, -1][: len(counts)]
    most = counts * (1 + MATRIX_ROUNDING) * (1 if exact else STEEPEST)
    none = ~sums[: len(counts)].any(1)  # nothing is sent of too few
    wrong = (records > most) | (exact & ~none & (records < counts * (1 - MATRIX_ROUNDING)))
    if wrong.any():
        return f"its sums cannot be: they are not of {counts[np.argmax(wrong)]:.0f} records"
    return ""


def begin_fault(rows: Arrays, d: int, counts: Sequence[int]) -> str:
    """The sums of a first step under the logistic loss, of whole rows of two classes.

    Each row has the same weight and the same square; `counts` as in `quadratic_fault`: of one user.
    """
    heavy, squares = rows["heavy"], FIRST_WEIGHT * rows["squares"]
    if (np.abs(heavy - squares) > MATRIX_ROUNDING * np.abs(squares).max()).any():
        return "its sums cannot be: first weights are those of other rows"
    within = rows["within"][0]
    if (within < 0).any() or (within > np.diag(unpack(squares, d)) / FIRST_WEIGHT).any():
        return "its sums cannot be: columns differ within users by what they are not"
    square = FIRST_WEIGHT * FIRST_SCORE**2 * sum(counts)
    sums = np.concatenate([heavy, rows["pull"], [square]]) / FIRST_WEIGHT
    return _quadratic_fault(sums[None], d, True, np.zeros(0))


def jets_fault(rows: Arrays, d: int, discrete: bool, around: int, records: int) -> str:
    """A log likelihood with its derivatives: of labels that are counted it is at most 0.

    Where clusters differ in `around` directions what is summed is concave in the model.
    Of `records` rows of two classes no score has more than one each; 0: that is not known.
    """
    jets = rows["jets"]
    m = round(((8 * jets.shape[1] + 1) ** 0.5 - 3) / 2)
    if discrete and jets[0, 0] > MATRIX_ROUNDING:
        return "its likelihood cannot be: a probability is above 1"
    if records and abs(jets[0, d]) > records * (1 + MATRIX_ROUNDING):
        return f"its likelihood cannot be: it is steeper than {records} records are"
    if around and not semidefinite(-unpack(jets[0, 1 + m :], m)[:d, :d]):
        return "its likelihood cannot be: it is not concave"
    if around and (jets[1, 0] > MATRIX_ROUNDING or jets[2 + around, 0] < -MATRIX_ROUNDING):
        return "its likelihood cannot be: a curvature has the wrong sign"
    return ""


def summary_fault(rows: Arrays, most: int) -> str:
    """Faults of a last answer: squares, ranks, of `most` at most, errors and shares."""
    if rows["rank"] > most:
        return f"its summary cannot be: a rank above {most}"
    if rows["square"] < 0 or rows["rank"] < 0 or (rows.get("se", np.zeros(1)) < 0).any():
        return "its summary cannot be: squares, ranks or errors are negative"
    for name in ("known", "shrinkage"):
        values = rows.get(name, np.zeros(1))
        if (values < -MATRIX_ROUNDING).any() or (values > 1 + MATRIX_ROUNDING).any():
            return f"its summary cannot be: {name} is not from 0 to 1"
    return ""


def semidefinite(p: Floats) -> bool:
    """True if symmetric matrices (..., d, d) have no negative eigenvalues but by rounding."""
    scale = np.diagonal(p, 0, -2, -1).max(-1, initial=0.0)
    if not (scale > 0.0).all() and p[scale <= 0.0].any():
        return False
    with np.errstate(over="ignore"):
        shifted = p / np.where(scale > 0.0, scale, 1.0)[..., None, None]
        shifted += MATRIX_ROUNDING * np.eye(p.shape[-1])
    if not (np.abs(shifted) <= 2.0).all():
        return False
    try:
        np.linalg.cholesky(shifted)
    except np.linalg.LinAlgError:
        return False
    return True


def alike(p: Floats) -> Floats:
    """Sums of squares (..., d, d) in units in which all of these are 1, where they are not 0.

    Else what is wrong with a small column would be rounding beside a large one. A column whose
    squares are 0 is itself 0, and one whose squares are negative is of nothing.
    """
    squares = np.diagonal(p, 0, -2, -1)
    lengths = np.sqrt(np.where(squares > 0, squares, 1.0))
    found = p / lengths[..., None] / lengths[..., None, :]
    nothing = (squares <= 0) & np.any(p != 0, axis=-1)
    return np.asarray(np.where(nothing.any(-1)[..., None, None], -np.eye(p.shape[-1]), found))
