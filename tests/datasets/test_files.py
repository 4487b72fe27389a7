"""Loaders: IDX, CSV and NPZ files, written here, good and bad."""

import gzip
import struct
import zipfile

import numpy as np
import pytest

from corsage.core.configuration.config import Config
from corsage.core.configuration.key_groups import DataKeys
from corsage.core.errors import ConfigError, DataError
from corsage.datasets import hub, idx
from corsage.datasets.data_set import load_table
from corsage.datasets.sample_table import model_input
from corsage.datasets.shared_keys import ColumnKeys, CsvKeys


def write_idx(path, array, packed=False, magic=None, cut=0):
    raw = magic or bytes((0, 0, 8, array.ndim))
    raw += struct.pack(f">{array.ndim}I", *array.shape) + array.tobytes()
    raw = raw[: len(raw) - cut]
    (path.with_name(path.name + ".gz") if packed else path).write_bytes(
        gzip.compress(raw) if packed else raw
    )


@pytest.fixture
def mnist(tmp_path):
    """A folder with 30 training and 10 test images; the training files gzipped."""
    rng = np.random.default_rng(0)
    for part, n, packed in (("train", 30, True), ("t10k", 10, False)):
        images = rng.integers(0, 256, (n, 28, 28)).astype(np.uint8)
        write_idx(tmp_path / f"{part}-images-idx3-ubyte", images, packed)
        write_idx(tmp_path / f"{part}-labels-idx1-ubyte", (np.arange(n) % 10).astype("u1"), packed)
    return tmp_path


def idx_keys(folder):
    return DataKeys(dataset="mnist", data_dir=str(folder))


def test_idx(mnist):
    table = load_table(idx_keys(mnist))
    assert table.x.shape == (40, 1, 28, 28) and table.x.dtype == np.uint8
    assert table.y.tolist() == [*range(10)] * 4 and table.num_classes == 10
    pixels = model_input(table.x, table.shift, table.scale)
    assert pixels.dtype == np.float32
    assert np.allclose(pixels, (table.x / 255 - 0.1307) / 0.3081, atol=1e-5)


def test_idx_damage(mnist):
    path = mnist / "t10k-images-idx3-ubyte"
    images = np.zeros((10, 28, 28), np.uint8)
    for options, said in (
        ({"cut": 5}, r"t10k-images-idx3-ubyte: truncated: 7835 bytes .* 10x28x28"),
        ({"magic": bytes((0, 0, 8, 1))}, r"t10k-images.* starts with 00000801, .* 00000803"),
        ({"magic": b"<htm"}, r"t10k-images.* starts with 3c68746d"),
        ({"cut": 7840 + 6}, r"t10k-images.* ends within its header"),
    ):
        write_idx(path, images, **options)
        with pytest.raises(DataError, match=said):
            load_table(idx_keys(mnist))
    write_idx(path, images[:9])
    with pytest.raises(DataError, match="10 labels for 9 images"):
        load_table(idx_keys(mnist))
    packed = mnist / "train-images-idx3-ubyte.gz"
    packed.write_bytes(packed.read_bytes()[:-100])
    with pytest.raises(DataError, match=r"train-images-idx3-ubyte.gz: damaged gzip"):
        load_table(idx_keys(mnist))


def test_idx_files_missing(mnist, monkeypatch):
    (mnist / "t10k-images-idx3-ubyte").unlink()
    with pytest.raises(DataError) as caught:
        load_table(idx_keys(mnist))
    said = str(caught.value)
    assert all(name in said for name in (*idx.IDX_FILES, str(mnist), "data-dir=", "corsage[hub]"))
    assert "missing: t10k-images-idx3-ubyte)" in said and "\n" not in said


def test_no_package_and_no_hub(monkeypatch, tmp_path):
    gone = idx.Published("a/b", str(tmp_path / "debian"), "dataset-fashion-mnist", 0.3, 0.3)
    monkeypatch.setitem(idx.IDX_SETS, "fashion-mnist", gone)
    # What `import datasets` finds where the hub's library is not installed: a folder.
    monkeypatch.setattr(hub.importlib, "import_module", lambda name: type(np)("datasets"))
    with pytest.raises(DataError, match=r"apt-get install dataset-fashion-mnist") as caught:
        load_table(DataKeys(dataset="fashion-mnist"))
    assert gone.debian in str(caught.value)


