"""What people have in Python becomes a table: arrays, torch and Hugging Face data sets."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader, Dataset, Subset, TensorDataset

from corsage import fit
from corsage.core.errors import ConfigError, DataError
from corsage.datasets.given.given_samples import Columns, samples_of
from corsage.datasets.given.reading import Given, read
from corsage.datasets.sample_table import Table

X = np.arange(24, dtype=np.float32).reshape(12, 2)
Y = np.array([0, 1, 2] * 4)
TENSORS = TensorDataset(torch.from_numpy(X), torch.from_numpy(Y))


class Named(Dataset[dict[str, Any]]):
    """A data set whose samples have names."""

    def __len__(self) -> int:
        return len(X)

    def __getitem__(self, i: int) -> dict[str, Any]:
        return {"pixels": torch.from_numpy(X[i]), "label": int(Y[i])}


def hugging_face(**more: Any) -> Any:
    datasets = pytest.importorskip("datasets")
    return datasets.Dataset.from_dict({"a": X[:, 0], "b": X[:, 1], "label": Y, **more})


@pytest.mark.parametrize(
    "given",
    [
        (X, Y),
        [X.tolist(), Y.tolist()],
        (torch.from_numpy(X).requires_grad_(), torch.from_numpy(Y)),
        {"x": X, "y": Y},
        {"x_train": X, "y_train": Y},
        TENSORS,
        Subset(TENSORS, list(range(12))),
        DataLoader(TENSORS, batch_size=5, shuffle=True),
        Named(),
    ],
)
def test_samples_are_the_same_in_whatever_they_come(given: Any) -> None:
    own = samples_of(given, Columns())
    np.testing.assert_array_equal(own.x, X)
    np.testing.assert_array_equal(own.y, Y)


@pytest.mark.parametrize(
    "given",
    [
        (X, Y, X[:4], Y[:4]),
        (TENSORS, Subset(TENSORS, [0, 1, 2, 3])),
        {"train": TENSORS, "test": (X[:4], Y[:4])},
        {"x_train": X, "y_train": Y, "x_test": X[:4], "y_test": Y[:4]},
    ],
)
def test_test_samples_are_those_that_are_given(given: Any) -> None:
    found = read(Given({"a": given, "b": given}))
    assert found.test is not None and found.test.tolist() == 2 * (12 * [False] + 4 * [True])
    np.testing.assert_array_equal(found.x[found.test], np.tile(X[:4], (2, 1)))


def test_users_are_named_by_their_order_or_their_keys() -> None:
    listed = read(Given([(X, Y), (X[:3], Y[:3])]))
    assert listed.users is not None and listed.users.tolist() == ["0"] * 12 + ["1"] * 3
    named = read(Given({"ward 7": (X, Y), 8: (X, Y)}, cluster={"ward 7": "n", 8: "s"}))
    assert named.users is not None and sorted(set(named.users)) == ["8", "ward 7"]
    assert named.clusters is not None and named.clusters.tolist() == ["n"] * 12 + ["s"] * 12


def test_hugging_face_columns() -> None:
    data = hugging_face(who=[f"u{i % 3}" for i in range(12)])
    found = read(Given(data, user="who"))
    np.testing.assert_array_equal(found.x, X)
    assert found.users is not None and found.users.tolist() == [f"u{i % 3}" for i in range(12)]
    one = read(Given(data, user="who", features=("b",)))
    np.testing.assert_array_equal(one.x[:, 0], X[:, 1])
    whole = data.remove_columns(["who"]).with_transform(
        lambda rows: {"img": [torch.ones(1, 2, 2) * a for a in rows["a"]], "label": rows["label"]}
    )
    assert samples_of(whole, Columns()).x.shape == (12, 1, 2, 2)
    splits = hugging_face().train_test_split(test_size=4, shuffle=False)
    own = samples_of(splits, Columns())
    assert own.x_test is not None and (len(own.x), len(own.x_test)) == (8, 4)


def test_hugging_face_pictures_have_their_colours_first() -> None:
    datasets = pytest.importorskip("datasets")
    image = pytest.importorskip("PIL.Image")
    pictures = [image.fromarray(np.full((5, 5, 3), i, np.uint8)) for i in range(4)]
    data = datasets.Dataset.from_dict({"img": pictures, "label": [0, 1, 0, 1]})
    found = read(Given([data, data]))
    assert found.x.shape == (8, 3, 5, 5) and found.x.dtype == np.uint8


def test_partitioners_of_flwr_datasets() -> None:
    partitioner = pytest.importorskip("flwr_datasets.partitioner").IidPartitioner(num_partitions=3)
    partitioner.dataset = hugging_face()
    found = read(Given(partitioner))
    assert found.users is not None and sorted(found.users) == sorted(["0", "1", "2"] * 4)


def test_a_federated_data_set_is_its_partitioners() -> None:
    """Of flwr-datasets, which gives a partitioner its data when the first partition is asked."""

    class Partitioner:
        num_partitions = 2

    class Federated:
        def __init__(self) -> None:
            self.partitioners = {"train": Partitioner()}

        def load_partition(self, number: int) -> Any:
            return hugging_face() if number == 0 else (X[:3], Y[:3])

    found = read(Given(Federated()))
    assert found.users is not None and found.users.tolist() == ["0"] * 12 + ["1"] * 3


def test_labels_are_what_their_type_says() -> None:
    def classes(y: Any, labels: str = "") -> int:
        return read(Given((X, y), labels=labels)).num_classes

    assert classes(Y) == classes(Y.astype(np.uint8)) == 3
    assert classes(Y > 1) == 2
    assert classes(Y + 0.5) == 0
    assert (classes(Y * 1.0, "classes"), classes(Y * 1.0, "numbers"), classes(Y, "numbers")) == (
        *(3, 0, 0),
    )
    with pytest.raises(DataError, match=r"classes, or numbers to predict\? Make them whole"):
        classes(Y * 1.0)


def pool(**more: Any) -> Table:
    return read(Given((X, Y), **more))


@pytest.mark.parametrize(
    ("given", "why"),
    [
        ([(X, Y), (X[:, :1], Y)], r"user 1: samples of shape \(1,\), others' are \(2,\)"),
        ([(X, Y), (X, Y[:3])], "user 1: 12 samples and 3 labels"),
        ([(X, Y), X], "user 1: ndarray: give"),
        ({"a": (X, Y, X, Y), "b": (X, Y)}, "user b has no test samples, others have"),
        ([(X + np.inf, Y)], "sample 0 has values that are not finite"),
        ([(np.array([["a", "b"]] * 12), Y)], "x: of type <U1; expected numbers"),
        ([], "nobody has any samples"),
        ({"x": X}, "a dictionary of x: give"),
        ([([[1, 2], [3]], [0, 1])], "user 0: an array: |x: cannot be made an array|not of one"),
        ((X, Y, X, Y), "test samples need users"),
    ],
)
def test_what_cannot_be_read_is_one_line(given: Any, why: str) -> None:
    with pytest.raises(DataError, match=why) as caught:
        read(Given(given))
    assert "\n" not in str(caught.value)


def test_columns_and_arrays_are_not_mixed_up() -> None:
    with pytest.raises(ConfigError, match="user=site: arrays have no columns"):
        pool(user="site")
    with pytest.raises(DataError, match="3 users for 12 samples"):
        pool(user=[1, 2, 3])
    with pytest.raises(ConfigError, match="user: the data are given user by user"):
        read(Given([(X, Y)], user=[0] * 12))
    with pytest.raises(DataError, match="user c has no samples"):
        read(Given([(X, Y)], cluster={"c": "x"}))
    with pytest.raises(DataError, match="user=who: no such column; there are a, b, label"):
        read(Given(hugging_face(), user="who"))
    with pytest.raises(DataError, match="no label column 'z' among a, b, label; say label=NAME"):
        read(Given(hugging_face(), label="z"))


def test_labels_that_are_words_are_classes_by_name() -> None:
    """As in a CSV file; one that is missing is named."""
    x, users = np.random.default_rng(0).normal(size=(60, 3)), np.repeat(["u", "v", "w"], 20)
    words = np.where(x[:, 0] > 0, "ill", "well")
    keys: dict[str, Any] = {"strategy": "exact-local", "num_rounds": 3, "progress": False}
    found = fit(x=x, y=words, user=users, **keys)["exact-local"]
    same = fit(x=x, y=(x[:, 0] <= 0).astype(int), user=users, **keys)
    assert found.per_user == same["exact-local"].per_user
    assert set(found.user("u").predict(x)) == {"ill", "well"}
    for gap in (None, ""):
        with pytest.raises(DataError, match="data: label 7 is empty or missing"):
            fit(x=x, y=[*words[:7], gap, *words[8:]], user=users, strategy="exact-local")
