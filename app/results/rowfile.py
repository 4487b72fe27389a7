"""A file of models: one row of a run's table, or what a device has of it.

What users share is there once, and what is their own has a row for each of them, under the names
that the parameters have in the state dict:

shared/NAME    the same for all users
users/NAME     a row a user
models/NAME    a row for each of several models, of which each user has one
picked         its number, a row a user
samples/NAME   rows of users' samples, one user after the other
counts         how many each user has
scales/...     where each user is scaled by its own rows, these: shift, scale and label
"""

from __future__ import annotations

import json
import mmap
import os
import struct
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from safetensors import SafetensorError, safe_open
from safetensors.numpy import load, save

from corsage.app.results.header import Header, header
from corsage.core.arrays import Array, Arrays
from corsage.core.errors import CheckpointError
from corsage.core.files import UNSTAMPED, intact, let_go, stamp

SHARED_PREFIX, USERS_PREFIX, MODELS_PREFIX, PICKED = "shared/", "users/", "models/", "picked"
SCALES_PREFIX, SAMPLES_PREFIX, SAMPLE_COUNTS = "scales/", "samples/", "counts"
OF_A_USER = (USERS_PREFIX, SAMPLES_PREFIX)
"""The beginnings of what a file lacks if users' models are not kept in it."""
CODES = {"float32": "F32", "float64": "F64", "int64": "I64"}
CODES |= {"float16": "F16", "int32": "I32", "int16": "I16", "int8": "I8", "uint8": "U8"}
CODES |= {"bool": "BOOL"}
ALIGNED = 8


class RowFile:
    """A file of models, read where and when it is asked; or the bytes of one.

    Parameters
    ----------
    source : the file, or its content.
    """

    def __init__(self, source: Path | bytes) -> None:
        self.where = str(source) if isinstance(source, Path) else "models in memory"
        self._arrays: Arrays = {}
        try:
            if isinstance(source, Path):
                self.header = header(self._file.metadata(), self.where)
                self.names = list(self._file.keys())
            else:
                self._arrays = dict(load(source))
                self.header = header(metadata_of(source), self.where)
                self.names = list(self._arrays)
        except FileNotFoundError:
            raise CheckpointError(f"{self.where}: is not there.") from None
        except (SafetensorError, OSError, ValueError) as error:
            raise CheckpointError(f"{self.where}: damaged, or no file of models.") from error

    @cached_property
    def _file(self) -> Any:
        """The file, mapped: what was read of it stays in memory."""
        return safe_open(self.where, framework="np")

    def rest(self) -> None:
        """Let the file go until it is read again."""
        self.__dict__.pop("_file", None)

    def checked(self) -> RowFile:
        """Itself; CheckpointError if a byte of the file is another than was written."""
        if not intact(Path(self.where)):
            raise CheckpointError(f"{self.where}: damaged: its checksum is that of other bytes.")
        return self

    @cached_property
    def place(self) -> dict[str, int]:
        """Places of each user's rows."""
        return {user: i for i, user in enumerate(self.header.users)}

    def own(self, user: str) -> Arrays:
        """All parameters of a user's model, by their names; those of the model it picked."""
        place, found = self.place[user], {}
        model = int(self.row(PICKED, place)) if PICKED in self.names else 0
        for name in self.names:
            kind, _, parameter = name.partition("/")
            if kind == "samples":
                found[parameter] = self.rows(name, *self.ends[place : place + 2])
            elif parameter and not name.startswith(SCALES_PREFIX):
                row = {"users": place, "models": model}.get(kind)
                found[parameter] = self.array(name) if row is None else self.row(name, row)
        return found

    @cached_property
    def ends(self) -> list[int]:
        """The places where each user's samples begin, and the last one's end."""
        counts = self.array(SAMPLE_COUNTS).astype(np.int64)
        if len(counts) != len(self.header.users) or (counts < 0).any():
            raise CheckpointError(f"{self.where}: damaged ({SAMPLE_COUNTS}).")
        return [0, *np.cumsum(counts).tolist()]

    def scales(self, user: str) -> dict[str, list[float]]:
        """A user's own shift and scale of each input, and mean and scale of its labels, if any."""
        names, place = (
            [name for name in self.names if name.startswith(SCALES_PREFIX)],
            self.place[user],
        )
        return {n.removeprefix(SCALES_PREFIX): self.row(n, place).tolist() for n in names}

    @property
    def alike(self) -> bool:
        """True if users' inputs are all scaled alike."""
        return not any(name.startswith(SCALES_PREFIX) for name in self.names)

    def every(self, parameter: str) -> Array:
        """A parameter of every user, one row a user."""
        for name in self.names:
            kind, _, own = name.partition("/")
            if own == parameter and kind in ("users", "models", "shared"):
                array, count = self.array(name), len(self.header.users)
                if kind == "models":
                    return array[self.array(PICKED).astype(np.int64)]
                return array if kind == "users" else np.broadcast_to(array, (count, *array.shape))
        raise CheckpointError(f"{self.where}: damaged (no {parameter}).")

    def array(self, name: str) -> Array:
        """A whole tensor."""
        if self._arrays:
            return self._read(lambda: self._arrays[name])
        return self._read(lambda: self._file.get_tensor(name))

    def row(self, name: str, number: int) -> Array:
        """A row of a tensor."""
        if self._arrays:
            return self._read(lambda: self._arrays[name][number])
        return self._read(lambda: self._file.get_slice(name)[number : number + 1][0])

    def rows(self, name: str, start: int, stop: int) -> Array:
        """Some rows of a tensor."""
        if self._arrays:
            return self._read(lambda: self._arrays[name][start:stop])
        return self._read(lambda: self._file.get_slice(name)[start:stop])

    def _read(self, get: Any) -> Array:
        try:
            found = np.asarray(get())
            if str(found.dtype) not in CODES:
                raise ValueError(f"a tensor of {found.dtype}")
            return found
        except (SafetensorError, OSError, ValueError, IndexError, KeyError) as error:
            raise CheckpointError(f"{self.where}: damaged ({error}).") from error


