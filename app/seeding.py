"""Random numbers that depend on what they are for, and on nothing else.

Every draw comes from a generator keyed by the seed and by words such as purpose, round and user
id. So the same run gives the same numbers on every engine and for every number of nodes.
"""

from __future__ import annotations

from hashlib import blake2b

import numpy as np


def generator(seed: int, *words: str | int) -> np.random.Generator:
    """A generator for one purpose, such as `generator(seed, "batches", round, user)`."""
    text = "\x1f".join(str(word) for word in (seed, *words))
    digest = blake2b(text.encode(), digest_size=16).digest()
    return np.random.Generator(np.random.PCG64(int.from_bytes(digest, "little")))


def torch_seed(seed: int, *words: str | int) -> int:
    """A seed for torch, keyed in the same way."""
    return int(generator(seed, *words).integers(2**63 - 1))
