"""Checkpoints: the whole state of a strategy in one file that is either whole or not there."""

from __future__ import annotations

import hashlib
import json
import struct
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
from safetensors import SafetensorError
from safetensors.numpy import load, save

from corsage.core.errors import CheckpointError
from corsage.core.files import write_atomically
from corsage.strategies.rounds.state import Progress, restored, stored

FORMAT = "corsage-checkpoint-2"
S = TypeVar("S")


def write_checkpoint(
    path: Path, progress: Progress, state: object, identity: dict[str, Any]
) -> None:
    """Write where a run stands and what its algorithm remembers; `identity` says which it is."""
    (where, _), (plain, named) = stored(progress), stored(state)
    body = {"format": FORMAT, "identity": identity, "progress": where, "state": plain}
    head = json.dumps(body).encode()
    arrays = save({name: np.asarray(a, order="C") for name, a in named.items()})
    payload = struct.pack("<Q", len(head)) + head + arrays
    digest = hashlib.blake2b(payload, digest_size=32).digest()
    # On the disk itself: once it is written, devices forget what only older checkpoints need.
    write_atomically(path, digest + payload, durable=True)


def read_checkpoint(path: Path, identity: dict[str, Any], kind: type[S]) -> tuple[Progress, S]:
    """Read both back; CheckpointError if the file is damaged or of another run or version."""
    try:
        raw = path.read_bytes()
    except OSError as error:
        raise CheckpointError(f"{path}: cannot be read ({error.strerror}).") from error
    digest, payload = raw[:32], raw[32:]
    if len(raw) < 40 or hashlib.blake2b(payload, digest_size=32).digest() != digest:
        raise CheckpointError(
            f"{path}: damaged, or not a checkpoint of Corsage; restore it from a copy, or start "
            "the run anew."
        )
    (size,) = struct.unpack("<Q", payload[:8])
    try:
        body = json.loads(payload[8 : 8 + size])
        arrays = load(payload[8 + size :])
    except (ValueError, SafetensorError) as error:
        raise CheckpointError(f"{path}: not a checkpoint of Corsage ({error}).") from error
    if body.get("format") != FORMAT:
        raise CheckpointError(
            f"{path}: written by another version of Corsage ({body.get('format')}, this one reads "
            f"{FORMAT}): finish the run with that version, or start it anew."
        )
    check_identity(path, body["identity"], identity)
    return restored(Progress, body["progress"], {}), restored(kind, body["state"], arrays)


def check_identity(path: Path, found: dict[str, Any], wanted: dict[str, Any]) -> None:
    """Refuse a checkpoint that was written under other settings, and say which differ."""
    differ = [k for k in sorted({*found, *wanted}) if found.get(k) != wanted.get(k)]
    if differ:
        changes = ", ".join(f"{k} was {found.get(k)!r}, now {wanted.get(k)!r}" for k in differ[:3])
        raise CheckpointError(f"{path}: of another run: {changes}.")
