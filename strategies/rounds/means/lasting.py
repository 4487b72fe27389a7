"""Means over all users to which those of a round add theirs: SCAFFOLD's c, FedDyn's h."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from corsage.core.messages.schema import capped

if TYPE_CHECKING:
    from corsage.strategies.rounds.job import Job


def share_of_all(job: Job, weight: float) -> np.float32:
    """The share of all users, by what they weigh, that users of this weight are."""
    members = [job.members.everybody[user] for user in job.members.users]
    by_examples = job.config.train.weighting == "examples"
    samples = np.array([member.train if by_examples else 1 for member in members], np.float64)
    return np.float32(weight / capped(samples, job.config.federation.max_share).sum())
