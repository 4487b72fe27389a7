"""Deal a data set into one file a user, for devices that are to do what a simulation did.

A device splits its own file into training and test samples, keyed by the seed and the user's id.
So each file holds its user's samples in the order in which the simulation splits them, as numbers
that the model takes as they are, or the cells of a table with what its columns are: the
same seed then gives the same numbers on devices.
"""

from __future__ import annotations

import io
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from corsage.app.output.usage import command
from corsage.app.states.state_files import safe_name
from corsage.core.arrays import Array, Ints
from corsage.core.configuration.command_line import read_words
from corsage.core.configuration.config import Config
from corsage.core.errors import ConfigError, CorsageError
from corsage.core.files import write_atomically
from corsage.datasets.data_set import load_table
from corsage.datasets.dealing.dealt import check_partition, deal
from corsage.datasets.dealing.split import split_rows
from corsage.datasets.sample_table import Table, model_input

USAGE = """\
usage: corsage deal FOLDER [key=value ...] [FILE.toml]

Deals the data set that the keys name to its users, as a simulation with the same keys does, and
writes FOLDER/USER.npz for each of them, with the arrays x and label, and test where the data say
which samples are for testing. Of a table they hold raw cells: devices agree on means, spreads and
levels as a simulation does. A device that is given this file, the user's id and the same seed
and test-fraction has the user's data of the simulation.
"""


def write_files(folder: Path, config: Config) -> Iterator[str]:
    """Write the users' files, one line on each."""
    config.check_simulated()
    keys, seed = config.data, config.run.seed
    check_partition(keys, config.federation.num_users)
    table = load_table(keys)
    dealt, total = deal(table, keys, config.federation.num_users, seed), table.num_classes
    for user, part in zip(dealt.users, dealt.parts, strict=True):
        train, test = split_rows(table, part, user, keys, seed)
        arrays = {"x": dealt_input(table, part), "label": table.y[part]}
        if arrays["x"].ndim == 2:
            arrays["table"] = np.array(table.facts.json() if table.facts else "")
        if table.test is not None:
            arrays["test"] = table.test[part]
        path = folder / f"{safe_name(user)}.npz"
        write(path, arrays)
        cluster = dealt.clusters.get(user, "")
        yield (
            f"{path}: user {user}, {len(train)} training and {len(test)} test samples, "
            + (f"cluster {cluster}" if cluster else "no known cluster")
            + ("" if table.facts and table.facts.label.levels else advice(arrays["label"], total))
        )


def dealt_input(table: Table, part: Ints) -> Array:
    """Samples as the model sees them; of a table raw cells, since all devices prepare it."""
    if table.facts is not None:
        return table.x[part]
    exact = table.num_classes == 0
    return model_input(table.x[part], table.shift, table.scale, table.vectors, exact=exact)


def advice(labels: Array, total: int) -> str:
    """Settings that the user's node needs, since its labels alone do not show them."""
    if total == 0:
        return "; tell its node labels=numbers"
    return f"; tell its node num-classes={total}" if int(labels.max()) + 1 < total else ""


def write(path: Path, arrays: dict[str, Array]) -> None:
    """One user's file; it is whole or not there."""
    content = io.BytesIO()
    np.savez(content, **arrays)  # type: ignore[arg-type]
    try:
        write_atomically(path, content.getvalue())
    except OSError as error:
        raise CorsageError(f"{path}: cannot be written ({error.strerror}).") from error


@command(USAGE, CorsageError, needs_words=True)
def run(words: list[str]) -> None:
    """Do what the words say; 0, or 2 with one line on what is wrong."""
    if "=" in words[0] or words[0].endswith(".toml"):
        raise ConfigError(f"{words[0]}: the first word is the folder for the files.")
    config = Config.parse(read_words(words[1:]))
    for line in write_files(Path(words[0]).expanduser(), config):
        print(line, flush=True)


if __name__ == "__main__":
    sys.exit(run(sys.argv[1:]))
