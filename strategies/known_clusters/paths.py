"""Cluster names that are paths: `north/hill/4b` is a class in a school in a region.

A user's cluster is the whole path. Clusters whose paths begin alike are in one unit of the level
above, and so on up to the middle: one level more of the hierarchical model (5.1) of Lyu et al. 2022
for each part of a path but the last.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from corsage.core.arrays import Floats, Ints
from corsage.core.errors import ConfigError
from corsage.core.messages.replies import reading_order
from corsage.solvers.known_clusters.absorbed import Level
from corsage.solvers.known_clusters.tree import levels_of
from corsage.solvers.known_clusters.variances.covariance_fit import level_name
from corsage.strategies.known_clusters.units import Units
from corsage.strategies.rounds.results import Finding

BETWEEN = "/"
UNITS_SHOWN = 12
"""Units of a level that are printed."""


def parents(path: str) -> list[str]:
    """The units that a cluster is in, the nearest first."""
    parts = path.split(BETWEEN)
    return [BETWEEN.join(parts[:end]) for end in range(len(parts) - 1, 0, -1)]


def check_paths(names: Sequence[str]) -> None:
    """Refuse names of which some are paths and others are not, or shorter, or have gaps."""
    for name in names:
        if BETWEEN in name and not all(part.strip() for part in name.split(BETWEEN)):
            raise ConfigError(
                f"cluster {name}: a part of its path is empty, and nobody knows which unit it is "
                "in; name it, or set mixed-paths=false if it is a name like any other."
            )
    depths = {name.count(BETWEEN): name for name in sorted(names)}
    if len(depths) > 1:
        one, other = (depths[depth] for depth in (min(depths), max(depths)))
        raise ConfigError(
            f"clusters {one} and {other}: paths must have equally many parts; rename them, or set "
            "mixed-paths=false if they are names like any others."
        )


def units_above(names: Sequence[str]) -> list[list[str]]:
    """The units of each level above the clusters, from below.

    A level that is the one below it once more, a unit each, says nothing; nor does a single unit,
    which is the middle.
    """
    found: list[list[str]] = []
    below = len(set(names))
    for place in range(max((name.count(BETWEEN) for name in names), default=0)):
        units = sorted({unit_of(name, place) for name in names}, key=reading_order)
        if 1 < len(units) < below:
            found.append(units)
            below = len(units)
    return found


def unit_of(name: str, place: int) -> str:
    """The unit of a path so many levels above the clusters; of a shorter one its first part."""
    above = parents(name)
    return above[min(place, len(above) - 1)] if above else name


def tree_levels(
    cluster: Ints, names: Sequence[str], above: Sequence[list[str]]
) -> tuple[Level, ...]:
    """Users in clusters `names`, these in units of the levels `above`, the last in the middle."""
    users, *rest = levels_of(cluster, len(names))
    if not above:
        return (users, *rest)
    levels, below = [users], list(names)
    for units in above:
        place = {unit: number for number, unit in enumerate(units)}
        parent = np.array([place[next(u for u in [n, *parents(n)] if u in place)] for n in below])
        levels.append(Level.plain(parent, len(units)))
        below = units
    return (*levels, Level.plain(np.zeros(len(below), np.int64), 1))


def unit_models(above: Sequence[Mapping[str, Floats]], units: Units) -> list[Finding]:
    """The models of the units of each level above the clusters, in the data's units."""
    found = []
    for number, level in enumerate(above):
        rows = [(name, in_words(units, level[name])) for name in list(level)[:UNITS_SHOWN]]
        more = [("...", f"{len(level)} in all")] if len(level) > UNITS_SHOWN else []
        found.append(Finding(f"{level_name(2 + number)}' estimates", [*rows, *more]))
    return found


def in_words(units: Units, model: Floats) -> str:
    """A model's coefficients in one line."""
    told = units.by_name(units.estimate(model))
    return ", ".join(f"{name} {value:.4g}" for name, value in told.items())
