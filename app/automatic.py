"""`strategy=auto`: a sensible set for the data at hand, and why, in a line."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from corsage.app.given import check_classes
from corsage.core.configuration.config import AUTOMATIC, Config
from corsage.core.errors import ConfigError
from corsage.core.registry import LIKELIHOODS
from corsage.datasets.dealing.federated import check_users, simulated
from corsage.datasets.user_data import FederatedData

MOST_EXACT_INPUTS = 300
"""Inputs of a linear problem: exact methods send matrices of all by all."""
MOST_EXACT_NUMBERS = 2000
"""Numbers of a model of several classes, which takes some dozens of exchanges of its slopes."""
NETWORKS = "fedrep,fedavg,local"
OWN_TABLES = ("csv", "npz", "memory")
"""Tables of one's own: users may have a row each, with nothing to hold out."""
OTHERS_CLUSTER = "others"
"""The cluster of users whose cluster is not known, where others' are."""
LINEAR = ("mixed-model", "exact-global", "exact-local")
LEVEL_ALONE, AROUND_ONE = "random-intercepts", "single-cluster"
"""What the mixed model is with fewer variances: easier to beat noise with, where rows are few."""
OWN_VARIANCES = ("mixed-random", "mixed-variances", "known-gamma", "known-lambda")
"""Keys of whoever has a mixed model in mind."""


def is_automatic(values: Mapping[str, Any]) -> bool:
    """True if the keys leave the strategies to the data."""
    said = values.get("strategy", "")
    words = said if isinstance(said, list | tuple) else str(said).split(",")
    if AUTOMATIC in words and len(words) > 1:
        raise ConfigError("strategy=auto: it stands alone; or name all that are to be compared.")
    return AUTOMATIC in words


def chosen(values: Mapping[str, Any]) -> tuple[dict[str, Any], str]:
    """The keys with the strategies that `strategy=auto` comes to, and the line that says so.

    Keys that are given stay as they are.
    """
    if not is_automatic(values):
        return dict(values), ""
    whole = {"test-fraction": 0.0} if values.get("dataset") in OWN_TABLES else {}
    config = Config.parse({**values, "strategy": "local", **whole})
    data = simulated(config.data, config.federation.num_users, config.run.seed)
    check_users(data)
    check_classes(data.num_classes, len(data.shape) == 1, str(values.get("labels", "")))
    own, why = choice(data, values)
    line = f"strategy=auto: {own['strategy']}, for {why}"
    found = {**own, **values, "strategy": own["strategy"]}
    more = ", ".join(f"{k}={v}" for k, v in own.items() if k != "strategy" and k not in values)
    return found, f"{line} ({more})." if more else f"{line}."


def choice(data: FederatedData, given: Mapping[str, Any]) -> tuple[dict[str, Any], str]:
    """The keys for some data, and what about the data they are for."""
    users, model = len(data.users), str(given.get("model", ""))
    kind = f"{data.num_classes} classes" if data.num_classes else "numbers"
    whose = f"{kind} of {users} users"
    is_linear = linear(data) and model in ("", "linear")
    if is_linear and given.get("loss") in LIKELIHOODS:
        return {**exact(data), **model_of(data), "strategy": LINEAR[0]}, (
            f"{whose} with loss={given['loss']}: no other method has that likelihood"
        )
    if users == 1:
        own = {"strategy": "exact-global", **model_of(data)} if is_linear else {"strategy": "local"}
        return own, f"{kind} of one user: there is nobody to learn from"
    if is_linear:
        inputs = f"{width(data)} input{'' if width(data) == 1 else 's'}"
        return {**exact(data), **model_of(data), "strategy": strategies_of(data, given)}, (
            f"{whose} in a table of {inputs}: one linear model a user, pulled together as strongly "
            "as the data say, beside simpler ones, one for all and one each alone"
        )
    what = "a table" if len(data.shape) == 1 else "images or sequences"
    return {"strategy": NETWORKS}, (
        f"{whose} in {what}: a common body with a head a user, beside one model for all (then "
        "tuned by each user) and each alone"
    )


def linear(data: FederatedData) -> bool:
    """True if the exact methods of linear models can be had: a table of few inputs and classes."""
    if len(data.shape) != 1 or width(data) > MOST_EXACT_INPUTS:
        return False
    return data.num_classes <= 2 or data.num_classes * width(data) <= MOST_EXACT_NUMBERS


def width(data: FederatedData) -> int:
    """Inputs of a table: an input a level of each column of words."""
    if data.facts is None:
        return data.shape[0]
    return sum(max(len(column.levels) - 1, 1) for column in data.facts.columns)


def strategies_of(data: FederatedData, given: Mapping[str, Any]) -> str:
    """The mixed model, simpler ones, and its bounds."""
    first, together, alone = LINEAR
    simpler, free = [], not any(key in given for key in OWN_VARIANCES)
    free = free and given.get("mixed-grouping") != "found"  # which the simpler ones refuse
    if free and width(data) and str(given.get("intercept", True)).lower() == "true":
        simpler.append(LEVEL_ALONE)
    if free and not data.num_classes:
        simpler.append(AROUND_ONE)
    clustered = "mixed-grouping" not in exact(data)
    return ",".join([first, *simpler, together, *["exact-cluster"] * clustered, alone])


def exact(data: FederatedData) -> dict[str, str]:
    """The keys of methods with clusters, if there are any; its neighbours are rows of their own."""
    groups = set(data.clusters.values())
    if not 1 < len(groups) < len(data.users):
        return {"mixed-grouping": "all", "mixed-neighbours": "never"}
    apart = {"known-missing": OTHERS_CLUSTER} if len(data.clusters) < len(data.users) else {}
    return {"mixed-neighbours": "never", **apart}


def model_of(data: FederatedData) -> dict[str, str]:
    """The linear model with its loss."""
    losses = {0: "squared", 2: "logistic"}
    return {"model": "linear", "loss": losses.get(data.num_classes, "cross-entropy")}
