"""Prepared data on disk: made once, mapped into memory by every process that needs it.

A folder a preparation, named by a hash of all that it depends on. It appears whole or not at all:
it is written under another name and then renamed. It may hold a private table: only who prepared it
can read it.
"""

from __future__ import annotations

import json
import logging
import re
import shutil
import tempfile
from collections.abc import Mapping, Sequence
from functools import lru_cache
from hashlib import blake2b, file_digest
from pathlib import Path
from typing import Any

import numpy as np

from corsage.core.arrays import Array
from corsage.core.errors import DataError
from corsage.core.files import private_folder

CACHE_FORMAT = 6  # raise it when the same keys would be prepared in another way
META = "meta.json"
PREPARED = re.compile(r"\.?[0-9a-f]{24}\b")
"""Names of prepared folders, and of those that a killed process left half made."""
log = logging.getLogger("corsage")


def digest(facts: Mapping[str, Any]) -> str:
    """The folder name for what a preparation depends on."""
    text = json.dumps({"format": CACHE_FORMAT, **facts}, sort_keys=True)
    return blake2b(text.encode(), digest_size=12).hexdigest()


Mark = tuple[str, int, int, int]


def marks(paths: Sequence[Path]) -> tuple[Mark, ...]:
    """Path, size and times of each file: they tell one process that a file has changed."""
    stats = [(path, path.stat()) for path in paths]
    return tuple(
        (str(path.absolute()), stat.st_size, stat.st_mtime_ns, stat.st_ctime_ns)
        for path, stat in stats
    )


def fingerprint(paths: Sequence[Path]) -> list[list[str]]:
    """Path and content of each file: another file may come with the same size and time."""
    return [[mark[0], content(mark)] for mark in marks(paths)]


@lru_cache(maxsize=64)
def content(mark: Mark) -> str:
    """The hash of a file's content, read once a process while the file stays as it is."""
    with Path(mark[0]).open("rb") as file:
        return file_digest(file, "blake2b").hexdigest()


def prepared_folders(root: Path) -> list[Path]:
    """The prepared data in a cache, half made ones of killed processes, too."""
    return [path for path in root.iterdir() if PREPARED.match(path.name) and path.is_dir()]


def read_folder(folder: Path) -> tuple[dict[str, Any], dict[str, Array]] | None:
    """A folder's facts and memory-mapped arrays; None if it is absent or damaged (logged)."""
    try:
        if not folder.exists():
            return None
        meta: dict[str, Any] = json.loads((folder / META).read_text(encoding="utf-8"))
        arrays = {}
        for name, size in meta["bytes"].items():
            path = folder / f"{name}.npy"
            if path.stat().st_size != size:
                raise ValueError(f"{path.name} has {path.stat().st_size} bytes instead of {size}")
            # A plain view: slices of np.memmap itself are slow to make.
            arrays[name] = np.load(path, mmap_mode="r", allow_pickle=False).view(np.ndarray)
        return meta["facts"], arrays
    except PermissionError as error:
        raise DataError(
            f"{folder}: prepared by another account, which alone may read it; set cache-dir=FOLDER."
        ) from error
    except (OSError, ValueError, KeyError, TypeError, AttributeError, EOFError) as error:
        log.warning("%s: damaged cache (%s); it is prepared again.", folder, error)
        return None


def write_folder(folder: Path, facts: Mapping[str, Any], arrays: Mapping[str, Array]) -> None:
    """Write a prepared folder; if another process was first, leave that one's."""
    draft: Path | None = None
    try:
        if not folder.parent.is_dir():
            private_folder(folder.parent)
        draft = Path(tempfile.mkdtemp(prefix=f".{folder.name}-", dir=folder.parent))
        for name, array in arrays.items():
            with (draft / f"{name}.npy").open("wb") as file:
                np.save(file, array, allow_pickle=False)
        sizes = {name: (draft / f"{name}.npy").stat().st_size for name in arrays}
        meta = json.dumps({"facts": facts, "bytes": sizes})
        (draft / META).write_text(meta, encoding="utf-8")
        for path in draft.iterdir():
            path.chmod(0o600)
        publish(draft, folder)
    except OSError as error:
        cause = error.strerror or error
        raise DataError(
            f"{folder.parent}: prepared data cannot be kept there ({cause}); "
            "set cache-dir=FOLDER on a disk with room."
        ) from error
    finally:
        if draft is not None:
            shutil.rmtree(draft, ignore_errors=True)


def publish(draft: Path, folder: Path) -> None:
    """Give the draft its name, unless a sound folder has it already; a damaged one goes first."""
    if folder.exists() and read_folder(folder) is None:
        grave = Path(tempfile.mkdtemp(prefix=f".{folder.name}-", dir=folder.parent))
        try:
            folder.rename(grave / "damaged")
        except FileNotFoundError:
            log.debug("%s: another process has removed it.", folder)
        shutil.rmtree(grave, ignore_errors=True)
    try:
        draft.rename(folder)
    except OSError:
        if not folder.is_dir():
            raise
        log.debug("%s: another process has prepared it.", folder)
