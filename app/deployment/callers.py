"""The callers, known before anything of their calls' bodies is read.

A SuperNode signs the moment of each call with its key (Flower's `NodeAuthHttpInterceptor`). The
public keys of those who are let in lie in the server's folder, so a stranger is told from the
headers alone. Of a body the gate needs two numbers, which stand in its outermost fields: it reads
those, and parses nothing that somebody may have nested a million deep.
"""

from __future__ import annotations

import contextlib
import logging
import math
import time
from base64 import b64decode
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives import serialization as to
from cryptography.hazmat.primitives.asymmetric import ec

from corsage.app.deployment.register import let_in

log = logging.getLogger("corsage.gate")
AGES = (-5.0, 305.0)
"""Seconds that the moment of a call may differ from now: what the SuperLink allows."""
KEYS_SECONDS = 1.0
"""Seconds between two looks at the folder of keys."""
SAID_SECONDS = 60.0
"""Seconds before the same is said of the same device again."""
MOST_FIELDS = 1000
"""Outermost fields of a call: a SuperNode sends one message in each."""


class Unknown(Exception):
    """Nobody who is let in."""


class Callers:
    """The devices that are let in, by their keys.

    Parameters
    ----------
    folder : of the server, whose `keys` are read again when they change.
    """

    def __init__(self, folder: Path) -> None:
        self._folder, self._looked, self._stamp = folder, -math.inf, tuple[Any, ...]()
        self._known: dict[bytes, tuple[str, ec.EllipticCurvePublicKey]] = {}
        self._said: dict[str, float] = {}
        self.seen: dict[str, float] = {}

    def name_of(self, headers: Mapping[str, str]) -> str:
        """The device that has signed a call now; Unknown if nobody has who is let in."""
        if time.monotonic() - self._looked >= KEYS_SECONDS:
            self.look()
        try:
            name, key = self._known[b64decode(headers["flwr-public-key"], validate=True)]
            moment = headers["flwr-timestamp"]
            age = (datetime.now(UTC) - datetime.fromisoformat(moment)).total_seconds()
            signature = b64decode(headers["flwr-signature"], validate=True)
            key.verify(signature, moment.encode("ascii"), ec.ECDSA(hashes.SHA256()))
        except (KeyError, ValueError, TypeError, OverflowError, InvalidSignature):
            raise Unknown from None
        if not AGES[0] < age < AGES[1]:
            clock = f"its clock is {abs(age):.0f} s {'behind' if age > 0 else 'ahead of'} this one"
            self._say(name, f"{name} is refused: {clock}")
            raise Unknown
        self.seen[name] = time.time()
        return name

    def look(self) -> None:
        """Read the keys again if they have changed."""
        self._looked = time.monotonic()
        with contextlib.suppress(FileNotFoundError):  # one that went meanwhile: look again soon
            if (stamp := stamp_of(self._folder / "keys")) != self._stamp:
                self._known, self._stamp = dict(self._read()), stamp
                self.seen = {name: at for name, at in self.seen.items() if name in self.names}

    def _read(self) -> Iterator[tuple[bytes, tuple[str, ec.EllipticCurvePublicKey]]]:
        """The keys that are let in, as calls name them; one that is damaged lets nobody in."""
        for name, line in let_in(self._folder).items():
            try:
                key = to.load_ssh_public_key(line.encode())
                if not isinstance(key, ec.EllipticCurvePublicKey):
                    raise ValueError("no elliptic curve")
            except (ValueError, UnsupportedAlgorithm) as error:
                self._say(name, f"keys/{name}.pub cannot be read ({error}): it is not let in")
                continue
            pem = key.public_bytes(to.Encoding.PEM, to.PublicFormat.SubjectPublicKeyInfo)
            yield pem, (name, key)

    @property
    def names(self) -> list[str]:
        """All that are let in."""
        return sorted(name for name, _ in self._known.values())

    def _say(self, name: str, line: str) -> None:
        """A line in the log, now and then."""
        if time.monotonic() - self._said.get(name, -SAID_SECONDS) >= SAID_SECONDS:
            self._said[name] = time.monotonic()
            log.warning("gate: %s", line)


def stamp_of(folder: Path) -> tuple[Any, ...]:
    """A word for the keys of a folder: another one when a key comes, goes or changes."""
    paths = sorted([folder, *folder.glob("*")]) if folder.is_dir() else []
    return tuple((path.name, path.stat().st_mtime_ns) for path in paths)


# What a call says of itself: FIELD of the message `node` (1), or of each of `messages_list` (2).


def node_of(content: bytes) -> int:
    """The device that asks for messages, or sends some; 0 if that cannot be read."""
    from flwr.proto.node_pb2 import Node
    from google.protobuf.message import DecodeError

    try:
        return int(Node.FromString(joined(content, 1)).node_id)
    except (ValueError, DecodeError):
        return 0


def is_own(content: bytes) -> bool:
    """True if all replies that a device pushes are its own.

    The SuperLink checks that the device is the one whose key signed the call, and that a reply is
    of the device that was asked, but not that these are the same.
    """
    from flwr.proto.message_pb2 import Metadata
    from google.protobuf.message import DecodeError

    try:
        own = node_of(content)
        said = [joined(part, 1) for number, part in parts_of(content) if number == 2]
        return all(Metadata.FromString(one).src_node_id == own for one in said)
    except (ValueError, DecodeError):
        return False


def joined(content: bytes, wanted: int) -> bytes:
    """A field that is one message; what came in several pieces is merged, as protobuf does."""
    return b"".join(part for number, part in parts_of(content) if number == wanted)


def parts_of(content: bytes) -> Iterator[tuple[int, bytes]]:
    """The outermost fields of a serialised message that have a length; ValueError if it is none."""
    at, end = 0, len(content)
    for _ in range(MOST_FIELDS):
        if at == end:
            return
        tag, at = varint(content, at)
        kind = tag & 7
        if not 8 <= tag < 1 << 32:
            raise ValueError("no field")
        if kind == 0:
            _, at = varint(content, at)
            continue
        if kind not in (1, 2, 5):
            raise ValueError("a group")
        length, at = varint(content, at) if kind == 2 else ({1: 8, 5: 4}[kind], at)
        if length > end - at:
            raise ValueError("cut off")
        if kind == 2:
            yield tag >> 3, content[at : at + length]
        at += length
    raise ValueError("too many fields")


def varint(content: bytes, at: int) -> tuple[int, int]:
    """A whole number at a place, and where it ends."""
    value = 0
    for place, byte in enumerate(content[at : at + 10]):
        value |= (byte & 127) << 7 * place
        if byte < 128:
            return value, at + place + 1
    raise ValueError("no number")
