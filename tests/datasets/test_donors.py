"""Donors: drawn records have the shape of the paper's, and a file of that form is read."""

import dataclasses

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from corsage.core.errors import ConfigError, DataError
from corsage.datasets import donors
from corsage.datasets.data_set import check_keys, load_table
from corsage.datasets.dealing.federated import simulated
from corsage.datasets.donors import DONOR_CLUSTERS, DonorsKeys, cluster_sizes, draw


@settings(max_examples=50, deadline=None)
@given(st.integers(1, 6000))
def test_cluster_sizes(users):
    sizes = cluster_sizes(users)
    assert sizes.sum() == 5 * users and sizes.min() >= 1 and len(sizes) == len(DONOR_CLUSTERS)
    if users > 20:
        assert len(set(sizes)) > 2
    assert cluster_sizes(5898).sum() == 29_490


@pytest.fixture(scope="module")
def drawn():
    return draw(1, users=600, records=20)


def test_drawn_records(drawn):
    sizes = np.bincount(drawn.user)
    assert len(sizes) == 3000 == len(drawn.cluster) and sizes.min() >= 5
    assert np.median(sizes) == pytest.approx(20, abs=1.5)
    assert np.log(sizes[sizes > 20]).max() > np.log(20) + 2.5  # a long tail
    assert drawn.response.mean() == pytest.approx(0.058, abs=0.003)
    assert drawn.recency.min() >= 1 and drawn.frequency.min() >= 1
    away = drawn.theta - drawn.centres[drawn.cluster]
    assert np.allclose(away.std(axis=0), donors.USER_SIGMA, rtol=0.05)


def logistic(x, y):
    """The maximum-likelihood coefficients, by Newton steps."""
    w = np.zeros(x.shape[1])
    for _ in range(12):
        p = 1 / (1 + np.exp(-x @ w))
        w -= np.linalg.solve((x * (p * (1 - p))[:, None]).T @ x, x.T @ (p - y))
    return w


def entropy(score, y):
    return float(np.mean(np.logaddexp(0, score) - y * score))


def test_a_model_of_ones_own_is_worth_a_little(drawn):
    """About .213 for a single model; .004 less for one that shifts by what is known of a user."""
    x = np.column_stack(
        [np.log1p(drawn.recency), np.log1p(drawn.frequency), np.ones(len(drawn.user))]
    )
    y, user = drawn.response, drawn.user
    fold = np.random.default_rng(0).random(len(y)) < 0.8
    single = x @ logistic(x[fold], y[fold])
    assert entropy(single[~fold], y[~fold]) == pytest.approx(0.2125, abs=0.006)
    offset = np.zeros(len(drawn.cluster))
    for _ in range(10):  # with a normal prior of what theta's spread does to a score
        p = 1 / (1 + np.exp(-(single + offset[user])))
        slope = np.bincount(user[fold], (p - y)[fold], len(offset)) + offset / 0.4
        offset -= slope / (np.bincount(user[fold], (p * (1 - p))[fold], len(offset)) + 1 / 0.4)
    gain = entropy(single[~fold], y[~fold]) - entropy((single + offset[user])[~fold], y[~fold])
    assert 0.002 < gain < 0.008
    truth = (x * drawn.theta[user]).sum(axis=1)
    assert entropy(truth[~fold], y[~fold]) < entropy((single + offset[user])[~fold], y[~fold])


def test_table_of_drawn_records(tmp_path):
    keys = DonorsKeys(
        dataset="donors", partition="natural", users_per_cluster=30, cache_dir=str(tmp_path)
    )
    data, drawn = simulated(keys, 0, 0), draw(1, users=30, records=10)
    assert len(data.users) == 150 and data.num_classes == 2 and data.shape == (2,)
    assert (data.train_sizes + data.test_sizes == np.bincount(drawn.user)).all()
    assert data.clusters == {f"{i:05d}": DONOR_CLUSTERS[c] for i, c in enumerate(drawn.cluster)}
    assert (data.test_sizes >= 1).all()
    theirs = np.sort(np.concatenate([data["00007"].x_train, data["00007"].x_test])[:, 0])
    assert np.allclose(theirs, np.sort(np.log1p(drawn.recency[drawn.user == 7])), atol=1e-6)
    same, other = draw(1, users=30, records=10), draw(2, users=30, records=10)
    assert np.array_equal(drawn.recency, same.recency)
    assert not np.array_equal(drawn.theta, other.theta)


