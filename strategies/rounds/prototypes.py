"""Prototypes of classes: the means over users of what each one's features of a class come to.

And refusals of labels without classes, and of models without features, for all who need them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from corsage.core.arrays import Array, Bools, Floats32
from corsage.core.configuration.config import Config
from corsage.core.errors import ModelError
from corsage.core.messages.replies import Replies, name_users
from corsage.core.registry import attachment
from corsage.strategies.rounds.base import Strategy
from corsage.strategies.rounds.means.most import RECORDS_DIFFER, means_of
from corsage.strategies.rounds.results import Finding

if TYPE_CHECKING:
    from corsage.networks.network import Network

LIGHTEST, HEAVIEST = 1e-9, 1.0001
"""What a class of a user weighs, if it has it."""


class Prototypes(Protocol):
    """Points of classes, as a state has them."""

    prototypes: Floats32
    known: Floats32


def no_prototypes(strategy: Strategy[Any, Any], network: Network) -> tuple[Floats32, Floats32]:
    """Prototypes, and which are known, before anybody has any; ModelError where none can be."""
    classes = strategy.job.agreed.num_classes
    check_classes(strategy, "prototypes are of classes")
    check_features(strategy, network, "prototypes are of a body's features")
    return np.zeros((classes, network.width), np.float32), np.zeros(classes, np.float32)


def check_classes(strategy: Strategy[Any, Any], why: str) -> None:
    """ModelError for a loss that is not that of classes."""
    if strategy.job.loss != "cross-entropy":
        numbers = "labels are numbers here, so take another method"
        do = "take loss=cross-entropy" if strategy.job.agreed.num_classes else numbers
        raise ModelError(f"{strategy.name}: {why}; {do}.")


def check_features(strategy: Strategy[Any, Any], network: Network, why: str) -> None:
    """ModelError for a model whose body has no features, or none that can be told apart."""
    if network.body.stop == 0 or not network.split_exact:
        cause = network.why or "the model is a head and nothing else; take model=mlp"
        raise ModelError(f"{strategy.name}: {why}: {cause}.")


def averaged(
    config: Config, state: Prototypes, replies: Replies
) -> tuple[Floats32, Floats32, Bools]:
    """The prototypes after a round, which are known, and whose of which class do not count."""
    own = {name: replies.rows[name].copy() for name in ("weighted", "weights")}
    out = far(own["weighted"], own["weights"])
    for rows in own.values():
        rows[out] = 0
    means = means_of(config, replace(replies, rows=own), np.ones(len(out), bool))
    came = means["weights"] > 0
    points = means["weighted"] / np.where(came, means["weights"], 1)[:, None]
    prototypes = np.where(came[:, None], points, state.prototypes)
    return prototypes, np.where(came, 1, state.known).astype(np.float32), out


def set_aside(
    strategy: Strategy[Any, Any], before: list[str], users: Sequence[str], out: Bools, what: str
) -> list[str]:
    """Those who were set aside before or are now, who are named."""
    new = [user for user, far_out in zip(users, out, strict=True) if far_out and user not in before]
    if new:
        strategy.job.note(f"{name_users(new)} set aside: {what} far from all others")
    return [*before, *new]


def found_aside(users: list[str], what: str) -> list[Finding]:
    """The same at the end."""
    rows = [(f"user {user}", f"{what} far from all others") for user in users]
    return [Finding("Set aside", rows)] if rows else []


def far(weighted: Array, weights: Array) -> Bools:
    """Prototypes (users, classes) that are far from those of all others that have the class.

    Who has few classes is no less like the others in these. Those of fewer than four users are held
    against all classes' alone: there nobody counts who is far out in another.
    """
    wrong = ~((weights == 0) | (weights >= LIGHTEST) & (weights <= HEAVIEST))
    wrong |= (weights == 0) & weighted.any(2)
    wrong = wrong.any(1, keepdims=True)
    found = np.repeat(wrong, weights.shape[1], axis=1)
    rules, has = attachment("robust"), (weights > 0) & ~wrong
    points = weighted[has] / weights[has, None]
    if rules is not None and len(points):
        found[has] = rules.outlying(points)
        differ = np.median(rules.lengths(points, rules.median(points)))
        which = np.nonzero(has)[1]
        for j in np.flatnonzero(has.sum(0) >= rules.FEWEST):
            found[has[:, j], j] |= rules.outlying(points[which == j], least=RECORDS_DIFFER * differ)
        found |= found.any(1, keepdims=True) & (has.sum(0) < rules.FEWEST)
    return np.asarray(found)
