"""CIFAR-10 and CIFAR-100: records as published, in a folder or archive, good and bad."""

import dataclasses

import numpy as np
import pytest
import torch

from corsage import load
from corsage.app.command import run
from corsage.core.configuration.config import Config
from corsage.core.errors import ConfigError, DataError
from corsage.datasets import cifar, hub
from corsage.datasets.data_set import load_table, source_files
from corsage.datasets.dealing import federated
from corsage.datasets.dealing.federated import simulated
from corsage.datasets.sample_table import model_input
from corsage.networks.training import to_tensors
from tests.support.published import CIFAR, cifar_batches, records, write_cifar


def keys(folder, name="cifar10", **more):
    return cifar.CifarKeys(dataset=name, data_dir=str(folder), **more)


@pytest.mark.parametrize("name", ["cifar10", "cifar100"])
@pytest.mark.parametrize("packed", [False, True])
def test_all_batches_in_order(tmp_path, name, packed):
    place = write_cifar(tmp_path, name, packed=packed)
    table = load_table(keys(tmp_path, name))
    batches = list(cifar_batches(name, 20).values())
    images = np.concatenate([x for _, x in batches]).reshape(-1, 3, 32, 32)
    labels = [label for y, _ in batches for label in y]
    assert table.x.dtype == np.uint8 and np.array_equal(table.x, images)
    assert table.y.tolist() == labels and table.num_classes == CIFAR[name][2]
    assert table.users is None and table.vectors is None
    mean, std = {"cifar10": (0.4734, 0.2516), "cifar100": (0.4782, 0.2682)}[name]
    pixels = model_input(table.x, table.shift, table.scale)
    assert np.allclose(pixels, (images / 255 - mean) / std, atol=2e-3)
    parents = {path.parent for path in source_files(keys(tmp_path, name))}
    assert parents == {tmp_path if packed else place}
    if not packed:  # the folder itself is understood too
        assert np.array_equal(load_table(keys(place, name)).x, images)


@pytest.mark.parametrize("name", ["cifar10", "cifar100"])
def test_each_channel_by_itself(tmp_path, name):
    """By torchvision's usual numbers; the model gets them at a node and from a file of models."""
    write_cifar(tmp_path, name, 60)
    own = cifar.CifarKeys(name, str(tmp_path), normalize="channels", cache_dir=str(tmp_path / "c"))
    mean, std = {
        "cifar10": ((0.4914, 0.4822, 0.4465), (0.2470, 0.2435, 0.2616)),
        "cifar100": ((0.5071, 0.4865, 0.4409), (0.2673, 0.2564, 0.2762)),
    }[name]
    table = load_table(own)
    wanted = (table.x / 255 - np.reshape(mean, (3, 1, 1))) / np.reshape(std, (3, 1, 1))
    assert np.allclose(model_input(table.x, table.shift, table.scale), wanted, atol=2e-3)
    for _ in range(2):  # the second time from the cache
        federated.opened.cache_clear()
        data = simulated(own, 5, 0)
        assert data.shift == table.shift and data.scale == table.scale
    tensors, _ = to_tensors(table.x, table.y, data.shift, data.scale)
    assert np.allclose(tensors.numpy(), wanted, atol=2e-3)


def test_a_model_on_channels_is_loaded_as_it_was_trained(tmp_path):
    """A linear one also in the units of the pixels."""
    write_cifar(tmp_path, "cifar10", 60)
    keys = {"dataset": "cifar10", "data_dir": str(tmp_path), "normalize": "channels"}
    keys |= {"model": "linear", "num_users": 4, "num_rounds": 2, "run_dir": str(tmp_path / "runs")}
    keys |= {"augment": "crop,flip", "cache_dir": str(tmp_path / "c"), "test_fraction": 0.3}
    assert (
        run(["strategy=fedavg", *(f"{k.replace('_', '-')}={v}" for k, v in keys.items())], "") == 0
    )
    (folder,) = (tmp_path / "runs").iterdir()
    model = load(str(folder))["fedavg"].user("1")
    data = simulated(Config.parse({k.replace("_", "-"): v for k, v in keys.items()}).data, 4, 0)
    x = data["1"].x_test
    weight, bias = model.linear()
    assert isinstance(model.head.shift, tuple) and weight.shape == (10, 3072)
    raw = x.reshape(len(x), -1) @ weight.T + bias
    assert np.allclose(model.outputs(x), raw, atol=1e-3)
    with torch.no_grad():
        module = model.module()(torch.from_numpy(model_input(x, data.shift, data.scale)))
    assert np.allclose(module.numpy(), raw, atol=1e-3)


def test_the_papers_partition(tmp_path):
    """50,000/n training samples a user with S shards: 5/6 of the pool of 6 batches."""
    write_cifar(tmp_path, "cifar10", 200)
    federated.opened.cache_clear()
    data = simulated(keys(tmp_path, test_fraction=0.1667, cache_dir=str(tmp_path / "c")), 20, 0)
    assert set(data.train_sizes + data.test_sizes) <= set(range(50, 71))
    assert abs(data.train_sizes.mean() - 1000 / 20) < 1
    assert max(len(np.unique(data[u].y_train)) for u in data.users) <= 2


