"""Facts that the nodes' data have in common: the model is built for them, and some may not fit.

A run's data are those of its first start, also when it is resumed; asked before round 1.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence
from typing import TYPE_CHECKING

from corsage.core.configuration.config import Config
from corsage.core.errors import ConfigError, DataError, ModelError, NodeError
from corsage.core.messages.introduction import Introduction, other_frozen, too_large, too_many
from corsage.core.messages.limits import MODELS_ROOM
from corsage.core.registry import attached, attachment
from corsage.datasets.user_data import NO_TESTS

if TYPE_CHECKING:
    from corsage.core.tables.preparation import Preparation
    from corsage.networks.network import Network
    from corsage.strategies.rounds.job import Job

Kind = tuple[tuple[int, ...], bool]
"""The shape of a sample, and whether it has a class."""


class Agreed:
    """The kind of all samples, once the nodes that the run starts with have said it.

    Parameters
    ----------
    config : says what the model is, and how tables are prepared.

    Attributes
    ----------
    shape, num_classes : of a sample, () until then; no classes: labels are numbers.
    preparation : what was agreed on for tables; none: there are none.
    """

    def __init__(self, config: Config) -> None:
        self.config = config
        self.shape: tuple[int, ...] = ()
        self.num_classes = 0
        self.preparation: Preparation | None = None

    def agree(self, guests: Sequence[Introduction]) -> None:
        """Agree on what the model is built for; of tables, how their columns become its inputs."""
        self.shape, self.num_classes = majority(guests)
        kind = self.shape, self.num_classes > 0
        alike = [said for said in guests if (said.shape, said.num_classes > 0) == kind]
        tables = [said.table for said in alike if said.table]
        if 2 * len(tables) > len(alike):
            policy = attached("tables").policy_of(self.config)
            self.adopt(policy.agree(tables, self.num_classes, self._network))

    def adopt(self, preparation: Preparation) -> None:
        """Hold to what was agreed on."""
        self.preparation, self.shape = preparation, (len(preparation.features),)
        self.num_classes = len(preparation.classes) or self.num_classes

    def mismatch(self, guest: Introduction) -> str:
        """The reason why a node's data do not fit the model, if they do not."""
        if guest.users and self.preparation:
            found = table_mismatch(self.preparation, guest) or self._other_labels(guest)
            return found or self._too_large(guest)
        if guest.users and guest.table:
            return "it has a table, the others have not"
        if guest.users and guest.shape != self.shape:
            return f"its samples have shape {guest.shape}, the others' {self.shape}"
        return self._other_labels(guest) or self._other_frozen(guest) or self._too_large(guest)

    def _too_large(self, guest: Introduction) -> str:
        """The reason why a model is more than a node allows, before anything is sent there."""
        if not (guest.users and guest.most):
            return ""
        network, users = self._network(self.shape, self.num_classes), len(guest.users)
        size = network.whole.stop if network else 0
        if size > guest.most:
            return too_large(size, guest.most)
        space = MODELS_ROOM * guest.most
        return too_many(size, users, guest.most, MODELS_ROOM) if size * users > space else ""

    def _other_frozen(self, guest: Introduction) -> str:
        """The reason why a node's frozen part does not fit, if it says one."""
        if not guest.frozen:
            return ""
        network = self._network(guest.shape, guest.num_classes)
        here = network.vector.fixed.fingerprint if network else ""
        return other_frozen(guest.frozen, here) if here != guest.frozen else ""

    def _network(self, shape: tuple[int, ...], num_classes: int) -> Network | None:
        """The model for such samples, if there can be one; why not is said elsewhere."""
        from corsage.networks.build import build_network

        try:
            return build_network(self.config.model, shape, num_classes, self.config.run.seed)
        except ModelError:
            return None

    def _other_labels(self, guest: Introduction) -> str:
        """The reason why a node's labels do not fit the model, if they do not."""
        if guest.users and not fitting(guest.num_classes, self.num_classes):
            return f"it has {labels(guest.num_classes)}, the model {labels(self.num_classes)}"
        return ""


def table_mismatch(preparation: Preparation, guest: Introduction) -> str:
    """The reason why a node's table is not what was agreed on, if it is not."""
    if not guest.table:
        return "it has no table, the others have"
    return str(attached("tables").misfit(preparation, guest.table))


def majority(guests: Sequence[Introduction]) -> tuple[tuple[int, ...], int]:
    """The shape of a sample and the number of classes that most nodes say.

    Of as many nodes, those with more users. A device may have seen only some of the classes: if no
    number is said by more than half of the nodes, it is the largest that two of them say, or else
    the largest.
    """
    nodes, users = Counter[Kind](), Counter[Kind]()
    for said in guests:
        kind = said.shape, said.num_classes > 0
        nodes[kind] += 1
        users[kind] += len(said.users)
    kind = max(sorted(nodes), key=lambda kind: (nodes[kind], users[kind]))
    counts = Counter(s.num_classes for s in guests if (s.shape, s.num_classes > 0) == kind)
    often = [n for n, count in counts.items() if 2 * count > counts.total()]
    twice = [n for n, count in counts.items() if count > 1]
    return kind[0], max(often or twice or counts)


def fitting(num_classes: int, model: int) -> bool:
    """True if labels fit a model: numbers one for numbers, classes one for as many or more."""
    return num_classes == model if 0 in (num_classes, model) else num_classes <= model


def labels(num_classes: int) -> str:
    """Labels in words."""
    return f"{num_classes} classes" if num_classes else "numbers as labels"


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
