"""FedRep with heads in known clusters, at the users."""

from __future__ import annotations

from corsage.clients.fedrep.pulled_heads import PulledHeadsClient
from corsage.strategies.fedrep.fedrep_known import FedRepKnownKeys


class FedRepKnownClient(PulledHeadsClient[FedRepKnownKeys]):
    """Users take h_i on, on f_i(h) + gamma/2 |h - w_c(i)|^2; new ones begin at w_c(i)."""
