"""A client app's way to its SuperNode's worker. It loads as little as it can.

Whatever is wrong with the worker costs no message: the client app does the work itself then.
"""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing, contextmanager
from logging import DEBUG, WARNING
from multiprocessing.connection import Connection

from flwr.app import Context, Message
from flwr.supercore import log

from corsage.app.nodes.deployed import RESIDENT, worker_seconds
from corsage.app.nodes.resident.lair import Lair, Owner, code, private_place
from corsage.app.nodes.resident.talk import (
    CLIENT,
    SILENCE,
    WORKER,
    line_of,
    meet,
    put_question,
    take_reply,
)
from corsage.core.errors import ConfigError
from corsage.core.messages.limits import limits_of

GRACE = 15.0
"""Seconds by which a worker may be later than the device's limit, before it is given up."""
TROUBLE = (OSError, EOFError, ValueError, TypeError, LookupError, ImportError)
"""What can be wrong with a worker, or with the way to it."""


class Late(Exception):
    """The worker takes longer than the device allows."""


class Busy(Exception):
    """The worker is at another message: runs may overlap."""


def ask(
    kind: str, message: Message, context: Context, guard: str = "", owner: Owner | None = None
) -> Message | None:
    """The reply of the worker of this SuperNode, or None if there is none to be had.

    The owner is the process with which a worker ends: what has started this one for its message.
    """
    owner = owner or Owner.of(os.getppid())
    try:
        seconds = worker_seconds(context.node_config)
        limit = limits_of(context.node_config).max_seconds + GRACE
    except ConfigError:
        return None  # who does the work says so
    if not seconds or owner is None or not hasattr(socket, "AF_UNIX"):
        return None
    try:
        lair = Lair(private_place(), owner, code())
        with turn(lair), closing(reach(lair, seconds, limit)) as line:
            put_question(line, {"kind": kind, "guard": guard}, message, context)
            if not line.poll(limit):
                raise Late
            return take_reply(line, message, context)
    except Late:
        from corsage.app.nodes.answers import too_long

        return too_long(kind, message, context)
    except Busy:
        log(DEBUG, "the device's worker is at another message: done without it")
        return None
    except TROUBLE as error:
        log(WARNING, "the device's worker is of no use (%s): done without it", error or "it ended")
        return None


@contextmanager
def turn(lair: Lair) -> Iterator[None]:
    """The worker, for one message; Busy if it has another one.

    The kernel keeps the lock for the process: of one that is killed nothing is left.
    """
    from fcntl import LOCK_EX, LOCK_NB, flock

    with os.fdopen(os.open(lair.turn, os.O_WRONLY | os.O_CREAT, 0o600), "wb") as file:
        try:
            flock(file, LOCK_EX | LOCK_NB)
        except BlockingIOError as error:
            raise Busy from error
        yield


def reach(lair: Lair, seconds: float, silence: float) -> Connection:
    """A line to the worker: to the one that is there and answers at once, else to a new one.

    Nobody else speaks to it now, so one that does not answer hangs.
    """
    if (secret := lair.secret()) is not None:
        try:
            return call(lair, secret, min(SILENCE, silence))
        except (OSError, EOFError) as error:
            log(DEBUG, "another worker is started: %s", error)
    return call(lair, start(lair, seconds), silence)


def call(lair: Lair, secret: bytes, silence: float) -> Connection:
    """A line to who listens, once both have shown that they know the secret.

    Who does not answer for so many seconds hangs.
    """
    way = socket.socket(socket.AF_UNIX)
    try:
        way.connect(str(lair.socket))
    except OSError:
        way.close()
        raise
    line = line_of(way, silence)
    try:
        meet(line, secret, CLIENT, WORKER)
    except (OSError, EOFError):
        line.close()
        raise
    return line


def start(lair: Lair, seconds: float) -> bytes:
    """Start a worker, which listens from now on; returns its secret.

    It stays in the SuperNode's process group, so that what ends that ends it, too.
    """
    lair.sweep()
    secret = lair.new_secret()
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(lair.socket))
        lair.socket.chmod(0o600)
        listener.listen()
        words = {
            "handle": listener.fileno(),
            "path": str(lair.socket),
            "place": lair.socket.stat().st_ino,
            "owner": [lair.owner.pid, lair.owner.birth],
            "secret": secret.hex(),
            "seconds": seconds,
        }
        worker = subprocess.Popen(
            [sys.executable, "-P", "-m", RESIDENT],
            env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
            stdin=subprocess.PIPE,
            pass_fds=[listener.fileno()],
        )
        assert worker.stdin is not None
        with worker.stdin as way:
            way.write(json.dumps(words).encode())
    return secret
