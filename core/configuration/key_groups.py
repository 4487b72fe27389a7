"""The keys that every run has, by group; those of a data set or an algorithm are in its file."""

from __future__ import annotations

from dataclasses import dataclass

from corsage.core.configuration.data_keys import DataKeys, NewUserKeys
from corsage.core.configuration.server_keys import RobustKeys, ServerKeys
from corsage.core.configuration.train_keys import DECAY, TABLE_DECAY, TrainKeys
from corsage.core.keys import Keys, key
from corsage.core.registry import LIKELIHOODS
from corsage.core.training_paths import AUTO, CHOICES

__all__ = [
    "AUTO",
    "DECAY",
    "GROUPS",
    "LEAST_DRAWN",
    "SOME_USERS",
    "TABLE_DECAY",
    "TENTH",
    "DataKeys",
    "FederationKeys",
    "ModelKeys",
    "NewUserKeys",
    "RobustKeys",
    "RunKeys",
    "ServerKeys",
    "TrainKeys",
]
LOSS_CHOICES = (
    *("auto", "cross-entropy", "logistic", "squared-hinge", "squared", "huber"),
    *LIKELIHOODS,
)
SOME_USERS = 50
"""How many users samples are dealt to where nobody says."""
TENTH, LEAST_DRAWN = 0.1, 5
"""The share of the users that train in a round, and their number at least, where nobody says: a
mean over one user of eight would be no mean."""


@dataclass(frozen=True)
class RunKeys(Keys):
    """Keys of the run and of its records."""

    title = "Run"

    strategy: tuple[str, ...] = key(
        ("fedrep", "fedavg", "local"),
        "algorithm, or several with commas: they are compared on the same users; auto: a sensible "
        "set for the data, in a simulation",
    )
    num_rounds: int = key(100, "rounds of training", low=1)
    engine: str = key(
        "local",
        "local: nodes in this process, one after the other; ray: Flower's virtual client engine",
        choices=("local", "ray"),
    )
    seed: int = key(0, "seeds every random draw, with its purpose, round and user", low=0)
    run_dir: str = key("runs", "folder in which each run makes its own folder")
    resume: str = key("", "run folder of an interrupted run that is to be finished")
    from_round: int = key(
        -1,
        "with resume: the round to go back to, 0 or one that a kept checkpoint is of; -1: the last",
        low=-1,
    )
    measures: tuple[str, ...] = key(
        ("auto",),
        "what users are judged by, several with commas: of classes accuracy, balanced-accuracy, "
        "auc, log-loss, f1, of numbers rmse, mse, mae, r2; the first is that of the table and the "
        "curves. auto: accuracy, or rmse",
    )
    evaluate_every: int = key(
        5, "rounds between evaluations; the last 10 rounds always have one", low=1
    )
    stop_after: int = key(
        0,
        "early stopping: training ends after so many of these evaluations without a better mean on "
        "validation data (validation), with the models of its last round; the best round is named, "
        "and num-rounds ends another run there. 0: never",
        low=0,
    )
    evaluate_users: int = key(
        10_000,
        "users that are evaluated after a round, drawn once by the seed; after the last round all "
        "are, and users of known clusters always. 0: all after every evaluated round",
        low=0,
    )
    checkpoint_every: int = key(1, "rounds between checkpoints", low=1)
    study_workers: int = key(
        0,
        "runs of a study, or strategies of a run, at the same time; 0: as many as there are cores "
        "for their torch-threads, strategies from 50,000 gradient steps of users on",
        low=0,
    )
    keep_checkpoints: int = key(
        3, "checkpoints that are kept, and with them what users keep for each", low=1
    )
    keep_models: str = key(
        "auto",
        "every user's model, of each row of the table, in the run folder. auto: those of a row of "
        "which they take a gigabyte at most; all; none",
        choices=("auto", "all", "none"),
    )
    log_to: tuple[str, ...] = key(
        (),
        "other tools that are told each round's numbers and the results, several with commas; "
        "each strategy is a run there",
        choices=("csv", "tensorboard", "mlflow", "wandb"),
    )


