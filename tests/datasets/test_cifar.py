"""CIFAR-10 and CIFAR-100: batches as published, in a folder or archive, good, bad and hostile."""

import dataclasses
import os
import pickle
import tarfile

import numpy as np
import pytest
import torch

from corsage import load
from corsage.app.command import run
from corsage.core.config import Config
from corsage.core.errors import ConfigError, DataError
from corsage.datasets import cifar, hub
from corsage.datasets.data_set import load_table, source_files
from corsage.datasets.dealing import federated
from corsage.datasets.dealing.federated import simulated
from corsage.datasets.table import model_input
from corsage.networks.training import to_tensors
from tests.support.published import CIFAR, cifar_batches, python2, write_cifar


def keys(folder, name="cifar10", **more):
    return cifar.CifarKeys(dataset=name, data_dir=str(folder), **more)


@pytest.mark.parametrize("name", ["cifar10", "cifar100"])
@pytest.mark.parametrize("packed", [False, True])
def test_all_batches_in_order(tmp_path, name, packed):
    place = write_cifar(tmp_path, name, packed=packed)
    table = load_table(keys(tmp_path, name))
    batches = list(cifar_batches(name, 20).values())
    images = np.concatenate([b[b"data"] for b in batches]).reshape(-1, 3, 32, 32)
    labels = [y for b in batches for y in b.get(b"labels", b.get(b"fine_labels"))]
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


@pytest.mark.parametrize("protocol", range(pickle.HIGHEST_PROTOCOL + 1))
@pytest.mark.parametrize("how", ["words", "bytes", "arrays", "scalars", "swapped"])
def test_python_3_wrote_it_anew(tmp_path, protocol, how):
    """Batches saved again by today's Python and numpy, whatever the protocol, by columns too."""
    folder = write_cifar(tmp_path, "cifar10")
    wanted = load_table(keys(tmp_path))
    for batch, content in cifar_batches("cifar10", 20).items():
        anew = dict(content) if how == "bytes" else {k.decode(): v for k, v in content.items()}
        name = b"labels" if how == "bytes" else "labels"
        if how in ("arrays", "swapped"):
            anew[name] = np.array(anew[name], ">i8" if how == "swapped" else np.int64)
        if how == "scalars":
            anew[name] = list(np.array(anew[name], np.int32))
        if batch == "test_batch":
            data = name.replace(*((b"labels", b"data") if how == "bytes" else ("labels", "data")))
            anew[data] = np.asfortranarray(anew[data])
        (folder / batch).write_bytes(pickle.dumps(anew, protocol))
    found = load_table(keys(tmp_path))
    assert np.array_equal(found.x, wanted.x) and found.y.tolist() == wanted.y.tolist()


def test_the_papers_partition(tmp_path):
    """50,000/n training samples a user with S shards: 5/6 of the pool of 6 batches."""
    write_cifar(tmp_path, "cifar10", 200)
    federated.opened.cache_clear()
    data = simulated(keys(tmp_path, test_fraction=0.1667, cache_dir=str(tmp_path / "c")), 20, 0)
    assert set(data.train_sizes + data.test_sizes) <= set(range(50, 71))
    assert abs(data.train_sizes.mean() - 1000 / 20) < 1
    assert max(len(np.unique(data[u].y_train)) for u in data.users) <= 2


class Hostile:
    """What a malicious file would run."""

    def __init__(self, mark, call=os.mkdir):
        self.mark, self.call = mark, call

    def __reduce__(self):
        return self.call, (str(self.mark),)


@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize("protocol", [0, 2, 4])
def test_hostile_batches_run_nothing(tmp_path, protocol, packed):
    mark = tmp_path / "it ran"
    raw = pickle.dumps({"data": Hostile(mark), "labels": [0]}, protocol)
    pickle.loads(raw)
    mark.rmdir()  # it would have run
    folder = write_cifar(tmp_path, "cifar10")
    (folder / "data_batch_3").write_bytes(raw)
    if packed:
        with tarfile.open(tmp_path / CIFAR["cifar10"][1], "w:gz") as archive:
            archive.add(folder, folder.name)
        (folder / "data_batch_1").unlink()
    with pytest.raises(DataError, match=r"data_batch_3: refused, .* for \w+.mkdir") as caught:
        load_table(keys(tmp_path))
    assert not mark.exists() and "\n" not in str(caught.value)


