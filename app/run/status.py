"""Status of a run, in a file that a supervisor can read: RUN_FOLDER/status.json.

state        running, finished or failed
exit-code    0, 1 for a failed run, 2 for a user's mistake, 75 if a resume may do later (devices are
             silent), 130 if interrupted; null while it runs
line         why it failed, in one line; while it runs, what was noted last
pid, host    of the process that runs it, and since when it is there: a pid alone may be another's
flower-run   Flower's id of the run, if it is one of `flwr run`
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import socket
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout

from corsage.core.clock import born
from corsage.core.configuration.command_line import each_of
from corsage.core.errors import UNUSABLE, CheckpointError, ConfigError, CorsageError, StorageError
from corsage.core.files import guarded, parsed, write_atomically

FILE = "status.json"
STUDY = "study.json"
"""The file that a study's folder has, above those of its runs."""
RUNNING, FINISHED, FAILED = "running", "finished", "failed"


@dataclass(frozen=True)
class Status:
    """What a status file says."""

    state: str
    exit_code: int | None = None
    line: str = ""
    flower_run: str = ""
    pid: int = 0
    host: str = ""
    since: str = ""

    def write(self, folder: Path) -> None:
        """Into a run folder; whoever reads it sees the old one or this."""
        content = {name.replace("_", "-"): value for name, value in self.__dict__.items()}
        guarded(write_atomically, folder / FILE, json.dumps(content, indent=2) + "\n")

    @property
    def gone(self) -> bool:
        """True if it says that it runs, and its process, once on this machine, is not there."""
        here = self.state == RUNNING and self.host == socket.gethostname()
        return here and born(self.pid) != self.since


@contextlib.contextmanager
def watched(folder: Path, flower_run: str = "") -> Iterator[None]:
    """While a run goes on, its folder says so; then how it ended."""
    running(flower_run).write(folder)
    try:
        yield
    except BaseException as error:
        with contextlib.suppress(CorsageError):  # a full disk is no better reason
            ended(error, flower_run).write(folder)
        raise
    ended(None, flower_run).write(folder)


def note(folder: Path, text: str) -> None:
    """Say in the file of a run of this process, if it has one, what was noted last."""
    with contextlib.suppress(CheckpointError):
        if (status := read_status(folder)).pid == os.getpid():
            replace(status, line=text).write(folder)


def running(flower_run: str = "") -> Status:
    """That of a run of this process."""
    pid = os.getpid()
    return Status(
        RUNNING, flower_run=flower_run, pid=pid, host=socket.gethostname(), since=born(pid)
    )


def ended(error: BaseException | None, flower_run: str = "") -> Status:
    """That of a run that has ended, well or with an error."""
    if error is None:
        return Status(FINISHED, 0, flower_run=flower_run)
    return Status(FAILED, exit_code(error), one_line(error), flower_run)


def exit_code(error: BaseException) -> int:
    """The code that a process leaves with after an error."""
    if isinstance(error, (KeyboardInterrupt, SystemExit)):
        return 130
    return 2 if isinstance(error, UNUSABLE) else getattr(error, "code", 1)


def one_line(error: BaseException) -> str:
    """An error as a line: what Corsage itself says, or the name of what nobody expected."""
    text = " ".join(str(error).split())
    if isinstance(error, CorsageError):
        return text
    return f"{type(error).__name__}: {text}" if text else type(error).__name__


def read_status(folder: Path) -> Status:
    """The status in a run folder."""
    try:
        content: dict[str, Any] = parsed((folder / FILE).read_text(encoding="utf-8"))
        return Status(**{name.replace("-", "_"): value for name, value in content.items()})
    except (OSError, ValueError, TypeError, AttributeError) as error:
        raise CheckpointError(f"{folder}: has no readable {FILE}: no run was begun there.") from (
            error
        )


def is_running(folder: Path) -> bool:
    """True if a process is at work on a run."""
    with contextlib.suppress(CheckpointError):
        status = read_status(folder)
        return status.state == RUNNING and not status.gone
    return False


def is_study(folder: Path) -> bool:
    """True if a folder is a study's."""
    return (folder / STUDY).is_file()


def is_study_of(values: Mapping[str, Any]) -> bool:
    """True if these keys are a study's: several values of one, or an earlier study."""
    resume = str(values.get("resume", ""))
    several = any(len(each) > 1 for each in each_of(values).values())
    return several or bool(resume and is_study(Path(resume).expanduser()))


def group_of(folder: Path) -> str:
    """The name of the study that a run is of; its own name if it is of none."""
    study = folder.resolve().parent.parent
    return study.name if is_study(study) else folder.name


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

    @property
    def held(self) -> bool:
        """True if another process has it."""
        if free := bool(guarded(self._taken)):
            self._lock.release()
        return not free

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
        """The process that has it, as far as it says so."""
        try:
            found = json.loads(self._holder.read_text(encoding="utf-8"))
            return f"process {int(found['pid'])} on {found['host']}"
        except (OSError, ValueError, TypeError, KeyError):
            return "another process"


def new_folder(parent: Path, what: str) -> Path:
    """A folder that nobody else has, named by the time and by what is run in it."""
    stem = f"{time.strftime('%Y-%m-%d_%H-%M-%S')}_{what[:80]}"
    for number in range(1, 1000):
        folder = parent / (stem if number == 1 else f"{stem}_{number}")
        try:
            guarded(folder.mkdir, parents=True)
        except FileExistsError:
            if not folder.exists():  # a file stands where a folder should
                raise ConfigError(f"run-dir={parent}: is no folder; choose another.") from None
            continue
        except StorageError as error:
            if is_full(error):
                raise
            why = getattr(error.__cause__, "strerror", "")
            raise ConfigError(f"run-dir={parent}: cannot be written ({why}).") from error
        return folder
    raise CorsageError(f"{parent}: no free name for a folder.")


def is_full(error: StorageError) -> bool:
    """True if it is for want of room: then the same key may do another time."""
    return getattr(error.__cause__, "errno", 0) in (errno.ENOSPC, errno.EDQUOT)
