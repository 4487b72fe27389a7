"""Arrays that are mapped: users are ranges of them, as they lie there."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from corsage.core.configuration.config import Config
from corsage.core.errors import ConfigError, CorsageError, DataError
from corsage.datasets.data_set import load_table
from corsage.datasets.dealing.federated import simulated
from corsage.datasets.user_data import FederatedData

BOUNDS = np.array([[0, 3, 4], [4, 6, 8], [10, 12, 12]])


def written(folder: Path, **other: Any) -> Path:
    rng = np.random.default_rng(0)
    arrays = {"x": rng.normal(size=(12, 3)), "y": np.arange(12) % 3, "bounds": BOUNDS, **other}
    for name, array in arrays.items():
        np.save(folder / f"{name}.npy", array)
    return folder


def loaded(folder: Path, num_users: int = 0, **keys: Any) -> FederatedData:
    words = {"dataset": "mapped", "data-file": str(folder), "num-users": num_users, **keys}
    config = Config.parse(words)
    return simulated(config.data, config.federation.num_users, config.run.seed)


def test_users_are_ranges(tmp_path: Path) -> None:
    """Whoever lies in none of them is nobody's; nothing is copied."""
    data = loaded(written(tmp_path))
    x, y = np.load(tmp_path / "x.npy"), np.load(tmp_path / "y.npy")
    assert data.users == ["0", "1", "2"] and data.num_classes == 3
    for user, (start, middle, end) in zip(data.users, BOUNDS, strict=True):
        own = data[user]
        np.testing.assert_array_equal(own.x_train, x[start:middle])
        np.testing.assert_array_equal(own.x_test, x[middle:end])
        np.testing.assert_array_equal(own.y_train, y[start:middle])
    base: Any = data.x
    while isinstance(base, np.ndarray) and base.base is not None:
        base = base.base
    assert not isinstance(base, np.ndarray)  # but the file


def test_validation_is_the_end_of_training(tmp_path: Path) -> None:
    """A third of 4, 4 and 2 samples; the test samples are in no user's parts."""
    data = loaded(written(tmp_path), validation=0.33)
    assert data.bounds.tolist() == [[0, 2, 3], [4, 5, 6], [10, 11, 12]]


def test_several_users_at_once_are_as_one_by_one(tmp_path: Path) -> None:
    data = loaded(written(tmp_path))
    for test in (False, True):
        x, y, sizes = data.part(["2", "0"], test)
        each = [data[user] for user in ("2", "0")]
        parts = [(d.x_test, d.y_test) if test else (d.x_train, d.y_train) for d in each]
        np.testing.assert_array_equal(x, np.concatenate([a for a, _ in parts]))
        np.testing.assert_array_equal(y, np.concatenate([b for _, b in parts]))
        assert sizes.tolist() == [len(b) for _, b in parts]


def test_names_clusters_numbers_and_some_users(tmp_path: Path) -> None:
    names, clusters = np.array(["a", "b", "c"]), np.array(["n", "", "s"])
    labels = np.linspace(0.0, 1.0, 12)
    folder = written(tmp_path, users=names, clusters=clusters, y=labels)
    data = loaded(folder, labels="numbers")
    assert data.users == ["a", "b", "c"] and data.clusters == {"a": "n", "c": "s"}
    assert data.num_classes == 0
    some = loaded(folder, num_users=2, labels="numbers")
    assert len(some.users) == 2 and set(some.users) < {"a", "b", "c"}
    for user in some.users:
        np.testing.assert_array_equal(some[user].x_train, data[user].x_train)
    assert loaded(folder, num_users=2, labels="numbers").users == some.users


def test_as_a_table(tmp_path: Path) -> None:
    """For what deals it to devices."""
    folder = written(tmp_path)
    config = Config.parse({"dataset": "mapped", "data-file": str(folder), "num-users": 0})
    table, data = load_table(config.data), loaded(folder)
    assert table.users is not None and table.test is not None
    for user in data.users:
        own = table.users == user
        np.testing.assert_array_equal(table.x[own & ~table.test], data[user].x_train)
        np.testing.assert_array_equal(table.x[own & table.test], data[user].x_test)


@pytest.mark.parametrize(
    ("wrong", "told"),
    [
        ({"bounds": BOUNDS[:, :2]}, "three whole numbers"),
        ({"bounds": BOUNDS + 1}, r"row 2 is \[11, 13, 13\]"),
        ({"bounds": BOUNDS[:, ::-1]}, "row 0"),
        ({"bounds": BOUNDS[:, ::-1].astype(np.uint64)}, "row 0"),
        ({"bounds": BOUNDS.astype(np.uint64) + np.uint64(2**63)}, "row 0"),
        ({"bounds": [[0, 3, 4], [10, 12, 12], [3, 6, 8]]}, "rows 0 and 2, .* in common"),
        ({"bounds": [[0, 3, 4], [0, 3, 4], [4, 5, 6]]}, "rows 0 and 1, .* in common"),
        ({"x": np.zeros((12, 3), np.longdouble)}, "64 bits at most"),
        ({"x": np.zeros((12, 3), ">f4")}, "byte order"),
        ({"y": np.arange(11)}, "11 labels for the 12 samples"),
        ({"y": np.arange(12) - 1}, "a label of -1"),
        ({"y": np.ones(12)}, "classes are whole numbers"),
        ({"x": np.zeros(12)}, "samples are rows"),
        ({"users": np.array(["a", "a", "b"])}, "two users"),
        ({"users": np.array(["a", "b"])}, "2 entries for the 3 users"),
    ],
)
def test_what_cannot_be_is_one_line(tmp_path: Path, wrong: dict[str, Any], told: str) -> None:
    with pytest.raises(DataError, match=told):
        loaded(written(tmp_path, **wrong))


def test_what_is_missing_is_named(tmp_path: Path) -> None:
    written(tmp_path)
    (tmp_path / "bounds.npy").unlink()
    with pytest.raises(DataError, match=r"no bounds\.npy"):
        loaded(tmp_path)
    with pytest.raises(ConfigError, match="data-file=FOLDER"):
        simulated(Config.parse({"dataset": "mapped", "num-users": 0}).data, 0, 0)
    (tmp_path / "bounds.npy").write_bytes(b"nothing")
    with pytest.raises(CorsageError, match="no array of NumPy's"):
        loaded(tmp_path)


def test_a_changed_file_is_read_again(tmp_path: Path) -> None:
    assert len(loaded(written(tmp_path)).users) == 3
    np.save(tmp_path / "bounds.npy", BOUNDS[:2])
    assert len(loaded(tmp_path).users) == 2


@pytest.mark.parametrize("kind", [np.uint64, np.uint8, ">i4"])
def test_bounds_may_be_of_any_whole_numbers(tmp_path: Path, kind: Any) -> None:
    """And nobody has to have samples, or to come in the order of x."""
    bounds = np.array([[4, 6, 8], [8, 8, 8], [0, 3, 4]]).astype(kind)
    data = loaded(written(tmp_path, bounds=bounds))
    x = np.load(tmp_path / "x.npy")
    np.testing.assert_array_equal(data["0"].x_train, x[4:6])
    np.testing.assert_array_equal(data["2"].x_test, x[3:4])
