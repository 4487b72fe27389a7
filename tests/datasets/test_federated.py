"""Users' data as everybody gets them: dealt, split, cached, and on devices."""

import dataclasses
import logging
import multiprocessing
import os
import shutil
from pathlib import Path

import numpy as np
import pytest

from corsage.core.configuration.config import Config
from corsage.core.errors import ConfigError, DataError
from corsage.core.files import cache_root
from corsage.core.registry import data_keys
from corsage.datasets import data_set, digits
from corsage.datasets.dealing import data_cache as cache
from corsage.datasets.dealing import federated
from corsage.datasets.dealing.federated import check_users, on_device, simulated
from corsage.datasets.shared_keys import CsvKeys


@pytest.fixture
def keys(tmp_path):
    federated.opened.cache_clear()
    return CsvKeys(partition="shards", cache_dir=str(tmp_path / "cache"))


def own_csv(path, rows):
    lines = [f"{i},{user},{i % 2},{site}" for i, (user, site) in enumerate(rows)]
    path.write_text("\n".join(["a,user,label,site", *lines]) + "\n")
    return str(path)


TWO = [("ann", "n"), ("bob", "s")] * 10


def natural_keys(keys, path, **more):
    return dataclasses.replace(
        keys, dataset="csv", data_file=path, partition="natural", cluster_column="site", **more
    )


def content(data):
    users = (data[user] for user in data.users)
    return [(own.user, own.x_train.tolist(), own.x_test.tolist()) for own in users]


def names_in(folder):
    return [path.name for path in Path(folder).iterdir()]


@pytest.mark.parametrize(
    "partition", ["iid", "shards", "classes", "dirichlet", "dirichlet-by-class"]
)
def test_simulated(keys, partition):
    data = simulated(dataclasses.replace(keys, partition=partition), 20, 3)
    assert data.users == [str(i) for i in range(20)] and data.clusters == {}
    assert data.num_classes == 10 and data.shape == (1, 8, 8)
    assert (data.train_sizes + data.test_sizes).sum() == len(data.x) == 1797
    pool = data_set.load_table(keys)
    images = {(image.tobytes(), label) for image, label in zip(pool.x, pool.y, strict=True)}
    for i, user in enumerate(data.users):
        own = data[user]
        assert (len(own.x_train), len(own.x_test)) == (data.train_sizes[i], data.test_sizes[i])
        assert len(own.y_train) == len(own.x_train) and len(own.y_test) == len(own.x_test)
        assert own.x_train.dtype == np.uint8 and not own.x_train.flags.writeable
        assert {(x.tobytes(), y) for x, y in zip(own.x_test, own.y_test, strict=True)} <= images
    with pytest.raises(DataError, match="user 20: has no data here"):
        data["20"]


def test_seed_decides(keys):
    one, other = simulated(keys, 10, 0), simulated(keys, 10, 1)
    assert content(one) != content(other)
    elsewhere = dataclasses.replace(keys, cache_dir=keys.cache_dir + "2")
    assert content(one) == content(simulated(elsewhere, 10, 0))


def test_prepared_once(keys, monkeypatch):
    calls = []
    counted = dataclasses.replace(
        digits.DATASET, load=lambda keys: calls.append(1) or digits.load(keys)
    )
    monkeypatch.setattr(digits, "DATASET", counted)
    first = simulated(keys, 10, 0)
    assert simulated(keys, 10, 0) is first
    federated.opened.cache_clear()  # as if in another process
    again = simulated(keys, 10, 0)
    assert content(again) == content(first) and len(calls) == 1
    simulated(keys, 11, 0)
    simulated(keys, 10, 1)
    simulated(dataclasses.replace(keys, test_fraction=0.3), 10, 0)
    assert len(calls) == 4


@pytest.mark.parametrize("name", ["digits", "ellipses", "csv"])
def test_a_preparation_is_named_by_what_it_depends_on(name, tmp_path, monkeypatch):
    """All keys that the data set reads, where they are kept apart, and none that others read."""
    seen, digest = [], cache.digest
    monkeypatch.setattr(cache, "digest", lambda facts: seen.append(facts) or digest(facts))
    words = {"dataset": name, "cache-dir": str(tmp_path), "label-column": "site"}
    words |= {} if name == "digits" else {"partition": "natural", "num-users": 0}
    if name == "csv":
        words["data-file"] = own_csv(tmp_path / "d.csv", [("a", 0), ("b", 1)] * 4)
    config = Config.parse(words)
    simulated(config.data, config.federation.num_users, 5)
    (facts,) = seen
    own = {field.name for field in dataclasses.fields(data_keys(name))} - {"cache_dir"}
    assert set(facts) == own | {"num_users", "seed", "files"}
    assert {"num_clusters", "user_column"} & own == {
        "digits": set(), "ellipses": {"num_clusters"}, "csv": {"user_column"}
    }[name]  # fmt: skip
    assert facts["seed"] == 5 and len(facts["files"]) == (name == "csv")


