"""Robust averages against their formulas, a slow reference, and what must hold of each."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from corsage.core import robust
from corsage.core.arrays import Array, Floats

Rule = Callable[[Array, Array], Array]
RULES: dict[str, Rule] = {
    "clip": lambda rows, w: robust.clipped_mean(rows, np.ones(len(rows)), w, 1.0),
    "median": lambda rows, w: robust.median(rows),
    "trimmed-mean": lambda rows, w: robust.trimmed_mean(rows, 2),
    "krum": lambda rows, w: rows[robust.krum(rows, 2, 1, w)].mean(axis=0),
}


def slow(name: str, rows: Array, w: Array) -> Floats:
    """Each rule as it is written, coordinate by coordinate and user by user."""
    n, d = rows.shape
    x = rows.astype(np.float64)
    if name == "clip":
        steps = [(x[i] - w) * min(1.0, 1.0 / (np.linalg.norm(x[i] - w) or 1.0)) for i in range(n)]
        return np.asarray(w + sum(steps) / n)
    if name == "median":
        return np.array([np.median(x[:, k]) for k in range(d)])
    if name == "trimmed-mean":
        return np.array([np.mean(sorted(x[:, k])[2 : n - 2]) for k in range(d)])
    scores = []
    for i in range(n):
        away = sorted(float(((x[i] - x[j]) ** 2).sum()) for j in range(n) if j != i)
        scores.append(sum(away[: n - 2 - 2]))
    return np.asarray(x[int(np.argmin(scores))])


numbers = st.floats(-8, 8, width=32)
some = st.tuples(st.integers(7, 12), st.integers(1, 5)).flatmap(
    lambda shape: arrays(np.float32, shape, elements=numbers)
)


@pytest.mark.parametrize("name", RULES)
@given(rows=some)
def test_it_is_the_slow_reference(name: str, rows: Array) -> None:
    w = np.full(rows.shape[1], 0.5, np.float32)
    found, wanted = RULES[name](rows, w), slow(name, rows, w)
    if name == "krum":  # of users whose scores are equal up to rounding, either may be taken
        away = robust.distances(rows, w)
        chosen = int(np.flatnonzero((rows == found).all(axis=1))[0])
        best = robust.scores(away, 2)
        assert best[chosen] <= best.min() * (1 + 1e-12) + 1e-9
        return
    np.testing.assert_allclose(found, wanted, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("name", RULES)
@given(rows=some, seed=st.integers(0, 99))
def test_the_order_of_the_users_does_not_matter(name: str, rows: Array, seed: int) -> None:
    w = np.zeros(rows.shape[1], np.float32)
    order = np.random.default_rng(seed).permutation(len(rows))
    one, other = RULES[name](rows, w), RULES[name](rows[order], w)
    if name == "krum":
        scores = robust.scores(robust.distances(rows, w), 2)
        if np.sum(np.isclose(scores, scores.min(), rtol=1e-9, atol=1e-9)) > 1:
            return
    np.testing.assert_allclose(one, other, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("name", RULES)
@given(rows=some, by=st.integers(-8, 8))
def test_it_does_not_matter_where_zero_is(name: str, rows: Array, by: int) -> None:
    w, rows = np.zeros(rows.shape[1], np.float32), np.round(rows * 16) / 16  # sums are exact
    one, other = RULES[name](rows, w), RULES[name](rows + np.float32(by), w + np.float32(by))
    np.testing.assert_allclose(one + np.float32(by), other, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("name", RULES)
@pytest.mark.parametrize("far", [1e3, 1e30, 3e38])
@given(seed=st.integers(0, 99))
def test_two_bad_users_of_nine_cannot_take_it_away(name: str, far: float, seed: int) -> None:
    """Wherever they are, it stays among the honest, or within C of w; a mean would not."""
    rng = np.random.default_rng(seed)
    rows, w = rng.normal(size=(9, 6)).astype(np.float32), np.zeros(6, np.float32)
    bad = rng.choice(9, 2, replace=False)
    rows[bad] = far * rng.choice([-1.0, 1.0], size=(2, 6)).astype(np.float32)
    honest, found = np.delete(rows, bad, axis=0), RULES[name](rows, w)
    if name == "clip":
        assert np.linalg.norm(found) <= 1.0 + 1e-6
    elif name == "krum":
        assert (honest == found).all(axis=1).any()
    else:
        assert (honest.min(axis=0) <= found).all() and (found <= honest.max(axis=0)).all()


def test_the_median_breaks_at_one_half_and_not_before() -> None:
    rows = np.zeros((9, 1), np.float32)
    rows[:4] = 1e30
    assert robust.median(rows) == 0
    rows[4] = 1e30
    assert robust.median(rows) == np.float32(1e30)


def test_closed_forms() -> None:
    line = np.array([[0.0], [1.0], [2.0], [3.0], [100.0]], np.float32)
    w = np.zeros(1, np.float32)
    assert robust.median(line) == 2 and robust.median(line[:4]) == 1.5
    assert robust.trimmed_mean(line, 1) == 2 and robust.trimmed_mean(line, 0) == np.float32(21.2)
    # f = 1: the 5 - 1 - 2 = 2 nearest. Scores 5, 2, 2, 5, 97^2 + 98^2.
    assert robust.scores(robust.distances(line, w), 1).tolist() == [5, 2, 2, 5, 97**2 + 98**2]
    assert robust.krum(line, 1, 1, w).tolist() == [1]
    assert robust.krum(line, 1, 4, w).tolist() == [0, 1, 2, 3]
    assert robust.clipped_mean(line, np.ones(5), w, 2.0) == np.float32((1 + 2 + 2 + 2) / 5)
    weights = np.array([1.0, 1, 1, 1, 6])
    assert robust.clipped_mean(line, weights, w, 2.0) == np.float32((1 + 2 + 2 + 12) / 10)
    assert robust.lengths(line, w + 1).tolist() == [1, 0, 1, 2, 99]


def test_updates_may_begin_at_a_row_of_their_own() -> None:
    rng = np.random.default_rng(0)
    rows, starts = rng.normal(size=(2, 5, 3)).astype(np.float32)
    wanted = np.linalg.norm(rows.astype(np.float64) - starts, axis=1)
    np.testing.assert_allclose(robust.lengths(rows, starts), wanted, rtol=1e-12)


def test_many_coordinates_are_worked_on_in_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    rows = np.random.default_rng(0).normal(size=(7, 100)).astype(np.float32)
    w = rows[0] / 2
    whole = {name: rule(rows, w) for name, rule in RULES.items()}
    monkeypatch.setattr(robust, "BLOCK_NUMBERS", 7 * 9)
    assert len(list(robust.blocks(rows))) == 12
    for name, rule in RULES.items():
        np.testing.assert_allclose(rule(rows, w), whole[name], rtol=1e-6)


def test_bad_users_far_out_leave_the_distances_of_the_others_exact() -> None:
    rows = np.random.default_rng(0).normal(size=(9, 50)).astype(np.float32)
    rows[0] = 1e30
    near = robust.distances(rows, np.zeros(50, np.float32))[1:, 1:]
    x = rows[1:].astype(np.float64)
    np.testing.assert_allclose(near, ((x[:, None] - x) ** 2).sum(-1), rtol=1e-10, atol=1e-10)


def test_what_cannot_be_is_refused() -> None:
    rows = np.zeros((4, 2), np.float32)
    with pytest.raises(ValueError, match="needs 5 users, not 4"):
        robust.krum(rows, 1, 1, rows[0])
    with pytest.raises(ValueError, match="cannot be cut off"):
        robust.trimmed_mean(rows, 2)
