"""Sums over users are exact, and checks piece by piece are those of whole arrays."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest

from corsage.core import finite_pieces as blocks
from corsage.core.finite_pieces import ExactSum, mean_of
from corsage.core.messages.encoding import LARGE_ARRAY, as_sent, decode, encode

LONG = 2 * blocks.PIECE_NUMBERS + 5


@pytest.mark.parametrize("size", [1, 7, LONG])
@pytest.mark.parametrize(("kind", "spread"), [(np.float32, 1), (np.float32, 4), (np.float64, 4)])
def test_sums_are_exact_in_whatever_parts_and_order(size: int, kind: type, spread: int) -> None:
    """They are those of fractions; users' values differ by factors of ten, or of thousands."""
    rng = np.random.default_rng(size)
    rows = (rng.normal(size=(9, size)) * 10.0 ** rng.integers(-spread, spread, (9, 1))).astype(kind)
    weights = rng.integers(1, 10 ** (spread + 2), 9).astype(float)
    whole = ExactSum((size,)).add(rows, weights).rows()
    for place in (0, size - 1):
        each = (Fraction(w * float(v)) for w, v in zip(weights, rows[:, place], strict=True))
        assert sum(each) == sum(map(Fraction, whole[:, place].tolist()))
    order = rng.permutation(9)
    parts = ExactSum((size,))
    for some in (order[:1], order[1:4], order[4:]):  # 1, 3 and 5 users
        parts.add(rows[some], weights[some])
    np.testing.assert_array_equal(parts.rows(), whole)
    alone = [(weights[u], rows[u : u + 1]) for u in order[:4]]
    rest = (1.0, ExactSum((size,)).add(rows[order[4:]], weights[order[4:]]).rows())
    wanted = (whole[0] / weights.sum()).astype(kind)
    np.testing.assert_array_equal(mean_of([*alone, rest], weights.sum(), np.dtype(kind)), wanted)
    np.testing.assert_array_equal(parts.mean(weights.sum(), np.dtype(kind)), wanted)


def test_huge_sums_are_exact_too() -> None:
    """A bound that single precision cannot hold is none."""
    rows = np.array([[3e38], [-3e38], [2e30], [1.0000001e30]], np.float32)
    whole = ExactSum((1,)).add(rows, np.array([8.0, 8, 5, 3])).rows()
    each = zip((8, 8, 5, 3), rows[:, 0], strict=True)
    assert sum(map(Fraction, whole[:, 0].tolist())) == sum(w * Fraction(float(v)) for w, v in each)


@pytest.mark.parametrize("where", [0, blocks.PIECE_NUMBERS, LONG - 1])
@pytest.mark.parametrize("what", [np.nan, np.inf, -np.inf])
def test_one_number_that_is_not_finite_is_found(where: int, what: float) -> None:
    rows = np.ones((2, LONG), np.float32)
    rows[1, where] = what
    assert blocks.finite_rows(rows).tolist() == [True, False] and not blocks.finite(rows)


def test_a_large_array_is_the_message_that_it_is_sent_in() -> None:
    array = np.arange(LARGE_ARRAY // 4, dtype=np.float32)
    view = as_sent(array)
    assert np.array_equal(view, array) and not view.flags.writeable
    first, second = (encode({"a": view})["a"].data for _ in range(2))
    assert first is second and np.shares_memory(decode(encode({"a": view}))["a"], view)
    part = encode({"a": view[1:]})["a"]  # of other bytes than it is a view of
    assert np.array_equal(decode({"a": part})["a"], array[1:])  # type: ignore[arg-type]
    turned = encode({"a": view[::-1]})["a"]
    assert np.array_equal(decode({"a": turned})["a"], array[::-1])  # type: ignore[arg-type]
    small = array[:10]
    assert as_sent(small) is small
