"""The keys of the two coin-throwing methods, and the settings that are fixed at a run's start.

Lyu et al. 2022: p_0, p_j, tau_j and eta are those of Corollary 3.6 and Proposition 3.3 unless they
are given. Keys that cannot be meant are refused before the first message, while nobody waits.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

from corsage.core.arrays import Array, Floats
from corsage.core.configuration.key_groups import ModelKeys
from corsage.core.errors import ConfigError
from corsage.core.keys import key
from corsage.solvers.known_clusters.coins.settings import Parameters, check, probabilities, tau_of
from corsage.solvers.known_clusters.hierarchy import Hierarchy
from corsage.strategies.known_clusters.clusters.cohorts import ClusterNames
from corsage.strategies.known_clusters.clusters.strengths import (
    AUTO,
    ClusterKeys,
    Strengths,
    check_covers,
    given_strengths,
    read_strengths,
    value_of,
)
from corsage.strategies.rounds.results import Finding

if TYPE_CHECKING:
    from corsage.strategies.known_clusters.mixed_state import MixedModelKeys
    from corsage.strategies.rounds.job import Job

RARE = 1e-6
"""Steps to the middle that are less probable do not end rounds in any time that one could wait."""


@dataclass(frozen=True)
class CoinKeys(ClusterKeys):
    """Keys of both coin-throwing methods."""

    known_iterations: int = key(
        0, "coin-throwing methods: iterations (T); 0: as many as num-rounds rounds hold", low=0
    )
    known_p0: str = key(
        AUTO, "probability of a step to the middle, for which all wait (p_0), or auto: Cor. 3.6"
    )
    known_p: str = key(
        AUTO,
        "probability of a step to the centre of the cluster (p_j): a number, a JSON file of one "
        "for each cluster, or auto; 0: one coin for both pulls, the variant of section 6",
    )
    known_tau: str = key(
        AUTO, "share of the pull to the centre in steps to the middle (tau_j), or auto: Prop. 3.3"
    )
    known_eta: str = key(AUTO, "step size (eta), or auto: the largest one that is proven safe")

    @property
    def iterations(self) -> int | None:
        """T, or None if the number of rounds says when to end."""
        return self.known_iterations or None


@dataclass
class CoinSettings:
    """Settings that are fixed at the start of a run; users that come later change nothing in them.

    Parameters
    ----------
    p0 : p_0.
    p : p_j by cluster; under an empty name that of all.
    tau : tau_j by cluster.
    eta : the step size; 0 as long as nothing is fixed.
    safe : the largest step size that is proven safe.
    """

    p0: float = 0.0
    p: dict[str, float] = field(default_factory=dict)
    tau: dict[str, float] = field(default_factory=dict)
    eta: float = 0.0
    safe: float = 0.0

    def parameters(self, names: list[str]) -> Parameters:
        """p_0, p_j, tau_j and eta for some clusters."""
        p, tau = (np.array([value_of(of, name) for name in names]) for of in (self.p, self.tau))
        return Parameters(self.eta, self.p0, p, tau)

    def texts(self) -> list[tuple[str, str]]:
        """The settings as rows of a table."""
        rows = [("p0", spelled(self.p0)), ("p", spelled(self.p)), ("tau", spelled(self.tau))]
        return [*rows, ("eta", f"{self.eta:.4g} (safe up to {self.safe:.4g})")]


@dataclass
class CoinState:
    """The state that both coin-throwing methods share.

    Parameters
    ----------
    model : thbar, the middle (d,).
    clusters : the known clusters.
    strengths, settings : empty until the first round's opening has settled them.
    iteration : t, how many iterations are done.
    reach : the median norm of the users' models in the first round, but at least 1.
    estimates : what there is to say of strengths that were on auto.
    aside : cohorts whose answers were too far out to count for their cluster's centre.
    """

    model: Array
    clusters: ClusterNames = field(default_factory=ClusterNames)
    strengths: Strengths = field(default_factory=Strengths)
    settings: CoinSettings = field(default_factory=CoinSettings)
    iteration: int = 0
    reach: float = 0.0
    estimates: list[Finding] = field(default_factory=list)
    aside: list[str] = field(default_factory=list)


def fixed_settings(
    keys: CoinKeys,
    names: list[str],
    hierarchy: Hierarchy,
    smoothness: float,
    safe_step: Callable[[float, Floats], float],
) -> CoinSettings:
    """The settings for losses that are L-smooth; `safe_step` tells eta from p_0 and p_j."""
    p0, p = probabilities(hierarchy, smoothness)
    p0 = number("known-p0", keys.known_p0, p0)
    given = dict(zip(names, p.tolist(), strict=True))
    given = given if keys.known_p == AUTO else read_strengths("known-p", keys.known_p)
    check_covers(f"known-p={keys.known_p}", given, names)
    check_probabilities(p0, given)
    p = np.array([value_of(given, name) for name in names])
    tau = tau_of(p0, p)
    if keys.known_tau != AUTO:
        tau = np.full(len(names), number("known-tau", keys.known_tau, 0.0))
    check(Parameters(1.0, p0, p, tau), hierarchy)
    safe = safe_step(p0, p)
    eta = number("known-eta", keys.known_eta, safe)
    check(Parameters(eta, p0, p, tau), hierarchy)
    return CoinSettings(p0, given, dict(zip(names, tau.tolist(), strict=True)), eta, safe)


def check_probabilities(p0: float, p: Mapping[str, float]) -> None:
    """Refuse probabilities outside [0, 1)."""
    for name, value in (("known-p0", p0), *(("known-p", value) for value in p.values())):
        if not 0 <= value < 1:
            raise ConfigError(f"{name}={value:g}: must be from 0 to below 1.")


def check_end(name: str, p0: float, iterations: int | None) -> None:
    """Refuse rounds that hardly ever end."""
    if p0 < RARE and iterations is None:
        many = f"it would hold about {1 / p0:.0e} iterations" if p0 else "nothing would end it"
        raise ConfigError(
            f"{name}: a round ends with a step to the middle, p_0={p0:.3g}: {many}; set "
            "known-iterations or known-p0, or scale the features."
        )


def number(name: str, text: str, default: float) -> float:
    """A key that is a number, or `auto`."""
    if text == AUTO:
        return default
    try:
        found = float(text)
    except ValueError:
        raise ConfigError(f"{name}={text}: not a number, and not auto.") from None
    if not np.isfinite(found):
        raise ConfigError(f"{name}={text}: must be finite.")
    return found


def spelled(values: float | dict[str, float]) -> str:
    """One number, or one by name, in few words."""
    if not isinstance(values, dict):
        return f"{values:.4g}"
    if len(set(values.values())) == 1:
        return f"{next(iter(values.values())):.4g}"
    some = [f"{name}: {value:.4g}" for name, value in list(values.items())[:6]]
    return ", ".join(some) + (f", ... ({len(values)} in all)" if len(values) > 6 else "")


def check_convex(job: Job) -> None:
    """Refuse models whose losses have no known curvature."""
    if not job.convex:
        raise ConfigError(
            f"{job.name}: needs model=linear, not model={job.config.model.model}; async-l2gd takes "
            "any model."
        )


def check_coins(keys: CoinKeys, model: ModelKeys, loss: str, convex: bool) -> None:
    """The keys of a coin-throwing method."""
    check_words(keys)
    if convex and loss != "cross-entropy":
        check_estimable(keys, model, loss)


def check_mixed(keys: MixedModelKeys, model: ModelKeys, loss: str) -> None:
    """The keys of the mixed model."""
    given_strengths(keys, Strengths())
    if loss == "cross-entropy":
        check_of_classes(keys)
    else:
        check_estimable(keys, model, loss)
    check_random(keys, model)


def check_of_classes(keys: MixedModelKeys) -> None:
    """Refuse what is found from sums of squares, or is of one output."""
    one = "for numbers or two classes (loss=logistic)"
    if keys.mixed_grouping == "found":
        raise ConfigError(f"mixed-grouping=found: {one}; convex-clustering finds clusters here.")
    single = {AUTO, "one"} if keys.mixed_random == ("intercept",) else {AUTO}
    for name, value, known in (
        ("variances", keys.mixed_variances, single),
        ("likelihood", keys.mixed_likelihood, {AUTO}),
    ):
        if value not in known:
            raise ConfigError(f"mixed-{name}={value}: {one}; leave it on auto.")
    if keys.mixed_keep_sums:
        raise ConfigError(f"mixed-keep-sums=true: {one}; classes send no sums to keep.")


def check_words(keys: CoinKeys) -> None:
    """Refuse keys that are no numbers, files or probabilities."""
    given_strengths(keys, Strengths())
    p = {} if keys.known_p == AUTO else read_strengths("known-p", keys.known_p)
    check_probabilities(number("known-p0", keys.known_p0, 0.0), p)
    number("known-tau", keys.known_tau, 0.0)
    number("known-eta", keys.known_eta, 0.0)


def check_estimable(keys: ClusterKeys, model: ModelKeys, loss: str) -> None:
    """Refuse settings under which the variances of strengths on auto mean nothing."""
    if not keys.estimated:
        return
    if model.loss_scale == "mean" or model.ridge:
        raise ConfigError(
            f"loss-scale={model.loss_scale} ridge={model.ridge:g}: strengths on auto are of "
            "losses that are sums, without a ridge: set loss-scale=sum ridge=0, or numbers for "
            "known-gamma and known-lambda."
        )
    given = {keys.known_gamma, keys.known_lambda} - {AUTO}
    if loss != "squared" and given & {"0", "0.0", "inf"}:
        raise ConfigError(
            f"known-gamma={keys.known_gamma} known-lambda={keys.known_lambda}: with "
            f"loss={loss} and the other one on auto it must be finite and above 0."
        )


def check_random(keys: MixedModelKeys, model: ModelKeys) -> None:
    """Refuse random coefficients that are not there, or have nothing to vary by."""
    named = ",".join(keys.mixed_random)
    if not named:
        raise ConfigError("mixed-random: name all, intercept, or columns.")
    if named == "all":
        return
    if "all" in keys.mixed_random:
        raise ConfigError(f"mixed-random={named}: all stands alone.")
    if "intercept" in keys.mixed_random and not model.intercept:
        raise ConfigError(f"mixed-random={named}: with intercept=false there is none to vary.")
    for name, value in (("gamma", keys.known_gamma), ("lambda", keys.known_lambda)):
        if value in {"0", "0.0"}:
            raise ConfigError(
                f"mixed-random={named} known-{name}={value}: it must be above 0; a small number, "
                "such as 1e-6, is nearly none."
            )
