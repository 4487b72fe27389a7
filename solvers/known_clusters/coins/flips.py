"""The coins of Lyu et al. 2022, Algorithms 1 and 2, and the steps they run together to.

In iteration t the network's coin xi_0 falls to 1 with probability p_0: a global step for all users.
Else each cluster j throws its own coin xi_j: with probability p_j its users make a step to their
centre, else a local step. All coins are drawn up front from the seed, those of a cluster under the
cluster's name, so a coin depends on nothing but seed, name and iteration.

Only a global step makes clusters wait for each other. So a `Stretch` is a run of global steps, and
each cluster's way from there to the next global step.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache, partial

import numpy as np

from corsage.core.arrays import Array, Bools
from corsage.core.errors import ConfigError
from corsage.core.seeding import generator

BLOCK = 4096
"""Coins of one kind that are drawn in one go."""

Walk = tuple[tuple[int, int], ...]
"""A cluster's way without global steps: pairs of r steps to the centre, then k local steps."""


@dataclass(frozen=True)
class Coin:
    """A coin that is thrown once an iteration.

    Parameters
    ----------
    seed : the run's.
    probability : of a 1.
    words : what it is for.
    """

    seed: int
    probability: float
    words: tuple[str, ...]

    def at(self, first: int, last: int) -> Bools:
        """Its faces in the iterations first <= t < last."""
        return _join(partial(_block, self), first, last)


@dataclass(frozen=True)
class Coins:
    """All coins of a run.

    Parameters
    ----------
    seed : the run's.
    p0 : p_0, the probability of a global step.
    p : p_j of each cluster, the probability of a step to the centre where xi_0 is 0.
    names : of the clusters.
    """

    seed: int
    p0: float
    p: tuple[float, ...]
    names: tuple[str, ...]

    def __post_init__(self) -> None:
        if len(self.p) != len(self.names) or len(set(self.names)) != len(self.names):
            raise ConfigError(
                f"coins: {len(self.p)} probabilities and {len(set(self.names))} different "
                f"names for {len(self.names)} clusters: give one of each a cluster."
            )
        if not all(0 <= p <= 1 for p in (self.p0, *self.p)):
            raise ConfigError("coins: a probability is not between 0 and 1: mend p_0 or p_j.")

    @property
    def network_coin(self) -> Coin:
        """The coin xi_0."""
        return Coin(self.seed, self.p0, ("network coins",))

    def refresh_coin(self, rho: float) -> Coin:
        """The coin xi' of Algorithm 2, which falls to 1 with probability rho."""
        return Coin(self.seed, rho, ("refresh coins",))

    def network_at(self, first: int, last: int) -> Bools:
        """xi_0 of the iterations first <= t < last."""
        return self.network_coin.at(first, last)

    def clusters_at(self, first: int, last: int) -> Bools:
        """xi_j of all clusters (k, last - first); to be ignored where xi_0 is 1."""
        return _join(partial(_blocks, self), first, last)


@dataclass(frozen=True)
class Stretch:
    """The iterations first <= t < last: global steps, then each cluster's walk.

    There may be no global step only at the beginning of a run, or after a refresh. `refresh`:
    it ends with one, which Algorithm 2 alone has.
    """

    first: int
    last: int
    globals: int
    walks: tuple[Walk, ...]
    refresh: bool = False


def stretch(coins: Coins, first: int, end: int | None) -> Stretch:
    """The stretch that begins at `first`.

    It ends before the next global step that follows one of another kind, or at `end` (T; None:
    the run has no end).
    """
    if end is None and coins.p0 in (0, 1):
        raise ConfigError(f"p_0={coins.p0:g}: a stretch never ends: give the number of iterations.")
    switch = _next(coins.network_coin, False, first, end)
    last = _next(coins.network_coin, True, switch, end)
    return Stretch(first, last, switch - first, walks(coins.clusters_at(switch, last)))


def walks(xi: Bools) -> tuple[Walk, ...]:
    """Each cluster's coins (k, iterations) as a walk."""
    return tuple(_walk(row) for row in xi)


