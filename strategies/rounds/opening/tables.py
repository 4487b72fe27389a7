"""The preparation that a federation of tables agrees on, by the columns of its first nodes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from corsage.core.configuration.config import Config
from corsage.core.configuration.groups import TABLE_DECAY, TrainKeys
from corsage.core.messages.agreement import agreed
from corsage.core.tables.columns import TableFacts
from corsage.core.tables.preparation import FEDERATED, UNSCALED, Preparation


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


def suited(keys: TrainKeys, agreed: Preparation | None) -> TrainKeys:
    """The settings of training, with the weight decay that these data want if nobody said one."""
    of_table = agreed is not None and agreed.numbers and agreed.scaling != UNSCALED
    if of_table and keys.weight_decay < 0:
        return replace(keys, weight_decay=TABLE_DECAY)
    return keys
