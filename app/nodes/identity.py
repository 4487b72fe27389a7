"""What a device can prove itself with: a secret in its state-dir that never leaves it."""

from __future__ import annotations

import contextlib
import os
import secrets
from hashlib import blake2b
from pathlib import Path

SECRET = "identity"
BYTES = 32


def proof_of(folder: Path | None, experiment: str) -> str:
    """A word that only this device can say in this run; none, if it has nowhere to keep a secret.

    Another run has another word, so that the server of one cannot use it in another.
    """
    if folder is None:
        return ""
    return blake2b(experiment.encode(), key=secret_of(folder), digest_size=32).hexdigest()


def secret_of(folder: Path) -> bytes:
    """The device's secret, made when it is first needed; nobody else may read it."""
    path = folder / SECRET
    with contextlib.suppress(FileNotFoundError):
        if len(found := path.read_bytes()) == BYTES:
            return found
        path.unlink()  # a loss of power cut it short
    temporary = folder / f".{SECRET}.{secrets.token_hex(6)}"
    handle = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(handle, "wb") as file:
        file.write(secrets.token_bytes(BYTES))
        file.flush()
        os.fsync(file.fileno())
    try:
        os.link(temporary, path)
    except FileExistsError:
        pass  # another process was first: its secret counts
    except OSError:  # a file system without links
        temporary.replace(path)
    temporary.unlink(missing_ok=True)
    return path.read_bytes()
