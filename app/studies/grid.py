"""Grid of a study: keys with several values, and the runs that these make."""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from corsage.core.configuration.command_line import each_of, exampled
from corsage.core.configuration.config import Config, strategies_of
from corsage.core.configuration.known_keys import idle_keys, keys_of_algorithms
from corsage.core.errors import ConfigError
from corsage.core.keys import word
from corsage.strategies.effort import with_budget

FIXED = ("resume", "from-round", "run-dir", "study-workers")
"""Keys that say how a study is run, and not what."""
MOST_RUNS = 10_000
"""Runs that a study may have."""


@dataclass(frozen=True)
class Cell:
    """One run of a study: the values of the keys that are varied, as words."""

    values: Mapping[str, str]

    @property
    def name(self) -> str:
        """Its folder: `lr=0.1,seed=3`."""
        text = ",".join(f"{key}={value}" for key, value in self.values.items())
        return re.sub(r"[^\w.,=+-]", "_", text)


@dataclass(frozen=True)
class Grid:
    """All keys of a study.

    Parameters
    ----------
    base : the keys that all runs have.
    varied : the keys that have several values, and these as words.
    """

    base: Mapping[str, Any]
    varied: Mapping[str, list[str]]

    @property
    def cells(self) -> list[Cell]:
        """Every combination in which there is something to run; the seed changes first."""
        keys = sorted(self.varied, key=lambda key: key == "seed")
        products = itertools.product(*(self.varied[key] for key in keys))
        cells = (Cell(dict(zip(keys, values, strict=True))) for values in products)
        return [cell for cell in cells if not self.named(cell) or self.at_work(cell)]

    def keys(self, cell: Cell) -> dict[str, Any]:
        """All keys of one run, whose strategies do the work of the whole comparison."""
        keys, some = {**self.base, **cell.values}, self.at_work(cell)
        if some == self.named(cell):
            return keys
        work = with_budget(Config.parse(keys)).train.work_epochs
        return {**keys, "strategy": ",".join(some), "work-epochs": work}

    def named(self, cell: Cell) -> list[str]:
        """The strategies of a combination."""
        return strategies_of({**self.base, **cell.values})

    def at_work(self, cell: Cell) -> list[str]:
        """Those of them that are not run elsewhere, under other values of others' keys."""
        new = {key for key, value in cell.values.items() if value != self.varied[key][0]}
        return [name for name in self.named(cell) if not new & idle_keys([name])]

    def check(self) -> None:
        """Refuse, before anything runs, what a run of the study would refuse."""
        if (count := math.prod(map(len, self.varied.values()))) > MOST_RUNS:
            raise ConfigError(f"a study of {count} runs: at most {MOST_RUNS} are possible.")
        for key in FIXED:
            if key in self.varied:
                raise ConfigError(f"{key}={','.join(self.varied[key])}: one value, in a study too.")
        self._check_read()
        meant: dict[str, str] = {}
        for cell in self.cells:
            config = Config.parse(self.keys(cell))
            config.check_simulated()
            values = str([config.flat()[key] for key in self.varied])
            if values in meant:  # 0 and 00 are one seed: as two they would be told apart by nothing
                other = f" (as {meant[values]})" * (meant[values] != cell.name)
                raise ConfigError(
                    f"{cell.name}: is in the study twice{other}; name each value once."
                )
            meant[values] = cell.name

    def _check_read(self) -> None:
        """Refuse values of a key that no strategy of the study reads."""
        words = self.varied.get("strategy", [self.base.get("strategy", "")])
        names = list(dict.fromkeys(n for w in words for n in strategies_of({"strategy": w})))
        for key in self.varied.keys() & (idle_keys(names) if names else ()):
            owners = ", ".join(keys_of_algorithms()[key])
            raise ConfigError(
                f"{key}={','.join(self.varied[key])}: none of {', '.join(names)} reads it; it is "
                f"for {owners}."
            )

    def json(self) -> dict[str, Any]:
        """As `study.json` has it."""
        base = {key: value if is_plain(value) else word(value) for key, value in self.base.items()}
        return {"keys": base, "varied": {key: list(values) for key, values in self.varied.items()}}


def is_plain(value: Any) -> bool:
    """True if JSON has such a value."""
    return isinstance(value, (bool, int, float, str))


def grid_of(values: Mapping[str, Any]) -> Grid:
    """The keys with one value and those with several."""
    parts = each_of(values)
    varied = {key: words for key, words in parts.items() if len(words) > 1}
    return Grid({key: words[0] for key, words in parts.items() if key not in varied}, varied)


def completed(values: Mapping[str, Any]) -> tuple[dict[str, Any], str]:
    """The keys with what nobody set, as the first run of a study has it, and the line on it."""
    grid = grid_of(values)
    found, line = exampled({**values, **grid.keys(grid.cells[0])})
    return {**found, **values}, line
