"""What a federation of tables agrees on when its first nodes have said what their columns are."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from corsage.core.agreement import agreed
from corsage.core.columns import CATEGORY, TableFacts
from corsage.core.config import Config
from corsage.core.preparation import FEDERATED, Preparation


@dataclass(frozen=True)
class Policy:
    """How tables are prepared, as the keys say it.

    Parameters
    ----------
    missing, scaling : keys of the same names.
    centred : whether there is an intercept, which makes up for a shift.
    reference : whether the first level of a category has no input, as the intercept stands for it.
    """

    missing: str = "refuse"
    scaling: str = FEDERATED
    centred: bool = True
    reference: bool = False

    def agree(self, said: Sequence[TableFacts], numbers: bool) -> Preparation:
        """The preparation for these tables: their columns are those that most of them have."""
        names = Counter(frozenset(one.names) for one in said)
        usual = max(names, key=lambda n: (names[n], sorted(n)))
        return agreed(
            [one for one in said if frozenset(one.names) == usual],
            missing=self.missing,
            scaling=self.scaling,
            numbers=numbers,
            reference=self.reference,
            centred=self.centred,
        )


def policy_of(config: Config) -> Policy:
    """The policy of a run."""
    keys: Any = config.device_data
    linear = config.model.model == "linear"
    return Policy(
        keys.missing,
        keys.scaling,
        centred=not linear or config.model.intercept,
        reference=linear and config.model.intercept,
    )


def described(preparation: Preparation) -> str:
    """What was agreed on, in a line."""
    words = [column for column in preparation.columns if column.kind == CATEGORY]
    parts = [f"{len(preparation.columns) - len(words)} columns of numbers"]
    if words:
        levels = sum(len(column.levels) for column in words)
        parts.append(f"{len(words)} of words with {levels} inputs")
    if preparation.missing != "refuse":
        parts.append(f"missing={preparation.missing}")
    return f"table: {', '.join(parts)}; scale={preparation.scaling}"