def one_label(label):
    return records("cifar10", np.array([0, 1, label]), np.zeros((3, 3072), int))


@pytest.mark.parametrize(
    ("raw", "said"),
    [
        (one_label(2)[:-1], "9218 bytes are not records of 3073 bytes, as cifar-10-batches-bin"),
        (b"", "0 bytes are not records"),
        (b"<html>", "6 bytes are not records"),
        (one_label(10), "a label of 10; there are 10 classes"),
        (one_label(255), "a label of 255"),
    ],
)
def test_damaged_files(tmp_path, raw, said):
    (write_cifar(tmp_path, "cifar10", 4) / "data_batch_2.bin").write_bytes(raw)
    with pytest.raises(DataError, match=f"data_batch_2.bin: .*{said}") as caught:
        load_table(keys(tmp_path))
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("there", "of"),
    [
        ("cifar-10-python.tar.gz", "cifar10"),
        ("cifar-10-batches-py", "cifar10"),
        ("cifar-100-python", "cifar100"),
    ],
)
def test_of_the_python_version_nothing_is_read(tmp_path, there, of):
    """One line says which file to get; those of the other data set are no sign of it."""
    (tmp_path / there).mkdir()
    for name, (_, archive, _) in CIFAR.items():
        with pytest.raises(DataError, match=f"Get {archive}") as caught:
            load_table(keys(tmp_path, name))
        assert ("Python version that is there holds pickles" in str(caught.value)) == (name == of)


def test_truncated_archives(tmp_path):
    path = write_cifar(tmp_path, "cifar100", packed=True)
    whole = path.read_bytes()
    for raw in (whole[: len(whole) // 2], b"", b"<html>not found</html>"):
        path.write_bytes(raw)
        with pytest.raises(DataError, match=r"cifar-100-binary.tar.gz: cannot be read .*again"):
            load_table(keys(tmp_path, "cifar100"))


def test_an_archive_of_something_else(tmp_path):
    path = write_cifar(tmp_path, "cifar100", packed=True)
    path.rename(tmp_path / CIFAR["cifar10"][1])
    with pytest.raises(DataError, match=r"has no cifar-10-batches-bin/data_batch_1.bin, "):
        load_table(keys(tmp_path))


def test_missing_files_are_named(tmp_path, monkeypatch):
    with pytest.raises(DataError) as caught:
        load_table(keys(tmp_path, "cifar100"))
    said = str(caught.value)
    words = (
        "train.bin, test.bin",
        "cifar-100-binary",
        ".tar.gz",
        str(tmp_path),
        "data-dir=",
        "[hub]",
    )
    assert all(word in said for word in words) and "\n" not in said
    (write_cifar(tmp_path, "cifar10") / "data_batch_4.bin").unlink()
    with pytest.raises(DataError, match=r"\(missing: data_batch_4.bin\)"):
        load_table(keys(tmp_path))
    monkeypatch.setattr(hub.importlib, "import_module", lambda name: type(np)("datasets"))
    with pytest.raises(DataError, match="no data-dir is set"):
        load_table(cifar.CifarKeys(dataset="cifar10"))


class Rows(dict):
    """A split of the hub, as far as it is used."""

    def with_format(self, _):
        return self


@pytest.mark.parametrize(
    ("name", "repository", "column"),
    [("cifar10", "uoft-cs/cifar10", "label"), ("cifar100", "uoft-cs/cifar100", "fine_label")],
)
def test_hub(monkeypatch, name, repository, column):
    rng = np.random.default_rng(0)
    images = {n: rng.integers(0, 256, (n, 32, 32, 3)).astype(np.uint8) for n in (6, 2)}

    def load_dataset(asked):
        assert asked == repository
        more = {"coarse_label": np.full(6, 99)}
        parts = (("train", 6), ("test", 2))
        return {p: Rows({"img": images[n], column: np.arange(n), **more}) for p, n in parts}

    library = type(np)("datasets")
    library.load_dataset = load_dataset
    monkeypatch.setattr(hub.importlib, "import_module", lambda _: library)
    table = load_table(cifar.CifarKeys(dataset=name))
    assert table.x.shape == (8, 3, 32, 32) and table.y.tolist() == [0, 1, 2, 3, 4, 5, 0, 1]
    assert np.array_equal(table.x[7, 2], images[2][1, :, :, 2])
    assert table.num_classes == CIFAR[name][2]


def test_keys_of_other_data_sets_are_refused(tmp_path):
    for more in ({"femnist-classes": "digits"}, {"embeddings": "mine.txt"}):
        with pytest.raises(ConfigError, match="dataset=cifar10 has no use for it"):
            Config.parse({"dataset": "cifar10", **more})
    natural = dataclasses.replace(keys(tmp_path), partition="natural")
    with pytest.raises(ConfigError, match="dataset=cifar10 has no users of its own"):
        simulated(natural, 0, 0)
