"""Files that are either whole or not there."""

from __future__ import annotations

import contextlib
import os
import secrets
from collections.abc import Callable
from pathlib import Path
from typing import Any

from corsage.core.errors import CorsageError


def write_atomically(path: Path, data: bytes | str, durable: bool = False) -> None:
    """Write a file so that at any moment there is the old content or the new, never a part.

    `durable` waits until the data are on the disk, for machines that may lose power.
    """
    raw = data.encode() if isinstance(data, str) else data
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.{secrets.token_hex(6)}")
    try:
        with temporary.open("xb") as file:
            file.write(raw)
            if durable:
                file.flush()
                os.fsync(file.fileno())
        temporary.replace(path)
        if durable:
            _sync_folder(path.parent)
    except BaseException:
        with contextlib.suppress(FileNotFoundError):
            temporary.unlink()
        raise


def _sync_folder(folder: Path) -> None:
    """Make a rename durable; not possible on every system, and then not needed."""
    with contextlib.suppress(OSError):
        handle = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)


def append_line(path: Path, line: str) -> None:
    """Add a line to a file."""
    with path.open("a", encoding="utf-8") as file:
        file.write(line + "\n")


def guarded(action: Callable[..., Any], *arguments: Any, **named: Any) -> Any:
    """Do something with files; what fails is one clear line."""
    try:
        return action(*arguments, **named)
    except FileExistsError:
        raise
    except OSError as error:
        where = error.filename or (arguments[0] if arguments else "")
        raise CorsageError(
            f"{where}: cannot be written ({error.strerror}). Free some space or choose another "
            "run-dir; what was written before is whole."
        ) from error
