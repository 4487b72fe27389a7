"""Points in ellipses: the published sums, and where the points are."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from corsage.core.configuration.config import Config
from corsage.core.errors import ConfigError
from corsage.datasets.data_set import check_keys, load_table
from corsage.datasets.dealing.federated import simulated
from corsage.datasets.ellipses import SHAPES, draw
from corsage.datasets.shared_keys import ClusterKeys


def test_the_sums_of_the_standard_problem():
    """With u = l [a, -1] of all users' points."""
    drawn = draw()
    u = drawn.l[..., None] * np.concatenate([drawn.a, -np.ones((60, 10, 1))], axis=2)
    assert u.sum() == pytest.approx(-131.9941800227, abs=1e-9)
    assert (u**2).sum() == pytest.approx(5386.8620490491, abs=1e-9)
    assert drawn.test_a.sum() == pytest.approx(336.9886197625, abs=1e-9)


@settings(max_examples=20, deadline=None)
@given(st.integers(0, 99), st.integers(1, 3), st.integers(1, 3), st.integers(1, 200))
def test_points_are_in_their_ellipses(seed, clusters, users, samples):
    drawn = draw(seed, clusters=clusters, users=users, samples=samples)
    assert drawn.a.shape == (clusters * users, samples, 2)
    assert drawn.test_a.shape == (clusters, 2000, 2) and (drawn.test_l.sum(axis=1) == 0).all()
    groups = [*zip(drawn.a, drawn.l, drawn.cluster, strict=True)]
    groups += zip(drawn.test_a, drawn.test_l, range(clusters), strict=True)
    for points, signs, cluster in groups:
        shape = SHAPES[cluster]
        centres = np.where(signs[:, None] > 0, shape.positive, shape.negative)
        first = np.exp(1j * np.radians(shape.degrees))
        along = ((points - centres) @ [1, 1j]) / first  # the first axis turned back to the right
        assert ((along.real / shape.axes[0]) ** 2 + (along.imag / shape.axes[1]) ** 2).max() <= 1
    for points in drawn.a:  # without replacement
        assert len(np.unique(points, axis=0)) == samples


def test_points_fill_the_ellipse_evenly():
    """Half of an ellipse's points are within 1/sqrt(2) of its size."""
    drawn = draw(4)
    for cluster, shape in enumerate(SHAPES):
        points = drawn.test_a[cluster][drawn.test_l[cluster] > 0] - shape.positive
        turned = points @ [1, 1j] / np.exp(1j * np.radians(shape.degrees))
        size = (turned.real / shape.axes[0]) ** 2 + (turned.imag / shape.axes[1]) ** 2
        assert np.mean(size < 0.5) == pytest.approx(0.5, abs=0.06)


def test_fewer_clusters_are_the_first_ones():
    three = draw(2)
    for k in (1, 2):
        fewer = draw(2, clusters=k)
        assert np.array_equal(fewer.a, three.a[: 20 * k])
        assert np.array_equal(fewer.l, three.l[: 20 * k])


def test_simulated(tmp_path):
    keys = ClusterKeys(dataset="ellipses", partition="natural", cache_dir=str(tmp_path))
    data, drawn = simulated(keys, 0, 7), draw(1)
    assert data.users == [str(i) for i in range(60)] and data.num_classes == 2
    assert data.clusters == {str(i): str(i // 20) for i in range(60)}
    for i in (0, 19, 20, 59):
        own = data[str(i)]
        assert np.allclose(own.x_train, drawn.a[i], atol=1e-6)
        assert (2 * own.y_train - 1).tolist() == drawn.l[i].tolist()
        assert np.allclose(own.x_test, drawn.test_a[i // 20], atol=1e-6)
        assert (2 * own.y_test - 1).tolist() == drawn.test_l[i // 20].tolist()


def test_what_there_is_not():
    with pytest.raises(ConfigError, match="num-clusters=4: dataset=ellipses has 3"):
        load_table(ClusterKeys(dataset="ellipses", num_clusters=4))
    with pytest.raises(ConfigError, match=r"samples-per-user=201: .* from 200"):
        load_table(ClusterKeys(dataset="ellipses", samples_per_user=201))


@pytest.mark.parametrize(
    ("key", "value", "dataset"),
    [
        ("data-seed", 2, "digits"),
        ("num-clusters", 2, "donors"),
        ("users-per-cluster", 5, "digits"),
        ("samples-per-user", 5, "chem97"),
        ("num-features", 5, "ellipses"),
        ("noise", 2.0, "ellipses"),
        ("user-variance", "2", "donors"),
        ("cluster-variance", 2.0, "digits"),
        ("test-fraction", 0.3, "ellipses"),
        ("test-fraction", 0.3, "hierarchical"),
        ("data-file", "x.csv", "ellipses"),
        ("user-column", "who", "digits"),
    ],
)
def test_keys_without_use(key, value, dataset):
    with pytest.raises(ConfigError, match=f"{key}=.*: dataset={dataset} has no use"):
        config = Config.parse({"dataset": dataset, key: value})
        config.check_simulated()
        check_keys(config.data)


@pytest.mark.parametrize("dataset", ["ellipses", "hierarchical", "donors", "chem97"])
def test_other_partitions_than_natural(dataset):
    for partition, num_users in (("shards", 50), ("iid", 0)):
        with pytest.raises(ConfigError, match="set partition=natural num-users=0"):
            keys = Config.parse({"dataset": dataset, "partition": partition}).data
            simulated(keys, num_users, 0)
