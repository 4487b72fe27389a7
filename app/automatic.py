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
NETWORKS = "fedrep,fedavg,local"
OWN_TABLES = ("csv", "npz", "memory")
"""Tables of one's own: users may have a row each, with nothing to hold out."""
OTHERS_CLUSTER = "others"
"""The cluster of users whose cluster is not known, where others' are."""
LINEAR = ("mixed-model", "exact-global", "exact-local")


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
    if users == 1:
        return {"strategy": "local"}, f"{whose}: there is nobody to learn from"
    if linear(data) and model in ("", "linear") and given.get("loss") in LIKELIHOODS:
        only = {"strategy": LINEAR[0], "mixed-grouping": "all", "model": "linear"}
        return only, f"{whose} in a table of {width(data)} inputs: a generalised mixed model"
    if linear(data) and model in ("", "linear"):
        return {**exact(data), **model_of(data)}, (
            f"{whose} in a table of {width(data)} inputs: one linear model a user, pulled "
            "together as strongly as the data say, beside one for all and one each alone"
        )
    what = "a table" if len(data.shape) == 1 else "images or sequences"
    return {"strategy": NETWORKS}, (
        f"{whose} in {what}: a common body with a head a user, beside one model for all (then "
        "tuned by each user) and each alone"
    )


def linear(data: FederatedData) -> bool:
    """True if the exact methods of linear models can be had: few inputs, two classes at most."""
    return len(data.shape) == 1 and width(data) <= MOST_EXACT_INPUTS and data.num_classes in (0, 2)


def width(data: FederatedData) -> int:
    """Inputs of a table: an input a level of each column of words."""
    if data.facts is None:
        return data.shape[0]
    return sum(max(len(column.levels) - 1, 1) for column in data.facts.columns)


def exact(data: FederatedData) -> dict[str, str]:
    """The mixed model and its bounds, with the clusters if there are any."""
    groups = set(data.clusters.values())
    if not 1 < len(groups) < len(data.users):
        return {"strategy": ",".join(LINEAR), "mixed-grouping": "all"}
    names = (*LINEAR[:2], "exact-cluster", *LINEAR[2:])
    apart = {"known-missing": OTHERS_CLUSTER} if len(data.clusters) < len(data.users) else {}
    return {"strategy": ",".join(names), **apart}


def model_of(data: FederatedData) -> dict[str, str]:
    """The linear model with its loss."""
    return {"model": "linear", "loss": "logistic" if data.num_classes else "squared"}
