"""FEMNIST and Sent140: LEAF's JSON files and the hub, word vectors, users, partitions."""

import json
import logging

import numpy as np
import pytest

from corsage.app.device_files import write_files
from corsage.core.configuration.config import Config
from corsage.core.errors import ConfigError, DataError
from corsage.datasets import hub
from corsage.datasets.data_set import load_table, source_files
from corsage.datasets.dealing import federated, partitions
from corsage.datasets.dealing.federated import on_device, simulated
from corsage.datasets.femnist import FemnistKeys
from corsage.datasets.sample_table import model_input
from corsage.datasets.sent140 import Sent140Keys, embedded
from corsage.datasets.shared_keys import CsvKeys
from tests.support.federations import federate
from tests.support.published import character, leaf, tweet, write_glove, write_json

A = 36  # the class of "a"
WORDS = "good bad i'm not ! . day the"


def femnist(folder, **more):
    return FemnistKeys(dataset="femnist", data_dir=str(folder), **more)


def sent140(folder, **more):
    return Sent140Keys(dataset="sent140", data_dir=str(folder), embeddings="glove.txt", **more)


def writers(folder, labels, count=3, files=2):
    """`count` writers in each of some all_data files, all of whom write `labels`."""
    for f in range(files):
        mine = {
            f"f{f}{w}_{w:02}": ([character(y, 10 * f + w) for y in labels], list(labels))
            for w in range(count)
        }
        write_json(folder / f"all_data_{f}.json", leaf(mine))


def authors(folder, tweets, part=""):
    """LEAF's file of {user: [(text, label), ...]}."""
    content = {
        user: ([tweet(i, user, text) for i, (text, _) in enumerate(own)], [y for _, y in own])
        for user, own in tweets.items()
    }
    path = folder / part / "all_data_0.json" if part else folder / "all_data_0.json"
    write_json(path, leaf(content))
    write_glove(folder / "glove.txt", WORDS)


def test_letters(tmp_path):
    writers(tmp_path, [3, A, A + 9, A + 10, 12, A])
    table = load_table(femnist(tmp_path))
    assert table.x.shape == (18, 1, 28, 28) and table.x.dtype == np.uint8
    assert table.y.tolist() == [0, 9, 0] * 6 and table.num_classes == 10
    assert list(dict.fromkeys(table.users.tolist())) == [
        "f00_00", "f01_01", "f02_02", "f10_00", "f11_01", "f12_02",
    ]  # fmt: skip
    assert table.clusters is None
    wanted = np.array(character(A + 9, 10)).reshape(28, 28)
    image = model_input(table.x[10], table.shift, table.scale)
    assert np.allclose(image[0], wanted * 2 - 1, atol=1e-6)


def test_other_classes(tmp_path):
    writers(tmp_path, [3, A, A + 10, 12, 9])
    digits = load_table(femnist(tmp_path, femnist_classes="digits"))
    assert digits.y.tolist() == [3, 9] * 6 and digits.num_classes == 10
    every = load_table(femnist(tmp_path, femnist_classes="all"))
    assert every.y.tolist() == [3, 36, 46, 12, 9] * 6 and every.num_classes == 62
    both = load_table(femnist(tmp_path, femnist_classes="letters-digits"))
    assert both.y.tolist() == [0] * 6 + [3, 9] * 6
    assert both.clusters.tolist() == ["letters"] * 6 + ["digits"] * 12
    assert both.users[0] == "f00_00" and both.users[6] == "f00_00-digits"
    ink = (both.x.reshape(18, -1) < 255).argmax(1)
    assert ink.tolist() == [A * 12] * 6 + [36, 108] * 6


