"""Which clusters were at work in each round of an earlier run: `known-schedule`.

A run folder's metrics.jsonl is a file that anybody may have edited, or that is of another run. What
cannot have happened under this run's keys is refused, as early as it can be known.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping
from contextlib import suppress
from pathlib import Path
from typing import NoReturn

from corsage.core.errors import ConfigError


class Played:
    """The rounds of an earlier run.

    Parameters
    ----------
    path : its folder.
    strategy : whose rounds.
    staleness : how old centres may be now.
    rounds : how many rounds will be played; None if nobody knows.
    """

    def __init__(self, path: str, strategy: str, staleness: int, rounds: int | None) -> None:
        self.path = path
        self._rounds = self._read(Path(path).expanduser() / strategy / "metrics.jsonl")
        for number in range(1, (rounds or 1) + 1):
            self.of_round(number)
        oldest = max((age for row in self._rounds.values() for age in row.values()), default=0)
        if oldest > staleness:
            self._refuse(
                f"centres are up to {oldest} rounds old in it: set known-staleness to that"
            )

    def of_round(self, number: int) -> Collection[str]:
        """Who was at work in a round."""
        if number not in self._rounds:
            last = max(self._rounds, default=0)
            self._refuse(f"has no round {number}: it is of {last}; set num-rounds to that at most")
        return self._rounds[number]

    def check(
        self,
        number: int,
        clusters: Collection[str],
        known: Collection[str],
        ages: Mapping[str, int | None],
        staleness: int,
    ) -> None:
        """Refuse a round that this run cannot have.

        Parameters
        ----------
        number : of the round.
        clusters, known : those that train in it, and all that there ever were.
        ages : how old the centres are of those that are away; None: they never took part.
        staleness : how old they may be.
        """
        other = "it is edited, or of a run with other users"
        if strange := [name for name in self._rounds[number] if name not in known]:
            self._refuse(f"round {number}: there is no cluster {strange[0]} here; {other}")
        if clusters and not set(clusters) - ages.keys():
            self._refuse(f"round {number}: all clusters are at work, and none takes part; {other}")
        for name, age in ages.items():
            if age is None:
                self._refuse(f"round {number}: cluster {name} is at work before its first; {other}")
            if age > staleness:
                self._refuse(
                    f"round {number}: the centre of cluster {name} is {age} rounds old, "
                    f"known-staleness={staleness} allows no more than that; {other}"
                )

    def _read(self, file: Path) -> dict[int, dict[str, int]]:
        """Each round's clusters that were at work, and how old their centres were.

        A line that a crash cut short is none.
        """
        rounds: dict[int, dict[str, int]] = {}
        try:
            for line in file.read_bytes().split(b"\n"):
                with suppress(json.JSONDecodeError, UnicodeDecodeError):
                    row = json.loads(line)
                    stale = row["timeline"]["stale"]
                    rounds[int(row["round"])] = {str(n): int(age) for n, age in stale.items()}
        except (
            OSError,
            ValueError,
            KeyError,
            TypeError,
            AttributeError,
            OverflowError,
            RecursionError,
        ) as error:
            self._refuse_file(file, error)
        if not rounds:
            self._refuse_file(file, ValueError("no lines"))
        return rounds

    def _refuse_file(self, file: Path, error: Exception) -> NoReturn:
        why = "no such file" if isinstance(error, FileNotFoundError) else type(error).__name__
        self._refuse(
            f"{file} says of no round who took part in it ({why}): give the folder of a run with "
            "known-staleness"
        )

    def _refuse(self, why: str) -> NoReturn:
        raise ConfigError(f"known-schedule={self.path}: {why}.")