def test_hub(monkeypatch):
    class Split(dict):
        def with_format(self, _):
            return self

    def load_dataset(name):
        assert name == "ylecun/mnist"
        return {
            part: Split(image=np.full((n, 28, 28), n, np.uint8), label=np.zeros(n, np.int64))
            for part, n in (("train", 6), ("test", 2))
        }

    library = type(np)("datasets")
    library.load_dataset = load_dataset
    monkeypatch.setattr(hub.importlib, "import_module", lambda name: library)
    table = load_table(DataKeys(dataset="mnist"))
    assert table.x[:, 0, 0, 0].tolist() == [6] * 6 + [2] * 2 and table.num_classes == 10


def test_digits():
    table = load_table(DataKeys())
    assert table.x.shape == (1797, 1, 8, 8) and table.num_classes == 10
    pixels = model_input(table.x, table.shift, table.scale)
    assert pixels.min() == -1 and pixels.max() == 1


@pytest.fixture
def csv(tmp_path):
    """Writes a CSV file and loads it."""

    def load(text, **keys):
        path = tmp_path / "data.csv"
        path.write_bytes(text if isinstance(text, bytes) else text.encode())
        return load_table(CsvKeys(dataset="csv", data_file=str(path), **keys))

    return load


GOOD = "a,user,b,label,site\n1,ann,2.5,0,x\n-3e2,bob,4,2,y\n\n5,ann,6,1,x\n"


def test_csv(csv):
    table = csv(GOOD, cluster_column="site")
    assert table.x.tolist() == [[1, 2.5], [-300, 4], [5, 6]] and table.x.dtype == np.float64
    assert table.y.tolist() == [0, 2, 1] and table.num_classes == 3
    assert table.users.tolist() == ["ann", "bob", "ann"]
    assert table.clusters.tolist() == ["x", "y", "x"]
    assert (table.shift, table.scale) == (0, 1)


def test_csv_of_a_spreadsheet(csv):
    """A byte order mark, carriage returns, quotes and one row only."""
    table = csv('\ufeff"a","user","label"\r\n"1.5","Doe, Jane","3"\r\n')
    assert table.x.tolist() == [[1.5]] and table.users.tolist() == ["Doe, Jane"]
    assert table.num_classes == 4 and table.clusters is None


def test_csv_with_a_header_that_is_longer_than_any_cell_may_be(csv):
    """Cut at semicolons it would be one cell of 140,000 characters."""
    names, cells = [f"feature{i}" for i in range(11_000)], ["0.5"] * 11_000
    table = csv(
        "\n".join(",".join([*row]) for row in [("user", "label", *names), ("u", "1", *cells)])
    )
    assert table.x.shape == (1, 11_000)
    with pytest.raises(DataError, match="not a CSV file"):
        csv(f"a,user,label\n{'9' * 140_000},u,1\n")


def test_csv_without_users_if_said(csv):
    assert csv("a,label\n1,0\n", user_column="").users is None


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "empty; expected a header"),
        ("a,user,label\n", "no rows below the header"),
        ("a,name,label\n1,x,0\n", r"no column 'user' .*columns: a, name, label"),
        ("a,user,class\n1,x,0\n", r"no column 'label' .*columns: a, user, class.*label-column="),
        ("a,a,user,label\n1,1,x,0\n", "'a' is there twice"),
        ("user,label\nx,0\n", "no feature columns"),
        ("a,user,label\n1,x,0\n2,x,0\ntall,x,1\n", r"line 4, column 'a': 'tall' is not a number"),
        ("a,user,label\n1,x,0\n\n2,x\n", r"line 4: 2 cells; the header has 3"),
        ("a,user,label\n1,x,0,9\n", r"line 2: 4 cells; the header has 3"),
        ("a,user,label,b\n1,x,0\n", r"line 2: 3 cells; the header has 4"),
        ("a,user,label\n1,x,0\n,x,1\n", r"line 3, column 'a': '' is empty"),
        ("a,user,label\n1,x,0\nnan,x,1\n", r"line 3, column 'a': 'nan' is empty or missing"),
        ("a,user,label\n1,x,0\n1e301,x,1\n", r"line 3, column 'a': '1e301' is not a finite"),
        ("a,user,label\n1,x,0\ninf,x,1\n", r"line 3, column 'a': 'inf' is not a finite"),
        ("a,user,label\n1,x,0\n1,x,1.5\n", r"line 3, column 'label': '1.5' is not a class"),
        ("a,user,label\n1,x,0\n1,x,-1\n", r"line 3, column 'label': '-1' is not a class"),
        ("a,user,label\n1,x,0\n1,x,0\n1,x,cat\n", r"line 4, column 'label': 'cat' is not a number"),
        ('a,user,label\n"1.5",x,1\n2,x,1\n"1,5",x,1\n', r"column 'a': '1,5' .* decimal point"),
        ('a,user,label\n"1,500",x,1\n', r"'1,500' may be 1.500 or 1500; write numbers"),
        (
            "a,user,label\n2020-01-31,x,0\n2020-02-01,x,1\n",
            r"line 2, column 'a': '2020-01-31' is a",
        ),
        ("a,user,label\n1,x,12345678\n", "is this the right label-column"),
        ("a,user,label\n1,x,0\n1, ,0\n", r"line 3, column 'user': ' ' is empty; a user's id"),
        (b"a,user,label\n1,\xff\xfe,0\n", "not UTF-8"),
    ],
)
def test_csv_errors(csv, text, said):
    with pytest.raises(DataError, match=said) as caught:
        csv(text)
    assert "\n" not in str(caught.value) and "data.csv" in str(caught.value)


