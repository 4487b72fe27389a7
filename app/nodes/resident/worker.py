"""The worker: one message after the other, each as if a process of its own had come for it.

It ends with its SuperNode, when it had no work for long, when another worker has taken its place,
and in the middle of a message when nobody waits for the reply any more. It may be killed at any
moment: what it writes down is whole or not there.
"""

from __future__ import annotations

import os
import socket
import time
from contextlib import suppress
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from pathlib import Path
from threading import Lock, Thread

from corsage.app.nodes.answers import Answers
from corsage.app.nodes.resident.lair import WORKER_FILES, Owner
from corsage.app.nodes.resident.talk import CLIENT, WORKER, line_of, meet, put_reply, take_question

TICK = 0.5
"""Seconds between two looks at whether it is still wanted."""


@dataclass
class Worker:
    """A worker of one SuperNode.

    Parameters
    ----------
    listener : where client apps come in.
    path, place : the name of that socket, and which file has it: another worker's is another.
    owner : the process with which it ends.
    secret : what those who come in must know.
    seconds : how long it stays without work.
    """

    listener: socket.socket
    path: Path
    place: int
    owner: Owner
    secret: bytes
    seconds: float
    answers: dict[str, Answers] = field(default_factory=dict)
    _line: Connection | None = None  # of who waits for a reply
    _lock: Lock = field(default_factory=Lock)

    def serve(self) -> None:
        """Answer until nobody came for long."""
        Thread(target=self.watch, daemon=True).start()
        self.listener.settimeout(self.seconds)
        while True:
            try:
                caller, _ = self.listener.accept()
            except TimeoutError:
                return self.leave()
            with line_of(caller) as line, suppress(OSError, EOFError, ValueError):
                self.answer(line)

    def answer(self, line: Connection) -> None:
        """One message's reply."""
        meet(line, self.secret, WORKER, CLIENT)
        words, message, context = take_question(line)
        guard = str(words["guard"])
        own = self.answers.setdefault(guard, Answers(guard=guard))
        self.waits(line)
        try:
            reply = own.answer(str(words["kind"]), message, context)
        finally:
            self.waits(None)
        put_reply(line, reply, context)

    def waits(self, line: Connection | None) -> None:
        """Note whose reply is being worked on."""
        with self._lock:
            self._line = line

    def watch(self) -> None:
        """End the process as soon as it is not wanted, or that cannot be told any more."""
        try:
            while not (self.owner.gone or self.forsaken()):
                time.sleep(TICK)
        finally:
            self.leave()
            os._exit(0)

    def forsaken(self) -> bool:
        """True if who waited has left, or without work another worker is in this one's place."""
        with self._lock:
            if self._line is not None:
                return self._line.poll(0)  # nothing is said but by leaving
            return self.replaced()

    def replaced(self) -> bool:
        """True if the socket's name is no longer this one's."""
        try:
            return self.path.stat().st_ino != self.place
        except OSError:
            return True

    def leave(self) -> None:
        """Remove the socket, if it is still its own, and what is beside it."""
        if not self.replaced():
            for ending in WORKER_FILES:
                with suppress(OSError):
                    self.path.with_suffix(ending).unlink()
