"""scikit-learn's handwritten digits: 1,797 images of 8x8 pixels, part of that package."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path

import numpy as np

from corsage.core.configuration.key_groups import DataKeys
from corsage.core.errors import DataError
from corsage.datasets.data_set import DataSet
from corsage.datasets.sample_table import Table, standardised


def load(keys: DataKeys) -> Table:
    """The digits as (n, 1, 8, 8) uint8 of 0..16, which the model sees as -1..1."""
    rows = np.loadtxt(file(), np.uint8, delimiter=",")
    x, y = rows[:, :-1].reshape(-1, 1, 8, 8), rows[:, -1].astype(np.int64)
    shift, scale = standardised(0.5, 0.5, top=16.0)
    return Table(x, y, None, None, 10, shift, scale)


def file() -> Path:
    """The file in the package, which is found without being imported: that takes long."""
    package = find_spec("sklearn")
    folder = Path(package.origin).parent if package and package.origin else Path("sklearn")
    path = folder / "datasets" / "data" / "digits.csv.gz"
    if not path.is_file():
        raise DataError(f"dataset=digits: no file {path}; `pip install scikit-learn`.")
    return path


DATASET = DataSet(load, DataKeys)