def test_a_changed_file_is_read_again(keys, tmp_path):
    path = own_csv(tmp_path / "d.csv", TWO)
    assert len(simulated(natural_keys(keys, path), 0, 0).x) == 20
    own_csv(tmp_path / "d.csv", TWO * 2)
    assert len(simulated(natural_keys(keys, path), 0, 0).x) == 40


@pytest.mark.parametrize("damage", ["truncate", "other", "meta", "absent", "file"])
def test_damaged_cache_is_rebuilt(keys, damage, caplog):
    before = content(simulated(keys, 10, 0))
    (folder,) = Path(keys.cache_dir).iterdir()
    if damage == "truncate":
        os.truncate(folder / "x.npy", 5000)
    elif damage == "other":
        np.save(folder / "y.npy", np.zeros(5, np.int64))
    elif damage == "meta":
        (folder / "meta.json").write_text("{")
    elif damage == "absent":
        (folder / "y.npy").unlink()
    else:
        shutil.rmtree(folder)
        folder.touch()
    federated.opened.cache_clear()
    with caplog.at_level(logging.WARNING, logger="corsage"):
        assert content(simulated(keys, 10, 0)) == before
    assert "damaged cache" in caplog.text
    assert names_in(keys.cache_dir) == [folder.name]  # nothing half-made stays behind


def build(barrier, keys, queue):
    barrier.wait()
    queue.put(content(simulated(keys, 10, 0)))


def test_concurrent_builders(keys):
    """Three processes prepare the same data at once; all get the same, and one folder is left."""
    context = multiprocessing.get_context("fork")
    barrier, queue = context.Barrier(3), context.Queue()
    builders = [context.Process(target=build, args=(barrier, keys, queue)) for _ in range(3)]
    for builder in builders:
        builder.start()
    results = [queue.get(timeout=60) for _ in builders]
    for builder in builders:
        builder.join()
    assert results[0] == results[1] == results[2]
    assert len(names_in(keys.cache_dir)) == 1


def test_the_loser_uses_the_winners_folder(tmp_path):
    folder = tmp_path / "one"
    cache.write_folder(folder, {"by": "winner"}, {"x": np.zeros(3)})
    cache.write_folder(folder, {"by": "loser"}, {"x": np.ones(3)})
    facts, arrays = cache.read_folder(folder)
    assert facts == {"by": "winner"} and arrays["x"].tolist() == [0, 0, 0]
    assert names_in(tmp_path) == ["one"]


def test_cache_that_cannot_be_written(keys, tmp_path, monkeypatch):
    (tmp_path / "plain").write_text("not a folder")
    with pytest.raises(DataError, match="set cache-dir=FOLDER"):
        simulated(dataclasses.replace(keys, cache_dir=str(tmp_path / "plain" / "x")), 10, 0)

    def full(*_, **__):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(cache.np, "save", full)
    with pytest.raises(DataError, match=r"No space left on device\); set cache-dir"):
        simulated(keys, 10, 0)
    assert names_in(keys.cache_dir) == []


