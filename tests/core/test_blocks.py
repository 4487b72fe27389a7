"""Sums and checks piece by piece are those of whole arrays."""

from __future__ import annotations

import numpy as np
import pytest

from corsage.core import finite_pieces as blocks
from corsage.core.messages.encoding import LARGE_ARRAY, as_sent, decode, encode

LONG = 2 * blocks.PIECE_NUMBERS + 5


@pytest.mark.parametrize("size", [7, blocks.PIECE_NUMBERS, LONG])
@pytest.mark.parametrize("users", [1, 3])
def test_weighted_sums_are_einsums(size: int, users: int) -> None:
    rng = np.random.default_rng(size)
    rows = rng.normal(size=(users, size)).astype(np.float32)
    weights = rng.random(users)
    wanted = np.einsum("u,u...->...", weights, rows, dtype=np.float64, casting="same_kind")
    total = blocks.add_weighted(None, rows, weights)
    np.testing.assert_array_equal(total, wanted)
    again = blocks.add_weighted(total, rows, weights)
    np.testing.assert_array_equal(again, wanted + wanted)


def test_means_are_those_of_whole_arrays() -> None:
    rng = np.random.default_rng(0)
    arrays = [rng.normal(size=(LONG,)) for _ in range(3)]
    parts = list(zip([0.3, 2.0, 5.5], arrays, strict=True))
    sums = np.zeros(LONG)
    for weight, array in parts:
        sums += weight * array
    wanted = (sums / (0.3 + 2.0 + 5.5)).astype(np.float32)
    np.testing.assert_array_equal(blocks.mean_of(parts, np.empty(0, np.float32)), wanted)


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
