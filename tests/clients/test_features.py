"""What a node holds of a frozen front: of models that are there, and nothing of others."""

from __future__ import annotations

import gc

import numpy as np
import pytest
import torch
from torch import nn

from corsage.clients.parts import samples as features
from corsage.clients.parts.baseline import log_odds, means_of
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


@pytest.mark.parametrize("seed", range(5))
def test_means_are_those_of_each_user(seed: int) -> None:
    """Bit for bit, whatever the sizes; a user without labels has the mean 0."""
    rng = np.random.default_rng(seed)
    sizes = rng.integers(0, 300, size=40)
    labels = rng.normal(size=sizes.sum()) * 1e3
    each = np.split(labels, np.cumsum(sizes)[:-1])
    wanted = [[own.mean() if len(own) else 0.0] for own in each]
    assert means_of(labels, sizes).tolist() == wanted


@pytest.mark.parametrize("outputs", [1, 2, 5])
def test_odds_are_those_of_each_user(outputs: int) -> None:
    rng = np.random.default_rng(outputs)
    sizes = rng.integers(0, 9, size=30)
    labels = rng.integers(0, max(outputs, 2), size=sizes.sum())
    found = log_odds(labels, sizes, outputs)
    for own, row in zip(np.split(labels, np.cumsum(sizes)[:-1]), found, strict=True):
        counts = np.array([(own == c).sum() + 1.0 for c in range(max(outputs, 2))])
        wanted = np.log(counts) if outputs > 1 else np.log(counts[1:] / counts[:1])
        assert row.tolist() == wanted.tolist()
