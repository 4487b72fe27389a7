"""Means over users without those who are far from all others."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from corsage.core.arrays import Arrays, Bools
from corsage.core.configuration.config import Config
from corsage.core.finite_pieces import ExactSum
from corsage.core.messages.replies import Replies
from corsage.core.registry import attachment
from corsage.strategies.rounds.means.user_rows import user_weights

NEAR = 0.2
"""Of what records differ by, counted as a median distance at least: ten of these are far."""


def means_of_most(
    keys: Config, replies: Replies, differ: Mapping[str, float] | None = None
) -> tuple[Arrays, list[str]]:
    """The means over users of arrays of which each sent its own, and who is too far out for them.

    Without such a user they are the plain means, to the last bit. `differ`: what records
    of one user do in each array. Who has one class, where others have all, is about as far out.
    """
    rules, far = attachment("robust"), np.zeros(len(replies.users), bool)
    if rules is not None:
        least = {name: NEAR * (differ or {}).get(name, 0.0) for name in replies.rows}
        far = np.any([rules.outlying(own, least=least[n]) for n, own in replies.rows.items()], 0)
    aside = [user for user, is_far in zip(replies.users, far, strict=True) if is_far]
    return means_of(keys, replies, ~far), aside


def means_of(keys: Config, replies: Replies, kept: Bools) -> Arrays:
    """The means over some users of arrays of which each sent its own."""
    weights = user_weights(replies, keys.train.weighting, keys.federation.max_share) * kept
    means = Arrays()
    for name, rows in replies.rows.items():
        total = ExactSum(rows.shape[1:]).add(rows[kept], weights[kept])
        means[name] = total.mean(weights.sum(), rows.dtype)
    return means