HEADER = "Response,note,ZIP,Recency,FREQUENCY,Income"


@pytest.fixture
def csv(tmp_path):
    """Writes a file and loads it."""

    def load(lines, header=HEADER):
        path = tmp_path / "donors.csv"
        path.write_text("\n".join([header, *lines]) + "\n")
        return load_table(DonorsKeys(dataset="donors", data_file=str(path)))

    return load


def rows(zip_code, income, many, response=0):
    return [f"{response},hm,{zip_code},{10 * i},{i},{income}" for i in range(many)]


def test_a_file(csv):
    table = csv([*rows("02139", 70000, 6), *rows("10001", "", 4), *rows("60601", "30000.5", 5, 1)])
    assert sorted(set(table.users)) == ["02139", "60601"]  # 10001 has four records only
    assert table.clusters[0] == "middle-class" and table.clusters[-1] == "poor-or-near-poor"
    assert table.y.tolist() == [0] * 6 + [1] * 5 and table.num_classes == 2
    i = np.arange(6)
    assert np.allclose(table.x[:6], np.log1p(np.column_stack([10 * i, i])))


@pytest.mark.parametrize(
    ("income", "name"),
    [
        ("0", "poor-or-near-poor"),
        ("32048", "poor-or-near-poor"),
        ("32048.01", "lower-middle-class"),
        ("53413", "lower-middle-class"),
        ("53414", "middle-class"),
        ("106827", "middle-class"),
        ("106828", "upper-middle-class"),
        ('"$373,894"', "upper-middle-class"),
        ("373895", "rich"),
        ("Upper Middle Class", "upper-middle-class"),
        ("rich", "rich"),
        ("", "unknown"),
        ("NA", "unknown"),
        (" Unknown", "unknown"),
    ],
)
def test_brackets(csv, income, name):
    assert set(csv(rows("02139", income, 5)).clusters) == {name}


@pytest.mark.parametrize(
    ("lines", "said"),
    [
        (rows("02139", "much", 5), "an income of 'much'; expected dollars"),
        (rows("02139", "-1", 5), "an income of '-1'"),
        (rows("02139", "inf", 5), "an income of 'inf'"),
        (rows("02139", "5", 4), "no ZIP code has 5 records"),
        (rows("02139", "5", 5, response=2), "a response that is not 0 or 1"),
        (["0,hm,02139,-1,0,5"] * 5, "or a recency or frequency below 0"),
        (["0,hm,02139,,0,5"] * 5, "line 2, column 'Recency': '' is empty"),
        (["0,hm,,3,0,5"] * 5, "line 2, column 'ZIP': '' is empty"),
        (["0,hm,02139,3,0"] * 5, "line 2: 5 cells; the header has 6"),
    ],
)
def test_files_that_cannot_be_used(csv, lines, said):
    with pytest.raises(DataError, match=said) as caught:
        csv(lines)
    assert "donors.csv" in str(caught.value) and "\n" not in str(caught.value)


def test_headers(csv):
    for header in (
        "Response,note,ZIP,Recency,Income,x",
        "Response,zip,ZIP,Recency,FREQUENCY,Income",
    ):
        with pytest.raises(DataError, match="expected zip, income, recency, frequency, response"):
            csv(rows("02139", "5", 5), header)


def test_a_zip_code_in_two_brackets(csv, tmp_path):
    csv([*rows("02139", 20000, 5), *rows("02139", 90000, 1)])
    keys = DonorsKeys(
        dataset="donors", data_file=str(tmp_path / "donors.csv"), partition="natural",
        cache_dir=str(tmp_path),
    )  # fmt: skip
    with pytest.raises(
        DataError, match="user 02139: samples in the clusters 'middle-class', 'poor"
    ):
        simulated(keys, 0, 0)


def test_keys_that_would_do_nothing():
    keys = DonorsKeys(dataset="donors", partition="natural")
    check_keys(dataclasses.replace(keys, min_samples=5))
    with pytest.raises(ConfigError, match=r"min-samples=4: .* fewer than 5 records anyway"):
        check_keys(dataclasses.replace(keys, min_samples=4))
    with pytest.raises(ConfigError, match="data-seed=2: of no use with data-file=x"):
        check_keys(dataclasses.replace(keys, data_file="x", data_seed=2))