def test_natural_writers_and_train_and_test_folders(tmp_path):
    """Where LEAF puts them; the two parts of a user are one pool."""
    writers(tmp_path / "data" / "all_data", [0])  # of an earlier step: not taken
    letters = [A + i % 10 for i in range(10)]
    writers(tmp_path / "data" / "train", letters)
    writers(tmp_path / "data" / "test", letters[:5], count=4, files=1)
    federated.opened.cache_clear()
    keys = femnist(tmp_path, partition="natural", cache_dir=str(tmp_path / "c"))
    assert {path.parent.name for path in source_files(keys)} == {"train", "test"}
    data = simulated(keys, 0, 0)
    sizes = dict(zip(data.users, data.train_sizes + data.test_sizes, strict=True))
    assert sizes == {
        "f00_00": 15, "f01_01": 15, "f02_02": 15, "f03_03": 5,
        "f10_00": 10, "f11_01": 10, "f12_02": 10,
    }  # fmt: skip
    assert data["f00_00"].x_test.shape == (3, 1, 28, 28)
    few = femnist(tmp_path, partition="natural", min_samples=11, cache_dir=str(tmp_path / "c"))
    assert simulated(few, 0, 0).users == ["f00_00", "f01_01", "f02_02"]
    with pytest.raises(DataError, match="num-users=4: the data have 3 users with at least 11"):
        simulated(few, 4, 0)
    with pytest.raises(DataError, match="min-samples=16: no user has so many"):
        simulated(femnist(tmp_path, partition="natural", min_samples=16), 0, 0)


def test_a_user_without_test_data(tmp_path):
    letters = [A, A + 1, A + 2]
    content = leaf({"ann": ([character(y, 1) for y in letters], letters)})
    content["user_data"]["bob"] = {"x": [character(A, 2)], "y": [A]}
    content["users"].append("bob")
    content["num_samples"].append(1)
    write_json(tmp_path / "all_data_0.json", content)
    keys = femnist(tmp_path, partition="natural", cache_dir=str(tmp_path / "c"))
    assert simulated(keys, 0, 0).test_sizes.tolist() == [1, 0]
    keys = femnist(tmp_path, partition="natural", min_samples=2, cache_dir=str(tmp_path / "c"))
    assert simulated(keys, 0, 0).users == ["ann"]


def test_the_papers_partition(tmp_path):
    """Ten letters, three consecutive ones a user, lognormal sizes with a given mean."""
    writers(tmp_path, [A + i % 10 for i in range(100)], count=4)
    federated.opened.cache_clear()
    more = {"classes_per_user": 3, "size_sigma": 1.0, "mean_samples": 30}
    keys = femnist(tmp_path, partition="consecutive", cache_dir=str(tmp_path / "c"), **more)
    data = simulated(keys, 20, 0)
    sizes = data.train_sizes + data.test_sizes
    assert sizes.sum() == 600 and sizes.std() > 10
    assert np.bincount(data.y, minlength=10).tolist() == [60] * 10
    for user in data.users:
        own = np.unique(np.concatenate([data[user].y_train, data[user].y_test]))
        assert any(set(own) == {c, (c + 1) % 10, (c + 2) % 10} for c in range(10))
    with pytest.raises(DataError, match="mean-samples=50: 20 users would need 1000"):
        simulated(femnist(tmp_path, partition="iid", mean_samples=50), 20, 0)
    with pytest.raises(ConfigError, match="mean-samples=5: of no use with partition=natural"):
        simulated(femnist(tmp_path, partition="natural", mean_samples=5), 0, 0)
    with pytest.raises(ConfigError, match="min-samples=5: of no use with partition=iid"):
        simulated(femnist(tmp_path, partition="iid", min_samples=5), 4, 0)


def test_consecutive():
    labels = np.repeat(np.arange(7), 100)
    parts = partitions.consecutive(labels, 14, np.random.default_rng(0), classes_per_user=3)
    assert sorted(np.concatenate(parts).tolist()) == list(range(700))
    firsts = []
    for part in parts:
        classes, counts = np.unique(labels[part], return_counts=True)
        (first,) = [c for c in range(7) if set(classes) == {c, (c + 1) % 7, (c + 2) % 7}]
        firsts.append(first)
        assert counts.min() >= 16 and counts.max() <= 17  # 100 among 6 users
    assert sorted(firsts) == sorted([*range(7)] * 2)
    for more, said in (
        ({"classes_per_user": 8}, "the data have 7 classes"),
        ({"num_users": 300, "classes_per_user": 3}, "too few samples of some classes"),
    ):
        users = more.pop("num_users", 14)
        with pytest.raises(DataError, match=said):
            partitions.consecutive(labels, users, np.random.default_rng(0), **more)


