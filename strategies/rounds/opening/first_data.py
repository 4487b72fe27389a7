"""A run's data are those of its first start, also when it is resumed; asked before round 1."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import TYPE_CHECKING

from corsage.core.errors import ConfigError, DataError, NodeError
from corsage.core.registry import attached, attachment
from corsage.datasets.user_data import NO_TESTS
from corsage.strategies.rounds.opening.agreed import fitting, labels

if TYPE_CHECKING:
    from corsage.strategies.rounds.job import Job


def check_data(job: Job) -> None:
    """The model is built for the data of the first start, also when the run is resumed."""
    built, agreed = job.built, job.agreed
    if not built.shape:  # nothing is built yet
        built.shape, built.num_classes = agreed.shape, agreed.num_classes
        built.preparation = json.dumps(agreed.preparation.json()) if agreed.preparation else ""
    elif built.preparation:  # a resumed run's tables are prepared as they were
        preparation = attached("tables").Preparation.read(json.loads(built.preparation))
        job.members.reception.adopt(preparation, built.num_classes)
    check_same(job)
    if same := attachment("same data"):
        same.check(job)
    agreed.num_classes = built.num_classes
    vars(job).pop("task", None)  # nothing that tasks say changes any more
    job.members.roster.reclaim()  # a resumed run remembers whose ids are
    if job.members.devices is not None:
        job.members.devices.number = job.progress.round
    job.measures  # noqa: B018 - those that such labels have, or a ConfigError
    if not any(member.test for member in job.members.everybody.values()):
        raise DataError(NO_TESTS)
    job.members.rest()
    check_new_users(job)


def mark_of(job: Job, users: Sequence[str]) -> str:
    """The mark of some users' data, by which a result says what it is of."""
    same = attachment("same data")
    return str(same.mark_of(job.built.data, users)) if same else ""


def check_same(job: Job) -> None:
    """NodeError for nodes whose samples are not what the run began with."""
    built, agreed = job.built, job.agreed
    fits = fitting(agreed.num_classes, built.num_classes)
    if built.shape != agreed.shape or not fits:
        raise NodeError(
            f"the nodes have samples of shape {agreed.shape} with {labels(agreed.num_classes)},"
            f" the run began with {built.shape} and {labels(built.num_classes)}."
        )


def check_new_users(job: Job) -> None:
    """ConfigError if some users are to come after training, and all or none would."""
    if job.config.new.wanted and not (job.members.users and job.members.new_users):
        roster = job.members.roster
        known = sorted({m.cluster for m in roster.members.values()} - {""})
        keys, count = job.config.new, len(job.members.new_users)
        raise ConfigError(
            f"new-users={keys.new_users:g} new-cluster={keys.new_cluster}: {count} of "
            f"{len(roster.users)} users would be new; some must be, and some not. "
            f"Known clusters: {', '.join(known) or 'none'}."
        )
