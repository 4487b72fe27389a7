"""When global steps were, and when each cluster was at work: a few numbers in a round's line.

The report draws them. Seconds are the run's own, which a resumed run counts on.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

from corsage.strategies.rounds.state import Progress

MOST = 60
"""Clusters whose times are kept, the first by their numbers: a line of metrics stays short."""


class Timeline:
    """What a round's line says of time.

    Parameters
    ----------
    progress : where the run stands: the seconds that it has taken so far.
    """

    def __init__(self, progress: Progress) -> None:
        self._zero = time.monotonic() - progress.seconds
        self._row: dict[str, Any] = {}

    def step(self, stale: Mapping[str, int]) -> None:
        """Now is a round's global step; `stale` are the clusters that are not there, and ages."""
        self._row = {"stale": dict(stale), "at": self.seconds(time.monotonic()), "work": {}}

    def worked(self, times: Mapping[str, tuple[float, float]]) -> None:
        """From when to when clusters were at work, that have come back in this round."""
        some = list(times.items())[: MOST - len(self._row["work"])]
        self._row["work"] |= {
            n: [self.seconds(begin), self.seconds(end)] for n, (begin, end) in some
        }

    def row(self) -> dict[str, Any]:
        """What was noted, once."""
        found, self._row = self._row, {}
        return {"timeline": found} if found else {}

    def seconds(self, moment: float) -> float:
        """A moment of `time.monotonic`, in seconds of the run."""
        return round(moment - self._zero, 4)
