"""Local training: every user learns alone, and nothing is sent.

The bar that a federation has to clear. A user trains in the rounds in which it would have been
drawn, for `local-epochs` each, so it does the work that it would have done in FedAvg.
"""

from __future__ import annotations

from corsage.core.arrays import Arrays
from corsage.networks.network import Network
from corsage.strategies.rounds.base import Strategy


class Local(Strategy):
    """The server of local training: it holds nothing, and only says who trains when."""

    name = "local"

    def initial(self, network: Network) -> Arrays:
        """Nothing is shared."""
        return {}
