"""The calls of devices, as the gate passes them on to the SuperLink.

A call is known by its headers alone to be one that a device makes, and by whom. Then its body is
read: in time, within what this device and all of them may be sending.
"""

from __future__ import annotations

import asyncio
import re
import ssl
import time
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from corsage.app.deployment.callers import Callers, Unknown, is_own, node_of
from corsage.app.deployment.crowd import HEADERS
from corsage.app.deployment.holding import Holding

if TYPE_CHECKING:
    import httpx
    from starlette.applications import Starlette
    from starlette.datastructures import Headers
    from starlette.requests import Request
    from starlette.responses import Response

    from corsage.app.deployment.crowd import Crowd

CALLS = {
    "activate-node",
    "deactivate-node",
    "send-node-heartbeat",
    "pull-messages",
    "push-messages",
    "get-run",
    "get-fab",
    "push-object",
    "pull-object",
    "confirm-message-received",
}
"""What a device needs. Not `register-node`: who is known is decided at the server."""
HEARD = {b"content-type", b"content-length", b"accept", b"accept-encoding", b"user-agent"}
"""Headers of a device's call that are passed on, with those that begin with `flwr-`."""
HOP = {
    *("connection", "keep-alive", "transfer-encoding", "te", "trailer", "upgrade", "date"),
    "server",
}
"""Headers of an answer that belong to one connection."""
NAMES = 1 << 20
"""How many bytes a call may have that names what is sent; what is sent comes in others."""
FLEET = "/v1/fleet/"
PUSH, PULL = FLEET + "push-messages", FLEET + "pull-messages"
ANSWER_SECONDS = 120.0
"""Seconds that the SuperLink may take for an answer."""
BODY_SECONDS, SLOWEST = 10.0, 1 << 13
"""Seconds that a body may take, and as many more as it has this many bytes."""
TOGETHER = 8
"""How many times what one device may send all of them may."""


class Cut(Exception):
    """A call that is not what a device's can be: the answer, and its code."""


@dataclass
class Bodies:
    """The bytes that are being sent: no more than may be held, here or by the SuperLink.

    Parameters
    ----------
    most : how many bytes a device may be sending.
    """

    most: int
    sending: Counter[str] = field(default_factory=Counter)

    @contextmanager
    def room(self, device: str, length: int) -> Iterator[None]:
        """Room for a body; one that is to come later where there is none."""
        if self.sending[device] + length > self.most:
            raise Cut("later: this device is sending enough", 503)
        if self.sending.total() + length > TOGETHER * self.most:
            raise Cut("later: others are sending", 503)
        self.sending[device] += length
        try:
            yield
        finally:
            self.sending[device] -= length
            self.sending += Counter()  # who sends nothing is in no list


@dataclass
class Gate:
    """The way of a call to the SuperLink.

    Parameters
    ----------
    client : of the SuperLink.
    most : how many bytes a call may have: Flower cuts arrays into pieces of 20 MB.
    callers : who is let in.
    crowd : who is connected.
    """

    client: httpx.AsyncClient
    most: int
    callers: Callers
    crowd: Crowd | None
    holding: Holding = field(default_factory=Holding)

    def __post_init__(self) -> None:
        self.bodies = Bodies(self.most)

    async def answer(self, request: Request) -> Response:
        """The SuperLink's answer to a device's call; for anything else there is nothing here."""
        import httpx
        from starlette.requests import ClientDisconnect
        from starlette.responses import PlainTextResponse

        try:
            device = self.admitted(request)
            length = int(request.headers.get("content-length", 0))
            with self.bodies.room(device, length):
                return await self.passed(request)
        except Cut as why:
            text, code = why.args
        except ClientDisconnect:
            text, code = "broken off", 413
        except httpx.TransportError:
            text, code = "the SuperLink does not answer", 502
        return PlainTextResponse(text, code, {"connection": "close"})

    def admitted(self, request: Request) -> str:
        """The device whose call it is, by its headers alone."""
        path = request.scope["path"]  # as it came: `request.url` drops what cannot be in one
        if not is_call(request.method, path, request.scope["query_string"]):
            raise Cut("not found", 404)
        if not is_short(request.headers, self.most):
            raise Cut("too long", 413)
        try:
            device = self.callers.name_of(request.headers)
        except Unknown:
            raise Cut("no key that is let in has signed this call now", 401) from None
        if self.crowd is not None:
            self.crowd.known(request.client, device)
        return device

    async def passed(self, request: Request) -> Response:
        """The SuperLink's answer to a call."""
        from starlette.responses import StreamingResponse

        path, most = request.scope["path"], self.most
        headers = [(name, value) for name, value in request.headers.raw if passes(name)]
        content: Any = cut(request, most)
        if path in (PUSH, PULL):
            content = b"".join([part async for part in cut(request, min(most, NAMES))])
        if path == PUSH and not is_own(content):
            raise Cut("a reply in another's name", 403)
        if path == PULL and self.holding.is_busy(node_of(content)):
            return await self.held(request, headers, content)
        call = self.client.build_request("POST", path, headers=headers, content=content)
        answer = await self.client.send(call, stream=True)
        if path == PUSH and answer.status_code == 200:
            self.holding.replied(node_of(content))
        return StreamingResponse(body(answer), answer.status_code, headers_of(answer))

    async def held(
        self, request: Request, headers: list[tuple[bytes, bytes]], content: bytes
    ) -> Response:
        """The answer to a call for work, once there is some."""
        from starlette.responses import Response

        own = [(name, value) for name, value in headers if name != b"accept-encoding"]
        own.append((b"accept-encoding", b"identity"))
        ask = partial(self.client.post, PULL, headers=own, content=content)
        answer = await self.holding.answer(ask, request.is_disconnected)
        return Response(answer.content, answer.status_code, headers_of(answer))


