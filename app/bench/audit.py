"""Audit: what choices that tables seldom name would do to the ranking of each set."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from corsage.app.bench.rows import Beside, Entry, Results

Merit = Callable[[Entry], float]


@dataclass(frozen=True)
class Choice:
    """A set's ranking by another choice, beside that of the protocol.

    Parameters
    ----------
    what, place : the choice, and the set.
    tau : Kendall's, between the two rankings; 1: the same.
    first, instead : the row that is first by the protocol, and by the choice.
    moved : the most places that a row moves, and which one it is.
    """

    what: str
    place: str
    tau: float
    first: str
    instead: str
    moved: tuple[int, str]

    @property
    def moved_first(self) -> bool:
        """Tell whether another row is first."""
        return self.first != self.instead


def last_round(entry: Entry) -> float:
    """As the protocol has it: the mean over users at the last round."""
    return entry.merit


def best_round(entry: Entry) -> float:
    """The round that is best on test data."""
    return entry.merit + float(entry.measure.merit([entry.inflation or 0.0])[0])


def number(name: str) -> Merit:
    """By another number of the results."""

    def merit(entry: Entry) -> float:
        value = entry.average(name)
        return math.nan if value is None else float(entry.measure.merit([value])[0])

    return merit


def validation(at: Callable[[Entry], int]) -> Merit:
    """By the validation score of a trial."""

    def merit(entry: Entry) -> float:
        value = entry.trials[at(entry)] if at(entry) < len(entry.trials) else None
        return math.nan if value is None else float(entry.measure.merit([value])[0])

    return merit


AUDITED: Mapping[str, tuple[Merit, Merit]] = {
    "best round on test data, not the last": (last_round, best_round),
    "mean over samples, not users": (last_round, number("over_samples")),
    "the worst tenth of the users": (last_round, number("worst10")),
    "default keys, not tuned ones (validation)": (
        validation(lambda entry: entry.trial), validation(lambda entry: 0),
    ),
}  # fmt: skip
"""Each choice: the merit that it is compared with, and its own."""


def audit(results: Results) -> list[Choice]:
    """Every choice on every set that has three rows at least."""
    found = [
        choice
        for what, (usual, other) in AUDITED.items()
        for place, group in results.sets.items()
        if (choice := compared(what, place, group, usual, other))
    ]
    return found + deals(results)


def compared(
    what: str, place: str, group: Sequence[Beside], usual: Merit, other: Merit
) -> Choice | None:
    """A choice on a set; None of fewer than three rows."""
    entries = [one.entry for one in group if one.entry.results]
    merits = {e.row: (usual(e), other(e)) for e in entries}
    return ranked(what, place, {row: pair for row, pair in merits.items() if finite(pair)})


def finite(pair: tuple[float, float]) -> bool:
    """Tell whether both are numbers."""
    return all(map(math.isfinite, pair))


def ranked(what: str, place: str, merits: Mapping[str, tuple[float, float]]) -> Choice | None:
    """Two rankings of the same rows beside each other."""
    from scipy.stats import kendalltau, rankdata

    if len(merits) < 3:
        return None
    rows, values = [*merits], np.array([*merits.values()])
    ranks = np.array([rankdata(-own) for own in values.T])
    tau = float(kendalltau(*ranks).statistic)
    first, instead = (rows[int(own.argmin())] for own in ranks)
    moves = np.abs(ranks[0] - ranks[1])
    most = int(moves.argmax())
    return Choice(what, place, tau, first, instead, (round(float(moves[most])), rows[most]))


def deals(results: Results) -> list[Choice]:
    """The same data dealt in two ways: sets whose names differ in their ending."""
    names, found = [*results.sets], []
    for place in names:
        for other in names[names.index(place) + 1 :]:
            stem, end = other.rpartition("-")[::2]
            if stem and place.rpartition("-")[0] == stem:
                merits = [{o.entry.row: o.entry.merit for o in results.sets[n]}
                          for n in (place, other)]  # fmt: skip
                pairs = {r: (m, merits[1].get(r, math.nan)) for r, m in merits[0].items()}
                some = {row: pair for row, pair in pairs.items() if finite(pair)}
                if choice := ranked(f"dealt as {end}", place, some):
                    found.append(choice)
    return found
