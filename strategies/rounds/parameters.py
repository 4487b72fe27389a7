"""A strategy's parameters from Python: keys as keyword arguments, refused and completed as such."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from logging import INFO
from typing import TYPE_CHECKING, Any

from flwr.supercore import log

from corsage.core.configuration.config import Config
from corsage.core.configuration.config import foreign_keys as keys_of_the_app
from corsage.core.configuration.known_keys import defaults, keys_of_algorithms
from corsage.core.errors import ConfigError
from corsage.core.keys import names
from corsage.core.registry import ALGORITHMS

if TYPE_CHECKING:
    from corsage.strategies.rounds.base import Strategy

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
