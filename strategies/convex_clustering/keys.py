"""The keys of convex clustering, and what they come to."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

from corsage.core.configuration.config import Config
from corsage.core.errors import ConfigError
from corsage.core.keys import Keys, key
from corsage.solvers.convex_clustering.halves import Rules

AUTO, PDMM, KNN = "auto", "pdmm", "knn"
DR, NEWTON = "dr", "newton"


@dataclass(frozen=True)
class ConvexClusteringKeys(Keys):
    """Keys of convex clustering."""

    title = "Convex clustering"
    example: ClassVar = {"dataset": "ellipses"}
    needs: ClassVar = {"model": "linear"}
    convex_lambda: str = key(
        AUTO,
        "weight of the penalty: a number, or auto (least loss on held-out samples), which asks all "
        "users up to 8 times before round 1, and hundreds of times above 50 numbers in a model",
    )
    convex_solver: str = key(
        AUTO, "newton: steps on quadratic models, with all users and few numbers in a model; dr: "
        "splitting with the penalty solved at the server; pdmm: the paper's Algorithm 1; auto: "
        "newton with at most 50 numbers in a model, unless fraction-train is below 1; else dr",
        choices=(AUTO, NEWTON, DR, PDMM),
    )  # fmt: skip
    convex_graph: str = key(
        "all", "whom the penalty joins: all pairs, or knn: neighbours of the local models",
        choices=("all", KNN),
    )  # fmt: skip
    convex_neighbours: int = key(10, "knn: neighbours of each user", low=1)
    convex_tolerance: float = key(1e-6, "relative duality gap at which to end", low=1e-14)
    convex_certify_every: int = key(5, "rounds between duality gaps", low=1)
    convex_report: bool = key(
        True, "at the end ask for what it takes to read, certify and refit the clusters (some "
        "five exchanges; with more than 50 numbers in a model some hundred)"
    )  # fmt: skip
    convex_rho: str = key(AUTO, "rho of the solver: a number, or auto: from the users' curvature")
    convex_relax: float = key(1.6, "dr: how much of a step s_i takes (relax)", low=0.01, high=1.99)
    convex_tau: str = key(AUTO, "pdmm: share of a dual step (tau), or auto: min(1, p_P/p_D)/3")
    convex_nu: float = key(2 / 3, "pdmm: how far the damped dual goes back (nu)", low=1e-3, high=1)
    convex_eta: float = key(0.0, "pdmm: weight of the distance to the last iterate (eta)", low=0.0)
    convex_pairs: float = key(
        0.0, "pdmm: share of the pairs updated in a round (p_D); 0: that of the users", low=0.0,
        high=1.0,
    )  # fmt: skip

    @property
    def given(self) -> float | None:
        """lambda as a number, or None if it is to be found."""
        text = self.convex_lambda
        return None if text == AUTO else number("convex-lambda", text)


def solver_of(keys: ConvexClusteringKeys, config: Config, d: int) -> str:
    """The solver for models of d numbers, `auto` resolved."""
    from corsage.solvers.convex_clustering.batched import MOST_WITH_HESSIANS

    fraction = config.federation.fraction_train
    whole = fraction in (0, 1)  # 0: as the method will have it
    if keys.convex_solver == AUTO:
        return NEWTON if whole and d <= MOST_WITH_HESSIANS else DR
    if keys.convex_solver == NEWTON and not (whole and d <= MOST_WITH_HESSIANS):
        raise ConfigError(
            f"convex-solver=newton: it asks all users in every round for d x d numbers: set "
            f"fraction-train=1 (is {fraction:g}) with at most {MOST_WITH_HESSIANS} "
            f"numbers in a model (are {d}), or convex-solver=dr."
        )
    return keys.convex_solver


def rules_of(keys: ConvexClusteringKeys, config: Config, users: int) -> Rules:
    """The solver's numbers that the keys give, for so many users."""
    share = config.federation.share(users)
    tau = keys.convex_tau if keys.convex_solver == PDMM else AUTO
    return Rules(
        rho=None if keys.convex_rho == AUTO else number("convex-rho", keys.convex_rho, above=True),
        tau=None if tau == AUTO else number("convex-tau", tau, above=True),
        relax=keys.convex_relax,
        nu=keys.convex_nu,
        eta=keys.convex_eta,
        p_users=share,
        p_pairs=keys.convex_pairs or share,
        seed=config.run.seed,
    )


def number(name: str, text: str, above: bool = False) -> float:
    """A key that is a number from 0 on, or above it."""
    try:
        value = float(text)
    except ValueError:
        raise ConfigError(f"{name}={text}: not a number, and none of its words.") from None
    if not math.isfinite(value) or value < 0 or (above and value == 0):
        limit = "above 0" if above else "at least 0"
        raise ConfigError(f"{name}={text}: must be finite and {limit}.")
    return value
