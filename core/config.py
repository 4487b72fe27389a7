"""The configuration: every key of Corsage, declared, documented and checked once.

Keys are flat and kebab-case outside (`num-rounds=20` on the command line, in a TOML file or in
`flwr run --run-config`) and fields of frozen dataclasses inside (`config.run.num_rounds`). The
keys that belong to one algorithm are declared in that algorithm's strategy file.
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

from corsage.core.errors import ConfigError
from corsage.core.keys import Keys, NoKeys, Value, convert, flatten, kebab, key, nearest, read


@dataclass(frozen=True)
class RunKeys(Keys):
    """What is run and what is written down."""

    title = "Run"

    strategy: tuple[str, ...] = key(
        ("fedrep", "fedavg", "local"),
        "algorithm, or several with commas: they are compared on the same users",
    )
    num_rounds: int = key(100, "rounds of training", low=1)
    engine: str = key(
        "local",
        "local: nodes in this process; ray: Flower's virtual client engine",
        choices=("local", "ray"),
    )
    seed: int = key(0, "seeds every random draw, with its purpose, round and user", low=0)
    run_dir: str = key("runs", "folder in which each run makes its own folder")
    resume: str = key("", "run folder of an interrupted run that is to be finished")
    evaluate_every: int = key(
        5, "rounds between evaluations of all users; the last 10 always are", low=1
    )
    checkpoint_every: int = key(1, "rounds between checkpoints", low=1)


@dataclass(frozen=True)
class FederationKeys(Keys):
    """Who takes part, and how long the server waits for them."""

    title = "Users and nodes"

    num_users: int = key(
        50, "users in a simulation; 0: as many as the data has (natural partition)", low=0
    )
    num_nodes: int = key(
        0,
        "nodes that host the users; 0: one (local), one a worker (ray). On devices: how many "
        "the server waits for before it starts (0: one)",
        low=0,
    )
    fraction_train: float = key(
        0.1, "share of the users that train in a round (r)", low=0.0, high=1.0
    )
    min_users: int = key(1, "a round with fewer good replies than this fails", low=1)
    node_timeout: float = key(60.0, "seconds the server waits for nodes to connect", low=0.0)
    round_timeout: float = key(
        600.0, "seconds a node has to reply; later replies are dropped", low=0.0
    )
    ray_address: str = key("", "an existing Ray cluster, such as auto or ray://host:10001")
    node_cpus: float = key(1.0, "ray: CPUs reserved for each worker", low=0.01)
    node_gpus: float = key(0.0, "ray: GPUs reserved for each worker", low=0.0)


@dataclass(frozen=True)
class DataKeys(Keys):
    """Which data, and how they are dealt to the users."""

    title = "Data"

    dataset: str = key(
        "digits",
        "the data set",
        choices=(
            "digits", "fashion-mnist", "mnist", "cifar10", "cifar100", "femnist", "sent140",
            "csv", "npz", "chem97", "donors", "hierarchical", "ellipses",
        ),
    )  # fmt: skip
    data_dir: str = key(
        "", "folder with the publisher's files (mnist, fashion-mnist, cifar*), LEAF's (femnist, "
        "sent140); empty: the Hugging Face hub"
    )  # fmt: skip
    data_file: str = key("", "file of one's own (csv, npz; donors: a CSV file of the same form)")
    user_column: str = key("user", "csv, npz: column that names each sample's user")
    label_column: str = key("label", "csv, npz: column of the class (npz: y is understood too)")
    cluster_column: str = key("", "csv, npz: column of the user's known cluster, if any")
    feature_columns: tuple[str, ...] = key(
        (), "csv, chem97: columns that are the input, with commas; none: no input, a model of the "
        "intercept alone; empty: all that are left (chem97: gcsecnt,gender,age, of which the first "
        "may be gcsescore instead)"
    )  # fmt: skip
    labels: str = key(
        "classes", "csv, npz: what the label column holds, classes or numbers to predict",
        choices=("classes", "numbers"),
    )  # fmt: skip
    cluster_map: str = key(
        "",
        'JSON file of the users\' known clusters, {"user": "cluster"} or {"cluster": ["user"]}, '
        "instead of those that the data have",
    )
    partition: str = key(
        "shards",
        "how samples are dealt: the paper's shards, exactly classes-per-user distinct classes, "
        "classes-per-user consecutive ones, Dirichlet label shares, or the data's own users",
        choices=("iid", "shards", "classes", "consecutive", "dirichlet", "natural"),
    )
    classes_per_user: int = key(2, "shards, classes, consecutive: classes a user (S)", low=1)
    alpha: float = key(0.5, "dirichlet: concentration; small is heterogeneous", low=1e-6)
    size_sigma: float = key(
        0.0, "sigma of lognormal user sizes, 0: equal (iid, shards, classes, consecutive)", low=0.0
    )
    mean_samples: int = key(
        0, "samples a user on average, classes as evenly as the data allow; 0: all are dealt", low=0
    )
    min_samples: int = key(0, "natural: users with fewer samples are left out", low=0)
    test_fraction: float = key(
        0.2,
        "share of each user's samples kept for its test (hierarchical, ellipses, npz with an array "
        "test: the data say which are)",
        low=0.0,
        high=0.9,
    )
    max_train_samples: int = key(0, "at most so many training samples a user, 0: no limit", low=0)
    femnist_classes: str = key(
        "letters",
        "femnist: lower-case a-j (the paper's: partition=consecutive classes-per-user=3 "
        "num-users=150 mean-samples=148 size-sigma=1.2), digits, both as the known clusters "
        "letters and digits (new-cluster=digits: new users as in the paper), or all 62",
        choices=("letters", "digits", "letters-digits", "all"),
    )
    embeddings: str = key(
        "glove.6B.300d.txt", "sent140: text file of frozen word vectors, in data-dir or a path"
    )
    data_seed: int = key(
        1, "hierarchical, donors, ellipses: seed of the data themselves (the key seed draws the "
        "rest)", low=0
    )  # fmt: skip
    num_clusters: int = key(3, "hierarchical, ellipses (at most 3): known clusters", low=1)
    users_per_cluster: int = key(
        20, "hierarchical, donors, ellipses: users a cluster (donors: on average)", low=1
    )
    samples_per_user: int = key(
        10, "hierarchical, donors, ellipses: training samples a user (donors: the median)", low=1
    )
    num_features: int = key(20, "hierarchical: width of the input (d)", low=1)
    noise: float = key(1.0, "hierarchical: variance of the noise (sigma^2)", low=0.0)
    user_variance: tuple[str, ...] = key(
        ("1",), "hierarchical: variance of users in their cluster (sigma_j^2), or low,high: "
        "log-uniform between them, one a cluster"
    )  # fmt: skip
    cluster_variance: float = key(1.0, "hierarchical: variance of the clusters' centres", low=0.0)
    cache_dir: str = key("", "where prepared data are kept; empty: the user's cache folder")


@dataclass(frozen=True)
class ModelKeys(Keys):
    """The model that every user has a version of."""

    title = "Model"

    model: str = key(
        "mlp",
        "linear, mlp, lenet, cnn, the paper's cnn-cifar10, cnn-cifar100 and lstm (sent140), or "
        "one's own package.module:factory",
    )
    hidden: str = key(
        "200", "mlp: sizes of the hidden layers, with commas (femnist in FedRep's code: 512,256,64)"
    )
    head: str = key("", "name of the module that is the head; empty: the last linear layer")
    loss: str = key(
        "auto",
        "cross-entropy, or, of two classes, logistic or squared-hinge; of numbers, squared or "
        "huber; auto: cross-entropy for classes, squared for numbers",
        choices=("auto", "cross-entropy", "logistic", "squared-hinge", "squared", "huber"),
    )
    huber_delta: float = key(1.0, "huber: errors beyond this count linearly", low=1e-9)
    intercept: bool = key(True, "linear: with an intercept")
    loss_scale: str = key(
        "auto",
        "convex methods: f_i is the sum or the mean of its samples' losses; auto: as the method's "
        "paper has it",
        choices=("auto", "sum", "mean"),
    )
    ridge: float = key(
        0.0, "convex methods: c in f_i + c/2 |w|^2, on the weights and not the intercept", low=0.0
    )
    precision: str = key(
        "float64", "convex methods: numbers they compute with", choices=("float64", "float32")
    )


@dataclass(frozen=True)
class TrainKeys(Keys):
    """Training at a user."""

    title = "Local training"

    local_epochs: int = key(1, "epochs a round (FedRep: of the body, after the head's)", low=0)
    fine_tune_epochs: int = key(
        10,
        "methods with one global model: epochs of each user's head after the last round, reported "
        "as a row of its own (fedavg+ft); 0: none",
        low=0,
    )
    batch_size: int = key(10, "samples a step; the last short batch is kept", low=1)
    lr: float = key(0.01, "step size of SGD", low=0.0)
    momentum: float = key(0.5, "momentum of SGD; starts at zero for each user and round", low=0.0)
    weight_decay: float = key(1e-4, "weight decay, on weights and not on biases", low=0.0)
    weighting: str = key(
        "uniform",
        "weights of the average over users: uniform, or by their training examples",
        choices=("uniform", "examples"),
    )
    device: str = key("cpu", "cpu, cuda, cuda:1, ...; a device's node config may override it")
    torch_threads: int = key(
        1,
        "torch threads a node; on spare cores more save seconds and cost CPU time, more than there "
        "are cores cost many times more",
        low=1,
    )


@dataclass(frozen=True)
class NewUserKeys(Keys):
    """Users that never take part in training, and adapt to what it found."""

    title = "New users"

    new_users: float = key(
        0.0, "share of the users held out as new users that adapt at the end", low=0.0, high=0.9
    )
    new_cluster: str = key("", "known cluster all of whose users are new users")
    adapt_samples: tuple[str, ...] = key(
        ("0",), "training samples that a new user has, several with commas; 0: all of its own"
    )
    adapt_epochs: tuple[str, ...] = key(
        ("10",), "epochs of a new user's adaptation, several with commas"
    )

    @property
    def wanted(self) -> bool:
        """Whether there are new users at all."""
        return self.new_users > 0 or bool(self.new_cluster)

    @property
    def cases(self) -> list[tuple[int, int]]:
        """Every (samples, epochs) that new users are evaluated with."""
        pair = {"adapt-samples": self.adapt_samples, "adapt-epochs": self.adapt_epochs}
        numbers = [[convert(k, word, int) for word in words] for k, words in pair.items()]
        return [(samples, epochs) for samples in numbers[0] for epochs in numbers[1]]


GROUPS: dict[str, type[Keys]] = {
    "run": RunKeys,
    "federation": FederationKeys,
    "data": DataKeys,
    "model": ModelKeys,
    "train": TrainKeys,
    "new": NewUserKeys,
}


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


@dataclass(frozen=True)
class Config:
    """All keys, parsed and checked: one field a group, and `algorithm[name]` for each algorithm."""

    run: RunKeys = RunKeys()
    federation: FederationKeys = FederationKeys()
    data: DataKeys = DataKeys()
    model: ModelKeys = ModelKeys()
    train: TrainKeys = TrainKeys()
    new: NewUserKeys = NewUserKeys()
    algorithm: Mapping[str, Keys] = field(default_factory=dict)

    @classmethod
    def parse(cls, values: Mapping[str, Any] | None = None) -> Config:
        """Build the configuration from flat kebab-case keys; what is absent has its default."""
        from corsage.core.registry import ALGORITHMS, algorithm_keys

        values = dict(values or {})
        check_names(values)
        groups: dict[str, Any] = {name: read(group, values) for name, group in GROUPS.items()}
        check_strategies(groups["run"].strategy, ALGORITHMS)
        check_device(groups["train"].device)
        groups["new"].cases  # noqa: B018 - numbers, or a ConfigError
        keys = {name: read(declared, values) for name, declared in algorithm_keys().items()}
        return cls(**groups, algorithm=keys)

    def keys_of(self, name: str) -> Keys:
        """The keys of an algorithm's own, with those that a preset fixes."""
        from corsage.core.registry import ALGORITHMS, source

        keys = self.algorithm.get(source(name), NoKeys())
        return dataclasses.replace(keys, **ALGORITHMS[name].fixed)  # type: ignore[type-var]

    def flat(self) -> dict[str, Value]:
        """The whole configuration as flat keys, as Flower's run config takes them."""
        flat: dict[str, Value] = {}
        for keys in (*(getattr(self, name) for name in GROUPS), *self.algorithm.values()):
            flat.update(flatten(keys))
        return flat


