"""The hierarchical linear model: its moments, and what estimators make of it."""

import dataclasses

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import kstest

from corsage.core.configuration.config import Config
from corsage.core.errors import ConfigError
from corsage.datasets import hierarchical
from corsage.datasets.data_set import check_keys, load_table
from corsage.datasets.dealing.federated import simulated
from corsage.datasets.hierarchical import HierarchicalKeys, draw


def local_errors(drawn, m):
    """|theta_i^lt - theta_i*| of the local least-squares estimator of least norm."""
    n, d = drawn.theta.shape
    estimates = np.linalg.pinv(drawn.x.reshape(n, m, d)) @ drawn.y.reshape(n, m, 1)
    return np.linalg.norm(estimates[..., 0] - drawn.theta, axis=1)


@pytest.mark.parametrize(
    ("m", "squared", "published"), [(10, 20 + 10 / 9, 4.50), (100, 20 / 79, 0.497)]
)
def test_errors_of_the_local_estimator(m, squared, published):
    """Lyu et al. 2022, Table 1; and in closed form, from the mean of an inverse Wishart matrix."""
    errors = np.concatenate([local_errors(draw(seed, samples=m), m) for seed in range(5)])
    assert np.mean(errors**2) == pytest.approx(squared, rel=0.03)
    assert np.mean(errors) == pytest.approx(published, rel=0.02)


def test_variances():
    """Setting B of noise 4, users log-uniform in (.05, 3), centres 2."""
    drawn = draw(
        3, clusters=40, users=100, samples=8, features=5,
        noise=4.0, user_variance=(0.05, 3.0), cluster_variance=2.0,
    )  # fmt: skip
    residuals = drawn.y - (drawn.x * drawn.theta[drawn.user]).sum(axis=1)
    assert np.var(residuals) == pytest.approx(4.0, rel=0.04)
    assert np.corrcoef(residuals, drawn.x[:, 0])[0, 1] == pytest.approx(0, abs=0.03)
    assert np.var(drawn.centres) == pytest.approx(2.0, rel=0.35)
    away = drawn.theta - drawn.centres[drawn.cluster]
    measured = np.array([np.mean(away[drawn.cluster == j] ** 2) for j in range(40)])
    assert np.allclose(measured / drawn.user_variances, 1, atol=0.3)
    logs = np.log(drawn.user_variances / 0.05) / np.log(3.0 / 0.05)
    assert kstest(logs, "uniform").pvalue > 0.001
    assert np.allclose(np.cov(drawn.x.T), np.eye(5), atol=0.03)


@settings(max_examples=30, deadline=None)
@given(
    st.integers(1, 4), st.integers(1, 5), st.integers(1, 6), st.integers(1, 4), st.integers(0, 9)
)
def test_shapes_and_parameters(clusters, users, samples, features, seed):
    """However many samples are drawn, a seed has the same users; without noise y is exact."""
    sizes = {"clusters": clusters, "users": users, "features": features}
    one = draw(seed, samples=samples, noise=0.0, **sizes)
    other = draw(seed, samples=samples + 3, **sizes)
    n = clusters * users
    assert one.x.shape == (n * samples, features) and one.theta.shape == (n, features)
    assert np.array_equal(one.theta, other.theta) and np.array_equal(one.centres, other.centres)
    assert np.bincount(one.cluster).tolist() == [users] * clusters
    assert np.bincount(one.user).tolist() == [samples] * n
    assert np.allclose(one.y, (one.x * one.theta[one.user]).sum(axis=1))
    assert not np.array_equal(one.theta, draw(seed + 1, samples=samples, **sizes).theta)


@pytest.mark.parametrize(("m", "tests"), [(7, 20), (30, 30)])
def test_table(m, tests):
    keys = HierarchicalKeys(
        dataset="hierarchical", samples_per_user=m, num_clusters=2, users_per_cluster=3, noise=0.25,
        data_seed=5, num_features=4,
    )  # fmt: skip
    table, drawn = load_table(keys), draw(5, clusters=2, users=3, samples=m, features=4, noise=0.25)
    assert table.num_classes == 0 and table.y.dtype == np.float64 and table.x.shape[1] == 4
    train = ~table.test
    assert np.allclose(table.x[train], drawn.x, atol=1e-6)
    assert np.array_equal(table.y[train], drawn.y)
    user = table.users.astype(int)
    assert np.bincount(user[train]).tolist() == [m] * 6
    assert np.bincount(user[table.test]).tolist() == [tests] * 6
    assert (table.clusters.astype(int) == user // 3).all()
    residuals = table.y - (table.x * drawn.theta[user]).sum(axis=1)
    assert np.var(residuals[table.test]) == pytest.approx(0.25, rel=0.4)
    assert not {row.tobytes() for row in table.x[table.test]} & {
        r.tobytes() for r in table.x[train]
    }


def test_simulated(tmp_path):
    values = {"dataset": "hierarchical", "partition": "natural", "users-per-cluster": 4}
    keys = dataclasses.replace(Config.parse(values).data, cache_dir=str(tmp_path))
    data = simulated(keys, 0, 0)
    assert data.train_sizes.tolist() == [10] * 12 and data.test_sizes.tolist() == [20] * 12
    assert data.clusters == {str(i): str(i // 4) for i in range(12)}
    again = simulated(keys, 0, 1)  # the run's seed draws other things
    assert np.array_equal(data.x, again.x) and data.users == again.users
    assert not np.array_equal(simulated(dataclasses.replace(keys, data_seed=2), 0, 0).x, data.x)


@pytest.mark.parametrize("text", ["one", "1,2,3", "3,1", "-1", "0,2", "inf", "nan", ","])
def test_variances_that_are_none(text):
    keys = Config.parse({"dataset": "hierarchical", "user-variance": text}).data
    with pytest.raises(ConfigError, match=r"user-variance=.*: expected one variance"):
        check_keys(keys)


def test_one_variance_or_two():
    for text, limits in (("0", (0, 0)), ("2.5", (2.5, 2.5)), ("0.05,3", (0.05, 3))):
        keys = Config.parse({"dataset": "hierarchical", "user-variance": text}).data
        assert hierarchical.variance_limits(keys) == limits
