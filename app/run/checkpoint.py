"""Checkpoints: all parts of a strategy in one file that is either whole or not there.

The last few are kept. A run goes on from the newest that is sane, and may go back to any of them.
"""

from __future__ import annotations

import hashlib
import json
import re
import struct
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from safetensors import SafetensorError
from safetensors.numpy import load, save

from corsage.core.arrays import Arrays
from corsage.core.errors import CheckpointError
from corsage.core.files import delete, write_atomically
from corsage.strategies.rounds.state import not_finite, restored, stored

CHECKPOINT_FORMAT = "corsage-checkpoint-6"
Parts = Mapping[str, Any]
"""Dataclasses, by the names under which a strategy has them."""
Kinds = Mapping[str, type]
"""Their classes."""


@dataclass
class Checkpoints:
    """The checkpoints of one strategy in one run.

    Parameters
    ----------
    folder : the strategy's.
    identity : which run and strategy they are of, and under which keys.
    config : all keys, by which the run folder's own file of them can be made anew.
    number : how many are kept.
    note : is told what was skipped.
    kept : the rounds that there are checkpoints of, in order.
    """

    folder: Path
    identity: dict[str, Any]
    config: dict[str, Any] = field(default_factory=dict)
    number: int = 3
    note: Callable[[str], None] = print
    kept: list[int] = field(default_factory=list)

    def write(self, number: int, parts: Parts) -> None:
        """Write that of a round, and only then delete the oldest."""
        path = checkpoint_of(self.folder, number)
        write_checkpoint(path, parts, self.identity, self.config)
        self.kept = sorted({*self.kept, number})[-self.number :]
        delete(*(path for number, path in found(self.folder) if number not in self.kept))

    def sane(self, kinds: Kinds) -> Iterator[tuple[int, Parts]]:
        """The rounds and parts of those that are sane, the newest first.

        What is skipped is said; CheckpointError if none is of use, though there are some.
        """
        skipped: list[tuple[Path, str]] = []
        self.kept = []
        for number, path in reversed(found(self.folder)):
            try:
                parts = read_checkpoint(path, self.identity, kinds)
                check_sane(path, parts)
            except CheckpointError as why:
                skipped.append((path, str(why)))
                continue
            self.kept = [number, *self.kept]
            yield number, parts
        if skipped and not self.kept:
            raise CheckpointError(
                f"{skipped[0][1].rstrip('.')}; no other checkpoint is of use. Put a copy of one "
                "back, or begin this strategy anew: --from-round 0."
            )
        for path, text in skipped:
            self.note(f"{path.name} is skipped: {text}")
            path.replace(path.with_name(f"unusable-{path.name}"))


def checkpoint_of(folder: Path, number: int) -> Path:
    """The file of a round's checkpoint."""
    return folder / f"checkpoint-{number:06}"


def found(folder: Path) -> list[tuple[int, Path]]:
    """The rounds that there are checkpoints of, oldest first, and their files."""
    with suppress(OSError):
        named = [(re.fullmatch(r"checkpoint(?:-(\d+))?", p.name), p) for p in folder.iterdir()]
        return sorted((int(match[1] or 0), path) for match, path in named if match)
    return []


def go_back(folder: Path, number: int) -> None:
    """Delete the checkpoints of later rounds, the newest first; all of them for round 0."""
    late = [path for later, path in reversed(found(folder)) if later > number or not number]
    delete(*late)


def write_checkpoint(
    path: Path,
    parts: Parts,
    identity: dict[str, Any],
    config: dict[str, Any] | None = None,
) -> None:
    """Write the parts of a strategy; `identity` says which run it is of."""
    both = {name: stored(part) for name, part in parts.items()}
    plain = {name: one for name, (one, _) in both.items()}
    body = {
        "format": CHECKPOINT_FORMAT,
        "identity": identity,
        "parts": plain,
        "config": config or {},
    }
    named = {f"{part}/{name}": a for part, (_, own) in both.items() for name, a in own.items()}
    head = json.dumps(body).encode()
    arrays = save({name: np.asarray(a, order="C") for name, a in named.items()})
    payload = struct.pack("<Q", len(head)) + head + arrays
    digest = hashlib.blake2b(payload, digest_size=32).digest()
    # On the disk itself: once it is written, devices forget what only older checkpoints need.
    write_atomically(path, digest + payload, durable=True)


def read_checkpoint(path: Path, identity: dict[str, Any], kinds: Kinds) -> dict[str, Any]:
    """Read parts back; CheckpointError if the file is damaged or of another run or version."""
    body, arrays = opened(path)
    check_identity(path, body["identity"], identity)
    named: dict[str, Arrays] = {name: {} for name in kinds}
    for name, array in arrays.items():
        part, _, own = name.partition("/")
        named.setdefault(part, {})[own] = array
    try:
        plain = body["parts"]
        return {name: restored(kind, plain[name], named[name]) for name, kind in kinds.items()}
    except CheckpointError as error:
        raise CheckpointError(f"{path}: {error}") from error
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise CheckpointError(f"{path}: written by another version of Corsage.") from error


def opened(path: Path) -> tuple[dict[str, Any], Arrays]:
    """A checkpoint's head and arrays; CheckpointError if it is none of this version's."""
    try:
        raw = path.read_bytes()
    except OSError as error:
        raise CheckpointError(f"{path}: cannot be read ({error.strerror}).") from error
    digest, payload = raw[:32], raw[32:]
    if len(raw) < 40 or hashlib.blake2b(payload, digest_size=32).digest() != digest:
        raise CheckpointError(f"{path}: damaged, or not a checkpoint of Corsage.")
    (size,) = struct.unpack("<Q", payload[:8])
    try:
        body = json.loads(payload[8 : 8 + size])
        arrays = load(payload[8 + size :])
    except (ValueError, SafetensorError) as error:
        raise CheckpointError(f"{path}: not a checkpoint of Corsage ({error}).") from error
    form = body.get("format") if isinstance(body, dict) else None
    if form != CHECKPOINT_FORMAT or not isinstance(body.get("identity"), dict):
        raise CheckpointError(
            f"{path}: written by another version of Corsage ({form}, this one reads "
            f"{CHECKPOINT_FORMAT}): "
            "finish the run with that version."
        )
    return body, arrays


def check_sane(path: Path, parts: Parts) -> None:
    """Refuse a part with a number that is not finite: no round would come of it."""
    if name := not_finite(parts):
        raise CheckpointError(f"{path}: {name} is not finite.")


def check_identity(path: Path, written: dict[str, Any], wanted: dict[str, Any]) -> None:
    """Refuse a checkpoint that was written under other settings, and say which differ."""
    differ = [k for k in sorted({*written, *wanted}) if written.get(k) != wanted.get(k)]
    if differ:
        changes = ", ".join(
            f"{k} was {written.get(k)!r}, now {wanted.get(k)!r}" for k in differ[:3]
        )
        raise CheckpointError(f"{path}: of another run: {changes}.")
