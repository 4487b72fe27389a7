"""The keys of the data, how they are dealt to users, and of those who come after training."""

from __future__ import annotations

from dataclasses import dataclass

from corsage.core.keys import Keys, convert, key
from corsage.core.registry import DATASETS
from corsage.core.training_paths import AUTO

FEDERATED, BY_USER, UNSCALED = "federated", "user", "none"
SCALE_CHOICES = (FEDERATED, BY_USER, UNSCALED)
"""Whose mean and spread standardise the columns of a table."""
MISSING_CHOICES = ("refuse", "mean", "flag")
"""Treatments of a table's missing cells."""

PARTITIONS = (
    *(AUTO, "iid", "shards", "classes", "consecutive"),
    *("dirichlet", "dirichlet-by-user", "dirichlet-by-class", "natural"),
)


@dataclass(frozen=True)
class DataKeys(Keys):
    """The data, and how they are dealt to the users; keys of one data set are in its file."""

    title = "Data"

    dataset: str = key("digits", "the data set", choices=tuple(DATASETS))
    data_dir: str = key(
        "", "folder with the publisher's files (mnist, fashion-mnist, cifar*, data with natural "
        "users), LEAF's (femnist, sent140); empty: the Hugging Face hub, or a package"
    )  # fmt: skip
    cluster_map: str = key(
        "",
        'JSON file of the users\' known clusters, {"user": "cluster"} or {"cluster": ["user"]}, or '
        "the clusters.csv of a run that found some, instead of those that the data have",
    )
    partition: str = key(
        AUTO,
        "how samples are dealt: the paper's shards, exactly classes-per-user distinct classes, "
        "classes-per-user consecutive ones, Dirichlet label shares of users of equal sizes "
        "(dirichlet-by-user, in short dirichlet), each class by Dirichlet shares over the users "
        "(dirichlet-by-class), or the data's own users (natural); auto: natural for csv and npz "
        "with a user-column and where data have nothing else, shards for all others",
        choices=PARTITIONS,
    )
    classes_per_user: int = key(2, "shards, classes, consecutive: classes a user (S)", low=1)
    alpha: float = key(0.5, "dirichlet-...: concentration; small is heterogeneous", low=1e-6)
    size_sigma: float = key(
        0.0, "sigma of lognormal user sizes, 0: equal (iid, shards, classes, consecutive)", low=0.0
    )
    mean_samples: int = key(
        0, "samples a user on average, classes as evenly as the data allow; 0: all are dealt", low=0
    )
    min_samples: int = key(
        0,
        "natural: users with fewer samples are left out; dirichlet-by-class: drawn again until "
        "every user has so many, 0: ten",
        low=0,
    )
    test_fraction: float = key(
        0.2,
        "share of each user's samples kept for its test, unless the data say which are; 0: none, "
        "one strategy is fitted to all samples, and judged by these",
        low=0.0,
        high=0.9,
    )
    validation: float = key(
        0.0,
        "share of each user's samples that is taken from training and stands for its test, which "
        "nobody gets then: to choose by (a study's values); 0: judged by the test",
        low=0.0,
        high=0.9,
    )
    max_train_samples: int = key(0, "at most so many training samples a user, 0: no limit", low=0)
    cache_dir: str = key("", "where prepared data are kept; empty: the user's cache folder")

    @property
    def usual(self) -> str:
        """The partition that `auto` stands for."""
        return "shards"

    @property
    def dealing(self) -> str:
        """The partition by which samples are dealt."""
        short = {AUTO: self.usual, "dirichlet-by-user": "dirichlet"}
        return short.get(self.partition, self.partition)


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
        """Tell whether there are new users at all."""
        return self.new_users > 0 or bool(self.new_cluster)

    @property
    def cases(self) -> list[tuple[int, int]]:
        """Every (samples, epochs) that new users are evaluated with."""
        pair = {"adapt-samples": self.adapt_samples, "adapt-epochs": self.adapt_epochs}
        numbers = [[convert(k, word, int) for word in words] for k, words in pair.items()]
        return [(samples, epochs) for samples in numbers[0] for epochs in numbers[1]]
