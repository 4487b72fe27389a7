"""Personal states as files, one a version: on devices, and in simulations on several machines.

Only their owner can read them. A file is on the disk itself before the server hears of it.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path

import numpy as np
from safetensors import SafetensorError
from safetensors.numpy import load, save

from corsage.app.states.shelf import Kept
from corsage.core.arrays import Arrays
from corsage.core.errors import StateLost
from corsage.core.files import UNSTAMPED, intact, private_folder, stamp, write_atomically

STATE_ENDING = ".safetensors"
EXPERIMENT_FILE = ".experiment"
"""The file that says of which experiment the states in a folder are."""
_STATE = re.compile(r"(0|[1-9][0-9]{0,18})\.safetensors")
_MODEL = re.compile(r"model-[a-z0-9+-]{1,60}\.safetensors")
"""A user's whole predictor, of a row of the table."""
_TORN = re.compile(r"\.([0-9]+|model-[a-z0-9+-]{1,60})\.safetensors\.[0-9a-f]{12}")
WRITE_TRIES = 3
"""How often a state is written that another worker clears away meanwhile."""
PREDICTORS = 4
"""Rows of the table of which a user has a predictor, at most: the oldest go first."""
_DEVICES = "con|prn|aux|nul|com[0-9]|lpt[0-9]"
_PLAIN = re.compile(rf"(?!(?:{_DEVICES})(?:\.|$))[a-z0-9_-](?:[a-z0-9._-]{{0,98}}[a-z0-9_-])?")


class Files:
    """A folder for each user, with a file for each version of its state.

    Parameters
    ----------
    folder : where the folders of all experiments are.
    experiment : whose states these are.
    durable : wait until a file is on the disk itself, so that it survives a loss of power.

    `on_new` is called when a first state of this experiment is about to be kept.
    """

    each_alone = True

    def __init__(
        self,
        folder: Path,
        experiment: str,
        durable: bool = True,
    ) -> None:
        self.folder, self._experiment = folder / safe_name(experiment), experiment
        self._durable = durable
        self.on_new: Callable[[], None] = lambda: None
        with suppress(OSError):
            os.utime(self.folder / EXPERIMENT_FILE)  # it is in use

    def load(self, user: str, version: int) -> Arrays | None:
        """That version, None if it is not there. StateLost if it is damaged."""
        try:
            content = self._path(user, version).read_bytes()
            if not intact(content):
                raise ValueError("its checksum is that of other bytes")
            return dict(load(content))
        except (FileNotFoundError, NotADirectoryError):
            return None
        except (SafetensorError, ValueError, KeyError) as error:
            raise StateLost(user, "restore", f"state of round {version}: {error}") from error

    def save(self, version: int, states: Sequence[Kept]) -> None:
        """Keep a version of some users' states, on the disk itself."""
        self._begin()
        for state in states:
            path = self._path(state.user, version)
            private_folder(path.parent)
            arrays = {n: np.ascontiguousarray(a) for n, a in state.arrays.items()}
            stamp(data := bytearray(save(arrays, UNSTAMPED)))
            _clear(path.parent)
            self._write(path, bytes(data))
            _forget(path.parent, {*state.others, version})

    def _write(self, path: Path, data: bytes) -> None:
        """Write a state; once more if a worker that was given the same message cleared it away."""
        for _ in range(WRITE_TRIES):
            with suppress(FileNotFoundError):
                write_atomically(path, data, self._durable, private=True)
                return
        write_atomically(path, data, self._durable, private=True)

    def put(self, row: str, token: str, number: int, user: str, data: bytes) -> None:
        """Keep a user's whole predictor; the old one is there until the new one is whole."""
        name = f"model-{row}{STATE_ENDING}"
        if not _MODEL.fullmatch(name):
            raise ValueError(f"{row[:60]!r} cannot be part of a file's name")
        path = self._path(user, 0).with_name(name)
        self._begin()
        private_folder(path.parent)
        _clear(path.parent)
        write_atomically(path, data, self._durable, private=True)
        others = [one for one in predictors(path.parent) if one != path]
        for old in others[PREDICTORS - 1 :]:
            old.unlink(missing_ok=True)

    def users(self) -> list[str]:
        """The users that have a state here, by the names of their folders (see `safe_name`)."""
        if not self.folder.is_dir():
            return []
        return sorted(path.name for path in self.folder.iterdir() if _versions(path))

    def versions(self, user: str) -> list[int]:
        """The versions that a user has here."""
        return sorted(_versions(self._path(user, 0).parent))

    def _begin(self) -> None:
        """The experiment's folder, and in it what tells of whom it is."""
        private_folder(self.folder)
        if not (self.folder / EXPERIMENT_FILE).exists():
            text = json.dumps({"experiment": self._experiment})
            write_atomically(self.folder / EXPERIMENT_FILE, text, self._durable, private=True)
            self.on_new()

    def _path(self, user: str, version: int) -> Path:
        return self.folder / safe_name(user) / f"{version}{STATE_ENDING}"


def is_ours(folder: Path) -> bool:
    """True if a folder is an experiment's: it says so, or holds nothing but states."""
    if folder.is_symlink() or not folder.is_dir():
        return False
    if (folder / EXPERIMENT_FILE).is_file():
        return True
    inside = [path for user in folder.iterdir() for path in _inside(user)]
    return bool(inside) and all(map(is_state, inside))


def is_state(path: Path) -> bool:
    """True if a file is called as states are, or as what a killed write leaves."""
    return any(kind.fullmatch(path.name) for kind in (_STATE, _MODEL, _TORN))


def predictors(folder: Path) -> list[Path]:
    """The predictors in a user's folder, the one written last first."""
    if not folder.is_dir():
        return []
    found = [path for path in folder.iterdir() if _MODEL.fullmatch(path.name)]
    return sorted(found, key=lambda path: path.stat().st_mtime_ns, reverse=True)


def _inside(path: Path) -> list[Path]:
    """The content of a folder; a file is something else."""
    return list(path.iterdir()) if path.is_dir() and not path.is_symlink() else [path]


def remove_states(folder: Path) -> None:
    """Remove a user's states, and the folder if nothing else is in it."""
    _forget(folder, set())
    _clear(folder)
    for path in predictors(folder):
        path.unlink(missing_ok=True)
    with suppress(OSError):
        folder.rmdir()


def _forget(folder: Path, wanted: set[int]) -> None:
    """Remove what is no longer wanted; files that are not ours stay."""
    for version, path in _versions(folder).items():
        if version not in wanted:
            path.unlink(missing_ok=True)


def _clear(folder: Path) -> None:
    """Remove what a write that was killed has left."""
    for path in folder.iterdir():
        if _TORN.fullmatch(path.name):
            path.unlink(missing_ok=True)


def _versions(folder: Path) -> dict[int, Path]:
    """The versions in a user's folder; a file of another name is none."""
    if not folder.is_dir():
        return {}
    found = {path: _STATE.fullmatch(path.name) for path in folder.iterdir()}
    return {int(match[1]): path for path, match in found.items() if match}


def safe_name(text: str) -> str:
    """A user's id as the name of a file or folder, on any file system; distinct ids stay distinct.

    Also where capitals do not count (so only small letters are taken as they are), where a name
    must not end with a dot, and where some names are those of devices.
    """
    if _PLAIN.fullmatch(text):
        return text
    digest = hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=10).hexdigest()
    return f"{re.sub(r'[^a-z0-9_-]', '_', text.lower())[:60]}~{digest}"
