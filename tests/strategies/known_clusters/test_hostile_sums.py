"""Rows of sums that no records have, in any unit of the columns: none gets into a fit."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from corsage.core.arrays import Arrays, Floats
from corsage.solvers.known_clusters.mixed_model import pack
from corsage.strategies.known_clusters.coins.impossible import quadratic_fault

D, COUNT = 3, 20


def records(seed: int, sizes: Floats) -> tuple[Floats, Floats, float]:
    """A, b and y'y of 20 records whose columns have these sizes; the intercept is last."""
    rng = np.random.default_rng(seed)
    x = np.column_stack([rng.normal(size=(COUNT, D - 1)) * sizes[:-1], np.ones(COUNT)])
    y = sizes[-1] * (rng.normal(size=COUNT) + 3)
    return x.T @ x, x.T @ y, float(y @ y)


def rows(a: Floats, b: Floats, yy: float) -> Arrays:
    return {"sums": np.concatenate([pack(a[None])[0], b, [yy]])[None]}


def fault(a: Floats, b: Floats, yy: float) -> str:
    return quadratic_fault(rows(a, b, yy), D, True, [COUNT])


SIZES = st.lists(st.floats(-6, 6), min_size=D, max_size=D).map(lambda e: 10.0 ** np.array(e))


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 1000), SIZES)
def test_records_are_believed_in_any_unit(seed: int, sizes: Floats) -> None:
    assert not fault(*records(seed, sizes))


def collinear() -> tuple[Floats, Floats, float]:
    """A column twice, in another unit; one that is constant; one that is 0."""
    x = np.column_stack([np.arange(20.0), 1e6 * np.arange(20.0), np.ones(20)])
    y = x[:, 0] + 1
    return x.T @ x, x.T @ y, float(y @ y)


def test_columns_that_repeat_or_are_0_are_records() -> None:
    a, b, yy = collinear()
    assert not fault(a, b, yy)
    a[0], a[:, 0], b[0] = 0.0, 0.0, 0.0
    assert not fault(a, b, yy)


Change = Callable[[Floats, Floats, float], tuple[Floats, Floats, float]]
CHANGES: dict[str, Change] = {
    "y'y below what b says": lambda a, b, yy: (a, b, 0.5 * float(b @ np.linalg.solve(a, b))),
    "y'y negative": lambda a, b, yy: (a, b, -yy),
    "y'y zero": lambda a, b, yy: (a, b, 0.0),
    "b of other records": lambda a, b, yy: (a, 30 * b, yy),
    "a negative square": lambda a, b, yy: (a - np.diag([2 * a[0, 0], 0, 0]), b, yy),
    "a square of 0 with a slope": lambda a, b, yy: (a * np.outer([0, 1, 1], [0, 1, 1]), b, yy),
    "a correlation above 1": lambda a, b, yy: (
        a + 3 * np.sqrt(a[0, 0] * a[1, 1]) * np.array([[0, 1, 0], [1, 0, 0], [0, 0, 0]]), b, yy),
    "more records than it has": lambda a, b, yy: (1e9 * a, 1e9 * b, 1e9 * yy),
    "fewer records than it has": lambda a, b, yy: (1e-9 * a, 1e-9 * b, 1e-9 * yy),
    "nan": lambda a, b, yy: (a * np.nan, b, yy),
    "infinite": lambda a, b, yy: (a, b, np.inf),
}  # fmt: skip


@settings(max_examples=15, deadline=None)
@given(seed=st.integers(0, 1000), sizes=SIZES)
@pytest.mark.parametrize("change", list(CHANGES))
def test_what_no_records_add_up_to_is_refused_in_any_unit(
    change: str, seed: int, sizes: Floats
) -> None:
    """A small column's lie is no rounding beside a large one."""
    with np.errstate(all="ignore"):
        assert fault(*CHANGES[change](*records(seed, sizes)))
