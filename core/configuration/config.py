"""The configuration: flat kebab-case keys outside, typed and checked dataclasses inside.

Keys are flat outside (`num-rounds=20` on the command line, in a TOML file or in
`flwr run --run-config`) and fields of frozen dataclasses inside (`config.run.num_rounds`). Those
that every run has are declared in `key_groups.py`, those of a data set or an algorithm in its
file.
"""

from __future__ import annotations

import dataclasses
import difflib
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from corsage.core.configuration.held_objects import Held, held, hold, importable, is_name
from corsage.core.configuration.key_groups import (
    GROUPS,
    SOME_USERS,
    DataKeys,
    FederationKeys,
    ModelKeys,
    NewUserKeys,
    RobustKeys,
    RunKeys,
    TrainKeys,
)
from corsage.core.configuration.known_keys import (
    defaults,
    keys_of_algorithms,
    keys_of_data_sets,
    known_keys,
)
from corsage.core.configuration.server_keys import ServerKeys
from corsage.core.errors import ConfigError
from corsage.core.keys import Keys, Value, flatten, names, nearest, read
from corsage.core.measures import measures_named
from corsage.core.registry import (
    ALGORITHMS,
    DATASETS,
    data_keys,
    data_set,
    device_keys,
    keys_class,
    source,
)
from corsage.core.training_paths import AUTO

AUTOMATIC = "auto"
"""In the place of strategies: those that suit the data (app/automatic.py)."""
SLIP = 0.85
"""How alike a word and a key must be for the word to be a slip of the pen."""
OBJECTS = ("model",)
"""Keys that may be an object, from Python."""


@dataclass(frozen=True)
class Config:
    """All keys, parsed and checked.

    Parameters
    ----------
    run, federation, model, train, robust, server, new : one field a group.
    data : the keys of the data set that is named: those that all share, and those of its own.
    device_data : how a device reads a file of its own, whatever the data set.
    algorithm : the keys of each algorithm that is named, or that a key which is set belongs to.
    held : objects of this process that keys name: a model, data. They last as long as this does.
    """

    run: RunKeys = RunKeys()
    federation: FederationKeys = FederationKeys()
    data: DataKeys = DataKeys()
    device_data: DataKeys = DataKeys()
    model: ModelKeys = ModelKeys()
    train: TrainKeys = TrainKeys()
    robust: RobustKeys = RobustKeys()
    server: ServerKeys = ServerKeys()
    new: NewUserKeys = NewUserKeys()
    algorithm: Mapping[str, Keys] = field(default_factory=dict)
    held: tuple[Held, ...] = field(default=(), compare=False, repr=False)

    @classmethod
    def parse(cls, values: Mapping[str, Any] | None = None) -> Config:
        """Build the configuration from flat kebab-case keys; what is absent has its default."""
        check_names(values or {})
        values, objects = named_objects(values or {})
        values = {**needed(values), **values}
        groups: dict[str, Any] = {name: read(group, values) for name, group in GROUPS.items()}
        check_strategies(groups["run"].strategy, ALGORITHMS)
        check_device(groups["train"].device)
        check_measures(groups["run"].measures)
        groups["new"].cases  # noqa: B018 - numbers, or a ConfigError
        groups["robust"].check()
        groups["train"].check()
        groups["server"].check()
        groups["data"] = read(data_keys(groups["data"].dataset), values)
        device_data = read(device_keys(), values)
        check_data(groups["data"], without(values, names(type(device_data))))
        groups["federation"] = with_users(groups["federation"], groups["data"])
        keys = {name: read(keys_class(name), values) for name in spoken_of(values)}
        return cls(**groups, device_data=device_data, algorithm=keys, held=objects)

    def keys_of(self, name: str) -> Keys:
        """The keys of an algorithm's own, with those that a preset fixes."""
        keys = self.algorithm.get(source(name)) or read(keys_class(name), self.flat())
        return dataclasses.replace(keys, **ALGORITHMS[name].fixed)  # type: ignore[type-var]

    def flat(self) -> dict[str, Value]:
        """The whole configuration as flat keys, as Flower's run config takes them."""
        flat = defaults()
        groups = (getattr(self, name) for name in ("device_data", *GROUPS))
        for keys in (*groups, *self.algorithm.values()):
            flat.update(flatten(keys))
        return flat

    def check_simulated(self) -> None:
        """Refuse keys for files of devices: a simulation has none, and would ignore them."""
        check_data(self.data, flatten(self.device_data))


def needed(values: Mapping[str, Any]) -> dict[str, str]:
    """The keys that the strategies need, or they or the data prefer, to be other than usual."""
    names, found = strategies_of(values), dict[str, str]()
    for name in names:
        for key, value in keys_class(name).needs.items():
            if found.setdefault(key, value) != value and key not in values:
                first = next(n for n in names if keys_class(n).needs.get(key) == found[key])
                raise ConfigError(
                    f"strategy={','.join(names)}: {first} needs {key}={found[key]} and {name} "
                    f"{key}={value}: run them apart, and put both into one table by corsage "
                    "compare RUN RUN."
                )
    for name in names:
        found = {**keys_class(name).prefers, **found}
    own, usual = suited(values), defaults()
    return {**own, **{k: v for k, v in found.items() if k not in own or v != usual[k]}}


