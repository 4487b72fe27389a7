"""FedRoD against its formula, and where it must equal FedAvg."""

from types import SimpleNamespace

import pytest
import torch

from corsage.clients.base import Client, Got
from corsage.clients.fedrod import FedRoDClient
from tests.support.federations import federate, same_arrays


def test_the_loss_is_the_balanced_softmax() -> None:
    """-log n_y e^{g_y} / sum_c n_c e^{g_c}."""
    user = SimpleNamespace(task=SimpleNamespace(num_classes=3))
    labels, outputs = torch.tensor([0, 0, 0, 2]), torch.randn(4, 3)
    found = FedRoDClient.loss(user, Got(), "0", labels)(torch.empty(4, 0), outputs, labels)
    shares = torch.tensor([3.0, 0.0, 1.0]) * outputs.exp()
    assert torch.allclose(found, -(shares[range(4), labels] / shares.sum(1)).log().mean())


def test_without_the_balance_the_generic_model_is_fedavg_s(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(FedRoDClient, "loss", Client.loss)
    _, ours, _ = federate("fedrod")
    _, fedavg, _ = federate("fedavg")
    assert same_arrays(ours.arrays, fedavg.arrays, tolerance=0)
    assert ours["fedrod"].traffic.bytes_up == fedavg["fedavg"].traffic.bytes_up
