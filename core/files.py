"""Files that are either whole or not there."""

from __future__ import annotations

import contextlib
import errno
import hashlib
import json
import mmap
import os
import re
import secrets
import zlib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from corsage.core.errors import StorageError

TEMPORARY_NAME = re.compile(r"\..+\.[0-9a-f]{12}")
"""Names of files that are being written."""
UNSTAMPED = {"checksum": "0" * 8}
"""The entry of a safetensors file's metadata that `stamp` fills in."""
READ_AT_ONCE = 2**26
"""Bytes of a mapped file that are in memory at once."""
_STAMP = re.compile(rb'"checksum": ?"([0-9a-f]{8})"')


def write_atomically(
    path: Path, data: bytes | str, durable: bool = False, private: bool = False
) -> None:
    """Write a file so that at any moment there is the old content or the new, never a part.

    `durable` waits until the data are on the disk, for machines that may lose power. What is
    `private` only its owner can read, from the first moment on and whatever the umask.
    """
    raw = data.encode() if isinstance(data, str) else data
    if not path.name:
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(path))
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.{secrets.token_hex(6)}")
    try:
        with open(temporary, "xb", opener=_for_its_owner if private else None) as file:
            file.write(raw)
            if durable:
                file.flush()
                os.fsync(file.fileno())
        temporary.replace(path)
        if durable:
            sync_folder(path.parent)
    except BaseException as error:
        with contextlib.suppress(FileNotFoundError):
            temporary.unlink()
        if isinstance(error, OSError):
            error.filename = str(path)  # else none, or one that is gone
        raise


def _for_its_owner(path: str, flags: int) -> int:
    """Open a file that nobody else may read."""
    handle = os.open(path, flags, 0o600)
    if hasattr(os, "fchmod"):
        os.fchmod(handle, 0o600)  # a umask may have taken rights even from the owner
    return handle


def sync_folder(folder: Path) -> None:
    """Make a rename durable; not possible on every system, and then not needed."""
    with contextlib.suppress(OSError):
        handle = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)


def cache_root(cache_dir: str) -> Path:
    """The folder of files that can be made again: `cache-dir`, else the user's cache folder."""
    if cache_dir:
        return Path(cache_dir).expanduser().absolute()
    home = os.environ.get("XDG_CACHE_HOME")
    return (Path(home) if home else Path.home() / ".cache") / "corsage"


def append_line(path: Path, line: str, durable: bool = False) -> None:
    """Add a line to a file; `durable` waits until it is on the disk, and all before it."""
    with path.open("a", encoding="utf-8") as file:
        file.write(line + "\n")
        if durable:
            file.flush()
            os.fsync(file.fileno())


def clear_temporaries(folder: Path) -> None:
    """Delete what a killed `write_atomically` left in a folder: nobody else may be writing."""
    with contextlib.suppress(FileNotFoundError):
        for path in folder.iterdir():
            if TEMPORARY_NAME.fullmatch(path.name) and path.is_file():
                path.unlink(missing_ok=True)


def delete(*paths: Path) -> None:
    """Delete files, the first one first; what is not there is no error. Survives a power cut."""
    for path in paths:
        path.unlink(missing_ok=True)
    for folder in {path.parent for path in paths if path.parent.is_dir()}:
        sync_folder(folder)


def sealed(content: Mapping[str, Any]) -> str:
    """JSON that knows when it was damaged."""
    plain = json.loads(json.dumps(content))
    return json.dumps({**plain, "seal": _seal(plain)}, indent=2)


def unsealed(path: Path) -> dict[str, Any]:
    """The content of a sealed file; ValueError if it is damaged, OSError if it cannot be read."""
    content = parsed(path.read_text(encoding="utf-8"))
    if not isinstance(content, dict) or content.pop("seal", "") != _seal(content):
        raise ValueError(f"{path}: damaged")
    return content


def stamp(content: Any) -> None:
    """Write into a safetensors file's beginning a checksum of all its other bytes."""
    begin, end, known = _checksum(content)
    memoryview(content)[begin:end] = known


def intact(content: Path | bytes) -> bool:
    """False if a safetensors file that was stamped has other bytes by now."""
    if isinstance(content, Path):
        with content.open("rb") as file:
            return _is_intact(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ))
    return _is_intact(content)


def _is_intact(content: Any) -> bool:
    begin, end, known = _checksum(content)
    return bytes(memoryview(content)[begin:end]) == known


def _checksum(content: Any) -> tuple[int, int, bytes]:
    """Begin and end of a file's checksum, and what it should be; nothing without one."""
    view = memoryview(content)
    found = _STAMP.search(view[: 8 + int.from_bytes(view[:8], "little")])
    if not found:
        return 0, 0, b""
    begin, end = found.span(1)
    known = zlib.crc32(view[:begin])
    for start in range(end, len(view), READ_AT_ONCE):
        known = zlib.crc32(view[start : start + READ_AT_ONCE], known)
        let_go(content)
    return begin, end, b"%08x" % known


def let_go(content: Any) -> None:
    """If it is a mapped file, its pages need no memory of the process until they are read again."""
    if isinstance(content, mmap.mmap) and hasattr(mmap, "MADV_DONTNEED"):
        content.madvise(mmap.MADV_DONTNEED)


def parsed(text: str) -> Any:
    """The value of a JSON text; ValueError if it is none, or nested without end."""
    try:
        return json.loads(text)
    except RecursionError:
        raise ValueError("nested too deeply") from None


def _seal(plain: Mapping[str, Any]) -> str:
    text = json.dumps(plain, sort_keys=True)
    return hashlib.blake2b(text.encode(), digest_size=16).hexdigest()


def guarded(action: Callable[..., Any], *arguments: Any, **named: Any) -> Any:
    """Do something with files; what fails is one clear line."""
    try:
        return action(*arguments, **named)
    except FileExistsError:
        raise
    except OSError as error:
        where = error.filename or (arguments[0] if arguments else "")
        raise StorageError(
            f"{where}: cannot be written ({error.strerror}). Free some space or choose another "
            "place; what was written before is whole."
        ) from error


OTHERS_RIGHTS = 0o077
"""The rights of everybody but the owner."""
WRITE = 0o022
POSIX = os.name == "posix"
"""Elsewhere a folder's rights are those of the folder that it is in."""


def private_folder(folder: Path) -> None:
    """Make a folder that only its owner can read, whatever the umask, or make it such a one."""
    if not folder.is_dir():
        folder.parent.mkdir(parents=True, exist_ok=True)
        folder.mkdir(mode=0o700, exist_ok=True)
        folder.chmod(0o700)  # a umask may have taken rights even from the owner
        sync_folder(folder.parent)
    elif POSIX and folder.stat().st_mode & OTHERS_RIGHTS:
        folder.chmod(0o700)
