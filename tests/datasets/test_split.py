"""The split into training and test parts inside each user."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from corsage.core.configuration.config import Config
from corsage.core.errors import ConfigError
from corsage.datasets.data_set import check_keys
from corsage.datasets.dealing.split import split_user

some_labels = st.lists(st.integers(0, 4), min_size=2, max_size=80).map(np.array)
quick = settings(max_examples=100, deadline=None)


def split(labels, user="u", fraction=0.2, cap=0, seed=0, validation=0.0, known=None):
    return split_user(
        labels, user, test_fraction=fraction, max_train_samples=cap, seed=seed,
        validation=validation, known=known,
    )  # fmt: skip


@quick
@given(some_labels, st.floats(0.001, 0.9), st.integers(0, 20))
def test_parts_are_disjoint_and_never_empty(labels, fraction, cap):
    train, test = split(labels, fraction=fraction, cap=cap)
    assert len(train) and len(test)
    assert not set(train) & set(test)
    assert len(test) == min(max(round(len(labels) * fraction), 1), len(labels) - 1)
    rest = len(labels) - len(test)
    assert len(train) == (min(rest, cap) if cap else rest)


@quick
@given(some_labels, st.floats(0.05, 0.6))
def test_stratified(labels, fraction):
    """Test counts are a class's share within one, unless a class would be lost from training."""
    train, test = split(labels, fraction=fraction)
    counts, tested = np.bincount(labels, minlength=5), np.bincount(labels[test], minlength=5)
    if (counts - 1).clip(0).sum() >= len(test):
        assert (np.bincount(labels[train], minlength=5)[counts > 0] > 0).all()
    if counts[counts > 0].min() >= 10:
        assert (abs(tested - counts * len(test) / len(labels)) < 1).all()


@quick
@given(some_labels, st.floats(0.05, 0.4), st.floats(0.05, 0.4), st.booleans())
def test_validation_is_taken_out_of_training(labels, fraction, share, told):
    """The test is the same as without; its samples are in neither part."""
    known = np.arange(len(labels)) % 3 == 1 if told else None
    train, test = split(labels, fraction=fraction, known=known)
    fewer, judged = split(labels, fraction=fraction, validation=share, known=known)
    assert sorted([*fewer, *judged]) == train.tolist()
    size = min(max(round(len(labels) * share), 1), len(train) - 1)
    assert len(judged) == size and not set(judged) & set(test)


def test_capped_training_part_is_stratified_too():
    labels = np.repeat([0, 1, 2], [600, 300, 100])
    train, test = split(labels, cap=50)
    assert np.bincount(labels[test]).tolist() == [120, 60, 20]
    assert np.bincount(labels[train]).tolist() == [30, 15, 5]


def test_seed_and_user_decide():
    labels = np.arange(100) % 3
    one = split(labels)[1]
    assert np.array_equal(one, split(labels)[1])
    assert not np.array_equal(one, split(labels, seed=1)[1])
    assert not np.array_equal(one, split(labels, user="v")[1])


def test_one_sample():
    for fraction in (0.0, 0.2):
        train, test = split(np.array([3]), fraction=fraction)
        assert train.tolist() == [0] and test.tolist() == []


@pytest.mark.parametrize("sizes", [(50, 30, 20), (7, 2, 1), (1,)])
def test_validation_is_taken_out_of_training_and_tests_are_left_out(sizes):
    """60, 20 and 20 in a hundred; whatever the test samples' labels are, nothing else changes."""
    labels = np.repeat(np.arange(len(sizes)), sizes)
    facts = {"test_fraction": 0.2, "max_train_samples": 0, "seed": 3}
    train, test = split_user(labels, "u", **facts)
    less, judged = split_user(labels, "u", validation=0.2, **facts)
    assert sorted([*less, *judged]) == train.tolist() and not {*judged} & {*test}
    assert len(judged) == (round(0.2 * len(labels)) if len(labels) > 1 else 0)
    known = np.isin(np.arange(len(labels)), test)
    if len(labels) > 1:
        changed = np.where(known, 0, labels)
        again = split_user(changed, "u", validation=0.2, known=known, **facts)
        assert [a.tolist() for a in again] == [less.tolist(), judged.tolist()]


def test_validation_without_tests_is_refused():
    with pytest.raises(ConfigError, match=r"validation=0.2: test-fraction=0 keeps nothing out"):
        check_keys(Config.parse({"validation": 0.2, "test-fraction": 0}).data)
