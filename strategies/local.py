"""Local training: every user learns alone, and nothing is sent.

The bar that a federation has to clear. A user trains in the rounds in which it would have been
drawn, for `local-epochs` each, so it does the work that it would have done in FedAvg.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from corsage.core.keys import NoKeys
from corsage.strategies.rounds.base import Strategy
from corsage.strategies.rounds.state import NoState

if TYPE_CHECKING:
    from corsage.networks.network import Network


class Local(Strategy[NoKeys, NoState]):
    """The server of local training: it holds nothing, and only says who trains when."""

    name = "local"

    def initial(self, network: Network) -> NoState:
        """Nothing is shared."""
        return NoState()
