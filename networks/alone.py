"""One thread at a time where networks are used.

A process has one network a model, into which each user's parameters are put in turn, and torch has
one generator of random numbers. Two runs in two threads, or predictions in a pool of threads, would
read each other's users without a word.
"""

from __future__ import annotations

import threading

ALONE = threading.RLock()
"""Held while parameters that were put into a network are used, and while random numbers are."""