def suited(values: Mapping[str, Any]) -> dict[str, str]:
    """The keys that the data prefer; the size of their model is of no other."""
    if values.get("dataset") not in DATASETS:
        return {}
    return without(data_set(values["dataset"]).prefers, ["hidden"] if "model" in values else [])


def strategies_of(values: Mapping[str, Any]) -> list[str]:
    """The strategies that the keys name, of those that there are."""
    own = {key: value for key, value in values.items() if key == "strategy"}
    return [name for name in read(RunKeys, own).strategy if name in ALGORITHMS]


def spoken_of(values: Mapping[str, Any]) -> list[str]:
    """The algorithms whose keys are read: those that are named, and the first that has a key which
    is set to something and belongs to none of them."""
    named = list(dict.fromkeys(source(name) for name in strategies_of(values)))
    table = known_keys()
    for key, owners in keys_of_algorithms().items():
        if key in values and values[key] != table[key].default and not {*owners} & {*named}:
            named.append(owners[0])
    return named


def named_objects(values: Mapping[str, Any]) -> tuple[dict[str, Any], tuple[Held, ...]]:
    """The values with objects of this process under names, and these objects."""
    found, objects = dict(values), []
    for key, value in values.items():
        if key in OBJECTS and not isinstance(value, str | float | int):
            found[key] = importable(value)
            if not found[key]:
                objects.append(hold(value))
                found[key] = objects[-1].name
        elif isinstance(value, str) and is_name(value) and (known := held(value)):
            objects.append(known)
    return found, tuple(objects)


def without(values: Mapping[str, Any], known: Iterable[str]) -> dict[str, Any]:
    """The values of other keys than these."""
    known = set(known)
    return {name: value for name, value in values.items() if name not in known}


def check_names(values: Mapping[str, Any]) -> None:
    """Refuse a key that nobody declares."""
    known = defaults()
    for name in values:
        if name not in known and name not in unprinted(values):
            close = difflib.get_close_matches(name, known, n=1)
            hint = f" Did you mean {close[0]}?" if close else ""
            raise ConfigError(f"{name}: no such key.{hint} `--help keys` lists all.")


def unprinted(values: Mapping[str, Any]) -> list[str]:
    """Keys of the named algorithms and data set, which the table need not have yet."""
    groups = [keys_class(name) for name in strategies_of(values)]
    groups += [data_keys(name) for name in (values.get("dataset"),) if name in DATASETS]
    return [name for group in groups for name in names(group)]


def foreign_keys(values: Mapping[str, Any]) -> dict[str, Any]:
    """The keys of a mapping that are an app's own: nothing here is like them.

    A run config of Flower's is one for the whole app. What is nearly one of ours is taken for a
    slip, and refused.
    """
    known = {*defaults(), *unprinted(values)}
    foreign = without(values, known)
    slips = [n for n in foreign if difflib.get_close_matches(n, known, n=1, cutoff=SLIP)]
    check_names({name: foreign[name] for name in slips})
    return foreign


def check_strategies(names: tuple[str, ...], known: Iterable[str]) -> None:
    """Refuse strategies that are not there, none at all, or one twice."""
    if AUTOMATIC in names:
        raise ConfigError(
            "strategy=auto: it is decided where the data are, in a simulation of one's own "
            "(run_simulation.py, corsage.fit, corsage.simulate); here name strategies."
        )
    if not names:
        raise ConfigError(f"strategy=: name at least one. Known: {', '.join(known)}.")
    for name in names:
        if name not in known:
            raise ConfigError(f"strategy={name}: no such strategy.{meant(name, known)}")
        if names.count(name) > 1:
            raise ConfigError(f"strategy={','.join(names)}: {name} is named twice.")


def meant(name: str, known: Iterable[str]) -> str:
    """A hint at the strategies that somebody meant."""
    if {*name.split()} <= {*known} and name:
        return f" Names have commas between them: strategy={','.join(name.split())}."
    if ":" in name or "." in name:
        return " One of your own is given as an object, from Python: simulate([Mine()])."
    return nearest(name, known)


def check_measures(names: tuple[str, ...]) -> None:
    """Refuse measures that are not there; which of them labels have, the data will say."""
    if names != (AUTO,):
        measures_named(",".join(names))


def check_device(name: str) -> None:
    """Refuse what can be no device; whether a node has it, only the node knows."""
    if not re.fullmatch(r"cpu|cuda(:\d+)?|mps|xpu(:\d+)?", name):
        raise ConfigError(f"device={name}: no such device. It is cpu, cuda, cuda:1, mps, ...")


def with_users(keys: FederationKeys, data: DataKeys) -> FederationKeys:
    """The keys with a number of users: all that the data have, where nobody asked for others."""
    if keys.num_users >= 0:
        return keys
    own = data.partition == AUTO and data.dealing == "natural"
    return dataclasses.replace(keys, num_users=0 if own else SOME_USERS)


def check_data(data: DataKeys, values: Mapping[str, Any]) -> None:
    """Refuse keys of other data sets that are set: they would be ignored in silence."""
    table = known_keys()
    for name, owners in keys_of_data_sets().items():
        if name in values and name not in names(type(data)) and values[name] != table[name].default:
            given = flatten(read(data_keys(owners[0]), {name: values[name]}))[name]
            if given != table[name].default:
                raise ConfigError(
                    f"{name}={given}: dataset={data.dataset} has no use for it; leave it out, or "
                    f"set dataset={', '.join(owners)}."
                )
