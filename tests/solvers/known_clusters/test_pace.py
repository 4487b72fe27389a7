"""Quadratics from above, and when they take turns with Newton's."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from corsage.core.losses import LOGISTIC, SQUARED_HINGE, SQUARED_LOSS, ScalarLoss, huber
from corsage.solvers.known_clusters.newton_rounds import (
    ABOVE,
    FIRST_SPELL,
    IN_CIRCLES,
    NEWTON,
    Pace,
)

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
