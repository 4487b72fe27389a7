"""Keys that several data sets share, and what holds for all that have them."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from corsage.core.configuration.data_keys import FEDERATED, MISSING_CHOICES, SCALE_CHOICES
from corsage.core.configuration.key_groups import DataKeys
from corsage.core.errors import ConfigError, DataError
from corsage.core.keys import key


@dataclass(frozen=True)
class FileKeys(DataKeys):
    """Data in one file of one's own."""

    data_file: str = key("", "the file (donors: a CSV file of the same form)")

    @property
    def path(self) -> Path:
        """The place of the file."""
        return Path(self.data_file).expanduser()


def own_file(keys: FileKeys) -> list[Path]:
    """The file of one's own, which must be there; none if none is named."""
    if not keys.data_file:
        return []
    if not keys.path.is_file():
        raise DataError(f"data-file={keys.data_file}: no such file.")
    return [keys.path]


@dataclass(frozen=True)
class LabelKeys(DataKeys):
    """Labels that may be numbers to predict."""

    labels: str = key(
        "classes",
        "what the labels are, classes or numbers to predict (chem97, hierarchical: always numbers)",
        choices=("classes", "numbers"),
    )

    @property
    def numbers(self) -> bool:
        """Tell whether the labels are said to be numbers."""
        return self.labels == "numbers"


@dataclass(frozen=True)
class TableKeys(DataKeys):
    """The preparation of a table's columns."""

    scale: str = key(
        "auto",
        "by whose mean and spread the columns of a table, and labels that are numbers, are "
        "standardised: the whole federation's, each user's own, or nobody's; auto: federated",
        choices=("auto", *SCALE_CHOICES),
    )
    missing: str = key(
        "refuse",
        "what is done about missing cells: refuse them; put the federation's mean there, of words "
        "a level of their own; flag: that, and an input that says where it was",
        choices=MISSING_CHOICES,
    )

    @property
    def scaling(self) -> str:
        """The scope of means and spreads."""
        return FEDERATED if self.scale == "auto" else self.scale

    @property
    def sums(self) -> bool:
        """Tell whether means and spreads are asked of the nodes."""
        return self.scaling == FEDERATED or self.missing != "refuse"


@dataclass(frozen=True)
class ColumnKeys(TableKeys, LabelKeys, FileKeys):
    """The columns of a file of one's own."""

    user_column: str = key("user", "column that names each sample's user")
    label_column: str = key("label", "column of the class (npz: y is understood too)")
    cluster_column: str = key("", "column of the user's known cluster, if any")

    @property
    def usual(self) -> str:
        """A file that says whose its samples are is not dealt anew unless somebody asks for it."""
        if self.user_column:
            return "natural"
        return "iid" if self.numbers else "shards"


def check_columns(keys: ColumnKeys) -> None:
    """Refuse no file at all, and two sources of the users' clusters."""
    if not keys.data_file:
        raise ConfigError(f"dataset={keys.dataset}: needs data-file=FILE.{keys.dataset}.")
    check_clusters(keys)


def check_clusters(keys: ColumnKeys) -> None:
    """Refuse two sources of the users' clusters."""
    if keys.cluster_map and keys.cluster_column:
        raise ConfigError(
            f"cluster-map={keys.cluster_map}: cluster-column={keys.cluster_column} says the "
            "clusters too; leave one of them out."
        )


@dataclass(frozen=True)
class FeatureKeys(DataKeys):
    """Columns of which some are the input."""

    feature_columns: tuple[str, ...] = key(
        (), "columns that are the input, with commas; none: no input, a model of the intercept "
        "alone; empty: all that are left (chem97: gcsecnt,gender,age, of which the first may be "
        "gcsescore instead)"
    )  # fmt: skip


@dataclass(frozen=True)
class CsvKeys(FeatureKeys, ColumnKeys):
    """Keys of a CSV file."""

    drop_columns: tuple[str, ...] = key(
        (), "columns of a file or a frame that are left out, with commas; all others are the input"
    )
    category_columns: tuple[str, ...] = key(
        (),
        "columns of a file or a frame that are categories, if they look like numbers, with commas",
    )


@dataclass(frozen=True)
class OwnKeys(DataKeys):
    """Data that have users of their own and cannot be dealt anew."""

    @property
    def usual(self) -> str:
        """There is nothing else."""
        return "natural"


@dataclass(frozen=True)
class DrawnKeys(OwnKeys):
    """Data that are drawn at random."""

    data_seed: int = key(1, "seed of the data themselves (the key seed draws the rest)", low=0)
    users_per_cluster: int = key(20, "users a cluster (donors: on average)", low=1)
    samples_per_user: int = key(10, "training samples a user (donors: the median)", low=1)


@dataclass(frozen=True)
class ClusterKeys(DrawnKeys):
    """Data that are drawn in known clusters."""

    num_clusters: int = key(3, "known clusters (ellipses: at most 3)", low=1)
