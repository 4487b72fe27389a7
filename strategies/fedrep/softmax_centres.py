"""Centres of exact heads under the multinomial loss: two exchanges after the squared loss.

The squared loss gave w_j, gamma and the heat that scores are multiplied by. Under the multinomial
loss a pull of gamma/heat towards heat w_j has the same force, which is where it begins:

1. strength: some users hold out a part of their records and say how well these are told with a few
   multiples of that strength g; the one of the least cross-entropy is taken.
2. softmax: all users send their minimisers h_i around heat w_j, and

    min over w, wbar of  sum_i g/2 |h_i - w_j|^2 + sum_j (lambda/gamma) g/2 |w_j - wbar|^2

   gives w_j in closed form. lambda/gamma is that of the squared loss.

The h_i are checked: g |h_i - w_j| is the norm of Z_i'(Y_i - P_i), at most that of Z_i times
sqrt(2 m_i), which follows from the user's own sums.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from corsage.core.arrays import Floats, Ints
from corsage.core.errors import RoundFailed
from corsage.core.messages.replies import Replies, name_users
from corsage.core.seeding import generator
from corsage.strategies.fedrep.exact_sums import least
from corsage.strategies.rounds.base import Strategy
from corsage.strategies.rounds.turns import Script

if TYPE_CHECKING:
    from corsage.solvers.known_clusters.variances.shared_rows import Rows
    from corsage.strategies.fedrep.exact_state import FedRepExactState
    from corsage.strategies.fedrep.fedrep_exact import FedRepExact

VOTERS = 32
"""So many users say which heat and which pull is best; they have hundreds of records and more."""
NORM_ROUNDING = 1.01
"""The part of a norm that rounding may add."""


def refine(strategy: FedRepExact, number: int, limits: Mapping[str, float]) -> Script[None]:
    """The pull, and w_j and wbar of the multinomial loss. `limits`: g |h_i - w_j| at most."""
    state = yield from _pulled(strategy, number, list(limits))
    template = {"head": np.zeros_like(state.wbar)}
    replies = yield from strategy.ask("softmax", list(limits), number, template=template)
    heads, users = _sound(strategy, replies, limits)
    _note_left(strategy, replies, users)
    names, cluster = strategy.numbered(users)
    w, wbar = centres(heads, cluster, len(names), state.tau / state.rho)
    own, middle = w.astype(np.float32), wbar.astype(np.float32)
    strategy.state = replace(strategy.state, w=own, wbar=middle, clusters=names)


def _pulled(strategy: FedRepExact, number: int, users: list[str]) -> Script[FedRepExactState]:
    """The pull that some users choose, and the squared loss's centres in the unit of scores."""
    from corsage.networks.exact.softmax_heads import PULLS

    some, like = (
        voters(strategy, "strength", number, users),
        {"strength": np.zeros(len(PULLS), np.float32)},
    )
    votes = yield from strategy.ask("strength", some, number, template=like)
    state = strategy.state
    heat = np.float32(state.heat)
    pull = float(PULLS[least(votes.rows["strength"])] / (state.rho * state.heat))
    strategy.state = replace(state, pull=pull, w=heat * state.w, wbar=heat * state.wbar)
    return strategy.state


def _sound(
    strategy: FedRepExact, replies: Replies, limits: Mapping[str, float]
) -> tuple[Floats, list[str]]:
    """The heads (n, H) that can be of their users' data; the others are left out, and named."""
    heads = np.asarray(replies.rows["head"], np.float64)
    centre = strategy.show(replies.users, {}).rows["centre"]
    far = strategy.state.pull * np.linalg.norm(heads - centre, axis=1)
    sound = far <= NORM_ROUNDING * np.array([limits[user] for user in replies.users])
    if wrong := [user for user, fine in zip(replies.users, sound, strict=True) if not fine]:
        strategy.job.note(f"{name_users(wrong)} left out: their heads are of no data")
    if not sound.any():
        raise RoundFailed(f"{strategy.name}: no user's heads can be of its data.")
    return heads[sound], [u for u, fine in zip(replies.users, sound, strict=True) if fine]


def _note_left(strategy: FedRepExact, replies: Replies, users: list[str]) -> None:
    """Say whose heads ran out of steps before they were certified; and keep the worst of all."""
    from corsage.networks.exact.softmax_heads import CLOSE_GAP

    left = dict(zip(replies.users, replies.metrics["left"].tolist(), strict=True))
    own = {user: left[user] for user in users}
    strategy.state = replace(strategy.state, left=max(own.values()))
    if loose := [user for user in users if own[user] > NORM_ROUNDING * CLOSE_GAP]:
        strategy.job.note(
            f"{name_users(loose)} without a certified multinomial head: a record's loss could be "
            f"{strategy.state.left:.2g} lower, where {CLOSE_GAP:g} is the aim; scale the inputs"
        )


def voters(strategy: Strategy[Any, Any], what: str, number: int, users: list[str]) -> list[str]:
    """Some users, drawn by seed: a number that all share needs no more."""
    rng = generator(strategy.config.run.seed, what, number)
    return [users[i] for i in np.sort(rng.permutation(len(users))[:VOTERS])]


def centres(heads: Floats, cluster: Ints, k: int, ratio: float) -> tuple[Floats, Floats]:
    """w_j (k, H) and wbar (H,) of heads (n, H); `ratio` = tau/rho = gamma/lambda."""
    count = np.bincount(cluster, minlength=k).astype(np.float64)
    mean = np.zeros((k, heads.shape[1]))
    np.add.at(mean, cluster, heads)
    mean /= count[:, None]
    own = count * ratio / (count * ratio + 1)  # w_j = own mean_j + (1 - own) wbar
    weight = count / (count * ratio + 1)
    wbar = weight @ mean / weight.sum()
    if k == 1:
        return mean, wbar
    return own[:, None] * mean + (1 - own)[:, None] * wbar, wbar


def limits(rows: Rows) -> list[float]:
    """sqrt(2 m_i tr A_i): no user's Z'(Y - P) is larger."""
    trace = np.einsum("nii->n", rows.a)
    found: list[float] = np.sqrt(2 * rows.records * trace).tolist()
    return found
