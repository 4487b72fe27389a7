"""Folders and files that only their owner may read."""

from __future__ import annotations

import os
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

from corsage.core.files import sync_folder

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


def tighten(folders: Iterable[Path]) -> None:
    """Close folders, and files in them, that an earlier version left for everybody to read.

    Those of somebody else stay as they are, and so does what a link leads to.
    """
    for folder in folders if POSIX else ():
        with suppress(OSError):
            if not folder.is_symlink() and folder.stat().st_mode & OTHERS_RIGHTS:
                folder.chmod(0o700)
                for path in folder.iterdir():
                    path.chmod(0o600)
