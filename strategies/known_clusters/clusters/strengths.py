"""The strengths gamma_i and lambda_j of (2.3): as keys say them, and as a run holds them."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import ClassVar

import numpy as np

from corsage.core.arrays import INFINITE, Array, Floats
from corsage.core.errors import ConfigError
from corsage.core.keys import Keys, key
from corsage.strategies.known_clusters.clusters.cohorts import ClusterNames, Cohort, Present

AUTO = "auto"


@dataclass(frozen=True)
class ClusterKeys(Keys):
    """Keys that all methods for known clusters share."""

    title = "Known clusters"
    example: ClassVar = {"dataset": "hierarchical"}
    needs: ClassVar = {"model": "linear"}
    asks = "numbers or classes, of users in known clusters"

    known_gamma: str = key(
        AUTO,
        "pull of a user to its cluster (gamma_i): a number, a JSON file of one for each cluster or "
        "user, or auto: estimated from the users' sums (linear models of one output), or of "
        "several classes by left-out records (mixed-model and its siblings); of other models "
        "1/(20 lr), a tenth of the curvature that lr stands for",
    )
    known_lambda: str = key(
        AUTO,
        "pull of a cluster to the middle (lambda_j): a number (0: none, inf: one cluster), a JSON "
        "file of one for each cluster, or auto, as known-gamma",
    )
    known_refine: int = key(
        0,
        "auto, squared loss, where users' sums are added up before they are sent: exchanges more, "
        "each with a finer grid of variances",
        low=0,
    )
    known_missing: str = key(
        "", "cluster for the users that have no known one; empty: they are refused"
    )

    @property
    def estimated(self) -> bool:
        """True if one of the strengths is on auto."""
        return AUTO in (self.known_gamma, self.known_lambda)

    @property
    def both_estimated(self) -> bool:
        """True if both are."""
        return self.known_gamma == self.known_lambda == AUTO


@dataclass
class Strengths:
    """gamma_i and lambda_j.

    Parameters
    ----------
    gamma : by cluster; under an empty name that of all.
    users : by user, of clusters that `gamma` does not have.
    lam : lambda_j by cluster; under an empty name that of all.
    """

    gamma: dict[str, float] = field(default_factory=dict, metadata=INFINITE)
    users: dict[str, float] = field(default_factory=dict, metadata=INFINITE)
    lam: dict[str, float] = field(default_factory=dict, metadata=INFINITE)

    def gammas(self, cohort: Cohort) -> Floats:
        """gamma_i of a cohort's users; of those that came later the mean, if nothing is known."""
        typical = value_of(self.gamma or self.users, cohort.cluster)
        if cohort.cluster in self.gamma or not self.users:
            return np.full(len(cohort.users), typical)
        return np.array([self.users.get(user, typical) for user in cohort.users])

    def of_cluster(self, cluster: str) -> bool:
        """True if there is one gamma for all users of a cluster: its own, or that of all."""
        return bool({"", cluster} & set(self.gamma))

    def typical_gamma(self, cohort: Cohort) -> float:
        """One gamma for all of a cohort."""
        return float(self.gammas(cohort).mean())

    def lambdas(self, clusters: Sequence[str]) -> Floats:
        """lambda_j of some clusters."""
        return np.array([value_of(self.lam, name) for name in clusters])

    def uneven(self, cohorts: Sequence[Cohort]) -> list[str]:
        """The clusters whose users differ in gamma."""
        found: dict[str, set[float]] = {}
        for cohort in cohorts:
            found.setdefault(cohort.cluster, set()).update(np.unique(self.gammas(cohort)).tolist())
        return [name for name, values in found.items() if len(values) > 1]


def given_strengths(keys: ClusterKeys, instead: Strengths) -> Strengths:
    """The strengths that the keys give; those that are to be estimated are taken from `instead`."""
    gamma, lam = instead.gamma, instead.lam
    if keys.known_gamma != AUTO:
        gamma = read_strengths("known-gamma", keys.known_gamma)
    if keys.known_lambda != AUTO:
        lam = read_strengths("known-lambda", keys.known_lambda)
    return Strengths(gamma=gamma, lam=lam)


def settle(found: Strengths, keys: ClusterKeys, clusters: ClusterNames, present: Present) -> None:
    """Check strengths against who is there, and note the clusters whose users differ in gamma."""
    check_covers(f"known-lambda={keys.known_lambda}", found.lam, present.names)
    tell_users(found, clusters.known, present.cohorts)
    for cohort in present.cohorts:
        if found.of_cluster(cohort.cluster):
            continue
        missing = [user for user in cohort.users if user not in found.users]
        if missing:
            raise ConfigError(
                f"known-gamma={keys.known_gamma}: it has neither cluster {cohort.cluster} nor its "
                f"user {missing[0]}: add one of them."
            )
    clusters.apart = found.uneven(present.cohorts)


def tell_users(found: Strengths, clusters: Sequence[str], cohorts: Sequence[Cohort]) -> None:
    """Tell names of users from names of clusters, which may be the same, in a file of gamma.

    A file that names all users is one of users.
    """
    values = found.gamma
    if "" not in values:
        by_user = {user for cohort in cohorts for user in cohort.users} <= set(values)
        found.gamma = {} if by_user else {n: values[n] for n in clusters if n in values}
        found.users = {n: v for n, v in values.items() if n not in found.gamma}


def tied(strength: float, d: int, varies: Floats | None) -> Floats:
    """A strength by coordinate (d,): infinite for what does not vary."""
    return np.full(d, strength) if varies is None else np.where(varies > 0, strength, np.inf)


def ties(row: Array, users: int) -> Floats:
    """gamma (d,) of so many users: one number each, or one a coordinate where these differ."""
    row = np.asarray(row, np.float64)
    return np.full(users, row[0]) if (row == row[0]).all() else np.tile(row, (users, 1))


def value_of(values: Mapping[str, float], name: str) -> float:
    """The value of a cluster, or the one of all; a cluster that comes later has the mean."""
    known = values.get(name, values.get(""))
    return float(np.mean(list(values.values())) if known is None else known)


def check_covers(key: str, values: Mapping[str, float], clusters: Sequence[str]) -> None:
    """Refuse values that leave out a cluster; `key` is the key as it was given."""
    if missing := [name for name in clusters if not {"", name} & set(values)]:
        raise ConfigError(f"{key}: it does not have cluster {missing[0]}: add it.")


def read_strengths(name: str, text: str) -> dict[str, float]:
    """A number for all, under the empty name, or what a JSON file says of each."""
    try:
        found = {"": float(text)}
    except ValueError:
        path = Path(text).expanduser()
        try:
            found = {str(k): float(v) for k, v in json.loads(path.read_text("utf-8")).items()}
        except FileNotFoundError:
            raise ConfigError(f"{name}={text}: not a number, not auto, and no such file.") from None
        except (OSError, ValueError, TypeError, AttributeError) as error:
            raise ConfigError(
                f'{name}={text}: not a JSON file of numbers by name, {{"name": 1.0}} ({error}).'
            ) from error
    bad = [(k, v) for k, v in found.items() if not v >= 0]
    if bad:
        raise ConfigError(f"{name}={text}: {bad[0][1]:g} is not possible: it must be at least 0.")
    return found
