"""No user weighs more than its share."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from corsage.core.messages.schema import capped

COUNTS = st.lists(st.integers(1, 10**9), min_size=1, max_size=30)


@pytest.mark.parametrize(
    ("weights", "most", "wanted"),
    [
        ([90, 10], 0.5, [10, 10]),
        ([90, 10, 10], 0.4, [40 / 3, 10, 10]),
        ([90, 80, 10, 10], 0.3, [15, 15, 10, 10]),
        ([10**9, 1, 1, 1], 0.25, [1, 1, 1, 1]),
        ([10**9, 1, 1, 1], 0.01, [1, 1, 1, 1]),
        ([5], 0.5, [5]),
        ([10, 0, 90], 0.1, [10, 0, 10]),
    ],
)
def test_the_largest_are_cut(weights: list[float], most: float, wanted: list[float]) -> None:
    assert capped(np.array(weights, float), most).tolist() == pytest.approx(wanted)


@given(COUNTS, st.floats(0.01, 1.0))
def test_shares(counts: list[int], most: float) -> None:
    """Nobody has more than the share, nobody gets more than it had, and the order stays."""
    weights = np.array(counts, float)
    found = capped(weights, most)
    share = max(most, 1 / len(counts))
    assert found.max() <= share * found.sum() * (1 + 1e-9)
    assert (found <= weights).all() and (found > 0).all()
    assert (np.diff(found[np.argsort(weights, kind="stable")]) >= 0).all()


@given(COUNTS)
def test_what_is_within_its_share_stays_as_it_is(counts: list[int]) -> None:
    """And equal users always are."""
    weights = np.array(counts, float)
    assert capped(weights, 1.0) is weights
    same = np.ones(len(counts))
    assert capped(same, 0.01) is same
