"""Known clusters from a JSON file."""

import dataclasses
import json
import os
from pathlib import Path

import pytest

from corsage.app.results.csv_files import write_tables
from corsage.core.errors import ConfigError, DataError
from corsage.datasets.data_set import check_keys
from corsage.datasets.dealing import clustermap
from corsage.datasets.dealing.federated import on_device, simulated
from corsage.datasets.shared_keys import ClusterKeys, CsvKeys


@pytest.fixture
def keys(tmp_path):
    return CsvKeys(
        partition="shards",
        cluster_map=str(tmp_path / "map.json"),
        cache_dir=str(tmp_path / "cache"),
    )


@pytest.fixture
def mapped(keys):
    """Writes a map; text as it is."""

    def write(content):
        text = content if isinstance(content, str) else json.dumps(content)
        Path(keys.cluster_map).write_text(text)
        return keys

    return write


def test_both_forms(mapped):
    by_user = {"0": "n", "2": "s", "3": 7}
    by_cluster = {"n": [0], "s": ["2"], "7": [3, "3"]}
    for content in (by_user, by_cluster):
        data = simulated(mapped(content), 4, 0)
        assert data.clusters == {"0": "n", "2": "s", "3": "7"}
        assert data["1"].cluster is None


def test_clusters_that_a_run_found_are_known_to_another(keys, tmp_path):
    rows = [{"strategy": "cfl", "per_user": {"0": 1.0}, "clusters": {"0": "1", "2": "0"}}]
    rows.append({"strategy": "cfl+new", "per_user": {}, "clusters": {"3": "0"}})
    write_tables(tmp_path, rows)
    own = dataclasses.replace(keys, cluster_map=str(tmp_path / "clusters.csv"))
    assert simulated(own, 4, 0).clusters == {"0": "1", "2": "0", "3": "0"}
    for more, said in (
        ("ifca,1,0", "of cfl, ifca; keep one's"),
        ("cfl,0,2", "user 0 is in '1' and '2'"),
        ('cfl,"0', "not CSV"),
    ):
        write_tables(tmp_path, rows)
        with (tmp_path / "clusters.csv").open("a") as file:
            file.write(more)
        with pytest.raises(DataError, match=said):
            simulated(own, 4, 0)
    (tmp_path / "clusters.csv").write_text("id,group\n1,2\n")
    with pytest.raises(DataError, match="no lines with the columns user and cluster"):
        simulated(own, 4, 0)


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ("{'0': 'n'}", "not JSON"),
        ("[" * 100_000, "not JSON"),
        ("{}", "names no user"),
        ("[]", "names no user"),
        ('["0"]', "names no user"),
        ({"0": "n", "1": ["2"]}, "names and lists mixed"),
        ({"n": ["0", "1"], "s": ["1"]}, "user 1 is in the clusters 'n' and 's'"),
        ('{"0": "n", "0": "s"}', "user 0 is in the clusters 'n' and 's'"),
        ({"0": {"1": "n"}}, "is no name"),
        ({"0": True}, "true is no name"),
        ({"0": " "}, "is no name"),
        ({"n": [["0"]]}, "is no name"),
        ({"n": [0.5]}, "0.5 is no name"),
        ({"0": "n", "9": "n", "bob": "s"}, "no such users: 9, bob; the run has 4, such as 0"),
    ],
)
def test_maps_that_cannot_be_used(mapped, content, said):
    keys = mapped(content)
    with pytest.raises(DataError, match=said) as caught:
        simulated(keys, 4, 0)
    assert str(caught.value).startswith(f"cluster-map={keys.cluster_map}: ")
    assert "\n" not in str(caught.value)


def test_no_map_and_two_sources(keys):
    with pytest.raises(DataError, match=r"map.json: cannot be read \(No such file"):
        simulated(keys, 4, 0)
    both = dataclasses.replace(keys, dataset="csv", data_file="x", cluster_column="site")
    for check in (check_keys, lambda k: on_device("x", "ann", "", k, 0)):
        with pytest.raises(ConfigError, match="cluster-column=site says the clusters too"):
            check(both)


def test_another_content_is_another_preparation(mapped):
    """Also when neither size nor time tell: the file may come from a script."""
    assert simulated(mapped({"0": "n"}), 4, 0).clusters == {"0": "n"}
    stamp = Path(mapped({"0": "n"}).cluster_map).stat()
    keys = mapped({"0": "s"})
    os.utime(keys.cluster_map, ns=(stamp.st_atime_ns, stamp.st_mtime_ns))
    assert simulated(keys, 4, 0).clusters == {"0": "s"}


def test_the_data_s_own_users(mapped, tmp_path):
    """Users may be named that are left out of the run; the map replaces the data's clusters."""
    file = mapped({"3": "x", "0": "y"}).cluster_map
    keys = ClusterKeys(
        dataset="ellipses", partition="natural", users_per_cluster=2, cluster_map=file,
        cache_dir=str(tmp_path / "cache"),
    )  # fmt: skip
    assert simulated(keys, 0, 0).clusters == {"0": "y", "3": "x"}
    few = simulated(keys, 2, 0)
    assert few.clusters == {u: c for u, c in {"0": "y", "3": "x"}.items() if u in few.users}
    assert simulated(dataclasses.replace(keys, cluster_map=""), 0, 0).clusters["3"] == "1"


def test_dealt_users_are_not_the_file_s(mapped, tmp_path):
    path = tmp_path / "d.csv"
    path.write_text("a,user,label\n" + "".join(f"{i},ann,{i % 2}\n" for i in range(12)))
    keys = dataclasses.replace(mapped({"ann": "x"}), dataset="csv", data_file=str(path))
    with pytest.raises(DataError, match="no such users: ann; the run has 2"):
        simulated(keys, 2, 0)
    natural = dataclasses.replace(keys, partition="natural")
    assert simulated(natural, 0, 0).clusters == {"ann": "x"}


def test_a_device_reads_it_too(mapped, tmp_path):
    path = tmp_path / "d.csv"
    path.write_text("a,label\n" + "".join(f"{i},{i % 2}\n" for i in range(12)))
    keys = mapped({"n": ["ann", "bob"], "s": ["cy"]})
    assert on_device(str(path), "ann", "", keys, 0).clusters == {"ann": "n"}
    assert on_device(str(path), "ann", "n", keys, 0).clusters == {"ann": "n"}
    assert on_device(str(path), "eve", "", keys, 0).clusters == {}
    assert on_device(str(path), "eve", "s", keys, 0).clusters == {"eve": "s"}
    with pytest.raises(DataError, match=r"map.json: user cy is in cluster 's' there, but"):
        on_device(str(path), "cy", "n", keys, 0)


def test_of_keeps_the_order_of_the_users(mapped):
    keys = mapped({"b": 1, "a": 2, "c": 1})
    found = clustermap.of(["c", "a"], ["a", "b", "c"], keys.cluster_map)
    assert list(found.items()) == [("c", "1"), ("a", "2")]