def expected_communications(coins: Coins, iterations: int) -> dict[str, Array]:
    """Expected communications in T iterations, Proposition 3.2, and what coalescing needs.

    between: between clusters, p_0 (1 - p_0) T. within (k,): inside a cluster,
    (1 - p_0)^2 p_j (1 - p_j) T; the proposition's (1 - p_0) p_j (1 - p_j) T counts along the
    iterations with xi_0 = 0 alone. round-trips (k,): messages to and from a cluster's users,
    l (1 - l) T, with l = (1 - p_0)(1 - p_j) the probability of a local step.
    """
    return {kind: share * iterations for kind, share in _shares(coins).items()}


def deviations(coins: Coins, iterations: int) -> dict[str, Array]:
    """Standard deviations of `count`: indicators that are never 1 twice in a row."""
    pairs = max(iterations - 1, 0)
    shares = _shares(coins)
    return {
        kind: np.sqrt(np.maximum(pairs * q * (1 - q) - 2 * max(pairs - 1, 0) * q * q, 0))
        for kind, q in shares.items()
    }


def count(coins: Coins, iterations: int) -> dict[str, Array]:
    """Communications that happen in T iterations, between one iteration and the next.

    between: an iteration with a global step follows one without. within (k,): a step to the centre
    follows a local step. round-trips (k,): a step of another kind follows a local step.
    """
    xi_0 = coins.network_at(0, iterations)
    xi = coins.clusters_at(0, iterations) & ~xi_0
    local = ~(xi | xi_0)
    return {
        "between": np.asarray((xi_0[1:] & ~xi_0[:-1]).sum()),
        "within": (local[:, :-1] & xi[:, 1:]).sum(1),
        "round-trips": (local[:, :-1] & ~local[:, 1:]).sum(1),
    }


def _shares(coins: Coins) -> dict[str, Array]:
    """The probability that two neighbouring iterations make a communication."""
    p_0, p = coins.p0, np.asarray(coins.p, np.float64)
    local = (1 - p_0) * (1 - p)
    return {
        "between": np.asarray(p_0 * (1 - p_0)),
        "within": (1 - p_0) ** 2 * p * (1 - p),
        "round-trips": local * (1 - local),
    }


def _walk(row: Bools) -> Walk:
    """Runs of equal coins, taken two by two."""
    if not len(row):
        return ()
    edges = np.flatnonzero(np.diff(row)) + 1
    runs = np.diff(np.concatenate([[0], edges, [len(row)]])).tolist()
    if not row[0]:
        runs.insert(0, 0)
    if len(runs) % 2:
        runs.append(0)
    return tuple(zip(runs[::2], runs[1::2], strict=True))


def _next(coin: Coin, value: bool, first: int, end: int | None) -> int:
    """The first iteration from `first` on whose coin shows `value`; at most `end`."""
    place = first
    while end is None or place < end:
        hits = np.flatnonzero(_block(coin, place // BLOCK)[place % BLOCK :] == value)
        if len(hits):
            place += int(hits[0])
            return place if end is None else min(place, end)
        place += BLOCK - place % BLOCK
    return end


def _join(blocks: Callable[[int], Bools], first: int, last: int) -> Bools:
    """The columns first <= t < last out of blocks of columns."""
    numbers = range(first // BLOCK, max(-(-last // BLOCK), first // BLOCK + 1))
    parts = [blocks(b)[..., max(first - b * BLOCK, 0) : last - b * BLOCK] for b in numbers]
    return np.concatenate(parts, axis=-1)


@lru_cache(maxsize=8)
def _block(coin: Coin, number: int) -> Bools:
    """A coin's block (BLOCK,)."""
    return np.asarray(generator(coin.seed, *coin.words, number).random(BLOCK) < coin.probability)


@lru_cache(maxsize=4)
def _blocks(coins: Coins, number: int) -> Bools:
    """A block of all clusters' coins (k, BLOCK)."""
    falls = [
        generator(coins.seed, "cluster coins", name, number).random(BLOCK) < p
        for name, p in zip(coins.names, coins.p, strict=True)
    ]
    return np.stack(falls)
