"""Tests of many rows: ranks, Friedman, Nemenyi and Holm."""

from __future__ import annotations

import warnings

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from corsage.app.bench.ranks import critical_difference, holm, over_seeds, ranks


@settings(max_examples=20, deadline=None)
@given(st.lists(st.floats(0, 1), min_size=1, max_size=6))
def test_holm_is_the_closed_test_of_bonferroni(values: list[float]) -> None:
    """Adjusted: the largest, over all sets of hypotheses with it, of their size times the least."""
    adjusted = holm(values)
    for place, found in enumerate(adjusted):
        others = [v for k, v in enumerate(values) if k != place]
        most = 0.0
        for mask in range(2 ** len(others)):
            some = [v for k, v in enumerate(others) if mask >> k & 1] + [values[place]]
            most = max(most, min(1.0, len(some) * min(some)))
        assert found == pytest.approx(most, abs=1e-12)


def test_friedman_is_scipys_and_ties_share_ranks() -> None:
    rng = np.random.default_rng(0)
    table = rng.normal(size=(6, 4)) + np.arange(4) / 2
    table[0, 1] = table[0, 2]
    merits = {f"set{n}": {f"row{k}": v for k, v in enumerate(own)} for n, own in enumerate(table)}
    found = ranks(merits)
    assert found.p_value == pytest.approx(stats.friedmanchisquare(*table.T).pvalue)
    own = np.array([stats.rankdata(-one) for one in table])
    np.testing.assert_array_equal(found.table, own)
    assert found.without("set0")["row3"] == pytest.approx(own[1:, 3].mean())


def test_rows_that_are_not_on_every_set_have_no_rank() -> None:
    found = ranks({"a": {"x": 1.0, "y": 2.0, "z": 0.0}, "b": {"x": 1.0, "y": float("nan")}})
    assert found.rows == ("x",) and found.p_value is None
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert ranks({}).means == {}


def test_nemenyi_as_published() -> None:
    """Demsar (2006), table 5: q of .05 is 2.569 for four rows; 14 sets."""
    assert critical_difference(4, 14) == pytest.approx(2.569 * np.sqrt(4 * 5 / (6 * 14)), rel=1e-3)


@settings(max_examples=20, deadline=None)
@given(st.lists(st.floats(-5, 5), min_size=2, max_size=7, unique=True))
def test_over_seeds_is_the_t_test(values: list[float]) -> None:
    assert over_seeds(values) == pytest.approx(stats.ttest_1samp(values, 0.0).pvalue, rel=1e-6)