def gate(
    superlink: str, folder: Path, most: int, crowd: Crowd | None = None, via: Any = None
) -> Starlette:
    """The application that devices reach.

    Parameters
    ----------
    superlink : where the SuperLink is, host:port.
    folder : of the server: the certificate by which the SuperLink is known, the devices' keys.
    most : how many bytes a call may have.
    crowd : who is connected.
    via : in place of the network, for tests.
    """
    import httpx
    from starlette.applications import Starlette
    from starlette.routing import Route

    trust = ssl.create_default_context(cafile=str(folder / "ca.crt"))
    client = httpx.AsyncClient(
        base_url=f"https://{superlink}",
        verify=trust,
        timeout=ANSWER_SECONDS,
        limits=httpx.Limits(max_connections=None),
        trust_env=False,
        transport=via,
    )
    made = Gate(client, most, Callers(folder), crowd)
    methods = ["GET", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"]
    app = Starlette(routes=[Route("/{path:path}", made.answer, methods=methods)])
    app.state.gate = made
    return app


def is_call(method: str, path: str, query: bytes) -> bool:
    """True if a request is a call that a device makes."""
    return method == "POST" and not query and path in {FLEET + name for name in CALLS}


def headers_of(answer: httpx.Response) -> dict[str, str]:
    """The headers of an answer that are a device's business."""
    return {name: value for name, value in answer.headers.items() if name.lower() not in HOP}


def is_short(headers: Headers, most: int) -> bool:
    """True if a call's headers are few, and tell a length that it may have.

    A SuperNode says it; of a body in chunks each byte could cost as much as a thousand.
    """
    said = headers.get("content-length", "0")
    chunked = "transfer-encoding" in headers
    length = bool(re.fullmatch("[0-9]{1,18}", said)) and int(said) <= most
    return length and not chunked and len(headers.raw) <= HEADERS


def passes(name: bytes) -> bool:
    """True if a header of a call is the SuperLink's business."""
    return name in HEARD or name.startswith(b"flwr-")


async def cut(request: Request, most: int) -> AsyncIterator[bytes]:
    """A device's body, as it comes, as long as it is neither too long nor too slow."""
    parts, seen, waited = aiter(request.stream()), 0, 0.0
    while True:
        began = time.monotonic()
        try:
            async with asyncio.timeout(BODY_SECONDS + seen / SLOWEST - waited):
                part = await anext(parts, None)
        except TimeoutError:
            raise Cut("too slow", 408) from None
        if part is None:
            return
        waited += time.monotonic() - began
        seen += len(part)
        if seen > most:
            raise Cut("too long", 413)
        yield part


async def body(answer: httpx.Response) -> AsyncIterator[bytes]:
    """The SuperLink's body, as it comes."""
    try:
        async for part in answer.aiter_raw():
            yield part
    finally:
        await answer.aclose()
