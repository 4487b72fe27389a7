"""The types of arrays, defined once."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]
Floats = NDArray[np.float64]
Floats32 = NDArray[np.float32]
Ints = NDArray[np.int64]
Bools = NDArray[np.bool_]
Arrays = dict[str, Array]
"""Arrays by name, as messages and states hold them."""
INFINITE = {"infinite": True}
"""Metadata of a state's fields that may hold infinities: strengths of ties that hold."""
PerChannel = float | tuple[float, ...]
"""A number, or one for each channel of images."""


def along_channels(value: PerChannel) -> Floats:
    """Such numbers as they are taken with images (channels, height, width)."""
    found = np.asarray(value, np.float64)
    return found.reshape(-1, 1, 1) if found.ndim else found
