"""One thread at a time where networks are used.

A process has one network a model, into which each user's parameters are put in turn, and torch has
one generator of random numbers. Two runs in two threads, or predictions in a pool of threads, would
read each other's users without a word.
"""

from __future__ import annotations

import threading

import torch

ALONE = threading.RLock()
"""Held while parameters that were put into a network are used, and while random numbers are."""


def reseed(seed: int, device: torch.device | None = None) -> None:
    """Seed torch's random numbers: the processor's, and a device's where the work is on one.

    `torch.manual_seed` writes down Python's stack for each device that nobody has used. Without a
    device somebody else's code is at work, which may use any that this machine has.
    """
    alone = not torch.accelerator.is_available() if device is None else device.type == "cpu"
    seed_all = torch.default_generator.manual_seed if alone else torch.manual_seed
    seed_all(seed)
