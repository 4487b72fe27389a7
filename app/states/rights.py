"""Who may read what a device keeps: its owner."""

from __future__ import annotations

import os
from pathlib import Path

from corsage.core.files import sync_folder

OTHERS = 0o077
"""The rights of everybody but the owner."""
WRITE = 0o022
KNOWN = os.name == "posix"
"""Elsewhere a folder's rights are those of the folder that it is in."""


def private_folder(folder: Path) -> None:
    """Make a folder that only its owner can read, whatever the umask, or make it such a one."""
    if not folder.is_dir():
        folder.parent.mkdir(parents=True, exist_ok=True)
        folder.mkdir(mode=0o700, exist_ok=True)
        folder.chmod(0o700)  # a umask may have taken rights even from the owner
        sync_folder(folder.parent)
    elif KNOWN and folder.stat().st_mode & OTHERS:
        folder.chmod(0o700)
