"""Labels that are numbers, chosen feature columns, and test samples that the data name."""

import dataclasses
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from corsage.app.device_files import run
from corsage.core.configuration.config import Config
from corsage.core.errors import ConfigError, DataError
from corsage.datasets.data_set import load_table
from corsage.datasets.dealing.federated import on_device, simulated
from corsage.datasets.dealing.split import split_user
from corsage.datasets.hierarchical import HierarchicalKeys
from corsage.datasets.shared_keys import ColumnKeys, CsvKeys

TEXT = "a,b,user,label\n" + "".join(f"{i},{-i},{'ab'[i % 2]},{0.5 * i - 3}\n" for i in range(20))


@pytest.fixture
def keys(tmp_path):
    """Keys for a CSV file with the labels -3, -2.5, ..., 6.5."""
    path = tmp_path / "d.csv"
    path.write_text(TEXT)
    cache = str(tmp_path / "cache")
    return CsvKeys(
        dataset="csv", data_file=str(path), labels="numbers", partition="natural", cache_dir=cache
    )


def rewritten(keys, text):
    Path(keys.data_file).write_text(text)
    return load_table(keys)


def test_csv_of_numbers(keys):
    table = load_table(keys)
    assert table.num_classes == 0 and table.y.dtype == np.float64
    assert table.y.tolist() == [0.5 * i - 3 for i in range(20)]
    with pytest.raises(DataError, match=r"column 'label': '-3.0' is not a class; .*numbers"):
        load_table(dataclasses.replace(keys, labels="classes"))


@pytest.mark.parametrize(
    ("cell", "said"),
    [
        ("nan", "empty or missing"),
        ("1e39", "not a finite"),
        ("tall", "not a number"),
        ("", "empty"),
    ],
)
def test_numbers_that_cannot_be_used(keys, cell, said):
    with pytest.raises(DataError, match=f"line 3, column 'label': '{cell}' is {said}"):
        rewritten(keys, f"a,user,label\n1,x,0.5\n1,x,{cell}\n")


def test_npz_of_numbers(tmp_path):
    x, path = np.ones((4, 2)), tmp_path / "d.npz"
    keys = ColumnKeys(dataset="npz", data_file=str(path), labels="numbers")
    np.savez(path, x=x, y=np.array([0.5, -1, 7, 1e9], np.float32), user=np.zeros(4, int))
    table = load_table(keys)
    assert table.num_classes == 0 and table.y.dtype == np.float64
    assert table.y.tolist() == [0.5, -1, 7, 1e9]
    with pytest.raises(DataError, match=r"label of sample 0 is 0.5; .* set labels=numbers"):
        load_table(dataclasses.replace(keys, labels="classes"))
    np.savez(path, x=x, y=np.array([0.5, 1, np.inf, 2]), user=np.zeros(4, int))
    with pytest.raises(DataError, match="label of sample 2 is inf, not a finite float32"):
        load_table(keys)
    np.savez(path, x=x, y=np.array(list("abcd")), user=np.zeros(4, int))
    with pytest.raises(DataError, match="labels of type <U1; labels=numbers needs numbers"):
        load_table(keys)


@settings(max_examples=30, deadline=None)
@given(st.lists(st.floats(-1e6, 1e6), min_size=2, max_size=40), st.integers(0, 9))
def test_the_split_does_not_look_at_numbers(tmp_path_factory, values, seed):
    """It is that of a user whose samples are all of one class."""
    path = tmp_path_factory.mktemp("own") / "me.npz"
    np.savez(path, x=np.arange(len(values))[:, None], label=np.array(values))
    data = on_device(str(path), "me", "", CsvKeys(labels="numbers"), seed)
    alike = np.zeros(len(values), np.int64)
    train, test = split_user(alike, "me", test_fraction=0.2, max_train_samples=0, seed=seed)
    assert data["me"].x_train.ravel().tolist() == train.tolist()
    assert data["me"].x_test.ravel().tolist() == test.tolist()
    assert data["me"].y_test.tolist() == [values[i] for i in test]
    assert data.num_classes == 0


def test_numbers_in_a_simulation(keys):
    """By user and at random they are dealt; partitions by label are refused."""
    natural = simulated(keys, 0, 0)
    assert natural.y.dtype == np.float64 and natural.num_classes == 0
    assert {*natural["a"].y_train, *natural["a"].y_test} == {i - 3.0 for i in range(10)}
    dealt = simulated(dataclasses.replace(keys, partition="iid", mean_samples=4), 4, 0)
    assert (dealt.train_sizes + dealt.test_sizes).tolist() == [4] * 4
    assert np.array_equal(dealt.y, 0.5 * dealt.x[:, 0] - 3)
    for partition in ("shards", "classes", "consecutive", "dirichlet"):
        with pytest.raises(ConfigError, match=f"partition={partition}: it deals classes, and"):
            simulated(dataclasses.replace(keys, partition=partition), 2, 0)


def test_labels_only_where_they_are_of_use():
    for name in ("digits", "donors", "ellipses"):
        with pytest.raises(ConfigError, match=f"labels=numbers: dataset={name} has no use"):
            Config.parse({"dataset": name, "labels": "numbers"}).check_simulated()
    assert load_table(HierarchicalKeys(dataset="hierarchical", labels="numbers")).num_classes == 0


