"""The average of the users' arrays: their mean, or by `robust` one that bad users cannot own.

The rules are those of core/robust.py. Under a rule every user's array comes as a row, also from a
node that hosts several, and is compared with what was sent to it. An average of fewer users than
the rule needs is not taken: what was sent stays, and a note says so.

C of `clip`, if it is to be the median of norms: the median over the last ten rounds of the median
over the round's users of |Delta_i|, for each array by itself. So a single round of mostly bad users
does not set it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from statistics import median as middle
from typing import TYPE_CHECKING

import numpy as np

from corsage.core.arrays import Array, Floats, Ints
from corsage.core.configuration.key_groups import RobustKeys
from corsage.core.errors import ConfigError
from corsage.core.messages.replies import Replies
from corsage.core.registry import attached
from corsage.strategies.rounds.means.user_rows import cluster_means, user_weights

if TYPE_CHECKING:
    from corsage.strategies.rounds.job import Job

ROUNDS_OF_NORMS = 10
"""Rounds whose norms count for C."""
FEWEST_USERS = 3
"""Two users cannot outvote one."""


class Averaging:
    """The rule of a run, and what it has to remember: `updates.lengths`.

    Parameters
    ----------
    job : whose users they are.

    Attributes
    ----------
    keys : the rule.
    on : whether there is one, and not the mean.
    """

    def __init__(self, job: Job) -> None:
        self.job, self.keys = job, job.config.robust
        self.on = self.keys.on

    def check(self, strategy: str, unprotected: str) -> None:
        """ConfigError if the rule would do nothing, or other than what it says."""
        name = self.keys.robust
        if not self.on:
            return
        if unprotected:
            raise ConfigError(f"robust={name}: not for strategy={strategy}: {unprotected}.")
        weighting = self.job.config.train.weighting
        if name in ("median", "trimmed-mean") and weighting != "uniform":
            raise ConfigError(
                f"robust={name}: it counts each user once, not by weighting={weighting}; take "
                "weighting=uniform, or robust=clip or krum."
            )

    def check_enough(self, users: int) -> None:
        """ConfigError if all users of the first round are too few for the rule."""
        if not self.on or self.job.progress.round:
            return
        keep, most = self.keys.krum_keep, users - bad_of(self.keys, users)
        if self.keys.robust == "krum" and keep > most:
            raise ConfigError(
                f"krum-keep={keep}: of {users} users in a round {users - most} may be bad, so at "
                f"most {most} can be averaged."
            )
        if users < (least := needed(self.keys, users)):
            raise ConfigError(
                f"robust={self.keys.robust}: {users} users take part in a round, it needs {least}: "
                "raise fraction-train or num-users, or lower robust-share."
            )

    def merged(self, replies: Replies, sent: Mapping[str, Array]) -> Replies:
        """Replies with the rule's average of each array in `sent` in the place of its rows.

        `sent` has what the users were sent, or zeros where they send a change.
        """
        if not replies.users:
            return replies
        config = self.job.config
        weights = user_weights(replies, config.train.weighting, config.federation.max_share)
        mean = {
            name: self.of_rows(name, replies.rows[name], weights, origin)
            for name, origin in sent.items()
        }
        rest = {name: rows for name, rows in replies.rows.items() if name not in sent}
        return replace(replies, mean=mean, rows=rest)

    def of_rows(self, name: str, rows: Array, weights: Floats, origin: Array) -> Array:
        """The average of one array over all users of a round."""
        return self._average(rows, weights, origin, self._limit(name, rows, origin))

    def of_clusters(
        self, name: str, rows: Array, labels: Sequence[int], weights: Floats, origins: Array
    ) -> Array:
        """The average over the users of each cluster; without any it has its row of `origins`."""
        if not self.on:
            return cluster_means(rows, labels, weights, origins)
        means, picked = origins.copy(), np.asarray(labels, np.int64)
        limit = self._limit(name, rows, origins[picked])
        for cluster in np.unique(picked):
            mine = picked == cluster
            means[cluster] = self._average(rows[mine], weights[mine], origins[cluster], limit)
        return means

    def _average(self, rows: Array, weights: Floats, origin: Array, limit: float) -> Array:
        keys, n = self.keys, len(rows)
        if n < (least := needed(keys, n)):
            self.job.note(
                f"robust={keys.robust} needs {least} users, of {n} it takes no average: what was "
                "sent to them stays"
            )
            return np.array(origin)
        rules = attached("robust")
        match keys.robust:
            case "clip":
                return np.asarray(rules.clipped_mean(rows, weights, origin, limit))
            case "median":
                return np.asarray(rules.median(rows))
            case "trimmed-mean":
                return np.asarray(rules.trimmed_mean(rows, bad_of(keys, n)))
        chosen = self._chosen(rows, origin)
        return np.asarray(rules.weighted_mean(rows[chosen], weights[chosen]))

    def _chosen(self, rows: Array, origin: Array) -> Ints:
        """The users that Krum keeps."""
        bad, keep = bad_of(self.keys, len(rows)), self.keys.krum_keep
        most = min(keep or len(rows), len(rows) - bad)
        return np.asarray(attached("robust").krum(rows, bad, most, origin))

    def _limit(self, name: str, rows: Array, origin: Array) -> float:
        """C of `clip`; the norms of this round count for it."""
        if self.keys.robust != "clip" or self.keys.clip_norm != "median":
            return self.keys.limit
        updates = self.job.updates
        now = float(np.median(attached("robust").lengths(rows, origin)))
        lengths = [*updates.lengths.get(name, []), now][-ROUNDS_OF_NORMS:]
        updates.lengths = {**updates.lengths, name: lengths}
        return middle(lengths)


def bad_of(keys: RobustKeys, users: int) -> int:
    """The number of bad users among so many: the share, rounded down, but at least one."""
    return max(int(keys.robust_share * users + 1e-9), 1)


def needed(keys: RobustKeys, users: int) -> int:
    """The number of users that an average of so many needs."""
    bad = bad_of(keys, users)
    if keys.robust == "krum":
        return 2 * bad + 3
    if keys.robust == "clip" and keys.clip_norm != "median":
        return 1
    return max(2 * bad + 1, FEWEST_USERS) if keys.robust == "trimmed-mean" else FEWEST_USERS
