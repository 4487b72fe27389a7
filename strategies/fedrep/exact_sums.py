"""The sums that exact heads are solved from, and what cannot be solved."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from corsage.core.arrays import Array
from corsage.core.counts import Number
from corsage.core.errors import ConfigError, ModelError, RoundFailed
from corsage.core.messages.replies import Replies, name_users
from corsage.strategies.rounds.job import Job

if TYPE_CHECKING:
    from corsage.networks.network import Network
    from corsage.solvers.known_clusters.variances.shared_rows import Rows

SQUARE = Number("square", low=0.0)
ONE_HOT = Number("square", low=0.0, per_sample=1.0)
"""|Y|^2 of numbers, and of classes: there it is the number of samples."""

MOST_NUMBERS = 2**28
"""So many numbers of all users the server holds at once; of more it has nodes' sums alone."""

LEFT = Number("left", low=0.0)
"""The part of a record's loss that a multinomial head leaves at most, on average."""


def numbers(asked: str, labels: bool) -> tuple[Number, ...]:
    """Numbers that users report with the answer to a question; `labels` are numbers or classes."""
    known = {"sums": (SQUARE if labels else ONE_HOT,), "softmax": (LEFT,)}
    return known.get(asked, ())


def least(rows: Array) -> int:
    """The column of the least loss over the users, of whom nobody is too loud."""
    from corsage.solvers.losses.held_out import bounded

    return int(np.argmin(bounded(np.asarray(rows, np.float64).T).mean(1)))


def check_exact(network: Network, loss: str) -> None:
    """Refuse a head or a loss whose problem has no closed form."""
    if not network.linear_head or not network.split_exact:
        raise ModelError(f"fedrep-exact: the head must be one linear layer: {network.why}")
    if network.criterion.name not in ("cross-entropy", "squared"):
        raise ConfigError(
            f"fedrep-exact: heads are solved for squared errors, of numbers or of each class; "
            f"loss={network.criterion.name} is neither (loss=auto is)."
        )
    if loss == "multinomial" and network.criterion.numbers:
        raise ConfigError(
            "fedrep-exact-loss=multinomial is of classes, the labels are numbers: "
            "take fedrep-exact-loss=squared."
        )


def rows_of(replies: Replies, d: int, outputs: int) -> Rows:
    """The users' sums as matrices."""
    from corsage.networks.exact.exact_heads import unpacked
    from corsage.solvers.known_clusters.variances.shared_rows import Rows

    a = unpacked(np.asarray(replies.rows["a"], np.float64), d)
    b = np.asarray(replies.rows["b"], np.float64).reshape(-1, d, outputs)
    square = np.asarray(replies.metrics["square"], np.float64)
    return Rows(a, b, square, np.asarray(replies.metrics["num-examples"], np.float64))


def sound(
    name: str, job: Job, rows: Rows, users: list[str], aside: Sequence[str]
) -> tuple[Rows, list[str]]:
    """The sums that can be of data, and whose they are; the others are left out, and named.

    Who is set aside has been named.

    If there are no more records than a head has numbers, a middle that fits them all leaves nothing
    that variances could be found from: that is refused.
    """
    from corsage.solvers.known_clusters.variances.shared_rows import Rows, possible

    fine = possible(rows)
    if wrong := [user for user, is_fine in zip(users, fine, strict=True) if not is_fine]:
        job.note(f"{name_users(wrong)} left out: their sums are of no data")
    fine &= np.array([user not in aside for user in users])
    kept = Rows(*(part[fine] for part in rows))
    if not fine.any():
        raise RoundFailed(f"{name}: no user's sums can be of data.")
    records, d = int(kept.records.sum()), rows.a.shape[1]
    if records <= d:
        raise RoundFailed(
            f"{name}: all users together have {records} records, no more than the {d} numbers of "
            "an output's head: take a body with fewer outputs (hidden=...)."
        )
    return kept, [user for user, is_fine in zip(users, fine, strict=True) if is_fine]
