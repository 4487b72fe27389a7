"""A model for each user from its own data alone, solved exactly: the shortest minimiser of f_i.

Lyu et al. 2022, section 6.1 (locally trained, by the pseudo-inverse); Armacki et al. 2022, (2). It
is the mixed model with gamma = 0. Where a user's logistic loss has no minimiser, as its classes can
be told apart, its model grows until num-rounds.
"""

from __future__ import annotations

from corsage.strategies.known_clusters.mixed_model import MixedModel


class ExactLocal(MixedModel):
    """The server's side: the mixed model with these strengths."""

    name = "exact-local"
    fixed = {"known_gamma": "0", "known_lambda": "0"}  # noqa: RUF012
    together = True
