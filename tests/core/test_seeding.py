"""How many users a share of them is."""

from __future__ import annotations

from fractions import Fraction

import pytest

from corsage.core.seeding import drawn_count
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