def test_cache_folder_of_the_user(monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert cache_root("") == tmp_path / "corsage"
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setenv("HOME", "/home/ann")
    assert str(cache_root("")) == "/home/ann/.cache/corsage"


def test_natural_users_and_known_clusters(keys, tmp_path):
    path = own_csv(tmp_path / "d.csv", [*TWO, ("cy", ""), ("cy", "")])
    data = simulated(natural_keys(keys, path), 0, 0)
    assert data.users == ["ann", "bob", "cy"]
    assert data.clusters == {"ann": "n", "bob": "s"}
    assert data["ann"].cluster == "n" and data["cy"].cluster is None
    assert data.train_sizes.tolist() == [8, 8, 1] and data.test_sizes.tolist() == [2, 2, 1]
    assert (data["bob"].x_train % 2 == 1).all()


def test_a_user_in_two_clusters(keys, tmp_path):
    path = own_csv(tmp_path / "d.csv", [*TWO, ("bob", "n")])
    with pytest.raises(DataError, match="user bob: samples in the clusters 'n', 's'"):
        simulated(natural_keys(keys, path), 0, 0)


def test_a_user_without_test_data(keys, tmp_path):
    path = own_csv(tmp_path / "d.csv", [*TWO, ("eve", "n")])
    data = simulated(natural_keys(keys, path), 0, 0)
    assert (len(data["eve"].y_train), len(data["eve"].y_test)) == (1, 0)
    check_users(data)
    assert simulated(natural_keys(keys, path), 2, 0).users == ["ann", "bob"]
    assert simulated(natural_keys(keys, path, test_fraction=0.0), 0, 0).users[-1] == "eve"


@pytest.mark.parametrize(
    ("change", "num_users", "said"),
    [
        ({"partition": "natural"}, 0, "dataset=digits has no users of its own"),
        ({}, 0, "num-users=0: partition=shards needs a number"),
        ({"partition": "dirichlet", "size_sigma": 1.0}, 5, "size-sigma=1: only for"),
        ({"dataset": "csv", "data_file": "x", "cluster_column": "c"}, 5, "set partition=natural"),
    ],
)
def test_combinations_of_keys(keys, change, num_users, said):
    with pytest.raises(ConfigError, match=said):
        simulated(dataclasses.replace(keys, **change), num_users, 0)


def test_dirichlet_has_two_names(keys):
    """`dirichlet` stays what it was, dirichlet-by-user; by class sizes are unequal."""
    old, user, other = (
        simulated(dataclasses.replace(keys, partition=name), 10, 0)
        for name in ("dirichlet", "dirichlet-by-user", "dirichlet-by-class")
    )
    assert np.array_equal(old.x, user.x) and np.array_equal(old.bounds, user.bounds)
    assert np.ptp(np.diff(old.bounds[:, [0, 2]])) <= 1 < np.ptp(np.diff(other.bounds[:, [0, 2]]))


def test_too_many_users(keys):
    with pytest.raises(DataError, match="set num-users to at most 898"):
        simulated(keys, 2000, 0)
    with pytest.raises(DataError, match=r"data-file=nowhere.csv: no such file"):
        simulated(dataclasses.replace(keys, dataset="csv", data_file="nowhere.csv"), 2, 0)


def test_device_and_simulation_agree(keys, tmp_path):
    """A device with its own rows, or with the whole file, has what the simulation gives it."""
    path = own_csv(tmp_path / "all.csv", TWO)
    own = tmp_path / "bob.csv"
    own.write_text("a,label\n" + "".join(f"{i},{i % 2}\n" for i in range(1, 20, 2)))
    data = simulated(natural_keys(keys, path), 0, 5)
    whole = on_device(path, "bob", "", natural_keys(keys, path), 5)
    alone = on_device(str(own), "bob", "s", natural_keys(keys, path), 5)
    for device in (whole, alone):
        assert device.users == ["bob"] and device.clusters == {"bob": "s"}
        for field in ("x_train", "y_train", "x_test", "y_test"):
            assert getattr(device["bob"], field).tolist() == getattr(data["bob"], field).tolist()
    assert content(on_device(path, "", "", natural_keys(keys, path), 5)) == content(data)


def test_device_errors(keys, tmp_path):
    path = own_csv(tmp_path / "all.csv", TWO)
    sited = dataclasses.replace(keys, cluster_column="site")
    with pytest.raises(DataError, match="no samples of user 'zoe' among its 2 users"):
        on_device(path, "zoe", "", sited, 0)
    with pytest.raises(DataError, match="user bob is in cluster 's' there, but the device"):
        on_device(path, "bob", "n", sited, 0)
    (tmp_path / "no.csv").write_text("a,label\n1,0\n2,1\n")
    with pytest.raises(DataError, match="no column 'user'"):
        on_device(str(tmp_path / "no.csv"), "", "", keys, 0)
    with pytest.raises(DataError, match="no user column"):
        nameless = dataclasses.replace(keys, user_column="")
        on_device(str(tmp_path / "no.csv"), "", "", nameless, 0)
    with pytest.raises(DataError, match="No such file"):
        on_device(str(tmp_path / "gone.csv"), "bob", "", keys, 0)


def test_device_npz(keys, tmp_path):
    path = tmp_path / "me.npz"
    np.savez(path, x=np.arange(50).reshape(5, 10).astype(np.uint8), y=np.array([0, 1, 0, 1, 4]))
    data = on_device(str(path), "me", "north", keys, 0)
    assert data.num_classes == 5 and data.shape == (10,) and data.clusters == {"me": "north"}
    assert data.train_sizes.tolist() == [4] and data.test_sizes.tolist() == [1]


def test_another_file_of_the_same_size_and_time_is_read(tmp_path: Path) -> None:
    """As cp -p, rsync and tar leave it; nothing is read again while a file stays as it is."""
    path, other = tmp_path / "a.csv", tmp_path / "b.csv"
    for file, last in ((path, 1), (other, 2)):
        file.write_text("user,x,label\n" + f"u,{last},0\n" * 8)
        os.utime(file, ns=(1, 1))
    keys = CsvKeys(dataset="csv", data_file=str(path), cache_dir=str(tmp_path / "cache"))
    assert simulated(keys, 0, 0).x.max() == 1.0
    assert simulated(keys, 0, 0) is simulated(keys, 0, 0)
    other.replace(path)
    assert simulated(keys, 0, 0).x.max() == 2.0
