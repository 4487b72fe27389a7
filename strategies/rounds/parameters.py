"""A strategy's keys: as keyword arguments from Python, refused and completed as such.

Those of local training that would do nothing are refused before anything runs.
"""

from __future__ import annotations

import inspect
from collections import Counter
from collections.abc import Mapping
from dataclasses import replace
from logging import INFO
from typing import TYPE_CHECKING, Any

from flwr.supercore import log

from corsage.core.configuration.config import Config
from corsage.core.configuration.config import foreign_keys as keys_of_the_app
from corsage.core.configuration.known_keys import defaults, keys_of_algorithms
from corsage.core.configuration.train_keys import LEARNING, LOSS
from corsage.core.errors import ConfigError, ModelError
from corsage.core.keys import names
from corsage.core.registry import ALGORITHMS, attached
from corsage.core.training_paths import CHOICES, LAYERS

if TYPE_CHECKING:
    from corsage.core.configuration.key_groups import TrainKeys
    from corsage.networks.network import Network
    from corsage.strategies.rounds.base import Strategy
    from corsage.strategies.rounds.job import Job

FOR_COMMAND_LINE = "it is for the command line (python run_simulation.py)"
NOT_FOR_STRATEGIES = {
    "strategy": "the class is the strategy; simulate(...) takes several",
    "engine": f"{FOR_COMMAND_LINE}; from Python, give start() a grid, or use simulate(...)",
    "resume": f"{FOR_COMMAND_LINE}; from Python, restore a checkpoint in a callback",
    "run_dir": FOR_COMMAND_LINE,
    "checkpoint_every": FOR_COMMAND_LINE,
    "node_cpus": FOR_COMMAND_LINE,
    "node_gpus": FOR_COMMAND_LINE,
}
"""Keywords that would do nothing for a strategy, and where they belong."""

SAME_KEYS = {
    "num-server-rounds": "num-rounds",
    "learning-rate": "lr",
    "fraction-fit": "fraction-train",
    "epochs": "local-epochs",
}
"""Keys that many Flower apps have, and ours for it."""

StrategyClass = type["Strategy[Any, Any]"]


class Parameters:
    """The signature that notebooks complete: the keys of a strategy, with their defaults."""

    def __get__(self, _: object, cls: StrategyClass) -> inspect.Signature:
        """Made when somebody asks."""
        mine, foreign = set(names(cls.keys_class)), foreign_keys(cls)
        config = inspect.Parameter("config", inspect.Parameter.POSITIONAL_OR_KEYWORD, default=None)
        keys = [
            inspect.Parameter(name.replace("-", "_"), inspect.Parameter.KEYWORD_ONLY, default=value)
            for name, value in defaults().items()
            if (name in mine or name not in foreign)
            and name.replace("-", "_") not in NOT_FOR_STRATEGIES
        ]
        callbacks = inspect.Parameter(
            "callbacks", inspect.Parameter.POSITIONAL_OR_KEYWORD, default=()
        )
        return inspect.Signature([config, callbacks, *keys])


def foreign_keys(cls: StrategyClass) -> dict[str, str]:
    """The keys that only other algorithms have, and the first that has them."""
    own = set(names(cls.keys_class))
    return {key: owners[0] for key, owners in keys_of_algorithms().items() if key not in own}


def read_config(
    cls: StrategyClass, config: Config | Mapping[str, Any] | None, keys: Mapping[str, Any]
) -> Config:
    """A parsed configuration; keywords are keys with `_` for `-`, and win."""
    if isinstance(config, Config) and not keys:
        return config
    if not isinstance(config, Config | Mapping | None):
        raise ConfigError(
            f"{cls.__name__}({config!r}): keys are keyword arguments, "
            f"{cls.__name__}(num_users=20), "
            'or a mapping, {"num-users": 20}.'
        )
    for key, instead in NOT_FOR_STRATEGIES.items():
        if key in keys:
            raise ConfigError(
                f"{key.replace('_', '-')}: {cls.__name__}() has no use for it; {instead}."
            )
    flat = config.flat() if isinstance(config, Config) else dict(config or {})
    given, foreign = (
        {key.replace("_", "-"): value for key, value in keys.items()},
        foreign_keys(cls),
    )
    for key in given:
        if key in foreign:
            raise ConfigError(f"{key}: a key of {foreign[key]}, not of {cls.name}; leave it out.")
    theirs = set(app_keys(cls.name, flat))
    values = {**{k: v for k, v in flat.items() if k not in theirs}, **given}
    if cls.name in ALGORITHMS:
        values["strategy"] = cls.name
    return Config.parse(values)


def app_keys(name: str, values: Mapping[str, Any]) -> dict[str, Any]:
    """The keys of a run config that belong to the app around us: they are named, and left alone."""
    theirs = keys_of_the_app(values)
    if theirs:
        log(INFO, "%s: not Corsage's, left to the app: %s", name, ", ".join(map(noted, theirs)))
    return theirs


def noted(key: str) -> str:
    """An app's key, with the one of ours that means the same."""
    return f"{key} (Corsage's is {SAME_KEYS[key]})" if key in SAME_KEYS else key


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
