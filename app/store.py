"""Personal state: what a user keeps between rounds, and never sends.

It lives in Flower's `context.state`, and also in a folder if the node has one (`state-dir` on a
device, the run folder in a simulation), where it survives the restart of the node. Every version
carries the round that made it, so a round that the server never finished can be forgotten.
"""

from __future__ import annotations

import hashlib
import os
import re
from pathlib import Path

import numpy as np
from flwr.app import ArrayRecord, Context
from safetensors import SafetensorError
from safetensors.numpy import load_file, save

from corsage.core.arrays import Arrays
from corsage.core.errors import StateLost
from corsage.core.files import write_atomically
from corsage.core.wire import decode, encode

OTHERS = 3
"""Other experiments whose states stay in a memory that is their only place: those that take turns
on one grid. The oldest go first."""


class PersonalStore:
    """The personal states of a node's users in one experiment.

    Parameters
    ----------
    context : the node's Flower context; its `state` is used.
    folder : where states are also written, or None.
    experiment : which run and algorithm the states belong to; those of others are let go from
        memory, where they have files or there are many (files stay, so that they can be resumed).
    durable : wait until a file is on the disk itself, so that it survives a loss of power.
    in_context : keep states in the context too. Ray copies a context to a worker and back with
        every message, so simulated users on one machine keep theirs in the folder alone.
    """

    def __init__(
        self,
        context: Context,
        folder: Path | None,
        experiment: str,
        durable: bool = False,
        in_context: bool = True,
    ) -> None:
        self._records = context.state
        self._folder = folder / safe_name(experiment) if folder else None
        self._prefix = f"{safe_name(experiment)}/"
        self._durable = durable
        self._in_context = in_context or folder is None
        self._versions: dict[str, set[int]] = {}  # of each user, in memory
        others = dict.fromkeys(name.partition("/")[0] for name in reversed(list(self._records)))
        others.pop(safe_name(experiment), None)
        gone = set(list(others)[0 if folder else OTHERS :])
        for name in list(self._records):
            if name.startswith(self._prefix):
                user, version = name.removeprefix(self._prefix).split("/")
                self._versions.setdefault(user, set()).add(int(version))
            elif name.partition("/")[0] in gone:
                del self._records[name]

    def load(self, user: str, version: int) -> Arrays:
        """A user's state of that version; version 0 is empty. StateLost if it is gone."""
        if version == 0:
            return {}
        record = self._records.get(self._key(user, version))
        if isinstance(record, ArrayRecord):
            return decode(record)
        if self._folder is not None:
            try:
                return dict(load_file(self._path(user, version)))
            except FileNotFoundError:
                pass
            except (SafetensorError, OSError) as error:
                raise StateLost(user, "restore", f"state of round {version}: {error}") from error
        raise StateLost(user, "restore", f"its state of round {version} is gone; it starts anew")

    def save(self, user: str, version: int, arrays: Arrays, others: set[int]) -> None:
        """Keep a new version of a user's state beside `others`, and forget all the rest."""
        if self._folder is not None:
            data = save({name: np.ascontiguousarray(a) for name, a in arrays.items()})
            self._write(self._path(user, version), data)
        if self._in_context:
            self._records[self._key(user, version)] = encode(arrays)
        self._versions.setdefault(safe_name(user), set()).add(version)
        self._forget(user, others | {version})

    def _write(self, path: Path, data: bytes) -> None:
        """A simulated user's file may be torn by a kill: no server knows its version yet."""
        if self._durable:
            write_atomically(path, data, durable=True)
            return
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)

    def _forget(self, user: str, wanted: set[int]) -> None:
        versions = self._versions.setdefault(safe_name(user), set())
        for version in versions - wanted:
            self._records.pop(self._key(user, version), None)
        versions &= wanted
        if self._folder is not None:
            for path in self._path(user, 0).parent.glob("*.safetensors"):
                if int(path.stem) not in wanted:
                    path.unlink(missing_ok=True)

    def _key(self, user: str, version: int) -> str:
        return f"{self._prefix}{safe_name(user)}/{version}"

    def _path(self, user: str, version: int) -> Path:
        assert self._folder is not None
        return self._folder / safe_name(user) / f"{version}.safetensors"


def safe_name(text: str) -> str:
    """A user's id as the name of a folder, on any file system; distinct ids stay distinct."""
    if re.fullmatch(r"[a-z0-9_-][a-z0-9._-]{0,99}", text):
        return text
    digest = hashlib.blake2b(text.encode(), digest_size=6).hexdigest()
    return f"{re.sub(r'[^a-z0-9_-]', '_', text.lower())[:60]}~{digest}"


def writable_folder(path: str) -> Path:
    """A folder for states, made if it is not there; OSError if it cannot be written."""
    folder = Path(path).expanduser()
    folder.mkdir(parents=True, exist_ok=True)
    if not os.access(folder, os.W_OK):
        raise PermissionError(13, "Permission denied", str(folder))
    return folder