def metadata_of(raw: bytes) -> dict[str, str]:
    """The metadata of a safetensors file that was loaded already."""
    (size,) = struct.unpack("<Q", raw[:8])
    return dict(json.loads(raw[8 : 8 + size]).get("__metadata__") or {})


def encoded(head: Header, arrays: Mapping[str, NDArray[Any]]) -> bytes:
    """A whole file."""
    plain = {name: np.asarray(array, order="C") for name, array in arrays.items()}
    content = bytearray(save(plain, {**head.metadata(), **UNSTAMPED}))
    stamp(content)
    return bytes(content)


def joined(head: Header, pieces: Sequence[RowFile], target: Path | None) -> bytes:
    """Pieces of one row as one file, the users in the order of `head`.

    It is written part by part: it need not fit into memory. Without a target it is returned.
    """
    first, order = pieces[0], {user: i for i, user in enumerate(head.users)}
    names = [name for name in first.names if head.kept or not name.startswith(OF_A_USER)]
    whole = [name for name in names if not is_of_users(name)]
    shapes = {name: (first.array(name).dtype, first.array(name).shape) for name in whole}
    ends = ends_of(pieces, order) if SAMPLE_COUNTS in names else []
    for name in filter(is_of_users, names):
        rows = first.array(name)
        count = ends[-1] if name.startswith(SAMPLES_PREFIX) else len(head.users)
        shapes[name] = rows.dtype, (count, *rows.shape[1:])
    lead, places, size = laid_out(head, shapes)
    buffer: Any = bytearray(size) if target is None else mapped(target, size)
    buffer[: len(lead)] = lead
    whole_file = np.frombuffer(buffer, np.uint8)
    views = {
        name: whole_file[start : start + size_of(*shapes[name])]
        .view(shapes[name][0])
        .reshape(shapes[name][1])
        for name, start in places.items()
    }
    for name in whole:
        views.pop(name)[...] = first.array(name)
    for piece in pieces:
        fill(views, piece, order, ends)
        piece.rest()
        let_go(buffer)
    stamp(buffer)
    if target is None:
        return bytes(buffer)
    buffer.flush()
    return b""


