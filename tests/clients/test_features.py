"""What a node holds of a frozen front: of models that are there, and nothing of others."""

from __future__ import annotations

import gc

import pytest
import torch
from torch import nn

from corsage.clients.parts import samples as features
from corsage.clients.parts.samples import Features, FeaturesByModel
from corsage.networks.network import Network


def model() -> Network:
    return Network(nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2)), "1", torch.ones(3, 2))


def test_features_go_with_their_model() -> None:
    """Else the next model could have the number of one that is gone, and take its features."""
    held, before = FeaturesByModel(), Features.taken
    one, other = model(), model()
    for network, value in ((one, 1.0), (other, 2.0), (one, 3.0)):
        found = held.of(network).get("a user", lambda value=value: torch.full((5,), value))
        assert found[0] == (1.0 if network is one else 2.0)
    assert Features.taken == before + 40
    del one, other, network
    gc.collect()
    assert Features.taken == before


def test_the_end_of_a_process_is_silent(monkeypatch: pytest.MonkeyPatch) -> None:
    """Then the names of modules are gone before what they made."""
    held = Features()
    held.get("a user", lambda: torch.zeros(5))
    monkeypatch.setattr(features, "Features", None)
    held.__del__()
    held._found.clear()
