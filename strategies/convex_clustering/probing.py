"""Probes of all users as exchanges: what the many problems of runs.py ask.

A user's answer to a probe is 8 + 2 d + d (d + 1)/2 floats: 20 of them with 3 coefficients, 1,383
with 50. All probes of a step are one exchange, unless they are more than a device should hold.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from corsage.core.arrays import Array, Arrays, Floats
from corsage.core.messages.replies import Replies
from corsage.strategies.convex_clustering.questions import Questions
from corsage.strategies.rounds.means.user_rows import places
from corsage.strategies.rounds.turns import Script

if TYPE_CHECKING:
    from corsage.solvers.convex_clustering.expansions import Expansion, Probe
    from corsage.solvers.losses.held_out import Fold

HESSIAN_SPACE = 2**20
"""Numbers of all Hessians that a user makes for one exchange."""
NEGATIVE_ROUNDING = 1e-9
"""A negative eigenvalue up to this share of the mean one is rounding."""
PROBE_NUMBERS = 8
"""f(y), f(x), minimum, whether there is one, held-out loss, whether there is one, L, coercive."""


def ask_all(
    questions: Questions, users: list[str], d: int, probes: Sequence[Probe], **more: Any
) -> Script[list[Expansion]]:
    """The answers of all users to all probes; one exchange, or as few as the space allows."""
    most = max(HESSIAN_SPACE // d**2, 1)
    found: list[Expansion] = []
    for first in range(0, len(probes), most):
        part = probes[first : first + most]
        replies = yield from questions.ask(
            users, "expand", rows_of(part), template_of(len(part), d), options_of(part), **more
        )
        found += heard(questions, users, part, replies)
    return found


def heard(
    questions: Questions, users: list[str], probes: Sequence[Probe], replies: Replies
) -> list[Expansion]:
    """The answers to all probes of an exchange with `users`; Unanswered if some cannot be."""
    questions.disproof.about(users)
    found, rows = [], places(users, replies.users)
    for place, probe in enumerate(probes):
        answer = expansion(replies, place)
        questions.disproof.hear_expansion(rows, probe, answer)
        found.append(replace(answer, hessian=convex(answer.hessian)))
    questions.believe(users)
    return found


def rows_of(probes: Sequence[Probe]) -> Arrays:
    """Points and slopes, (N, K, d)."""
    return {
        "points": np.stack([probe.x for probe in probes], 1),
        "slopes": np.stack([probe.v for probe in probes], 1),
    }


def template_of(count: int, d: int) -> Arrays:
    """The form of one user's answer."""
    shapes: dict[str, int] = {
        "y": d,
        "gradient": d,
        "hessian": d * (d + 1) // 2,
        "numbers": PROBE_NUMBERS,
    }
    return {name: np.zeros((count, size)) for name, size in shapes.items()}


def options_of(probes: Sequence[Probe]) -> dict[str, Any]:
    """The samples that each probe leaves out (0: none), and its share of the curvature."""
    folds: list[Fold | None] = [None]
    folds += [fold for fold in dict.fromkeys(probe.fold for probe in probes) if fold is not None]
    named = [fold for fold in folds if fold is not None]
    options: dict[str, Any] = {
        "of-fold": [folds.index(probe.fold) for probe in probes],
        "shares": [float(probe.share) for probe in probes],
        "bounds": [probe.bound for probe in probes],
    }
    if named:
        options["folds"] = [fold.purpose for fold in named]
        options["fold-numbers"] = [fold.number for fold in named]
        options["fold-shares"] = [fold.share for fold in named]
    return options


def expansion(replies: Replies, place: int) -> Expansion:
    """All users' answers to one of the probes, as they came."""
    from corsage.solvers.convex_clustering.expansions import Expansion

    rows = {name: np.asarray(array[:, place], np.float64) for name, array in replies.rows.items()}
    value, at_x, least, found, held, has, curvature, coercive = rows["numbers"].T
    return Expansion(
        rows["y"],
        value,
        rows["gradient"],
        whole(rows["hessian"], rows["y"].shape[1]),
        at_x,
        least,
        found > 0,
        np.where(has > 0, held, np.nan),
        np.maximum(curvature, 0.0),
        coercive > 0,
    )


def whole(upper: Array, d: int) -> Floats:
    """Symmetric matrices (N, d, d) from what is on and above their diagonals."""
    i, j = np.triu_indices(d)
    found = np.empty((len(upper), d, d))
    found[:, i, j] = upper
    found[:, j, i] = upper
    return found


def convex(hessian: Floats) -> Floats:
    """Hessians as those of convex losses; what is none is made the nearest that is.

    A user may err, lie, or have a model of its own that is not convex: the server's problem has a
    solution all the same, and the certificate, which knows nothing of Hessians, judges it.
    """
    d = hessian.shape[1]
    size = np.abs(hessian.diagonal(axis1=1, axis2=2)).mean(1) + np.finfo(np.float64).tiny
    try:
        np.linalg.cholesky(hessian + (NEGATIVE_ROUNDING * size)[:, None, None] * np.eye(d))
    except np.linalg.LinAlgError:
        values, vectors = np.linalg.eigh(hessian)
        found = (vectors * np.maximum(values, 0.0)[:, None]) @ vectors.transpose(0, 2, 1)
        return np.asarray(found, np.float64)
    return hessian
