"""Fields of a result's JSON, as the page reads them; rows that are not done lack some."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from corsage.app.output.summary import Result, shared_measure
from corsage.core.measures import MEASURES, Measure, measure_of


def reading_order(user: str) -> list[tuple[int, int, str]]:
    """Sorts u2 before u10."""
    if user.isdecimal():
        return [(0, int(user), "")]
    parts = re.findall(r"\d+|\D+", user)
    return [(0, int(p), "") if p.isdecimal() else (1, 0, p) for p in parts]


def measures(results: Sequence[Result]) -> list[Measure]:
    """All measures that results have, the table's first."""
    main = shared_measure(results)
    names = {name: None for r in results for name in (r.get("per_user_measures") or {})}
    return [main, *(MEASURES[name] for name in names if name != main.name)]


def per_user(result: Result, measure: Measure) -> dict[str, float]:
    """Each user's number, as stored; of users who have none there is nothing."""
    main = measure is measure_of(result)
    found = (result.get("per_user") if main else None) or (
        (result.get("per_user_measures") or {}).get(measure.name) or {}
    )
    if kinds(found) <= {(str, float)} and np.isfinite(np.fromiter(found.values(), float)).all():
        return found  # of a million users there are a dozen charts and tables
    return {str(u): float(v) for u, v in found.items() if v is not None and math.isfinite(v)}


def kinds(found: Mapping[Any, Any]) -> set[tuple[type, type]]:
    """Types of a table's names and of its values, together."""
    return set(zip(map(type, found), map(type, found.values()), strict=True))


def everybody(results: Sequence[Result]) -> set[str]:
    """All users of any row, also those without test samples."""
    found = {str(u) for r in results for u in (r.get("per_user") or {})}
    return found | {str(u) for r in results for u in (r.get("untested") or ())}


def test_sizes(results: Sequence[Result]) -> dict[str, int]:
    """Numbers of users' test samples, where results say so."""
    return {str(u): int(n) for r in results for u, n in (r.get("test_sizes") or {}).items()}


def untested(results: Sequence[Result]) -> list[str]:
    """Users without test samples, in reading order."""
    return sorted({str(u) for r in results for u in (r.get("untested") or ())}, key=reading_order)


def clusters(result: Result) -> dict[str, str]:
    """Each user's cluster, or nothing."""
    found: dict[str, str] = result.get("clusters") or {}
    return found


def known_clusters(results: Sequence[Result]) -> dict[str, str]:
    """Each user's cluster as the data have it, where they do."""
    found: list[dict[str, str]] = [own for r in results if (own := r.get("known_clusters"))]
    return found[0] if len(found) == 1 else {u: c for own in found for u, c in own.items()}


def baseline(results: Sequence[Result], measure: Measure) -> tuple[float, str] | None:
    """Score of one answer without any model, as shown, and that answer; if all rows agree."""
    found = {
        (float(means[measure.name]), str(given.get("answer", "")))
        for r in results
        if (given := r.get("baseline")) and (means := baseline_means(given, r)).get(measure.name)
    }
    value, answer = next(iter(found), (0.0, ""))
    return (measure.factor * value, answer) if len(found) == 1 else None


def baseline_means(given: Mapping[str, Any], result: Result) -> Mapping[str, Any]:
    """A baseline's mean of each measure."""
    means: Mapping[str, Any] = given.get("means") or {}
    return {measure_of(result).name: given.get("mean"), **means}


@dataclass(frozen=True)
class Hurt:
    """The users that a strategy leaves worse off than another one, the worst hurt first.

    `certain` : how many of them by more than noise; None where that is not known.
    """

    strategy: str
    than: str
    kind: str
    users: Sequence[str]
    share: float
    certain: int | None = None


def hurt(results: Sequence[Result]) -> list[Hurt]:
    """Users worse off than alone, or than with one model for all, wherever that can be said."""
    return [
        Hurt(
            str(result["strategy"]),
            str(one["than"]),
            kind,
            one["users"],
            float(one["share"]),
            None if (sure := one.get("beyond_noise")) is None else len(sure),
        )
        for result in results
        for kind, one in (result.get("hurt") or {}).items()
    ]


def reference(results: Sequence[Result], names: Iterable[str]) -> Result | None:
    """The first row of these names that there is."""
    found = {str(result["strategy"]): result for result in results}
    return next((found[name] for name in names if name in found), None)


def differences(result: Result, other: Result) -> dict[str, float]:
    """By how much each user is better off than with another row, the worst off first; as shown.

    Differences of rounding are none.
    """
    measure = measure_of(result)
    own, others = per_user(result, measure), per_user(other, measure)
    users = [user for user in own if user in others]
    one, two = (np.array([found[user] for user in users]) for found in (own, others))
    gains = measure.factor * (measure.merit(one) - measure.merit(two))
    gains[np.abs(one - two) <= np.maximum(1e-9 * np.maximum(np.abs(one), np.abs(two)), 1e-12)] = 0.0
    order = np.argsort(gains, kind="stable")
    return dict(zip([users[i] for i in order], gains[order].tolist(), strict=True))


def tenth(values: Iterable[float], measure: Measure) -> float:
    """A merit below this is in the worst tenth of the users; of equal ones all are, or none."""
    ordered: list[float] = sorted(measure.merit(list(values)).tolist())
    return next((v for v in ordered if v > ordered[(len(ordered) - 1) // 10]), ordered[0])


def by_name(results: Sequence[Result]) -> Mapping[str, Result]:
    """Results by their rows' names."""
    return {str(result["strategy"]): result for result in results}
