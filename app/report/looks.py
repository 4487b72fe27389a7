"""How strategies are told apart in every picture: a colour, a dash and a mark of their own.

The colours are Okabe and Ito's, which people who are colour-blind tell apart, without the yellow
and with a grey; for dark paper a little lighter.
"""

from __future__ import annotations

import itertools
import zlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

LIGHT_LINES = ("#0072b2", "#d55e00", "#5f6b76", "#e69f00", "#009e73", "#cc79a7", "#56b4e9")
DARK_LINES = ("#4aa8e0", "#f0803c", "#a3adb8", "#f0b93a", "#35c79c", "#e59cc6", "#8fd0f5")
COLOURS = len(LIGHT_LINES)
DASHES = 4
MARKS = 8
HOME = {"fedrep": 0, "fedavg": 1, "local": 2, "fedavg+ft": 3}
"""Colours of those that nearly every comparison has."""


@dataclass(frozen=True)
class Look:
    """Numbers of a colour, a dash and a mark."""

    colour: int
    dash: int
    mark: int


def looks(names: Iterable[str]) -> dict[str, Look]:
    """A look for each strategy: the same in every plot, different within one.

    A name has its own colour unless another of the same plot has it; dashes once all are taken.
    """
    free = list(range(COLOURS * DASHES))
    found: dict[str, Look] = {}
    for name in sorted(set(names), key=lambda n: (HOME.get(n, COLOURS), n)):
        wish = HOME.get(name, zlib.crc32(name.encode()) % COLOURS)
        # Nearest free place at or after the wish, full lines before dashed ones.
        place = min(free, key=lambda i: (i // COLOURS, (i - wish) % COLOURS), default=wish)
        free = [i for i in free if i != place]
        found[name] = Look(place % COLOURS, place // COLOURS, len(found) % MARKS)
    return found


def spaced(heights: Sequence[float], gap: float, high: float) -> list[float]:
    """Heights moved apart to at least `gap`, in their order, the highest at most at `high`."""
    placed = np.array(heights, dtype=float)
    order = np.argsort(placed, kind="stable")
    for below, above in itertools.pairwise(order):
        placed[above] = max(placed[above], placed[below] + gap)
    for index in order[::-1]:
        placed[index] = min(placed[index], high)
        high = placed[index] - gap
    return [float(height) for height in placed]
