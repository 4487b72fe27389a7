"""The base of methods with one model for all, which each user may fine-tune at the end."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeVar, cast

from corsage.strategies.rounds.algorithm import K
from corsage.strategies.rounds.base import Strategy
from corsage.strategies.rounds.state import ModelState

if TYPE_CHECKING:
    from corsage.networks.network import Network


M = TypeVar("M", bound=ModelState)


class GlobalModel(Strategy[K, M]):
    """The server holds the whole model w."""

    def initial(self, network: Network) -> M:
        """The first global model, w_0."""
        return cast(M, ModelState(network.initial))

    def extra_evaluations(self) -> dict[str, dict[str, Any]]:
        """The global model with a head of one's own: the row NAME+ft."""
        if self.config.train.fine_tune_epochs:
            return {f"{self.name}+ft": {"fine-tune": True}}
        return {}
