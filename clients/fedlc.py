"""FedLC at the users: FedAvg's training on calibrated logits."""

from __future__ import annotations

from dataclasses import replace

from torch import Tensor, bincount, zeros
from torch.nn.functional import cross_entropy

from corsage.clients.base import Got, Models
from corsage.clients.fedavg import FedAvgClient
from corsage.networks.batches import Examples, Loss
from corsage.strategies.fedlc import FedLCKeys


class FedLCClient(FedAvgClient[FedLCKeys]):
    """The users of FedLC (Zhang et al. 2022)."""

    own_training = False

    def loss(self, got: Got, user: str, labels: Tensor) -> Loss:
        """Cross-entropy of f_c - tau n_c^(-1/4)."""
        counts, tau = bincount(labels, minlength=self.task.num_classes), self.keys.fedlc_tau
        margins = tau * counts.float() ** -0.25 if tau else zeros(len(counts))
        margins = margins.to(labels.device)
        return lambda features, outputs, y: cross_entropy(outputs - margins, y)

    def tuned(self, got: Got, data: Examples, epochs: int, part: str) -> Models:
        """The global model trained for the user alone, on the model's own loss."""
        return super().tuned(got, replace(data, losses=None), epochs, part)
