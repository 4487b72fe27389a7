"""The path of a run's training: chosen once, and sent to all nodes with the model."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from typing import TYPE_CHECKING

from corsage.core.training_paths import CHOICES, LAYERS

if TYPE_CHECKING:
    from corsage.core.configuration.key_groups import TrainKeys
    from corsage.strategies.rounds.job import Job


def settle(job: Job) -> None:
    """Choose the path where nobody has: an earlier strategy of the run, or the key.

    It is said in a line; a built-in model whose kernels are known needs none.
    """
    from corsage.networks.local_training import choose_path
    from corsage.networks.zoo import ZOO

    built, model = job.built, job.config.model
    if job.training_path in CHOICES:
        built.training_path = job.training_path
        return
    agreed, seed = job.agreed, job.config.run.seed
    facts = agreed.shape, agreed.num_classes, seed, as_they_are(job)
    choice = choose_path(model, *facts, at_one_place(job))
    built.training_path = choice.name
    if choice.why and not (choice.name == LAYERS and model.model in ZOO):
        job.note(f"training-path={choice.name}: {choice.why}")


def as_they_are(job: Job) -> TrainKeys:
    """The keys of training, with batches no larger than the largest user's data."""
    train = job.train
    most = max((member.train for member in job.members.everybody.values()), default=0)
    return replace(train, batch_size=max(1, min(train.batch_size, most)))


def at_one_place(job: Job) -> int:
    """The most users of a device; of a simulation, whose nodes are by cores, all."""
    members = job.members.everybody.values()
    if job.members.at_home:
        return len(members)
    return max(Counter(member.node for member in members).values(), default=0)
