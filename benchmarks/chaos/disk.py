"""A small disk that can be filled: a real one where it may be mounted, else a limit on files."""

from __future__ import annotations

import contextlib
import os
import resource
import shutil
import subprocess
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

SIZE = 64 * 2**20
"""Bytes of the disk."""
LEAST = 4096
"""Bytes that a file may have where no disk can be mounted: states and checkpoints have more."""


@dataclass(frozen=True)
class Disk:
    """Where runs write.

    Parameters
    ----------
    folder : the disk.
    real : it is one of its own, a tmpfs; else its files are limited in length while it is "full".
    """

    folder: Path
    real: bool

    @property
    def words(self) -> str:
        """How it is filled, for the table."""
        how = (
            f"a tmpfs of {SIZE >> 20} MB, filled to its last byte" if self.real else "RLIMIT_FSIZE"
        )
        return f"full disk: {how}"

    @property
    def ballast(self) -> Path:
        """What fills it."""
        return self.folder / "ballast"

    def fill(self) -> None:
        """Leave no byte of it."""
        with contextlib.suppress(OSError), self.ballast.open("wb", buffering=0) as file:
            while True:
                file.write(bytes(min(2**16, max(shutil.disk_usage(self.folder).free, 1))))

    def free(self) -> None:
        """Give its room back."""
        self.ballast.unlink(missing_ok=True)

    def limit(self) -> Callable[[], None] | None:
        """What a process that is to find it full calls first, if the disk itself cannot be."""
        return None if self.real else limit_files


def limit_files() -> None:
    """Files of this process cannot become long: EFBIG instead of ENOSPC."""
    resource.setrlimit(resource.RLIMIT_FSIZE, (LEAST, LEAST))


@contextlib.contextmanager
def disk(folder: Path) -> Iterator[Disk]:
    """A disk at a folder, gone at the end."""
    folder.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", f"size={SIZE}", "tmpfs", str(folder)]
    real = (
        os.geteuid() == 0 and not subprocess.run(mount, check=False, capture_output=True).returncode
    )
    try:
        yield Disk(folder, real)
    finally:
        if real:
            subprocess.run(["umount", "-l", str(folder)], check=False, capture_output=True)
