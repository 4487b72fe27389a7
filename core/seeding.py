"""Random numbers that depend on what they are for, and on nothing else.

Every draw comes from a generator keyed by the seed and by words such as purpose, round and user
id. So the same run gives the same numbers on every engine and for every number of nodes.
"""

from __future__ import annotations

from collections.abc import Sequence
from hashlib import blake2b
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    import torch

SHUFFLED = 10_000
"""Up to so many are put in a random order when some of them are drawn."""


def generator(seed: int, *words: str | int) -> np.random.Generator:
    """A generator for one purpose, such as `generator(seed, "batches", round, user)`."""
    text = "\x1f".join(str(word) for word in (seed, *words))
    digest = blake2b(text.encode(), digest_size=16).digest()
    return np.random.Generator(np.random.PCG64(int.from_bytes(digest, "little")))


def torch_seed(seed: int, *words: str | int) -> int:
    """A seed for torch, keyed in the same way."""
    return int(generator(seed, *words).integers(2**63 - 1))


def drawn_count(share: float, n: int) -> int:
    """max(r n, 1) of n, rounded down: .29 of 100 are 29, though .29 * 100 < 29 in binary."""
    return max(int(share * n + 1e-9), 1)


def some_of(rng: np.random.Generator, n: int, count: int) -> list[int]:
    """So many of n in order, uniform, without replacement; of a large n not all are looked at."""
    if n <= SHUFFLED:
        return sorted(rng.permutation(n)[:count].tolist())
    return sorted(rng.choice(n, count, replace=False, shuffle=False).tolist())


def user_keys(seed: int, purpose: str, users: Sequence[str]) -> NDArray[np.uint64]:
    """A number for each user, from which `uniforms` draws."""
    texts = ("\x1f".join((str(seed), purpose, user)) for user in users)
    digests = (blake2b(text.encode(), digest_size=8).digest() for text in texts)
    return np.array([int.from_bytes(digest, "little") for digest in digests], np.uint64)


def uniforms(keys: NDArray[np.uint64], number: int) -> NDArray[np.float64]:
    """Draw `number` of every user, uniform on [0, 1): what a generator a user is too slow for.

    The finaliser of SplitMix64 (Steele, Lea, Flood 2014) on the key and the number.
    """
    with np.errstate(over="ignore"):
        z = keys + np.uint64(number + 1) * np.uint64(0x9E3779B97F4A7C15)
        z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    bits = (z ^ (z >> np.uint64(31))) >> np.uint64(11)
    return bits.astype(np.float64) * 2.0**-53


def reseed(seed: int, device: torch.device | None = None) -> None:
    """Seed torch's random numbers: the processor's, and a device's where the work is on one.

    `torch.manual_seed` writes down Python's stack for each device that nobody has used. Without a
    device somebody else's code is at work, which may use any that this machine has.
    """
    import torch

    alone = not torch.accelerator.is_available() if device is None else device.type == "cpu"
    seed_all = torch.default_generator.manual_seed if alone else torch.manual_seed
    seed_all(seed)
