"""Files and processes that a watched process opens, writes and starts: Python's audit events."""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

WRITING = {
    "os.mkdir", "os.remove", "os.rename", "os.rmdir", "os.chmod", "os.chown", "os.link",
    "os.symlink", "os.truncate", "os.utime", "shutil.rmtree", "shutil.move", "shutil.copyfile",
}  # fmt: skip
NEVER = {
    "subprocess.Popen", "os.system", "os.exec", "os.fork", "os.forkpty", "os.posix_spawn",
    "os.spawn", "os.kill", "os.putenv", "socket.connect", "socket.bind", "socket.getaddrinfo",
    "pickle.find_class", "webbrowser.open", "urllib.Request",
}  # fmt: skip


@dataclass
class Watch:
    """What was seen that should not be.

    Parameters
    ----------
    reads, writes : folders in which files may be read, or made and changed.
    """

    reads: Sequence[Path]
    writes: Sequence[Path]
    seen: list[str] = field(default_factory=list)
    thread: int = 0

    def note(self, event: str, arguments: tuple[Any, ...]) -> None:
        """Python's audit hook."""
        if event == "ctypes.dlopen":  # threadpoolctl's, of a library that somebody has loaded
            self._file(event, arguments[0], changes=False)
        elif event in NEVER:
            self.seen.append(f"{event} {str(arguments)[:200]}")
        elif event == "open":
            path, mode, flags = arguments
            changes = bool(set(str(mode)) & set("wax+")) or bool(
                isinstance(flags, int) and flags & 3
            )
            self._file(event, path, changes)
        elif event in WRITING:
            for path in arguments[:2]:
                if isinstance(path, str | bytes | Path):
                    self._file(event, path, changes=True)

    def _file(self, event: str, path: Any, changes: bool) -> None:
        if isinstance(path, int):
            return  # it was opened before
        name = path.decode("utf-8", "replace") if isinstance(path, bytes) else str(path)
        where = Path(name).absolute().resolve()
        code = "__pycache__" in where.parts  # what Python makes of code that it imports
        allowed = self.writes if changes and not code else [*self.reads, *self.writes]
        if not any(where.is_relative_to(folder) for folder in allowed):
            self.seen.append(f"{event} {'for writing ' * changes}{where}")


_WATCHES: list[Watch] = []
_INSTALLED: list[bool] = []


def _hook(event: str, arguments: tuple[Any, ...]) -> None:
    for watch in list(_WATCHES):
        if watch.thread == threading.get_ident():
            watch.note(event, arguments)


@contextmanager
def watched(watch: Watch) -> Iterator[Watch]:
    """Watch this thread; an audit hook cannot be taken away again, so there is one in all."""
    if not _INSTALLED:
        sys.addaudithook(_hook)
        _INSTALLED.append(True)
    watch.thread = threading.get_ident()
    _WATCHES.append(watch)
    try:
        yield watch
    finally:
        _WATCHES.remove(watch)
