"""The configuration: flat kebab-case keys outside, typed and checked dataclasses inside.

Keys are flat outside (`num-rounds=20` on the command line, in a TOML file or in
`flwr run --run-config`) and fields of frozen dataclasses inside (`config.run.num_rounds`). Those
that every run has are declared in `groups.py`, those of a data set or an algorithm in its
file.
"""

from __future__ import annotations

import dataclasses
import difflib
import re
import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from corsage.core.configuration.catalogue import defaults
from corsage.core.configuration.groups import (
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
from corsage.core.configuration.held import Held, held, hold, importable, is_name
from corsage.core.configuration.server_keys import ServerKeys
from corsage.core.errors import ConfigError
from corsage.core.keys import Keys, NoKeys, Value, flatten, names, nearest, read
from corsage.core.measures import measures_named
from corsage.core.paths import AUTO
from corsage.core.registry import (
    ALGORITHMS,
    DATASETS,
    DEVICE,
    algorithm_keys,
    data_keys,
    keys_class,
    source,
    users_of,
)

RETIRED: dict[str, str] = {
    "fedrep-heads=own": "say strategy=fedrep",
    "fedrep-heads=convex-clustering": "say strategy=fedrep-convex",
    "fedrep-heads=known-clusters": "say strategy=fedrep-known",
    "fedrep-heads": "say strategy=fedrep, fedrep-convex or fedrep-known",
    "fedrep-heads-lambda": "say fedrep-convex-lambda (of strategy=fedrep-convex)",
    "fedrep-heads-neighbours": "say fedrep-convex-neighbours (of strategy=fedrep-convex)",
    "fedrep-heads-rho": "say fedrep-convex-rho (of strategy=fedrep-convex)",
    "fedrep-heads-gamma": "say fedrep-known-gamma (of strategy=fedrep-known)",
    "fedrep-heads-middle": "say fedrep-known-lambda (of strategy=fedrep-known)",
}
"""Keys of earlier versions, or one of their values, and what they are now."""
AUTOMATIC = "auto"
"""In the place of strategies: those that suit the data (app/automatic.py)."""
SLIP = 0.85
"""How alike a word and a key must be for the word to be a slip of the pen."""
OF_DATA = [name for name in names(DataKeys) if name != "cache-dir"]
"""Keys with which somebody says which data are meant."""
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
    algorithm : the keys of each algorithm that has keys of its own.
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
        device_data = read(data_keys(DEVICE), values)
        check_data(groups["data"], without(values, names(type(device_data))))
        groups["federation"] = with_users(groups["federation"], groups["data"])
        keys = {name: read(declared, values) for name, declared in algorithm_keys().items()}
        return cls(**groups, device_data=device_data, algorithm=keys, held=objects)

    def keys_of(self, name: str) -> Keys:
        """The keys of an algorithm's own, with those that a preset fixes."""
        keys = self.algorithm.get(source(name), NoKeys())
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
    """The keys that the strategies need, or prefer, to have another value than usual."""
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
    return found


def strategies_of(values: Mapping[str, Any]) -> list[str]:
    """The strategies that the keys name, of those that there are."""
    own = {key: value for key, value in values.items() if key == "strategy"}
    return [name for name in read(RunKeys, own).strategy if name in ALGORITHMS]


def exampled(values: Mapping[str, Any]) -> tuple[dict[str, Any], str]:
    """The keys, and the line that says what nobody set: what strategies need, and the data.

    Where no data are named, the first strategy's example is taken, if the others suit it; `parse`
    adds what strategies need.
    """
    names, found, said = strategies_of(values), dict(values), []
    kind = Path(str(values.get("data-file", ""))).suffix.removeprefix(".").lower()
    if "dataset" not in values and kind in DATASETS:
        found["dataset"] = kind
        said.append(f"dataset={kind}, as the file's name says")
    if names and not (set(OF_DATA) | {"data-file"}) & set(values):
        example, must = keys_class(names[0]).example, needed(values)
        check_suited(names)
        own = {k: v for k, v in example.items() if k not in values and must.get(k, v) == v}
        found |= own
        said += [f"{spelled(own)}, the example of {names[0]}"] if own else []
    usual = defaults()
    wanted = {key: value for key, value in needed(found).items() if key not in found}
    own = {key: value for key, value in wanted.items() if value != usual[key]}
    for name in names:
        wants = {**keys_class(name).prefers, **keys_class(name).needs}
        mine = {k: v for k, v in own.items() if wants.get(k) == v}
        said += [f"{spelled(mine)}, which {name} needs"] if mine else []
        own = without(own, mine)
    return found, f"Not set: {'; '.join(said)}." if said else ""


def check_suited(names: list[str]) -> None:
    """Refuse strategies that cannot have the first one's example, where no data are named."""
    if keys_class(names[0]).example:
        return  # two classes or numbers, in known clusters: it suits all
    unfit = [name for name in names if keys_class(name).asks]
    if unfit:
        other = keys_class(unfit[0])
        raise ConfigError(
            f"strategy={','.join(names)}: the digits, on which {names[0]} runs where no data are "
            f"named, do not fit {', '.join(unfit)} ({other.asks}); name data that fit all, such as "
            f"{spelled(other.example)}."
        )


def spelled(values: Mapping[str, str]) -> str:
    """Keys as the command line has them."""
    return " ".join(f"{key}={value}" for key, value in values.items())


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
    known = list(defaults())
    for name, value in values.items():
        if now := RETIRED.get(f"{name}={value}", RETIRED.get(name, "")):
            raise ConfigError(f"{name}={value}: no longer a key: {now}.")
        if name not in known:
            close = difflib.get_close_matches(name, known, n=1)
            hint = f" Did you mean {close[0]}?" if close else ""
            raise ConfigError(f"{name}: no such key.{hint} `--help keys` lists all.")


def foreign_keys(values: Mapping[str, Any]) -> dict[str, Any]:
    """The keys of a mapping that are an app's own: nothing here is like them.

    A run config of Flower's is one for the whole app. What is nearly one of ours is taken for a
    slip, and refused.
    """
    known = list(defaults())
    foreign = {
        name: value
        for name, value in values.items()
        if name not in known and name not in RETIRED and f"{name}={value}" not in RETIRED
    }
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
            raise ConfigError(f"strategy={name}: no such strategy.{nearest(name, known)}")
        if names.count(name) > 1:
            raise ConfigError(f"strategy={','.join(names)}: {name} is named twice.")


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
    foreign = without(values, names(type(data)))
    for group in dict.fromkeys(data_keys(name) for name in DATASETS):
        own = {name: foreign[name] for name in names(group) if name in foreign}
        idle, said = flatten(group()), flatten(read(group, own)) if own else {}
        for name in own:
            if said[name] != idle[name]:
                raise ConfigError(
                    f"{name}={said[name]}: dataset={data.dataset} has no use for it; leave it out, "
                    f"or set dataset={', '.join(users_of(name))}."
                )


def read_words(words: Iterable[str]) -> dict[str, Any]:
    """`key=value` words and TOML files of the command line; later ones win."""
    values: dict[str, Any] = {}
    for word in words:
        if word.endswith(".toml") and "=" not in word:
            values.update(read_toml(Path(word)))
        elif "=" in word:
            name, value = word.split("=", 1)
            values[name.strip().removeprefix("--")] = value.strip().strip("'\"")
        else:
            raise ConfigError(f"{word}: expected key=value or a TOML file.")
    return values


def read_toml(path: Path) -> dict[str, Any]:
    """Flat keys of a TOML file; tables in it only group them."""
    try:
        tables = tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigError(f"{path}: cannot be read ({error.strerror}).") from error
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(f"{path}: not valid TOML ({error}).") from error
    values: dict[str, Any] = {}
    for name, value in tables.items():
        values.update(value if isinstance(value, dict) else {name: value})
    return values