def test_feature_columns(keys):
    assert load_table(keys).x[3].tolist() == [3, -3]
    for names, row in ((("b", "a"), [-3, 3]), (("b",), [-3]), (("none",), [])):
        table = load_table(dataclasses.replace(keys, feature_columns=names))
        assert table.x.shape == (20, len(row)) and table.x[3].tolist() == row
    bare = simulated(dataclasses.replace(keys, feature_columns=("none",)), 0, 0)
    assert bare.shape == (0,) and bare["a"].x_train.shape == (8, 0)
    device = on_device(
        keys.data_file, "b", "", dataclasses.replace(keys, feature_columns=("b",)), 0
    )
    assert device["b"].x_train.max() == -1 and device.shape == (1,)


def test_columns_that_are_not_taken_are_not_read(keys):
    text = "a,note,user,label\n1,tall,x,0.5\n2,,x,1.5\n"
    chosen = dataclasses.replace(keys, feature_columns=("a",))
    assert rewritten(chosen, text).x.tolist() == [[1], [2]]
    with pytest.raises(DataError, match="line 3, column 'note': '' is empty"):
        load_table(keys)
    with pytest.raises(DataError, match="line 3: 3 cells; the header has 4"):
        rewritten(chosen, "a,note,user,label\n1,tall,x,0.5\n2,x,1.5\n")


@pytest.mark.parametrize(
    ("names", "said"),
    [
        (("a", "z"), "has no feature z; set some of a, b, or none"),
        (("label",), "has no feature label"),
        (("a", "a"), "a column is named twice"),
        (("none", "a"), "has no feature none"),
    ],
)
def test_feature_columns_that_are_not_there(keys, names, said):
    with pytest.raises(ConfigError, match=f"feature-columns={','.join(names)}: .*{said}"):
        load_table(dataclasses.replace(keys, feature_columns=names))


def test_a_file_without_features_has_to_be_meant(keys):
    with pytest.raises(DataError, match="feature-columns=none if that is meant"):
        rewritten(keys, "user,label\nx,0.5\n")
    assert load_table(dataclasses.replace(keys, feature_columns=("none",))).x.shape == (1, 0)
    with pytest.raises(ConfigError, match="feature-columns=a: dataset=npz has no use for it"):
        Config.parse({"dataset": "npz", "feature-columns": "a"}).check_simulated()


def test_samples_that_the_data_keep_for_testing(tmp_path):
    path = tmp_path / "d.npz"
    test = np.array([1, 0, 0, 0, 0, 1, 1, 0], bool)
    users = np.array(list("aaaabbbb"))
    arrays = {"x": np.arange(8)[:, None], "y": np.arange(8) % 2, "user": users, "test": test}
    np.savez(path, **arrays)
    keys = ColumnKeys(
        dataset="npz", data_file=str(path), partition="natural", cache_dir=str(tmp_path)
    )
    data = simulated(keys, 0, 0)
    assert data["a"].x_test.ravel().tolist() == [0] and data["b"].x_test.ravel().tolist() == [5, 6]
    assert data["a"].x_train.ravel().tolist() == [1, 2, 3]
    capped = simulated(dataclasses.replace(keys, max_train_samples=2), 0, 0)
    assert capped.train_sizes.tolist() == [2, 2] and capped.test_sizes.tolist() == [1, 2]
    with pytest.raises(DataError, match=r"partition=iid: .* which samples are for testing"):
        simulated(dataclasses.replace(keys, partition="iid"), 2, 0)
    np.savez(path, **arrays | {"test": users == "b"})
    with pytest.raises(DataError, match="user b: all of its samples are test samples"):
        simulated(keys, 0, 0)
    for wrong, said in ((np.arange(8), "of type int64"), (test[:3], "3 entries of test")):
        np.savez(path, **arrays | {"test": wrong})
        with pytest.raises(DataError, match=said):
            load_table(keys)


@pytest.mark.parametrize("words", [["dataset=hierarchical"], ["dataset=ellipses"]])
def test_devices_get_numbers_and_test_samples_too(tmp_path, capsys, words):
    words = [*words, "partition=natural", "num-users=0", "users-per-cluster=2", "num-clusters=2"]
    assert run([str(tmp_path / "out"), *words]) == 0
    lines = capsys.readouterr().out.splitlines()
    config = Config.parse(dict(word.split("=") for word in words))
    everybody = simulated(dataclasses.replace(config.data, cache_dir=str(tmp_path / "c")), 0, 0)
    numbers = everybody.num_classes == 0
    assert len(lines) == 4
    for user, line in zip("0123", lines, strict=True):
        assert line.endswith("tell its node labels=numbers") == numbers
        assert f"cluster {int(user) // 2}" in line
        labels = "numbers" if numbers else "classes"
        mine = on_device(str(tmp_path / "out" / f"{user}.npz"), user, "", CsvKeys(labels=labels), 0)
        assert mine.num_classes == everybody.num_classes
        for field in ("x_train", "y_train", "x_test", "y_test"):
            own, theirs = getattr(mine[user], field), getattr(everybody[user], field)
            assert own.dtype == theirs.dtype and np.array_equal(own, theirs)
