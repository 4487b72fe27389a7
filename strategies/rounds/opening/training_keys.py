"""Keys of local training that would do nothing: refused before anything runs."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from corsage.core.configuration.train_keys import LEARNING, LOSS
from corsage.core.errors import ConfigError, ModelError
from corsage.core.registry import attached
from corsage.core.training_paths import CHOICES, LAYERS

if TYPE_CHECKING:
    from corsage.core.configuration.key_groups import TrainKeys
    from corsage.networks.network import Network
    from corsage.strategies.rounds.base import Strategy
    from corsage.strategies.rounds.job import Job


def check_learning(strategy: Strategy[Any, Any]) -> None:
    """ConfigError for a key that the strategy's users have no use for."""
    for name, value in strategy.config.train.changed(LEARNING).items():
        if why := strategy.unused(name):
            raise ConfigError(f"{name}={value}: not for strategy={strategy.name}: {why}.")


def check_fits(strategy: Strategy[Any, Any], network: Network) -> None:
    """ModelError for keys that neither the model's loss nor its samples have a use for."""
    check_learning(strategy)  # of some strategies it is the labels that say what is of no use
    train = strategy.config.train
    if train.changed(LOSS):
        attached("objective").check_loss(train, network.criterion)
    if train.augment:
        attached("augment").check_images(train, strategy.job.agreed.shape)
    check_samples(strategy, network)
    if train.changed(LEARNING):
        note_slower(strategy, network)


def check_samples(strategy: Strategy[Any, Any], network: Network) -> None:
    """ModelError if nobody's samples are enough for a layer that normalises by the batch.

    Where some are, the others are dropped, and named, when they are to train.
    """
    from torch import zeros

    from corsage.networks.run_modes import refuses_one

    job, train = strategy.job, strategy.config.train
    steps = strategy.epochs(train, strategy.keys)
    if not steps or not network.batch_statistics:
        return
    enough = (2,) if train.batch_size == 1 else range(2, 2**62)  # two are one batch in any case
    if any(member.train in enough for member in job.members.everybody.values()):
        return
    example = zeros((1, *job.agreed.shape), device=network.device)
    if refuses_one(network.module, example, network.still):
        what = "batch-size=1" if train.batch_size == 1 else "every user has one training sample"
        raise ModelError(
            f"{what}, too few for BatchNorm, which normalises by the samples of a batch: take "
            "more, set batch-norm=frozen, or take a model without it."
        )


def note_slower(strategy: Strategy[Any, Any], network: Network) -> None:
    """Say which keys make a quick path one that is not as quick."""
    train, note = strategy.config.train, strategy.job.note
    if not network.stackable:
        pass  # users train one after the other in any case
    elif train.mixed_precision != "none":
        note(f"mixed-precision={train.mixed_precision}: users train one after the other")
    elif slow := train.changed(SLOWER):
        said = ", ".join(f"{name}={value}" for name, value in slow.items())
        note(f"{said}: steps are taken apart from gradients, which is slower than plain SGD")
    if train.augment and network.cacheable:
        kinds = ",".join(train.augment)
        note(f"features are not cached: augment={kinds} makes others at each step")


SLOWER = ("optimizer", "nesterov", "clip_gradient", "label_smoothing", "class_weights", "augment")
"""Keys that the quickest kernels do not know."""


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
