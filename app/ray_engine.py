"""Ray on this machine alone: nobody else can reach it, and nothing of it outlives the run.

As Flower starts it, Ray listens on all interfaces and asks nobody who he is: whoever reaches one of
its ports runs code here. With `ray-address` there is a cluster, which has its own rules.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import subprocess
import sys
from collections.abc import Iterator
from logging import WARNING
from pathlib import Path

from flwr.supercore import log

from corsage.app import reaper

LOOPBACK = "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER"
"""With 0, Ray's processes take the loopback for the address of this machine, on any system."""


def shut() -> None:
    """Before Ray is imported: the loopback only, and a secret that its processes share.

    Ray reads both when it is imported, so whoever has imported it already is told.
    """
    if "ray" in sys.modules and LOOPBACK not in os.environ:
        log(
            WARNING,
            "Ray was imported before this run: it listens on all interfaces and asks for no token. "
            "Import it later, or set %s=0 and RAY_AUTH_MODE=token.",
            LOOPBACK,
        )
        return
    os.environ[LOOPBACK] = "0"
    if "RAY_AUTH_MODE" not in os.environ:
        os.environ["RAY_AUTH_MODE"] = "token"
        os.environ["RAY_AUTH_TOKEN"] = secrets.token_hex(32)


@contextlib.contextmanager
def reaped() -> Iterator[None]:
    """Nothing that is started in the block outlives this process, even if it is killed.

    It takes the list of processes that Linux keeps; on other systems, Ray's agents end when they
    notice.
    """
    if not Path("/proc/self/stat").exists():
        yield
        return
    command = [sys.executable, reaper.__file__, str(os.getpid())]
    pipe = subprocess.PIPE
    with subprocess.Popen(command, stdin=pipe, stdout=pipe, start_new_session=True) as process:
        if process.stdout:
            process.stdout.read(1)
        try:
            yield
        finally:
            process.communicate(b".")
