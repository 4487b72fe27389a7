"""A run's data are those of its first start, also when it is resumed; asked before round 1."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from corsage.core.errors import ConfigError, DataError, NodeError
from corsage.core.preparation import Preparation
from corsage.datasets.dealing.federated import NO_TESTS
from corsage.strategies.rounds.agreed import fitting, labels

if TYPE_CHECKING:
    from corsage.strategies.rounds.federation import Federation


def check_data(federation: Federation) -> None:
    """The model is built for the data of the first start, also when the run is resumed."""
    progress, agreed = federation.progress, federation.agreed
    if not progress.shape:  # nothing is built yet
        progress.shape, progress.num_classes = agreed.shape, agreed.num_classes
        progress.preparation = json.dumps(agreed.preparation.json()) if agreed.preparation else ""
    elif progress.preparation:  # a resumed run's tables are prepared as they were
        preparation = Preparation.read(json.loads(progress.preparation))
        federation.reception.adopt(preparation, progress.num_classes)
    check_same(federation)
    agreed.num_classes = progress.num_classes
    federation.roster.reclaim()  # a resumed run remembers whose ids are
    federation.now.number = progress.round
    federation.measures  # noqa: B018 - those that such labels have, or a ConfigError
    if not any(member.test for member in federation.roster.members.values()):
        raise DataError(NO_TESTS)
    federation.turnout.rest()
    check_new_users(federation)


def check_same(federation: Federation) -> None:
    """NodeError for nodes whose samples are not what the run began with."""
    progress, agreed = federation.progress, federation.agreed
    fits = fitting(agreed.num_classes, progress.num_classes)
    if progress.shape != agreed.shape or not fits:
        raise NodeError(
            f"the nodes have samples of shape {agreed.shape} with {labels(agreed.num_classes)},"
            f" the run began with {progress.shape} and {labels(progress.num_classes)}."
        )


def check_new_users(federation: Federation) -> None:
    """ConfigError if some users are to come after training, and all or none would."""
    if federation.config.new.wanted and not (federation.users and federation.new_users):
        roster = federation.roster
        known = sorted({m.cluster for m in roster.members.values()} - {""})
        keys, count = federation.config.new, len(federation.new_users)
        raise ConfigError(
            f"new-users={keys.new_users:g} new-cluster={keys.new_cluster}: {count} of "
            f"{len(roster.users)} users would be new; some must be, and some not. "
            f"Known clusters: {', '.join(known) or 'none'}."
        )