@pytest.mark.parametrize(
    "raw",
    [
        b"cos\nsystem\n(S'touch ran'\ntR.",
        b"cbuiltins\neval\n(S'1'\ntR.",
        b"c__builtin__\neval\n(S'1'\ntR.",
        b"cnumpy\nload\n(S'x'\ntR.",
        b"cnumpy.core.multiarray\nscalar\n.",
        b"c_codecs\nencode\n.",
        b"c_codecs\nencode\n(X\x01\x00\x00\x00aX\x03\x00\x00\x00rottR.",
        b"c_codecs\ndecode\n.",
        b"cnumpy.core.multiarray\nfromfile\n.",
        b"cnumpy.core.numeric\nfromfile\n.",
        b"\x80\x04\x8c\x05numpy\x8c\x0c__init__.sys\x93.",
        b"Pan object elsewhere\n.",
        b"\x82\x01.",
    ],
)
def test_nothing_else_can_be_named(tmp_path, raw, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (write_cifar(tmp_path, "cifar10") / "test_batch").write_bytes(raw)
    with pytest.raises(DataError, match=r"test_batch: (refused|damaged|no data)"):
        load_table(keys(tmp_path))
    assert not (tmp_path / "ran").exists()


def batch(**fields):
    whole = {"data": np.zeros((4, 3072), np.uint8), "labels": [0, 1, 2, 3]} | fields
    return python2({k.encode(): v for k, v in whole.items() if v is not None})


@pytest.mark.parametrize(
    ("raw", "said"),
    [
        (batch()[:-4000], "damaged"),
        (b"", "damaged"),
        (b"<html>", "damaged"),
        (batch(data=None), "no data or labels in it; is it cifar-10-batches-py"),
        (batch(labels=None), "no data or labels"),
        (python2([1]), "no data or labels"),
        (batch(data=np.zeros((4, 3071), np.uint8)), r"shape \(4, 3071\) with 4 labels; .*3072"),
        (batch(data=np.zeros((3, 3072), np.uint8)), r"shape \(3, 3072\) with 4 labels"),
        (batch(data=np.zeros(4, np.uint8)), r"shape \(4,\)"),
        (batch(data=np.zeros((4, 3072), np.int8)), "an array of int8, not of bytes"),
        (batch(labels=[0, 1, 2, 10]), "a label of 10; there are 10 classes"),
        (batch(labels=[0, 1, 2, -1]), "label of sample 3 is -1"),
        (batch(labels=[b"a"] * 4), "labels of type"),
        (batch(labels=[0, 1, 2, [1]]), "labels that are not numbers"),
        (batch().replace(b"J\x04\0\0\0J\0\x0c\0\0", b"J\x05\0\0\0J\0\x0c\0\0"), "damaged"),
    ],
)
def test_damaged_batches(tmp_path, raw, said):
    (write_cifar(tmp_path, "cifar10", 4) / "data_batch_2").write_bytes(raw)
    with pytest.raises(DataError, match=f"data_batch_2: .*{said}") as caught:
        load_table(keys(tmp_path))
    assert "\n" not in str(caught.value)


def test_truncated_archives(tmp_path):
    path = write_cifar(tmp_path, "cifar100", packed=True)
    whole = path.read_bytes()
    for cut, said in ((len(whole) // 2, "damaged|cannot be read"), (0, "damaged|cannot be read")):
        path.write_bytes(whole[:cut])
        with pytest.raises(DataError, match=f"cifar-100-python.tar.gz: ({said}).*again"):
            load_table(keys(tmp_path, "cifar100"))
    path.write_bytes(b"<html>not found</html>")
    with pytest.raises(DataError, match=r"cifar-100-python.tar.gz: .*download it again"):
        load_table(keys(tmp_path, "cifar100"))


def test_an_archive_of_something_else(tmp_path):
    path = write_cifar(tmp_path, "cifar100", packed=True)
    path.rename(tmp_path / CIFAR["cifar10"][1])
    with pytest.raises(DataError, match="has no cifar-10-batches-py/data_batch_1, "):
        load_table(keys(tmp_path))


def test_missing_files_are_named(tmp_path, monkeypatch):
    with pytest.raises(DataError) as caught:
        load_table(keys(tmp_path, "cifar100"))
    said = str(caught.value)
    words = ("train, test", "cifar-100-python", ".tar.gz", str(tmp_path), "data-dir=", "[hub]")
    assert all(word in said for word in words) and "\n" not in said
    (write_cifar(tmp_path, "cifar10") / "data_batch_4").unlink()
    with pytest.raises(DataError, match=r"\(missing: data_batch_4\)"):
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
