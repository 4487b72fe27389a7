"""Properties of the partitions, for any labels, numbers of users and seeds."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from corsage.core.errors import DataError
from corsage.core.seeding import generator
from corsage.datasets.dealing import partitions
from corsage.datasets.dealing.dealt import by_class, by_user

seeds = st.integers(0, 1000)
balanced = st.integers(1, 12)
quick = settings(max_examples=60, deadline=None)


def labels_of(num_classes, each, seed):
    return generator(seed, "labels").permutation(np.repeat(np.arange(num_classes), each))


def check(parts, total, num_users, least=2):
    """The contract of every partition."""
    assert len(parts) == num_users
    dealt = np.concatenate(parts)
    assert len(np.unique(dealt)) == len(dealt) <= total
    assert dealt.min() >= 0 and dealt.max() < total
    for part in parts:
        assert len(part) >= least and (np.diff(part) > 0).all()


@quick
@given(st.integers(2, 300), st.integers(1, 40), st.floats(0, 40), seeds)
def test_iid(total, num_users, sigma, seed):
    labels = np.zeros(total, np.int64)
    if total < 2 * num_users:
        with pytest.raises(DataError, match=f"at most {total // 2}"):
            partitions.iid(labels, num_users, generator(seed))
        return
    parts = partitions.iid(labels, num_users, generator(seed))
    check(parts, total, num_users)
    sizes = [len(part) for part in parts]
    assert sum(sizes) == total and max(sizes) - min(sizes) <= 1
    parts = partitions.iid(labels, num_users, generator(seed), size_sigma=sigma)
    check(parts, total, num_users)


@quick
@given(balanced, st.integers(1, 60), st.integers(1, 6), st.floats(0, 3), seeds)
def test_shards(num_classes, num_users, s, sigma, seed):
    each = -(-num_users * s // num_classes) * 2
    labels = labels_of(num_classes, each, seed)
    parts = partitions.shards(
        labels, num_users, generator(seed), classes_per_user=s, size_sigma=sigma
    )
    check(parts, len(labels), num_users)
    assert all(len(np.unique(labels[part])) <= s for part in parts)
    if num_users * s >= num_classes:
        assert sum(map(len, parts)) == len(labels)


@quick
@given(balanced, st.integers(1, 20), st.integers(1, 20), seeds)
def test_shards_have_equal_counts_and_sizes(num_classes, num_users, s, seed):
    """Every shard is recognised by its class and size: 1000 samples a class, cut evenly."""
    labels = labels_of(num_classes, 1000, seed)
    parts = partitions.shards(labels, num_users, generator(seed), classes_per_user=s)
    total = num_users * s
    low, high = total // num_classes, -(-total // num_classes)
    counts = np.zeros(num_classes)
    for c in range(num_classes):
        own = np.array([(labels[part] == c).sum() for part in parts])
        fits = [
            k
            for k in range(max(low, 1), high + 1)
            # m samples are j shards of 1000/k within rounding
            if all(abs(m / (1000 / k) - round(m * k / 1000)) < 0.02 * k for m in own)
        ]
        assert own.sum() in (0, 1000)
        assert fits or own.sum() == 0
        counts[c] = own.sum()
    assert (counts == 1000).sum() == min(num_classes, total)


@quick
@given(st.lists(st.integers(0, 30), min_size=1, max_size=12), st.data())
def test_quotas_are_level(most, data):
    most = np.array(most)
    total = data.draw(st.integers(0, int(most.sum())))
    places = partitions.quotas(most, total, generator(0))
    assert places.sum() == total and (places <= most).all()
    open_ = places < most
    if open_.any():  # nobody has more than one place beyond a class that could have had it
        assert places.max() <= places[open_].min() + 1


@quick
@given(balanced, st.integers(1, 60), st.data(), seeds)
def test_classes(num_classes, num_users, data, seed):
    s = data.draw(st.integers(1, num_classes))
    sigma = data.draw(st.sampled_from([0.0, 1.0, 10.0]))
    labels = labels_of(num_classes, -(-num_users * s // num_classes) * 2, seed)
    parts = partitions.classes(
        labels, num_users, generator(seed), classes_per_user=s, size_sigma=sigma
    )
    check(parts, len(labels), num_users)
    own = [np.unique(labels[part]) for part in parts]
    assert all(len(classes) == s for classes in own)
    users = np.bincount(np.concatenate(own), minlength=num_classes)
    assert users.max() - users.min() <= 1


def test_classes_with_a_rare_class():
    """A class with samples for one user only gets one; the others take over its places."""
    labels = np.array([0] * 50 + [1] * 50 + [2])
    parts = partitions.classes(labels, 10, generator(0), classes_per_user=2)
    check(parts, 101, 10)
    assert all(len(np.unique(labels[part])) == 2 for part in parts)
    assert sum(2 in labels[part] for part in parts) == 1
    with pytest.raises(DataError, match="too few samples for 10 users with 3 distinct classes"):
        partitions.classes(labels, 10, generator(0), classes_per_user=3)
    with pytest.raises(DataError, match=r"classes-per-user=4, but the data have 3 classes"):
        partitions.classes(labels, 2, generator(0), classes_per_user=4)


def test_shards_cannot_be_cut_from_too_few_samples():
    with pytest.raises(DataError, match=r"50 shards .* cannot be cut from 30 samples"):
        partitions.shards(np.arange(30) % 3, 10, generator(0), classes_per_user=5)


@settings(max_examples=80, deadline=None)
@given(
    st.floats(1e-6, 1e9) | st.sampled_from([1e-6, 1e-3, 0.1, float("inf")]),
    st.integers(1, 60),
    st.lists(st.integers(1, 80), min_size=1, max_size=12),
    seeds,
)
def test_dirichlet(alpha, num_users, counts, seed):
    labels = np.repeat(np.arange(len(counts)) * 2, counts)  # every other class has no sample
    if len(labels) < 2 * num_users:
        with pytest.raises(DataError, match="too few"):
            by_user(labels, num_users, generator(seed), alpha=alpha)
        return
    parts = by_user(labels, num_users, generator(seed), alpha=alpha)
    check(parts, len(labels), num_users)
    sizes = [len(part) for part in parts]
    assert sum(sizes) == len(labels) and max(sizes) - min(sizes) <= 1


def test_dirichlet_alpha_is_heterogeneity():
    """Mean squared label share: (1 + alpha) / (1 + C alpha) for Dirichlet(alpha) over C classes."""
    labels = np.repeat(np.arange(10), 4000)

    def concentration(alpha):
        parts = by_user(labels, 200, generator(3), alpha=alpha)
        shares = np.array([np.bincount(labels[p], minlength=10) / len(p) for p in parts])
        return (shares**2).sum(axis=1).mean()

    for alpha in (0.1, 0.5, 5.0):
        assert concentration(alpha) == pytest.approx((1 + alpha) / (1 + 10 * alpha), rel=0.12)
    # Everyone wants one class only, but 200 users do not choose each class 20 times.
    assert concentration(1e-6) > 0.75


@settings(max_examples=80, deadline=None)
@given(
    st.floats(1e-6, 1e9) | st.sampled_from([1e-6, 0.1, float("inf")]),
    st.integers(1, 40),
    st.lists(st.integers(1, 80), min_size=1, max_size=12),
    st.sampled_from([0, 2, 5]),
    seeds,
)
def test_dirichlet_by_class(alpha, num_users, counts, least, seed):
    """Every sample is dealt once, and every user has enough, or one line says what would do."""
    labels = np.repeat(np.arange(len(counts)) * 2, counts)
    try:
        parts = by_class(labels, num_users, generator(seed), alpha=alpha, least=least)
    except DataError as error:
        assert "too few" in str(error) or "set a larger alpha" in str(error)
        return
    usual = min(10, len(labels) // num_users // 2)
    check(parts, len(labels), num_users, least=max(2, least or usual))
    assert sum(map(len, parts)) == len(labels)
    # Who had a mean user's samples got none of the classes after.
    for part in parts:
        assert len(part) - np.isin(labels[part], labels[part].max()).sum() <= (
            len(labels) / num_users + max(counts)
        )


def test_dirichlet_by_class_has_the_shares_of_its_law():
    """Of one class users' shares are Dirichlet: the mean of the sum of squares is known."""
    labels, many = np.zeros(100_000, np.int64), 20
    for alpha in (0.5, 5.0):
        squares = []
        for seed in range(200):
            parts = by_class(labels, many, generator(seed), alpha=alpha, least=2)
            squares.append(sum((len(part) / len(labels)) ** 2 for part in parts))
        assert np.mean(squares) == pytest.approx((1 + alpha) / (1 + many * alpha), rel=0.05)


