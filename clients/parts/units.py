"""The units of the users' labels, where these are numbers that were standardised."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from corsage.datasets.user_data import FederatedData
from corsage.networks.batches import Units


def units_of(data: FederatedData, users: Sequence[str]) -> Units | None:
    """Mean and scale of each user's labels; None if they are as they were."""
    agreed, own = data.preparation, data.own
    if agreed is None or not agreed.numbers:
        return None
    if own is None:
        one = np.array([agreed.label.mean, agreed.label.scale])
        return Units(*np.repeat(one[:, None], len(users), axis=1))
    return Units(*own.label[[data.index[user] for user in users]].T)
