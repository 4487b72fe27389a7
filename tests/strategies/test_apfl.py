"""APFL against a plain loop with autograd's own gradients of the mixture, and by hand."""

from __future__ import annotations

import pytest
import torch

from corsage.clients.apfl import Mixture
from corsage.core.configuration.key_groups import TrainKeys
from tests.support.quadratic import Quadratics


def step_by_hand(alpha: float, lr: float) -> Mixture:
    """f(x) = (x - 1)^2 / 2 at w = 0, v = 2."""
    losses = Quadratics(torch.ones(1, 1, 1, 1), torch.ones(1, 1, 1), [1])
    keys = TrainKeys(lr=lr, momentum=0.0, weight_decay=0.0)
    w, v, share = torch.tensor([[0.0]]), torch.tensor([[2.0]]), torch.tensor([[alpha]])
    mixture = Mixture(losses, w, v, share, torch.ones(1), keys)
    mixture.step(0, adapt=True)
    return mixture


def test_a_step_by_hand() -> None:
    """vbar = .5, so the mixture's gradient is -.5, that of w is -1, and <v - w, g> = -1."""
    mixture = step_by_hand(alpha=0.25, lr=0.1)
    assert mixture.vbar.item() == pytest.approx(0.5)
    assert mixture.v.item() == pytest.approx(2 + 0.1 * 0.25 * 0.5)
    assert mixture.w.item() == pytest.approx(0.1)
    assert mixture.alpha.item() == pytest.approx(0.25 + 0.1 * 1.0)


def test_alpha_stays_in_its_interval() -> None:
    assert step_by_hand(alpha=0.25, lr=5.0).alpha.item() == 1.0
    assert step_by_hand(alpha=1.0, lr=5.0).alpha.item() == 0.0