def test_new_clients_from_digits(tmp_path):
    """Letters and digits in one federation, as known clusters: new-cluster=digits."""
    writers(tmp_path, [*(A + i % 10 for i in range(40)), *range(10)], count=4)
    federated.opened.cache_clear()
    more = {"partition": "consecutive", "classes_per_user": 3, "cache_dir": str(tmp_path / "c")}
    data = simulated(femnist(tmp_path, femnist_classes="letters-digits", **more), 11, 0)
    assert list(data.clusters.values()) == ["letters"] * 6 + ["digits"] * 5
    for user in data.users:
        ink = (data[user].x_train.reshape(-1, 784) < 255).argmax(1)
        first = A * 12 if data.clusters[user] == "letters" else 0
        assert np.array_equal(ink, first + 12 * data[user].y_train)
    more["partition"] = "natural"
    data = simulated(femnist(tmp_path, femnist_classes="letters-digits", **more), 0, 0)
    assert data.clusters["f00_00"] == "letters" and data.clusters["f00_00-digits"] == "digits"
    keys = {"dataset": "femnist", "data-dir": str(tmp_path), "femnist-classes": "letters-digits"}
    keys |= {"partition": "consecutive", "new-cluster": "digits", "num-rounds": 2}
    strategy, result, _ = federate("fedrep", num_users=10, **keys)
    users, new = strategy.members.users, strategy.members.new_users
    assert users == ["0", "1", "2", "3", "4"] and len(new) == 5
    assert set(result.json()[-1]["per_user"]) == set(new)


GOOD = leaf({"ann": ([character(A, 1)] * 2, [A, A])})


def changed(**more):
    return json.dumps(GOOD | more)


@pytest.mark.parametrize(
    ("raw", "said"),
    [
        (json.dumps(GOOD)[:-300], "damaged, or not as LEAF writes it"),
        ("", "damaged, or not as LEAF writes it"),
        (b"\xff\xfe{", "damaged, or not as LEAF writes it"),
        ("[" * 100_000, "damaged, or not as LEAF writes it"),
        ("[1]", "not as LEAF writes it"),
        (changed(users="ann"), "not as LEAF writes it"),
        (changed(user_data={}), "not as LEAF writes it.* .KeyError: 'ann'"),
        (changed(user_data={"ann": {"x": []}}), "not as LEAF writes it.* .KeyError: 'y'"),
        (changed(num_samples=[3]), "user ann: 2 samples, 2 labels, but num_samples says 3"),
        (changed(num_samples=[2, 1]), "damaged, or"),
        (changed(user_data={"ann": {"x": 5, "y": [A, A]}}), "not as LEAF writes it.* .TypeError"),
        (changed(user_data={"ann": {"x": [[0.5] * 783] * 2, "y": [A, A]}}), r"shape \(783,\)"),
        (changed(user_data={"ann": {"x": [[0.5] * 784, [1]], "y": [A, A]}}), "several sizes"),
        (changed(user_data={"ann": {"x": [["a"] * 784] * 2, "y": [A, A]}}), "not of numbers"),
        (
            changed(user_data={"ann": {"x": [[255] * 784] * 2, "y": [A, A]}}),
            "from 255 to 255; expected 784 pix",
        ),
        (changed(user_data={"ann": {"x": [[0] * 784] * 2, "y": [A, 62]}}), "a label of 62"),
        (changed(user_data={"ann": {"x": [[0] * 784] * 2, "y": [A, "b"]}}), "labels of type"),
        (changed(user_data={"ann": {"x": [[0] * 784] * 2, "y": [A, [1]]}}), "not numbers"),
        (json.dumps(leaf({"ann": ([character(3, 1)], [3])})), "no images of femnist-classes=let"),
    ],
)
def test_damaged_files(tmp_path, raw, said):
    path = tmp_path / "all_data_0.json"
    path.write_bytes(raw if isinstance(raw, bytes) else raw.encode())
    with pytest.raises(DataError, match=said) as caught:
        load_table(femnist(tmp_path))
    assert str(tmp_path) in str(caught.value) and "\n" not in str(caught.value)


