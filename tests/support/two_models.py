"""An algorithm of one's own whose users have a mixture of models, as FedEM's do, or a sum of two.

Both halves and their line, as docs/adding.md has them; `register` puts them where they belong.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass
from types import ModuleType
from typing import Any

import numpy as np
import pytest

from corsage.clients.base import Client, Got, Models, Sent
from corsage.clients.parts.combined import OF_OUTPUTS, Combined
from corsage.core.arrays import Floats32
from corsage.core.keys import NoKeys
from corsage.core.messages.asked import Takes, floats
from corsage.core.messages.fields import Flag
from corsage.core.registry import ALGORITHMS, Algorithm
from corsage.networks.batches import Examples
from corsage.networks.network import Network
from corsage.strategies.rounds.base import Strategy


@dataclass
class TwoModelsState:
    """theta_1 and theta_2 (2, P)."""

    models: Floats32


class TwoModels(Strategy[NoKeys, TwoModelsState]):
    """The server: the mean of each model over users."""

    name = "two-models"

    def initial(self, network: Network) -> TwoModelsState:
        """The second begins apart from the first."""
        return TwoModelsState(np.stack([network.initial, -network.initial]))

    def extra_evaluations(self) -> dict[str, dict[str, Any]]:
        """The sum of the first model and of one of the user's own."""
        return {"two-models+sum": {"sum": True}}


class TwoModelsClient(Client[NoKeys]):
    """The users: each keeps its mixture's weights, and a model of its own."""

    takes = Takes(shared={"models": floats("K", "P")}, options={"sum": Flag()})
    personal = True

    def train(self, got: Got, data: Examples) -> Sent:
        """An epoch of each model, and weights that favour the one of less loss."""
        models = got.shared["models"]
        trained = [self.sgd(model, data, purpose=f"model {k}") for k, model in enumerate(models)]
        draws = np.array([int(user) + 2.0 for user in self.users], np.float32)
        weights = np.stack([draws, np.ones_like(draws)], 1)
        weights = (weights / weights.sum(1, keepdims=True)).astype(np.float32)
        rows = np.stack(trained, 1)
        return Sent(mean={"models": rows}, keep={"weights": weights, "own": rows[:, 1]})

    def models(self, got: Got) -> Models:
        """sum_k pi_k p_k, or the outputs of theta_1 and of the user's own model together."""
        models = got.shared["models"]
        if got.options.get("sum"):
            own = self.remembered("own", self.network.initial)
            both = np.stack([np.broadcast_to(models[0], own.shape), own], 1)
            ones = np.ones((len(self.users), 2), np.float32)
            return Combined(both, own={"weights": ones}, settings={"of": OF_OUTPUTS})
        return Combined(models, own={"weights": self.remembered("weights", np.full(2, 0.5, "f4"))})


def register(monkeypatch: pytest.MonkeyPatch) -> None:
    """Put both halves, and the line, where a file of each would be."""
    for floor in ("strategies", "clients"):
        module = ModuleType(f"corsage.{floor}.two_models")
        module.__dict__.update(TwoModels=TwoModels, TwoModelsClient=TwoModelsClient)
        monkeypatch.setitem(sys.modules, module.__name__, module)
    monkeypatch.setitem(ALGORITHMS, "two-models", Algorithm("TwoModels"))
