"""One model for all users, solved exactly: the minimiser of the sum of all losses.

Lyu et al. 2022, section 6.1 (single model); Armacki et al. 2022, (1). It is the mixed model with
gamma = lambda = inf: one round for the squared loss, Newton's method for others.
"""

from __future__ import annotations

from corsage.strategies.known_clusters.mixed_model import MixedModel


class ExactGlobal(MixedModel):
    """The server's side: the mixed model with these strengths."""

    name = "exact-global"
    fixed = {"known_gamma": "inf", "known_lambda": "inf"}  # noqa: RUF012
    together = True
