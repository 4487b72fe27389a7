"""A lock on a run folder: two processes that go on with the same run would spoil it.

The kernel holds it for the process, so that of a killed one nothing is left.
"""

from __future__ import annotations

import json
import os
import socket
from pathlib import Path

from filelock import FileLock, Timeout

from corsage.core.errors import CheckpointError
from corsage.core.files import guarded, write_atomically


class RunLock:
    """Held by the process that works on a run folder; who holds it stands in `lock.json`."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._holder = folder / "lock.json"
        # Of the process, not of a thread: engines call the server script in threads of their own.
        self._lock = FileLock(folder / ".lock", timeout=0, thread_local=False)

    def take(self) -> None:
        """Take it; CheckpointError at once if another process has it."""
        if not guarded(self._taken):
            raise CheckpointError(
                f"{self.folder}: {self.holder()} is at work on this run: wait for its end, or stop "
                "it; two of them would spoil the run."
            )
        me = {"pid": os.getpid(), "host": socket.gethostname()}
        guarded(write_atomically, self._holder, json.dumps(me))

    def _taken(self) -> bool:
        try:
            self._lock.acquire()
        except Timeout:
            return False
        return True

    def release(self) -> None:
        """Let others have it."""
        if self._lock.is_locked:
            self._holder.unlink(missing_ok=True)
            self._lock.release()

    def holder(self) -> str:
        """Who has it, as far as it says so."""
        try:
            found = json.loads(self._holder.read_text(encoding="utf-8"))
            return f"process {int(found['pid'])} on {found['host']}"
        except (OSError, ValueError, TypeError, KeyError):
            return "another process"
