"""Messages between a client app and a worker: bytes, as Flower serialises them.

Nothing is unpickled. Before the first word each shows that it knows the secret, and runs the same
code.
"""

from __future__ import annotations

import hmac
import json
import secrets
import socket
import struct
from hashlib import blake2b
from multiprocessing.connection import Connection
from typing import Any

from flwr.app import Context, Error, Message, RecordDict
from flwr.common.serde import (
    context_from_proto,
    context_to_proto,
    message_from_proto,
    message_to_proto,
    recorddict_from_proto,
    recorddict_to_proto,
)
from flwr.proto.message_pb2 import Context as ProtoContext
from flwr.proto.message_pb2 import Message as ProtoMessage
from flwr.proto.recorddict_pb2 import RecordDict as ProtoRecordDict

NONCE = 32
WORKER, CLIENT = b"worker", b"client"
SILENCE = 15.0
"""Seconds after which a caller that says nothing, though it is its turn, is not waited for."""


class Stranger(OSError):
    """Who does not know the secret, or runs other code."""


def line_of(way: socket.socket, silence: float = SILENCE) -> Connection:
    """A line over a socket; who neither speaks nor listens for so many seconds ends it."""
    way.setblocking(True)
    parts = struct.pack("@ll", *divmod(int(1e6 * silence), 1_000_000))
    for what in (socket.SO_RCVTIMEO, socket.SO_SNDTIMEO):
        way.setsockopt(socket.SOL_SOCKET, what, parts)
    return Connection(way.detach())


def meet(line: Connection, secret: bytes, me: bytes, other: bytes) -> None:
    """Prove that one knows the secret, and have the other prove it; Stranger if it does not."""
    mine = secrets.token_bytes(NONCE)
    line.send_bytes(mine)
    theirs = line.recv_bytes(NONCE)
    line.send_bytes(proof(secret, me, mine, theirs))
    if not hmac.compare_digest(line.recv_bytes(NONCE), proof(secret, other, theirs, mine)):
        raise Stranger("who answers does not know the secret")


def proof(secret: bytes, who: bytes, own: bytes, others: bytes) -> bytes:
    """A proof that only they can give who know the secret, and only once."""
    return blake2b(who + own + others, key=secret, digest_size=NONCE).digest()


def put_question(
    line: Connection, words: dict[str, Any], message: Message, context: Context
) -> None:
    """A message and the context that Flower gave with it."""
    line.send_bytes(json.dumps(words).encode())
    line.send_bytes(message_to_proto(message).SerializeToString())
    line.send_bytes(context_to_proto(context).SerializeToString())


def take_question(line: Connection) -> tuple[dict[str, Any], Message, Context]:
    """The inverse of `put_question`."""
    words: dict[str, Any] = json.loads(line.recv_bytes())
    message = message_from_proto(ProtoMessage.FromString(line.recv_bytes()))
    return words, message, context_from_proto(ProtoContext.FromString(line.recv_bytes()))


def put_reply(line: Connection, reply: Message, context: Context) -> None:
    """A reply, and what the node remembers of it in Flower's context."""
    error = [reply.error.code, reply.error.reason] if reply.has_error() else None
    line.send_bytes(json.dumps({"error": error}).encode())
    content = RecordDict() if error else reply.content
    line.send_bytes(recorddict_to_proto(content).SerializeToString())
    line.send_bytes(recorddict_to_proto(context.state).SerializeToString())


def take_reply(line: Connection, message: Message, context: Context) -> Message:
    """The inverse of `put_reply`: nothing of it counts before all of it is there."""
    error = json.loads(line.recv_bytes())["error"]
    content, state = (
        recorddict_from_proto(ProtoRecordDict.FromString(line.recv_bytes())) for _ in range(2)
    )
    context.state = state
    if error is not None:
        return Message(Error(*error), reply_to=message)
    return Message(content, reply_to=message)