def test_missing_files_are_named(tmp_path, monkeypatch):
    monkeypatch.setattr(hub.importlib, "import_module", lambda name: type(np)("datasets"))
    for keys, looked in ((femnist(tmp_path), str(tmp_path)), (femnist(""), "no data-dir is set")):
        with pytest.raises(DataError) as caught:
            load_table(keys)
        said = str(caught.value)
        expected = ("train/*.json and test/*.json", "all_data*.json", "preprocess.sh", "[hub]")
        assert all(word in said for word in (*expected, looked)) and "\n" not in said
    writers(tmp_path / "train", [A])
    with pytest.raises(DataError, match=r"test has no \*.json"):
        load_table(femnist(tmp_path))
    authors(tmp_path, {"ann": [("good", 1)]})
    (tmp_path / "glove.txt").unlink()
    with pytest.raises(DataError) as caught:
        load_table(sent140(tmp_path))
    said = str(caught.value)
    expected = (str(tmp_path / "glove.txt"), " or glove.txt", "glove.6B.zip", "embeddings=FILE")
    assert all(word in said for word in expected) and "\n" not in said


def test_tweets(tmp_path):
    long = "good " * 20 + "bad " * 20
    tweets = {
        "ann": [("I'm not GOOD! xyzzy.", 0), (long, 1), ("", 1)],
        "bob": [("@ann the day, the day", 0), ("bad", 0)],
    }
    authors(tmp_path, tweets)
    vectors = write_glove(tmp_path / "glove.txt", WORDS + " unused")
    table = load_table(sent140(tmp_path))
    assert table.x.shape == (5, 25) and table.x.dtype == np.int32 and table.num_classes == 2
    assert table.y.tolist() == [0, 1, 1, 0, 0]
    assert table.users.tolist() == ["ann"] * 3 + ["bob"] * 2
    seen = model_input(table.x, table.shift, table.scale, table.vectors)
    assert seen.shape == (5, 25, 6) and seen.dtype == np.float32
    zero = np.zeros(6, np.float32)
    wanted = [vectors[w] for w in ("i'm", "not", "good", "!")] + [zero, vectors["."]]
    assert np.array_equal(seen[0, -6:], wanted) and not seen[0, :-6].any()
    assert np.array_equal(seen[1], [vectors["good"]] * 20 + [vectors["bad"]] * 5)
    assert not seen[2].any()
    wanted = [zero, vectors["the"], vectors["day"], zero, vectors["the"], vectors["day"]]
    assert np.array_equal(seen[3, -6:], wanted)
    assert len(table.vectors) == 9  # what no text has is not kept


def test_a_word_as_it_is_written_comes_first(tmp_path):
    vectors = write_glove(tmp_path / "g.txt", "US us")
    x, table = embedded(["US us Us xyzzy"], tmp_path / "g.txt")
    wanted = [vectors["US"], vectors["us"], vectors["us"], np.zeros(6)]
    assert np.array_equal(table[x[0, -4:]], np.array(wanted, np.float32))


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("good 1 2 3\nbad 1 2\n", "line 2: not 3 finite numbers, as in line 1"),
        ("the 1 2 3\ngood 1 x 3\n", "line 2: not a word and its numbers"),
        ("good 1 nan 3\n", "line 1: not 3 finite numbers"),
        ("wealth 1 2 3\n", "none of the texts' 2 words is in it"),
        ("", "none of the texts' 2 words"),
    ],
)
def test_bad_word_vectors(tmp_path, text, said):
    (tmp_path / "g.txt").write_text(text)
    with pytest.raises(DataError, match=f"g.txt: {said}"):
        embedded(["good bad"], tmp_path / "g.txt")


def test_odd_files_of_word_vectors(tmp_path):
    """word2vec's header, words with blanks in them, and a word twice."""
    (tmp_path / "g.txt").write_text("3 2\nthe 0 0\ngood morning 1 1\ngood 2 3\ngood 9 9\n")
    x, table = embedded(["good"], tmp_path / "g.txt")
    assert table[x[0, -1]].tolist() == [2, 3]


@pytest.mark.parametrize(
    ("x", "y", "said"),
    [
        ([["1", "d", "q", "ann"]], [1], "a tweet that is not a list of 5 fields"),
        (["good"], [1], "a tweet that is not a list of 5 fields"),
        ([tweet(0, "ann", "good")], [4], "a label of 4; there are 2 classes"),
    ],
)
def test_bad_tweets(tmp_path, x, y, said):
    write_json(tmp_path / "all_data.json", leaf({"ann": (x, y)}))
    write_glove(tmp_path / "glove.txt", WORDS)
    with pytest.raises(DataError, match=f"all_data.json: user ann: {said}"):
        load_table(sent140(tmp_path))


