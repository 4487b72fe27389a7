"""Draws depend on all that they are for; how many users a share of them is."""

from __future__ import annotations

from fractions import Fraction

import pytest

from corsage.core.seeding import drawn_count, generator, torch_seed
from tests.support.federations import federate


@pytest.mark.parametrize("n", [1, 7, 50, 100, 150, 1000, 3550])
def test_a_share_of_users_is_rounded_down_as_it_is_written(n: int) -> None:
    """.29 of 100 were 28."""
    for hundredths in range(101):
        exact = int(Fraction(hundredths, 100) * n)
        assert drawn_count(hundredths / 100, n) == max(exact, 1)


def test_a_round_has_that_many_users() -> None:
    strategy, _, _ = federate("local", num_rounds=1, num_users=100, fraction_train=0.29)
    assert len(strategy.progress.trained) == 29


def test_each_word_counts_in_its_place() -> None:
    """Two users' batches of a round are others, and so are those of the round 11 and 1, 1."""
    words: list[tuple[str | int, ...]] = [("a",), ("a", 1), ("a", 1, "u"), ("a", 1, "v")]
    words += [("a", 2, "u"), ("b", 1, "u"), ("a", "1u"), ("a", 11), ("a", 1, 1), ("u", 1, "a")]
    drawn = [generator(seed, *own).random() for seed in (0, 1) for own in words]
    assert len({*drawn, *(torch_seed(0, *own) for own in words)}) == 3 * len(words)
    assert generator(0, "a", 1).random() == generator(0, "a", "1").random()
