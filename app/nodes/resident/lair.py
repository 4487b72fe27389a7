"""The place of a SuperNode's worker: a socket that only its user can reach.

It lies in a folder of the user's own, beside the secret that a worker was started with and a mark
of the code that it runs. Both are of one SuperNode, known by its process and when that began.
"""

from __future__ import annotations

import json
import os
import secrets
import stat
import sys
import tempfile
from contextlib import suppress
from dataclasses import dataclass
from hashlib import blake2b
from pathlib import Path

import flwr

from corsage.core.clock import born

CODE_ROOT = Path(__file__).parents[3]
WORKER_FILES = (".sock", ".json", ".turn")
"""Of the files that a worker has."""
FLOORS = ("core", "networks", "solvers", "datasets", "strategies", "clients", "app")


@dataclass(frozen=True)
class Owner:
    """The process with which a worker ends; `birth` tells it from a later one of that number."""

    pid: int
    birth: str

    @classmethod
    def of(cls, pid: int) -> Owner | None:
        """The owner of that number; None if nobody could tell whether it still lives."""
        return cls(pid, birth) if pid > 1 and (birth := born(pid)) else None

    @property
    def gone(self) -> bool:
        """True if it has ended."""
        return born(self.pid) != self.birth


class Unsafe(OSError):
    """A folder that others could have put something into."""


def private_place() -> Path:
    """The user's folder for sockets, on this machine; Unsafe if it is not the user's alone."""
    folder = Path(tempfile.gettempdir()) / f"corsage-{os.geteuid()}"
    with suppress(FileExistsError):
        folder.mkdir(mode=0o700)
    found = folder.lstat()
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.geteuid() or found.st_mode & 0o077:
        raise Unsafe(f"{folder} is not a folder that only its owner can reach")
    return folder


@dataclass(frozen=True)
class Lair:
    """The place of one SuperNode's worker.

    Parameters
    ----------
    folder : a folder of the user's alone.
    owner : the process with which the worker ends.
    version : the code that it must run.
    """

    folder: Path
    owner: Owner
    version: str

    @property
    def socket(self) -> Path:
        """The socket at which the worker listens."""
        return self.folder / f"{self.owner.pid}-{self.owner.birth}.sock"

    @property
    def note(self) -> Path:
        """The file with all that a client app must know of the worker."""
        return self.socket.with_suffix(".json")

    @property
    def turn(self) -> Path:
        """The file that the client app has locked whose message the worker is at."""
        return self.socket.with_suffix(".turn")

    def secret(self) -> bytes | None:
        """The worker's secret; None if there is none, or it runs other code."""
        try:
            found = json.loads(self.note.read_text(encoding="utf-8"))
            return bytes.fromhex(found["secret"]) if found["version"] == self.version else None
        except (OSError, ValueError, KeyError, TypeError):
            return None

    def new_secret(self) -> bytes:
        """A secret for another worker, written where only the user can read it."""
        secret = secrets.token_bytes(32)
        self.note.unlink(missing_ok=True)
        handle = os.open(self.note, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with os.fdopen(handle, "w", encoding="utf-8") as file:
            json.dump({"version": self.version, "secret": secret.hex()}, file)
        return secret

    def sweep(self) -> None:
        """Remove what SuperNodes that have ended left behind, and this one's last worker."""
        for path in [path for path in self.folder.iterdir() if path.suffix in WORKER_FILES]:
            pid, _, since = path.stem.partition("-")
            last = path in (self.socket, self.note)
            if last or (pid.isdigit() and Owner(int(pid), since).gone):
                path.unlink(missing_ok=True)


def code() -> str:
    """A mark of what a worker runs: all of this package's code, Python and Flower."""
    mark = blake2b(digest_size=16)
    mark.update(
        json.dumps([str(CODE_ROOT), sys.executable, sys.version, flwr.__version__]).encode()
    )
    for path in sorted(p for floor in FLOORS for p in (CODE_ROOT / floor).rglob("*.py")):
        content = path.read_bytes()
        mark.update(f"{path} {len(content)} ".encode() + content)
    return mark.hexdigest()