def test_dirichlet_by_class_is_as_unequal_as_the_published_split():
    """MNIST's classes over 20 users by Dir(.1): the split that PFLlib ships has 499 to 6,189."""
    counts = [6903, 7877, 6990, 7141, 6824, 6313, 6876, 7293, 6825, 6958]
    labels = np.repeat(np.arange(10), counts)
    sizes = np.sort(
        [[len(p) for p in by_class(labels, 20, generator(s), alpha=0.1)] for s in range(200)]
    )
    low, high = np.percentile(sizes[:, [0, -1]], [2.5, 97.5], axis=0)
    assert low[0] < 499 < high[0] and low[1] < 6189 < high[1]


def test_lognormal_sizes():
    """The logarithms of the sizes have the asked-for deviation, and no sample is dropped."""
    labels = np.repeat(np.arange(10), 20_000)
    for deal in (partitions.iid, partitions.shards, partitions.classes):
        parts = deal(labels, 400, generator(1), size_sigma=0.7)
        sizes = np.array([len(part) for part in parts])
        assert sizes.sum() == len(labels)
        assert np.log(sizes).std() == pytest.approx(0.7, abs=0.1)


def test_natural():
    users = np.array(["10", "9", "10", "8", "9", "10"])
    ids, parts = partitions.natural(users, 0, generator(0))
    assert ids == ["8", "9", "10"]
    assert [part.tolist() for part in parts] == [[3], [1, 4], [0, 2, 5]]
    ids, _ = partitions.natural(users, 2, generator(0))
    assert ids == ["9", "10"]  # user 8 has one sample only
    with pytest.raises(DataError, match=r"2 users with at least 2 samples; set num-users=0"):
        partitions.natural(users, 3, generator(0))


def test_seeds_decide():
    labels = labels_of(5, 40, 0)
    for deal in (
        partitions.iid,
        partitions.shards,
        partitions.classes,
        by_user,
        by_class,
    ):
        one, again, other = (deal(labels, 8, generator(s)) for s in (1, 1, 2))
        assert all(np.array_equal(a, b) for a, b in zip(one, again, strict=True))
        assert not all(np.array_equal(a, b) for a, b in zip(one, other, strict=True))


def test_shards_leave_many_users_with_fewer_labels_than_shards():
    """What docs/papers.md says of the FedRep paper's "assigned S classes", here S=5 of 10."""
    labels = labels_of(10, 6000, 0)
    fewer = []
    for seed in range(20):
        parts = partitions.shards(labels, 100, generator(seed), classes_per_user=5)
        fewer.append(sum(len(np.unique(labels[part])) < 5 for part in parts))
    assert 56 <= min(fewer) < 62 and 71 < max(fewer) <= 77, (min(fewer), max(fewer))
