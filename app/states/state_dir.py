"""A device's `state-dir`: a folder for each experiment, of which only the last few runs' stay.

A run that may still be resumed cannot be told from one that never will: what counts is when its
states were used last.
"""

from __future__ import annotations

import contextlib
import os
import re
import secrets
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from hashlib import blake2b
from pathlib import Path
from typing import Any

from corsage.app.states.state_files import EXPERIMENT_FILE, is_ours, is_state, remove_states
from corsage.core.errors import ConfigError
from corsage.core.files import OTHERS_RIGHTS, POSIX, WRITE, parsed, private_folder

KEEP_RUNS = 10
_RUN = re.compile(r"-([0-9a-f]{12})(?=-|$)")


@dataclass(frozen=True)
class Stored:
    """An experiment's states in a state-dir.

    Parameters
    ----------
    folder : where they are.
    run : which run they belong to; the strategies of one share it.
    used : when they were used last.
    size : bytes of all of them.
    """

    folder: Path
    run: str
    used: float
    size: int


def state_folder(path: str) -> Path:
    """A folder for states that only its owner can read, made if it is not there.

    One that holds other things too, say a home, is left as it is: within it the states' own
    folders are shut.
    """
    folder = Path(path).expanduser()
    try:
        if not folder.exists():
            private_folder(folder)
        info = folder.stat()
        if POSIX and info.st_uid != os.geteuid():
            raise ConfigError(
                f"state-dir={path}: it belongs to another user (uid {info.st_uid}): give the node "
                "a folder of its own, or make it the owner."
            )
        if POSIX and info.st_mode & OTHERS_RIGHTS:
            if all(is_ours(entry) for entry in folder.iterdir()):
                folder.chmod(0o700)
            elif info.st_mode & WRITE:
                raise ConfigError(
                    f"state-dir={path}: others may write there, and it holds other files: give the "
                    "node a folder of its own."
                )
        if not os.access(folder, os.W_OK | os.X_OK):
            raise PermissionError(13, "Permission denied", path)
        list(folder.iterdir())  # a file is none
    except OSError as error:
        raise ConfigError(f"state-dir={path}: cannot be used ({error.strerror}).") from error
    return folder


def experiments(folder: Path) -> list[Stored]:
    """The experiments with states in a state-dir, those used last first."""
    found = [stored(path) for path in folder.iterdir() if is_ours(path)]
    return sorted(found, key=lambda one: (-one.used, one.folder.name))


def stored(folder: Path) -> Stored:
    """Facts of an experiment's folder."""
    infos = [
        path.lstat() for path in folder.rglob("*") if path.name == EXPERIMENT_FILE or is_state(path)
    ]
    name = name_of(folder)
    runs = _RUN.findall(name)
    return Stored(
        folder,
        run=runs[0] if runs else name,
        used=max((info.st_mtime for info in infos), default=0.0),
        size=sum(info.st_size for info in infos),
    )


def name_of(folder: Path) -> str:
    """The experiment's own name; a folder may be called otherwise, see `safe_name`."""
    with suppress(OSError, ValueError, KeyError, TypeError):
        return str(parsed((folder / EXPERIMENT_FILE).read_text(encoding="utf-8"))["experiment"])
    return folder.name


def superfluous(folder: Path, keep: int, current: Path | None = None) -> Iterator[Stored]:
    """The states of all runs but the current one and those used last, `keep` in all."""
    found = experiments(folder)
    order = [one.run for one in found if one.folder == current] + [one.run for one in found]
    kept = list(dict.fromkeys(order))[:keep]
    return (one for one in found if one.run not in kept)


def clear(folder: Path, keep: int, current: Path) -> None:
    """Remove the states of all runs but `keep`; what cannot be removed stays."""
    for one in superfluous(folder, keep, current):
        with suppress(OSError):
            remove(one.folder)


def remove(folder: Path) -> None:
    """Remove an experiment's states, and its folder if nothing else is in it."""
    for path in [*folder.iterdir()]:
        if not path.is_symlink() and path.is_dir():
            remove_states(path)
    (folder / EXPERIMENT_FILE).unlink(missing_ok=True)
    with suppress(OSError):
        folder.rmdir()


SECRET = "identity"
SECRET_BYTES = 32


def proof_of(folder: Path | None, experiment: str) -> str:
    """A word that only this device can say in this run; none, if it has nowhere to keep a secret.

    Another run has another word, so that the server of one cannot use it in another.
    """
    if folder is None:
        return ""
    return blake2b(experiment.encode(), key=secret_of(folder), digest_size=32).hexdigest()


def mark_key(folder: Path | None, experiment: str) -> bytes:
    """A key for hashes that leave this device, another in each run; none without a secret."""
    if folder is None:
        return b""
    key = secret_of(folder)
    return blake2b(experiment.encode(), key=key, person=b"data", digest_size=32).digest()


def secret_of(folder: Path) -> bytes:
    """The device's secret, made when it is first needed; nobody else may read it."""
    path = folder / SECRET
    with contextlib.suppress(FileNotFoundError):
        if len(found := path.read_bytes()) == SECRET_BYTES:
            return found
        path.unlink()  # a loss of power cut it short
    temporary = folder / f".{SECRET}.{secrets.token_hex(6)}"
    handle = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(handle, "wb") as file:
        file.write(secrets.token_bytes(SECRET_BYTES))
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


def runs_to_keep(value: Any) -> int:
    """The number of runs whose states stay; at least that of the one that is going on."""
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise ConfigError(
            f"node config: keep-runs={value!r:.40}: must be a whole number from 1 on."
        )
    return value
