"""What exact heads are drawn to under the multinomial loss: two exchanges after the squared loss.

The squared loss gave w_j, gamma and the heat that scores are multiplied by. Under the multinomial
loss a pull of gamma/heat towards heat w_j has the same force, which is where it begins:

1. softmax: all users send their minimisers h_i for a few multiples of that strength, and for each

    min over w, wbar of  sum_i g/2 |h_i - w_j|^2 + sum_j (lambda/gamma) g/2 |w_j - wbar|^2

   gives w_j in closed form. lambda/gamma is that of the squared loss.
2. strength: some users hold out a part of their records and say how well these are told with each
   strength and its w_j; the one of the least cross-entropy is taken.

The h_i are checked: g |h_i - w_j| is the norm of Z_i'(Y_i - P_i), at most that of Z_i times
sqrt(2 m_i), which follows from the user's own sums.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from corsage.core.arrays import Floats, Ints
from corsage.core.errors import RoundFailed
from corsage.core.replies import Replies, name_users
from corsage.core.seeding import generator
from corsage.strategies.rounds.turns import Parcel, Script

if TYPE_CHECKING:
    from corsage.solvers.known_clusters.shared_rows import Rows
    from corsage.strategies.fedrep.fedrep_exact import FedRepExact

VOTERS = 32
"""So many users say which heat and which pull is best; they have hundreds of records and more."""
LOOSE = 1.01
"""What rounding may add to a norm."""


def refine(strategy: FedRepExact, number: int, limits: Mapping[str, float]) -> Script[None]:
    """The pull, and w_j and wbar of the multinomial loss. `limits`: g |h_i - w_j| at most."""
    from corsage.networks.softmax_heads import PULLS

    state, k = strategy.state, len(PULLS)
    pulls = PULLS / (state.rho * state.heat)
    template = {"head": np.zeros((k, len(state.wbar)), np.float32)}
    replies = yield from strategy.ask("softmax", list(limits), number, template=template)
    heads, users = _sound(strategy, replies, pulls, limits)
    names, cluster = strategy.numbered(users)
    ratio = state.tau / state.rho
    w, wbar = centres(heads.reshape(len(users), -1), cluster, len(names), ratio)
    w, wbar = w.reshape(len(names), k, -1), wbar.reshape(k, -1)
    some, like = voters(strategy, "strength", number, users), {"strength": np.zeros(k, np.float32)}
    own = cluster[[users.index(user) for user in some]]
    parcel = Parcel(strategy.shared(), {"centres": w[own].astype(np.float32)})
    votes = yield from strategy.ask("strength", some, number, parcel, like)
    best = int(np.argmin(votes.mean["strength"]))
    strategy.state = replace(
        state,
        pull=float(pulls[best]),
        w=w[:, best].astype(np.float32),
        wbar=wbar[best].astype(np.float32),
        clusters=names,
    )


def _sound(
    strategy: FedRepExact, replies: Replies, pulls: Floats, limits: Mapping[str, float]
) -> tuple[Floats, list[str]]:
    """The heads (n, K, H) that can be of their users' data; the others are left out, and named."""
    heads = np.asarray(replies.rows["head"], np.float64)
    centre = strategy.state.heat * strategy.show(replies.users, {}).rows["centre"]
    far = np.linalg.norm(heads - centre[:, None], axis=2)
    most = LOOSE * np.array([limits[user] for user in replies.users])
    sound = (pulls * far <= most[:, None]).all(1)
    if wrong := [user for user, fine in zip(replies.users, sound, strict=True) if not fine]:
        strategy.federation.note(f"{name_users(wrong)} left out: their heads are of no data")
    if not sound.any():
        raise RoundFailed(f"{strategy.name}: no user's heads can be of its data.")
    return heads[sound], [u for u, fine in zip(replies.users, sound, strict=True) if fine]


def voters(strategy: FedRepExact, what: str, number: int, users: list[str]) -> list[str]:
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
