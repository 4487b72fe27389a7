"""Local training: every user learns alone, and nothing is sent.

The bar that a federation has to clear. A user trains in the rounds in which it would have been
drawn, so it does the work that it would have done in FedAvg. With `local-always` it trains in every
round, as one that need not wait for a server: the bar of papers that train alone to the end.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from corsage.core.keys import Keys, key
from corsage.strategies.rounds.base import Strategy
from corsage.strategies.rounds.state import NoState

if TYPE_CHECKING:
    from corsage.networks.network import Network


@dataclass(frozen=True)
class LocalKeys(Keys):
    """Keys of local training."""

    title = "Local training alone"

    local_always: bool = key(
        False, "local: users train in every round, also in those that they are not drawn in"
    )


class Local(Strategy[LocalKeys, NoState]):
    """The server of local training: it holds nothing, and only says who trains when."""

    name = "local"
    tuned = ("own",)
    no_server_step = "nothing is sent to the server"

    def choose(self, number: int, users: list[str]) -> list[str]:
        """Those that would be drawn, or everybody."""
        return list(users) if self.keys.local_always else super().choose(number, users)

    def extra_evaluations(self) -> dict[str, dict[str, Any]]:
        """More epochs for all at the end are a row where somebody was never drawn."""
        drawn = all(user in self.progress.trained for user in self.members.users)
        return {} if drawn else super().extra_evaluations()

    def initial(self, network: Network) -> NoState:
        """Nothing is shared."""
        return NoState()