def declared_groups() -> list[tuple[type[Keys], list[dataclasses.Field[Any]]]]:
    """Every dataclass that declares keys, and its own: those that methods share come once."""
    from corsage.core.registry import algorithm_keys

    seen: set[str] = set()
    groups = []
    for group in (*GROUPS.values(), *algorithm_keys().values()):
        own = [f for f in dataclasses.fields(group) if f.name not in seen]  # type: ignore[arg-type]
        seen |= {f.name for f in own}
        groups += [(group, own)] if own else []
    return groups


def check_names(values: Mapping[str, Any]) -> None:
    """Refuse a key that no group declares."""
    known = [kebab(f.name) for _, fields in declared_groups() for f in fields]
    for name, value in values.items():
        if now := RETIRED.get(f"{name}={value}", RETIRED.get(name, "")):
            raise ConfigError(f"{name}={value}: no longer a key: {now}.")
        if name not in known:
            close = difflib.get_close_matches(name, known, n=1)
            hint = f" Did you mean {close[0]}?" if close else ""
            raise ConfigError(f"{name}: no such key.{hint} `--help` lists all keys.")


def check_strategies(names: tuple[str, ...], known: Iterable[str]) -> None:
    """Refuse strategies that are not there, none at all, or one twice."""
    if not names:
        raise ConfigError(f"strategy=: name at least one. Known: {', '.join(known)}.")
    for name in names:
        if name not in known:
            raise ConfigError(f"strategy={name}: no such strategy.{nearest(name, known)}")
        if names.count(name) > 1:
            raise ConfigError(f"strategy={','.join(names)}: {name} is named twice.")


def check_device(name: str) -> None:
    """Refuse what can be no device; whether a node has it, only the node knows."""
    if not re.fullmatch(r"cpu|cuda(:\d+)?|mps|xpu(:\d+)?", name):
        raise ConfigError(f"device={name}: no such device. It is cpu, cuda, cuda:1, mps, ...")


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
