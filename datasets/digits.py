"""scikit-learn's handwritten digits: 1,797 images of 8x8 pixels, part of that package."""

from __future__ import annotations

import numpy as np

from corsage.core.config import DataKeys
from corsage.datasets.table import Table, standardised


def load(keys: DataKeys) -> Table:
    """The digits as (n, 1, 8, 8) uint8 of 0..16, which the model sees as -1..1."""
    from sklearn.datasets import load_digits

    images, labels = load_digits(return_X_y=True)
    x = images.reshape(-1, 1, 8, 8).astype(np.uint8)
    shift, scale = standardised(0.5, 0.5, top=16.0)
    return Table(x, labels.astype(np.int64), None, None, 10, shift, scale)
