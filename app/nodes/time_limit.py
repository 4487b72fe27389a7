"""Work that ends when its time is up, in whatever thread it is done."""

from __future__ import annotations

import ctypes
from collections.abc import Iterator
from contextlib import contextmanager
from threading import Lock, Timer, get_ident


class TimeUp(BaseException):
    """The time that a device gives to one message is over.

    No `Exception`: what catches those, to go on with the next user, must not catch this.
    """


@contextmanager
def time_limit(seconds: float) -> Iterator[None]:
    """Raise TimeUp in this thread, between two of its instructions, once the time is over."""
    thread, lock = get_ident(), Lock()
    working = True

    def ring() -> None:
        with lock:
            if working:
                raise_in(thread, TimeUp)

    timer = Timer(seconds, ring)
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()
        with lock:
            working = False


def raise_in(thread: int, kind: type[BaseException]) -> None:
    """Have Python raise an exception in another thread."""
    ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(thread), ctypes.py_object(kind))