def ends_of(pieces: Iterable[RowFile], order: Mapping[str, int]) -> list[int]:
    """The places where the samples of each user of the whole begin, and the last one's end."""
    counts = np.zeros(len(order), np.int64)
    for piece in pieces:
        mine = [user for user in piece.header.users if user in order]
        counts[[order[user] for user in mine]] = [
            piece.ends[piece.place[user] + 1] - piece.ends[piece.place[user]] for user in mine
        ]
    return [0, *np.cumsum(counts).tolist()]


def fill(
    views: Mapping[str, Array], piece: RowFile, order: Mapping[str, int], ends: Sequence[int]
) -> None:
    """Write a piece's rows where its users are in the whole."""
    users = piece.header.users
    places = np.fromiter((order.get(user, -1) for user in users), np.int64, len(users))
    mine = np.flatnonzero(places >= 0)
    for name, view in views.items():
        rows = piece.array(name)
        if rows.dtype != view.dtype:
            raise CheckpointError(f"{piece.where}: {name} is {rows.dtype}, others are not.")
        if not name.startswith(SAMPLES_PREFIX):
            view[places[mine]] = rows if len(mine) == len(rows) else rows[mine]
            continue
        for i, place in zip(mine, places[mine], strict=True):
            view[ends[place] : ends[place + 1]] = rows[piece.ends[i] : piece.ends[i + 1]]


def mapped(target: Path, size: int) -> mmap.mmap:
    """A new file of a size, to be written as bytes in memory."""
    reserve(target, size)
    with target.open("rb+") as file:
        return mmap.mmap(file.fileno(), size)


def reserve(target: Path, size: int) -> None:
    """An empty file of a size that is there: to write where a full disk has no room for a mapped
    page would end the process without a word."""
    target.parent.mkdir(parents=True, exist_ok=True)
    try:
        with target.open("wb") as file:
            if hasattr(os, "posix_fallocate"):
                os.posix_fallocate(file.fileno(), 0, size)
            else:
                file.truncate(size)
    except OSError as error:
        remove(target)
        raise OSError(error.errno, error.strerror, str(target)) from error


def is_of_users(name: str) -> bool:
    """True if a tensor has a row a user."""
    return name in (PICKED, SAMPLE_COUNTS) or name.startswith((*OF_A_USER, SCALES_PREFIX))


def size_of(dtype: np.dtype[Any], shape: Iterable[int]) -> int:
    """Bytes of a tensor."""
    return int(dtype.itemsize * np.prod([*shape], dtype=np.int64))


def laid_out(
    head: Header, shapes: Mapping[str, tuple[np.dtype[Any], tuple[int, ...]]]
) -> tuple[bytes, dict[str, int], int]:
    """The beginning of a safetensors file, where each tensor starts in it, and its whole size."""
    table: dict[str, Any] = {"__metadata__": {**head.metadata(), **UNSTAMPED}}
    places, end = {}, 0
    for name, (dtype, shape) in sorted(shapes.items(), key=lambda item: -item[1][0].itemsize):
        places[name], begin = end, end
        end += size_of(dtype, shape)
        offsets = [begin, end]
        table[name] = {"dtype": CODES[str(dtype)], "shape": list(shape), "data_offsets": offsets}
    text = json.dumps(table).encode()
    text += b" " * (-len(text) % ALIGNED)
    lead = struct.pack("<Q", len(text)) + text
    return lead, {name: place + len(lead) for name, place in places.items()}, end + len(lead)


def remove(*paths: Path) -> None:
    """Delete what is no longer needed; what cannot be deleted stays."""
    for path in paths:
        with suppress(OSError):
            path.unlink()
