"""A message's way through a resident worker, within one process: so the worker can be watched."""

from __future__ import annotations

import os
import socket
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from multiprocessing.connection import Connection
from pathlib import Path

from flwr.app import Context, Message

from corsage.app.nodes.resident.door import TROUBLE
from corsage.app.nodes.resident.lair import Owner
from corsage.app.nodes.resident.talk import CLIENT, WORKER, meet, put_question, take_reply
from corsage.app.nodes.resident.worker import Worker

SECRET = b"of the worker and its client apps"


def worker() -> Worker:
    """A worker that nobody but `relayed` reaches."""
    return Worker(socket.socket(), Path("nowhere"), 0, Owner(os.getpid(), ""), SECRET, 60.0)


def relayed(at: Worker, message: Message, context: Context) -> Message | None:
    """The reply: the worker's turn is in this thread, the client app's in another.

    None for what no client app could pass on: it does the work itself then.
    """
    ours, theirs = (Connection(end.detach()) for end in socket.socketpair())
    with ThreadPoolExecutor(1) as pool:
        reply = pool.submit(as_client, ours, message, context)
        with theirs, suppress(*TROUBLE):
            at.answer(theirs)
    try:
        return reply.result()
    except TROUBLE:
        return None


def as_client(line: Connection, message: Message, context: Context) -> Message:
    """What a client app does once it has reached the worker."""
    with line:
        meet(line, SECRET, CLIENT, WORKER)
        words = {"kind": message.metadata.message_type, "guard": ""}
        put_question(line, words, message, context)
        return take_reply(line, message, context)
