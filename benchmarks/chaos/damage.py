"""Files that are damaged, as bad disks and power cuts do it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from random import Random


def cut(raw: bytearray, place: int, random: Random) -> bytes:
    """The end is missing."""
    return bytes(raw[:place])


def zeroed(raw: bytearray, place: int, random: Random) -> bytes:
    """The end was never written: what a power cut leaves."""
    return bytes(raw[:place]) + bytes(len(raw) - place)


def flipped(raw: bytearray, place: int, random: Random) -> bytes:
    """A bit is another."""
    raw[place] ^= 1 << random.randrange(8)
    return bytes(raw)


def replaced(raw: bytearray, place: int, random: Random) -> bytes:
    """Something else stands there."""
    return random.choice([b"[]", b"\xff\xfe\x00", b'{"format": "other"}', b"null\n", b""])


KINDS: dict[str, Callable[[bytearray, int, Random], bytes]] = {
    "cut": cut,
    "zeroed": zeroed,
    "one bit": flipped,
    "replaced": replaced,
}


def damage(folder: Path, random: Random) -> str:
    """Damage or delete a file of a run folder, any that there is; what was done to which."""
    files = sorted(path for path in folder.rglob("*") if path.is_file() and path.name != ".lock")
    path = random.choice(files)
    kind = random.choice(["deleted", *KINDS])
    raw = bytearray(path.read_bytes())
    if kind == "deleted":
        path.unlink()
    elif raw:
        path.write_bytes(KINDS[kind](raw, random.randrange(len(raw)), random))
    return f"{path.relative_to(folder)} {kind}"