@pytest.fixture
def npz(tmp_path):
    """Writes an NPZ file and loads it."""

    def load(keys=None, **arrays):
        path = tmp_path / "data.npz"
        np.savez(path, **arrays)
        return load_table(ColumnKeys(dataset="npz", data_file=str(path), **(keys or {})))

    return load


X, Y = np.zeros((4, 28, 28), np.uint8), np.array([0, 1, 1, 3], np.uint8)


def test_npz(npz):
    columns = {"user_column": "writer", "cluster_column": "hsf", "label_column": "y"}
    writer, hsf = np.array([7, 7, 12, 12], "i2"), np.array([0, 0, 4, 4])
    table = npz(columns, x=X, y=Y, writer=writer, hsf=hsf)
    assert table.x.shape == (4, 1, 28, 28) and table.x.dtype == np.uint8
    assert table.users.tolist() == ["7", "7", "12", "12"] and table.num_classes == 4
    assert table.clusters.tolist() == ["0", "0", "4", "4"]
    assert model_input(table.x, table.shift, table.scale).max() == -1
    floats = npz(x=np.ones((4, 3)), labels=Y, users=np.array(["a", "a", "b ", "b"]))
    assert floats.facts.names == ("x0", "x1", "x2")
    assert floats.x.dtype == np.float64 and floats.users.tolist() == ["a", "a", "b", "b"]


@pytest.mark.parametrize(
    ("keys", "arrays", "said"),
    [
        ({}, {"x": X, "y": Y}, r"no array user or users \(arrays: x, y\)"),
        ({"user_column": "who"}, {"x": X, "y": Y, "user": Y}, "no array who "),
        ({"label_column": "z"}, {"x": X, "y": Y, "user": Y}, "no array z "),
        ({}, {"data": X, "y": Y, "user": Y}, "no array 'x'"),
        ({}, {"x": X, "y": Y[:3], "user": Y}, "3 entries of labels for 4 samples"),
        ({}, {"x": X, "y": Y, "user": Y[:3]}, "3 entries of user for 4 samples"),
        ({}, {"x": X, "y": Y - 0.5, "user": Y}, "label of sample 0 is -0.5"),
        ({}, {"x": X, "y": Y.astype(str), "user": Y}, "number the classes"),
        ({}, {"x": np.full((4, 2), np.nan), "y": Y, "user": Y}, "sample 0 has values"),
        ({}, {"x": X, "y": Y, "user": Y + 0.5}, "ids of type float64"),
        ({}, {"x": X, "y": Y, "user": Y.astype(object)}, "not an NPZ file of plain arrays"),
    ],
)
def test_npz_errors(npz, keys, arrays, said):
    with pytest.raises(DataError, match=said):
        npz(keys, **arrays)


def test_npz_that_is_none(tmp_path):
    path = tmp_path / "data.npz"
    keys = ColumnKeys(dataset="npz", data_file=str(path))
    with pytest.raises(DataError, match=r"data.npz: cannot be read \(No such file"):
        load_table(keys)
    path.write_text("hello")
    with pytest.raises(DataError, match="not an NPZ file"):
        load_table(keys)
    shape = str({"descr": "<f4", "fortran_order": False, "shape": (10**11, 3)}).ljust(117) + "\n"
    with zipfile.ZipFile(path, "w") as file:
        file.writestr("x.npy", b"\x93NUMPY\x01\x00v\x00" + shape.encode())
    with pytest.raises(DataError, match=r"not an NPZ file .*memory"):
        load_table(keys)


def test_names_and_useless_keys():
    with pytest.raises(ConfigError, match="Did you mean digits"):
        load_table(DataKeys(dataset="digit"))
    with pytest.raises(ConfigError, match="needs data-file"):
        load_table(CsvKeys(dataset="csv"))
    with pytest.raises(ConfigError, match="set dataset=csv"):
        Config.parse({"data-file": "mine.csv"}).check_simulated()