def test_tokens_stay_numbers_on_disk_and_are_vectors_for_the_model(tmp_path):
    """In the cache 25 numbers a tweet; a device gets a file of vectors that needs no table."""
    some = [(f"good {'bad ' * i}the day", i % 2) for i in range(6)]
    authors(tmp_path, {"ann": some, "bob": some[::-1]})
    federated.opened.cache_clear()
    keys = sent140(tmp_path, partition="natural", cache_dir=str(tmp_path / "c"))
    data = simulated(keys, 0, 0)
    assert data.shape == (25, 6) and data.x.shape == (12, 25) and data.x.dtype == np.int32
    assert not data.vectors.flags.writeable
    config = Config.parse(
        {**Config.parse().flat(), "num-users": 0, "dataset": "sent140",
         "data-dir": str(tmp_path), "embeddings": "glove.txt", "partition": "natural"}
    )  # fmt: skip
    list(write_files(tmp_path / "devices", config))
    device = on_device(str(tmp_path / "devices" / "ann.npz"), "ann", "", CsvKeys(), 0)
    assert device.shape == (25, 6) and device.vectors is None
    assert np.array_equal(device["ann"].x_train, data.vectors[data["ann"].x_train])
    write_glove(tmp_path / "glove.txt", WORDS, width=4)  # another file: prepared anew
    federated.opened.cache_clear()
    assert simulated(keys, 0, 0).shape == (25, 4)


def test_femnist_of_the_hub(monkeypatch, caplog):
    datasets = pytest.importorskip("datasets")
    images = [np.full((28, 28), i, np.uint8) for i in range(6)]
    rows = datasets.Dataset.from_dict(
        {
            "image": images,
            "writer_id": ["w0", "w0", "w1", "w1", "w2", "w2"],
            "hsf_id": [0] * 6,
            "character": [A, 3, A + 1, A + 10, 61, A + 9],
        },
        features=datasets.Features(
            image=datasets.Image(),
            writer_id=datasets.Value("string"),
            hsf_id=datasets.Value("int64"),
            character=datasets.ClassLabel(62),
        ),
    )
    fake = type(np)("datasets")
    fake.load_dataset = {"flwrlabs/femnist": {"train": rows}}.__getitem__
    monkeypatch.setattr(hub.importlib, "import_module", lambda _: fake)
    with caplog.at_level(logging.INFO, logger="corsage"):
        table = load_table(femnist(""))
    assert "downloading flwrlabs/femnist" in caplog.text
    assert table.y.tolist() == [0, 1, 9] and table.users.tolist() == ["w0", "w1", "w2"]
    assert table.x.shape == (3, 1, 28, 28) and table.x[:, 0, 5, 5].tolist() == [0, 2, 5]


def test_sent140_of_the_hub(monkeypatch, tmp_path):
    datasets = pytest.importorskip("datasets")
    glove = tmp_path / "glove.txt"
    write_glove(glove, WORDS)
    splits = {
        name: datasets.Dataset.from_dict(
            {
                "text": [f"good {i}" for i in range(len(codes))],
                "date": ["d"] * len(codes),
                "user": [f"{name}{i % 2}" for i in range(len(codes))],
                "sentiment": codes,
                "query": ["NO_QUERY"] * len(codes),
            }
        )
        for name, codes in (("train", [0, 4, 4]), ("test", [2, 4]))
    }
    fake = type(np)("datasets")
    fake.load_dataset = {"stanfordnlp/sentiment140": splits}.__getitem__
    monkeypatch.setattr(hub.importlib, "import_module", lambda _: fake)
    table = load_table(Sent140Keys(dataset="sent140", embeddings=str(glove)))
    assert table.y.tolist() == [0, 1, 1, 0, 1]
    assert table.users.tolist() == ["train0", "train1", "train0", "test0", "test1"]
    fake.load_dataset = {}.__getitem__
    with pytest.raises(DataError, match="The hub was tried: KeyError"):
        load_table(Sent140Keys(dataset="sent140", embeddings=str(glove)))
