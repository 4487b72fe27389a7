"""Coins: keyed by seed, name and iteration; stretches that say the same; communications."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from corsage.core.errors import ConfigError
from corsage.core.losses import LOGISTIC, SQUARED_HINGE, SQUARED_LOSS, ScalarLoss, huber
from corsage.experiments.known_clusters.methods import stretches
from corsage.solvers.known_clusters.coins.flips import (
    BLOCK,
    Coins,
    count,
    deviations,
    expected_communications,
    stretch,
)
from corsage.solvers.known_clusters.newton_rounds import (
    ABOVE,
    FIRST_SPELL,
    IN_CIRCLES,
    NEWTON,
    Pace,
)

COINS = Coins(3, 0.2, (0.3, 0.0, 0.7), ("a", "b", "c"))
SEEDS = st.integers(0, 2**32 - 1)
SHARES = st.floats(0.02, 0.98)


@settings(max_examples=40, deadline=None)
@given(st.integers(0, 3 * BLOCK), st.integers(0, BLOCK + 9))
def test_a_coin_does_not_depend_on_what_else_is_asked(first, length):
    last = min(first + length, 3 * BLOCK)
    first = min(first, last)
    assert np.array_equal(COINS.network_at(first, last), COINS.network_at(0, 3 * BLOCK)[first:last])
    whole = COINS.clusters_at(0, 3 * BLOCK)
    assert np.array_equal(COINS.clusters_at(first, last), whole[:, first:last])


def test_a_cluster_keeps_its_coins_in_other_company():
    other = Coins(3, 0.9, (0.7, 0.3), ("c", "a"))
    assert np.array_equal(other.clusters_at(0, 5000)[0], COINS.clusters_at(0, 5000)[2])
    assert np.array_equal(other.clusters_at(0, 5000)[1], COINS.clusters_at(0, 5000)[0])


def test_coins_fall_independently_and_as_often_as_they_should():
    number = 40 * BLOCK
    throws = np.vstack([COINS.network_at(0, number), COINS.clusters_at(0, number)])
    for row, p in zip(throws, (COINS.p0, *COINS.p), strict=True):
        assert abs(row.mean() - p) <= 4 * np.sqrt(p * (1 - p) / number)
    related = np.corrcoef(throws[[0, 1, 3]])[np.triu_indices(3, 1)]
    assert np.abs(related).max() < 4 / np.sqrt(number)
    assert not np.array_equal(COINS.network_at(0, BLOCK), COINS.network_at(BLOCK, 2 * BLOCK))


def spelled(part, j):
    """A stretch as a word: G, W and L, one an iteration, of cluster j."""
    return "G" * part.globals + "".join("W" * r + "L" * k for r, k in part.walks[j])


def word(coins, j, first, last):
    """The same from the coins."""
    letters = np.where(coins.clusters_at(first, last)[j], "W", "L")
    return "".join(np.where(coins.network_at(first, last), "G", letters))


@settings(max_examples=50, deadline=None)
@given(SEEDS, SHARES, SHARES, st.integers(1, 400), st.integers(0, BLOCK + 5))
def test_stretches_say_what_the_coins_say(seed, p_0, share, number, first):
    coins = Coins(seed, p_0, (share, 0.0), ("x", "y"))
    end, place = first + number, first
    while place < end:
        part = stretch(coins, place, end)
        assert part.first == place < part.last <= end
        assert part.globals > 0 or place == first
        for j in range(2):
            assert spelled(part, j) == word(coins, j, place, part.last)
        if part.last < end:
            assert coins.network_at(part.last, part.last + 1)[0]
            assert stretch(coins, place, None) == part
        place = part.last


def test_walks_are_told_in_the_fewest_pairs():
    for part in stretches(COINS, 2000):
        for walk in part.walks:
            assert all(r for r, _ in walk[1:]) and all(k for _, k in walk[:-1])


def test_long_waits_cross_blocks():
    coins = Coins(1, 2e-5, (0.0,), ("x",))
    part = stretch(coins, 0, 20 * BLOCK)
    assert part.last == np.argmax(coins.network_at(0, 20 * BLOCK)) > BLOCK
    assert part.walks == (((0, part.last),),)


@pytest.mark.parametrize("p_0", [0.0, 1.0])
def test_a_stretch_without_end_is_refused(p_0):
    coins = Coins(0, p_0, (0.5,), ("x",))
    with pytest.raises(ConfigError, match="number of iterations"):
        stretch(coins, 0, None)
    assert stretch(coins, 7, 30).last == 30


@pytest.mark.parametrize(
    ("p_0", "p", "names"),
    [(1.1, (0.5,), ("a",)), (0.5, (-0.1,), ("a",)), (0.5, (0.5, 0.5), ("a", "a")), (0.5, (), "a")],
)
def test_bad_coins_are_refused(p_0, p, names):
    with pytest.raises(ConfigError):
        Coins(0, p_0, p, tuple(names))


@pytest.mark.parametrize("seed", range(3))
def test_communications_are_as_many_as_expected(seed):
    """Proposition 3.2, and the round trips of a coalesced run, within 3 standard errors."""
    number = 200_000
    coins = Coins(seed, 0.15, (0.3, 0.05, 0.0), ("a", "b", "c"))
    found, expected = count(coins, number), expected_communications(coins, number)
    error = deviations(coins, number)
    for kind, times in found.items():
        assert (np.abs(times - expected[kind]) <= 3 * error[kind] + 1e-9).all()
    assert expected["between"] == pytest.approx(0.15 * 0.85 * number)
    assert expected["within"] == pytest.approx(0.85**2 * np.array([0.21, 0.0475, 0]) * number)


def test_printed_count_within_clusters_is_along_iterations_without_global_steps():
    """(1 - p_0) p_j (1 - p_j) T: 1/(1 - p_0) times what needs a message."""
    number, p_0, p = 200_000, 0.3, 0.4
    coins = Coins(5, p_0, (p,), ("a",))
    kept = coins.clusters_at(0, number)[0][~coins.network_at(0, number)]
    printed = (1 - p_0) * p * (1 - p) * number
    assert (kept[1:] & ~kept[:-1]).sum() == pytest.approx(printed, rel=0.02)
    assert count(coins, number)["within"][0] == pytest.approx((1 - p_0) * printed, rel=0.02)


def test_deviations_are_exact_by_enumeration():
    """Every sequence of 4 iterations, weighed by its probability, by letters G, W, L."""
    p_0, p, number = 0.3, 0.4, 4
    chances = {"G": p_0, "W": (1 - p_0) * p, "L": (1 - p_0) * (1 - p)}
    follows = {
        "between": lambda a, b: a != "G" and b == "G",
        "within": lambda a, b: a == "L" and b == "W",
        "round-trips": lambda a, b: a == "L" and b != "L",
    }
    coins = Coins(0, p_0, (p,), ("a",))
    for kind, holds in follows.items():
        mean = square = 0.0
        for letters in itertools.product("GWL", repeat=number):
            chance = np.prod([chances[letter] for letter in letters])
            times = sum(holds(a, b) for a, b in itertools.pairwise(letters))
            mean, square = mean + chance * times, square + chance * times**2
        assert deviations(coins, number)[kind] == pytest.approx(np.sqrt(square - mean**2))
        share = expected_communications(coins, number)[kind] / number
        assert share * (number - 1) == pytest.approx(mean)


def test_round_trips_are_the_runs_of_local_steps_that_end():
    number = 5000
    runs = np.zeros(3, int)
    for part in stretches(COINS, number):
        for j, walk in enumerate(part.walks):
            runs[j] += sum(k > 0 for _, k in walk)
            at_end = part.last == number and walk and walk[-1][1] > 0
            runs[j] -= bool(at_end)
    assert np.array_equal(runs, count(COINS, number)["round-trips"])


LOSSES = [LOGISTIC, SQUARED_HINGE, SQUARED_LOSS, huber(0.7)]
NUMBERS = st.floats(-30, 30)


@pytest.mark.parametrize("loss", LOSSES, ids=lambda loss: loss.name)
@settings(max_examples=40, deadline=None)
@given(at=NUMBERS, to=NUMBERS, label=st.floats(-5, 5))
def test_no_loss_exceeds_its_parabola_from_above(
    loss: ScalarLoss, at: float, to: float, label: float
) -> None:
    u, v, y = (torch.tensor(number, dtype=torch.float64) for number in (at, to, label))
    y = (y > 0).long() if loss.classes else y
    parabola = loss.value(u, y) + loss.slope(u, y) * (v - u)
    parabola = parabola + loss.above(u, y) / 2 * (v - u) ** 2
    assert loss.value(v, y) <= parabola + 1e-9 * (1 + parabola.abs())
    assert 0 < loss.above(u, y) <= loss.bound + 1e-12


@pytest.mark.parametrize("loss", LOSSES, ids=lambda loss: loss.name)
def test_the_parabola_is_well_defined_at_zero(loss: ScalarLoss) -> None:
    u = torch.tensor([0.0, 1e-8, -1e-5, 1e-3], dtype=torch.float64)
    found = loss.above(u, torch.ones(4).long() if loss.classes else u)
    assert torch.allclose(found, torch.full_like(u, loss.bound), atol=1e-6)


def spoken(changes: list[float]) -> list[str]:
    """What quadratics each round has, where models move by so much."""
    pace, kinds = Pace(), []
    for moved in changes:
        kinds.append(pace.kind)
        pace = pace.after(moved)
    return kinds


def test_newton_goes_on_as_long_as_changes_get_less() -> None:
    assert set(spoken([0.8**i for i in range(50)])) == {NEWTON}
    assert set(spoken([1.0, 2.0, 3.0, 0.5, 0.6, 0.7, 0.4])) == {NEWTON}


def test_spells_from_above_get_longer() -> None:
    kinds = spoken([1.0] * 60)
    runs = np.diff(np.flatnonzero(np.diff([kind == ABOVE for kind in [NEWTON, *kinds]])))
    assert runs.tolist()[:4] == [FIRST_SPELL, IN_CIRCLES + 1, 2 * FIRST_SPELL, IN_CIRCLES + 1]
    assert kinds[: IN_CIRCLES + 1] == [NEWTON] * (IN_CIRCLES + 1)
