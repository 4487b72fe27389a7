"""Scores of models on users' data, as a client takes them."""

from __future__ import annotations

from corsage.clients.base import Models
from corsage.core.arrays import Floats32
from corsage.networks.batches import Examples
from corsage.networks.network import Network
from corsage.networks.user_scores import Scores, score


def evaluate(network: Network, body: Floats32, heads: Floats32, data: Examples) -> Scores:
    """All users with one body and their own heads (users, P_head)."""
    return scored(network, Models(body, heads), data)


def evaluate_models(network: Network, models: Floats32, data: Examples) -> Scores:
    """All users with one whole model (P,), or each with its own (users, P)."""
    return scored(network, Models(models), data)


def scored(network: Network, models: Models, data: Examples) -> Scores:
    """All users together."""
    return score(network.criterion, models.outputs(network, data, alone=False), data)
