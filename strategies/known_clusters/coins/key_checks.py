"""Refusals of keys that cannot be meant, of the methods for known clusters.

All of that is known before the first message: nothing has been trained, and nobody waits.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from corsage.core.configuration.key_groups import ModelKeys
from corsage.core.errors import ConfigError
from corsage.strategies.known_clusters.clusters.strengths import (
    AUTO,
    ClusterKeys,
    Strengths,
    given_strengths,
    read_strengths,
)
from corsage.strategies.known_clusters.coins.coin_keys import CoinKeys, check_probabilities, number

if TYPE_CHECKING:
    from corsage.strategies.known_clusters.mixed_state import MixedModelKeys
    from corsage.strategies.rounds.job import Job


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