@dataclass(frozen=True)
class FederationKeys(Keys):
    """Participants, and how long the server waits for them."""

    title = "Users and nodes"

    num_users: int = key(
        -1,
        "users in a simulation; 0: as many as the data have (natural partition); -1: that where "
        f"partition=auto takes the data's own users, else {SOME_USERS}",
        low=-1,
    )
    num_nodes: int = key(
        0,
        "nodes that host the users; 0: one (local), one a worker (ray). On devices: how many "
        "the server waits for before it starts (0: one)",
        low=0,
    )
    fraction_train: float = key(
        0.0,
        f"share of the users that train in a round (r); 0: a tenth, but {LEAST_DRAWN} users at "
        "least, or all where there are fewer",
        low=0.0,
        high=1.0,
    )
    min_users: int = key(
        1, "a round, or an evaluation, with fewer good replies than this fails", low=1
    )
    node_timeout: float = key(
        60.0,
        "seconds the server waits for devices to connect; simulated nodes have all the time",
        low=0.0,
    )
    round_timeout: float = key(
        600.0, "seconds a node has to reply; later replies are dropped", low=0.0
    )
    patience: float = key(
        3.0,
        "devices: a node that takes so many times as long as the others did (and as it did before, "
        "for its data) is given up; 0: only after round-timeout",
        low=0.0,
    )
    quorum: float = key(
        1.0,
        "share of the asked nodes after whose replies slow ones are given up as well, after "
        "patience times the median; 1: they have the time that they needed before",
        low=0.01,
        high=1.0,
    )
    evaluate_with_training: bool = key(
        True,
        "on devices, an evaluation goes with the next round's training messages: it costs no "
        "exchange of its own, and is known a round later; false: it has messages of its own",
    )
    max_share: float = key(
        0.5,
        "the most that one user may weigh in an average (weighting=examples), at least 1/m of m "
        "users; 1: as many samples as it says it has",
        low=0.0,
        high=1.0,
    )
    registered_keys: bool = key(
        False,
        "devices have registered keys: a user's id stays with the key that first had it, also "
        "while its node is away and though it has no state-dir",
    )
    ray_address: str = key("", "an existing Ray cluster, such as auto or ray://host:10001")
    node_cpus: float = key(1.0, "ray: CPUs reserved for each worker", low=0.01)
    node_gpus: float = key(0.0, "ray: GPUs reserved for each worker", low=0.0)

    def share(self, users: int) -> float:
        """The share of so many users that train in a round (r)."""
        return self.fraction_train or max(TENTH, min(1.0, LEAST_DRAWN / max(users, 1)))


@dataclass(frozen=True)
class ModelKeys(Keys):
    """The model that every user has a version of."""

    title = "Model"

    model: str = key(
        "mlp",
        "linear, mlp, lenet, cnn, cnn1d (over time), gru (sequences), embedding (ratings), the "
        "paper's cnn-cifar10, cnn-cifar100 and lstm (sent140), or one's own "
        "package.module:factory; from Python also a module, a class or a function",
        objects="Callable[..., Any]",
    )
    hidden: str = key(
        "200",
        "mlp: sizes of the hidden layers, with commas (femnist in FedRep's code: 512,256,64); "
        "gru: its size; embedding: how many things, and how wide their vectors",
    )
    head: str = key(
        "",
        "the head: names of modules, or patterns, with commas (fc2,fc3); empty: the last linear "
        "layer that runs",
    )
    shared: str = key(
        "",
        "instead of head: patterns of parameters, buffers or modules that all users share "
        "(*.lora_a); the rest is a user's own. !PATTERN leaves some out",
    )
    personal: str = key(
        "", "instead of head: patterns of what is a user's own (norm.*); the rest is shared"
    )
    frozen: str = key(
        "",
        "patterns of what nobody trains (backbone.*): it is the same for all, stays at the node "
        "and never travels",
    )
    loss: str = key(
        "auto",
        "cross-entropy, or, of two classes, logistic or squared-hinge; of numbers, squared or "
        "huber; of counts, shares or amounts the likelihoods poisson, negative-binomial, binomial "
        "or gamma; auto: cross-entropy for classes (logistic for two, if model=linear), squared "
        "for numbers",
        choices=LOSS_CHOICES,
    )
    huber_delta: float = key(1.0, "huber: errors beyond this count linearly", low=1e-9)
    intercept: bool = key(True, "linear: with an intercept")
    training_path: str = key(
        AUTO,
        "how a node trains several users: layers (kernels of plain layers), loop (one by one), "
        "together-N (N of them through the model's own forward), with -channels-last for images; "
        "auto: by what the model is made of, said in a line",
        choices=CHOICES,
    )
    loss_scale: str = key(
        "auto",
        "convex methods: f_i is the sum or the mean of its samples' losses; auto: as the method's "
        "paper has it",
        choices=("auto", "sum", "mean"),
    )
    ridge: float = key(
        0.0, "convex methods: c in f_i + c/2 |w|^2, on the weights and not the intercept", low=0.0
    )
    min_share: int = key(
        0,
        "sums of users' rows (mixed models, exact heads): no row has a leverage above 1/min-share "
        "among those that they are of; 0, 1: any. Devices take at least their own min-share",
        low=0,
    )
    precision: str = key(
        "float64", "convex methods: numbers they compute with", choices=("float64", "float32")
    )
    batch_norm: str = key(
        "average",
        "layers that normalise by the batch (BatchNorm). average: their weights and running "
        "statistics are averaged as all others; frozen: they normalise by the running statistics "
        "that the model begins with, in training too, and only their weights learn; personal: they "
        "are a user's own besides the head, in methods that split the model (FedBN)",
        choices=("average", "frozen", "personal"),
    )


GROUPS: dict[str, type[Keys]] = {
    "run": RunKeys,
    "federation": FederationKeys,
    "data": DataKeys,
    "model": ModelKeys,
    "train": TrainKeys,
    "server": ServerKeys,
    "robust": RobustKeys,
    "new": NewUserKeys,
}
"""The fields of a configuration that are such groups."""
